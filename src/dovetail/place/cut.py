"""Cut a graph into segments: what each takes in, and what later ones need of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.backend import Backend
from dovetail.ir import Arg, Input, OpCall, Real, Ref, ScalarDesc, Segment, Size, Table, TensorDesc
from dovetail.ir.call import leaves
from dovetail.ir.segment import ValueKey
from dovetail.place.stages import Group
from dovetail.place.uses import Uses


@dataclass(slots=True, eq=False)
class PlacedSegment:
    """A segment, the backends that may run it (best first), and its place in the data flow."""

    segment: Segment
    backends: tuple[Backend, ...]
    sources: tuple[ValueKey, ...]  # one per input of the segment
    results: tuple[ValueKey, ...]  # one per output of the segment


class Cutter:
    """Works out each segment's inputs and outputs, in one pass over the calls."""

    def __init__(
        self,
        inputs: Sequence[Input],
        constants: dict[str, Any],
        outputs: Sequence[Arg],
        ranges: Mapping[str, tuple[int, int]],
    ) -> None:
        self.ranges = ranges
        self.given = {i.name: i for i in inputs}
        self.constants = constants
        self.outputs = outputs
        self.symbols = input_symbols(inputs)
        self.maker: dict[str, int] = {}  # a call's name, or a symbol it binds → its segment
        self.results: list[dict[ValueKey, Arg]] = []
        self.crossing: dict[ValueKey, Input] = {(i.name, ()): i for i in inputs}

    def cut(
        self,
        calls: Sequence[OpCall],
        uses: Sequence[Uses],
        groups: Sequence[Group],
        runners: Sequence[tuple[Backend, ...]],
    ) -> list[PlacedSegment]:
        """A segment for each group; ``runners`` are the backends that may run it."""
        self.results = [{} for _ in groups]
        maker = self.maker
        for number, (_, members) in enumerate(groups):
            for position in members:
                call = calls[position]
                maker[call.name] = number
                for symbol, _ in call.binds:
                    maker[symbol] = number
        bodies = [self._body(n, calls, uses, members) for n, (_, members) in enumerate(groups)]
        for out in leaves(tuple(self.outputs)):
            self._need(out)
        mark_shared([inputs for inputs, _ in bodies], [backends[0] for backends in runners])
        return [
            PlacedSegment(
                self._segment(f"segment_{n}", inputs, body, tuple(made.values())),
                backends,
                tuple(inputs),
                tuple(made),
            )
            for n, ((inputs, body), made, backends) in enumerate(
                zip(bodies, self.results, runners, strict=True)
            )
        ]

    def _segment(
        self,
        name: str,
        inputs: Mapping[ValueKey, Input],
        body: tuple[OpCall, ...],
        outputs: tuple[Arg, ...],
    ) -> Segment:
        """A segment, with what is known of the sizes that it is given."""
        symbols: set[str] = set()
        for given in inputs.values() if self.ranges else ():
            desc = given.desc
            symbols |= desc.symbols() if isinstance(desc, TensorDesc | ScalarDesc) else set()
        known = tuple((s, *self.ranges[s]) for s in sorted(symbols & self.ranges.keys()))
        return Segment(name, tuple(inputs.values()), body, outputs, ranges=known)

    def _body(
        self, number: int, calls: Sequence[OpCall], uses: Sequence[Uses], members: Sequence[int]
    ) -> tuple[dict[ValueKey, Input], tuple[OpCall, ...]]:
        """The inputs of a segment, and its calls with those inputs' names."""
        inputs: dict[ValueKey, Input] = {}
        maker, crossing, results = self.maker, self.crossing, self.results
        renames = symbolic = False
        for position in members:
            use = uses[position]
            symbolic = symbolic or bool(use.symbols)
            for ref in use.refs:
                name, path = ref.name, ref.path
                source = maker.get(name)
                if source == number:
                    continue
                key = (name, path)
                inputs[key] = crossing.get(key) or self._input(ref)
                renames = renames or bool(path)
                if source is not None:
                    results[source][key] = ref
        if symbolic:
            self._size_inputs(number, [uses[position] for position in members], inputs)
        body = [calls[position] for position in members]
        if renames:
            names = {key: given.ref for key, given in inputs.items() if key[1]}
            body = [_renamed(call, names) for call in body]
        return inputs, tuple(body)

    def _size_inputs(
        self, number: int, uses: Sequence[Uses], inputs: dict[ValueKey, Input]
    ) -> None:
        """Inputs for the symbols that a segment needs and does not bind."""
        symbols: set[str] = set()
        for use in uses:
            symbols |= use.symbols
        for symbol in sorted(s for s in symbols if self.maker.get(s) != number):
            size = Size.symbol(symbol)
            inputs[symbol, ()] = Input(symbol, ScalarDesc("int", size), "size")
            self._need(size)

    def _need(self, value: Arg) -> None:
        """Have the segment that makes a value (or binds a symbol of it) hand it out."""
        if isinstance(value, Ref) and value.name in self.maker:
            self.results[self.maker[value.name]].setdefault((value.name, value.path), value)
        elif isinstance(value, Size | Real):
            for symbol in value.symbols() & self.maker.keys():
                self.results[self.maker[symbol]].setdefault((symbol, ()), Size.symbol(symbol))

    def _input(self, ref: Ref) -> Input:
        """How a value from outside is taken in, by whichever segments need it."""
        name = ref.name
        kind = "constant" if name in self.constants else "tensor"
        if ref.path:
            name = "_".join([name, *map(str, ref.path)])
            while name in self.maker or name in self.given:
                name += "_"  # some other value is called that already
        made = self.crossing[ref.name, ref.path] = Input(name, ref.desc, kind)
        return made


