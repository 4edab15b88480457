"""What must hold of a compiled graph before it is linked."""

from __future__ import annotations

from dovetail.compiled.graph import CompiledGraph, CompiledPart, CompiledSegment
from dovetail.errors import InvalidCompiledGraph
from dovetail.ir.call import Arg, Ref, leaves
from dovetail.ir.real import Real
from dovetail.ir.segment import ValueKey
from dovetail.ir.size import Size


def verify(graph: CompiledGraph) -> None:
    """Raise InvalidCompiledGraph unless every value is defined before it is used."""
    for title, part in graph.parts():
        try:
            _verify(part)
        except InvalidCompiledGraph as error:
            raise InvalidCompiledGraph(f"{title}: {error.problem}") from None
    if graph.once is None:
        if graph.frozen:
            raise InvalidCompiledGraph("frozen inputs, and no part that takes them")
        return
    if len(graph.once.inputs) != len(graph.frozen) and graph.once.captured is None:
        raise InvalidCompiledGraph("the part that runs once takes other inputs than the frozen")
    if list(graph.frozen) != sorted(set(graph.frozen)) or min(graph.frozen, default=0) < 0:
        raise InvalidCompiledGraph("frozen inputs that are not in order")
    both = graph.once.captured is None and graph.every.captured is None
    if both and len(graph.once.outputs) > len(graph.every.inputs):
        raise InvalidCompiledGraph("the part that runs once gives more than the other takes")


def _verify(part: CompiledPart) -> None:
    if part.captured is not None:
        return
    known: set[ValueKey] = {(given.name, ()) for given in part.inputs}
    known |= {(name, ()) for name in part.constants}
    if len(known) != len(part.inputs) + len(part.constants):
        raise InvalidCompiledGraph("two inputs or constants of one name")
    _verify_symbols(part)
    known |= {(symbol, ()) for symbol in part.symbols}
    for each in part.segments:
        _verify_segment(each, known)
        known |= set(each.results)
    for out in part.outputs:
        _verify_output(out, known)


def _verify_symbols(part: CompiledPart) -> None:
    for symbol, (position, dim) in part.symbols.items():
        if not 0 <= position < len(part.inputs):
            raise InvalidCompiledGraph(f"the symbol {symbol} is read from input {position}")
        rank = len(getattr(part.inputs[position].desc, "shape", ()))
        if dim is not None and not 0 <= dim < rank:
            raise InvalidCompiledGraph(f"the symbol {symbol} is read from dimension {dim}")


def _verify_segment(each: CompiledSegment, known: set[ValueKey]) -> None:
    if not each.backends:
        raise InvalidCompiledGraph(f"nobody runs {each.name}")
    for key in each.sources:
        if key not in known:
            raise InvalidCompiledGraph(f"{each.name} takes {key[0]} before it is there")
    made = set(each.results)
    if len(made) != len(each.results) or made & known:
        raise InvalidCompiledGraph(f"{each.name} gives a value that is there already")


def _verify_output(out: Arg, known: set[ValueKey]) -> None:
    for leaf in leaves(out):
        needed: list[ValueKey] = []
        if isinstance(leaf, Ref):
            needed = [(leaf.name, leaf.path)]
        elif isinstance(leaf, Size | Real):
            needed = [(name, ()) for name in leaf.symbols()]
        for key in needed:
            if key not in known:
                raise InvalidCompiledGraph(f"the output {key[0]} is never made")