def mark_shared(inputs: Sequence[dict[ValueKey, Input]], backends: Sequence[Backend]) -> None:
    """Mark what several segments of a backend with memory of its own take, so it is sent once."""
    takers: dict[tuple[str, ValueKey], list[dict[ValueKey, Input]]] = {}
    for taken, backend in zip(inputs, backends, strict=True):
        if backend.transfer is None:
            continue
        for key, given in taken.items():
            if given.kind == "tensor" and isinstance(given.desc, TensorDesc):
                takers.setdefault((backend.name, key), []).append(taken)
    for (_, key), several in takers.items():
        for taken in several if len(several) > 1 else ():
            taken[key] = replace(taken[key], kind="shared")


def input_symbols(inputs: Sequence[Input]) -> dict[str, tuple[int, int | None]]:
    """Where each symbol's value can be read: a size input, or a dimension of a tensor."""
    found: dict[str, tuple[int, int | None]] = {}
    for position, given in enumerate(inputs):
        desc = given.desc
        if isinstance(desc, TensorDesc):
            for dim, size in enumerate(desc.shape):
                if isinstance(size, Size) and size.is_symbol:
                    found.setdefault(size.args[0], (position, dim))
    for position, given in enumerate(inputs):
        desc = given.desc
        if isinstance(desc, ScalarDesc) and isinstance(desc.size, Size) and desc.size.is_symbol:
            found[desc.size.args[0]] = (position, None)
    return found


def _renamed(call: OpCall, names: dict[ValueKey, Ref]) -> OpCall:
    args = tuple(_rename(arg, names) for arg in call.args)
    kwargs = {key: _rename(arg, names) for key, arg in call.kwargs.items()}
    return replace(call, args=args, kwargs=kwargs)


def _rename(arg: Arg, names: dict[ValueKey, Ref]) -> Arg:
    if isinstance(arg, Ref):
        return names.get((arg.name, arg.path), arg)
    if isinstance(arg, Table):
        return Table(tuple((key, _rename(item, names)) for key, item in arg.items))
    return tuple(_rename(a, names) for a in arg) if isinstance(arg, tuple) else arg
