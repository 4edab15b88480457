"""Give each call of a graph to the first backend that takes it, and cut the graph there.

Segments are formed in ``stages.py``; here each is given its inputs and outputs. All of it is linear
in the size of the graph.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from dovetail.backend import Backend, Support
from dovetail.capture.from_fx import GraphReader, body, outputs_of
from dovetail.errors import BackendContract
from dovetail.ir import Arg, Input, OpCall, Ref, ScalarDesc, Segment, Size, Table, TensorDesc
from dovetail.ir.call import leaves
from dovetail.place.stages import Uses, group, uses_of

# A value that crosses a segment's border: a call's or input's name, and a path into its result.
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where one call runs, and who refused it."""

    call: str
    op: str
    backend: str
    refusals: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment, the backends that may run it (best first), and its place in the data flow."""

    segment: Segment
    backends: tuple[Backend, ...]
    sources: tuple[Key, ...]  # one per input of the segment
    results: tuple[Key, ...]  # one per output of the segment


@dataclass(frozen=True, slots=True)
class Placement:
    """A graph cut into segments."""

    inputs: tuple[Input, ...]
    constants: dict[str, Any]
    symbols: dict[str, tuple[int, int | None]]  # symbol → input position, dimension (None: itself)
    segments: tuple[PlacedSegment, ...]
    outputs: tuple[Arg, ...]
    verdicts: tuple[Verdict, ...]


def place(gm: fx.GraphModule, backends: Sequence[Backend]) -> Placement:
    """Cut a functional graph into segments, each for the best backend that takes its calls.

    The last backend must take everything.
    """
    with without_collection():
        return _place(gm, backends)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Without the cycle collector, which would walk all that is built here again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _place(gm: fx.GraphModule, backends: Sequence[Backend]) -> Placement:
    reader = GraphReader(gm)
    calls = [call for node in body(gm) if (call := reader.read(node)) is not None]
    outputs = reader.arg(outputs_of(gm))
    chosen = [_choose(call, backends) for call in calls]
    uses = [uses_of(call) for call in calls]
    groups = group(calls, uses, [index for index, _ in chosen])
    cutter = _Cutter(reader.inputs, reader.constants, outputs)
    segments = cutter.cut(calls, uses, groups, backends)
    verdicts = [
        Verdict(call.name, call.op, backends[index].name, refusals)
        for call, (index, refusals) in zip(calls, chosen, strict=True)
    ]
    return Placement(
        inputs=tuple(reader.inputs),
        constants=dict(reader.constants),
        symbols=cutter.symbols,
        segments=tuple(segments),
        outputs=tuple(outputs),
        verdicts=tuple(verdicts),
    )


def _choose(call: OpCall, backends: Sequence[Backend]) -> tuple[int, tuple[tuple[str, str], ...]]:
    refusals: list[tuple[str, str]] = []
    for index, backend in enumerate(backends[:-1]):
        answer = _ask(backend, call)
        if answer:
            return index, tuple(refusals)
        refusals.append((backend.name, answer.reason))
    return len(backends) - 1, tuple(refusals)


def _ask(backend: Backend, call: OpCall) -> Support:
    try:
        answer = backend.supports(call)
    except Exception as error:  # a vendor's code may raise anything
        problem = f"raised {type(error).__name__}: {error}"
        raise BackendContract(backend.name, f"supports({call.op})", problem) from error
    if not isinstance(answer, Support):
        raise BackendContract(backend.name, f"supports({call.op})", f"returned {answer!r}")
    return answer


class _Cutter:
    """Works out what each segment takes in and what later ones need of it."""

    def __init__(
        self, inputs: Sequence[Input], constants: dict[str, Any], outputs: Sequence[Arg]
    ) -> None:
        self.given = {i.name: i for i in inputs}
        self.constants = constants
        self.outputs = outputs
        self.symbols = _input_symbols(inputs)
        self.maker: dict[str, int] = {}  # a call's name, or a symbol it binds → its segment
        self.results: list[dict[Key, Arg]] = []

    def cut(
        self,
        calls: Sequence[OpCall],
        uses: Sequence[Uses],
        groups: Sequence[tuple[int, list[int]]],
        backends: Sequence[Backend],
    ) -> list[PlacedSegment]:
        self.results = [{} for _ in groups]
        for number, (_, members) in enumerate(groups):
            for position in members:
                call = calls[position]
                self.maker[call.name] = number
                for symbol, _ in call.binds:
                    self.maker[symbol] = number
        bodies = [self._body(n, calls, uses, members) for n, (_, members) in enumerate(groups)]
        for out in leaves(tuple(self.outputs)):
            self._need(out)
        return [
            PlacedSegment(
                Segment(f"segment_{n}", tuple(inputs.values()), body, tuple(made.values())),
                tuple(backends[index:]),
                tuple(inputs),
                tuple(made),
            )
            for n, ((inputs, body), made, (index, _)) in enumerate(
                zip(bodies, self.results, groups, strict=True)
            )
        ]

    def _body(
        self, number: int, calls: Sequence[OpCall], uses: Sequence[Uses], members: Sequence[int]
    ) -> tuple[dict[Key, Input], tuple[OpCall, ...]]:
        """The inputs of a segment, and its calls with those inputs' names."""
        inputs: dict[Key, Input] = {}
        symbols: set[str] = set()
        for position in members:
            for ref in uses[position].refs:
                if self.maker.get(ref.name) != number and (ref.name, ref.path) not in inputs:
                    inputs[ref.name, ref.path] = self._input(ref)
                    self._need(ref)
            symbols |= uses[position].symbols
        rename = {key: given.ref for key, given in inputs.items() if key[1]}
        for symbol in sorted(s for s in symbols if self.maker.get(s) != number):
            size = Size.symbol(symbol)
            inputs[symbol, ()] = Input(symbol, ScalarDesc("int", size), "size")
            self._need(size)
        body = [calls[position] for position in members]
        return inputs, tuple(_renamed(call, rename) if rename else call for call in body)

    def _need(self, value: Arg) -> None:
        """Have the segment that makes a value (or binds a symbol of it) hand it out."""
        if isinstance(value, Ref) and value.name in self.maker:
            self.results[self.maker[value.name]].setdefault((value.name, value.path), value)
        elif isinstance(value, Size):
            for symbol in value.symbols() & self.maker.keys():
                self.results[self.maker[symbol]].setdefault((symbol, ()), Size.symbol(symbol))

    def _input(self, ref: Ref) -> Input:
        if ref.name in self.given:
            return self.given[ref.name]
        name = "_".join([ref.name, *map(str, ref.path)])
        while ref.path and (name in self.maker or name in self.given):
            name += "_"  # some other value is called that already
        return Input(name, ref.desc, "constant" if ref.name in self.constants else "tensor")


def _input_symbols(inputs: Sequence[Input]) -> dict[str, tuple[int, int | None]]:
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


def _renamed(call: OpCall, names: dict[Key, Ref]) -> OpCall:
    args = tuple(_rename(arg, names) for arg in call.args)
    kwargs = {key: _rename(arg, names) for key, arg in call.kwargs.items()}
    return replace(call, args=args, kwargs=kwargs)


def _rename(arg: Arg, names: dict[Key, Ref]) -> Arg:
    if isinstance(arg, Ref):
        return names.get((arg.name, arg.path), arg)
    if isinstance(arg, Table):
        return Table(tuple((key, _rename(item, names)) for key, item in arg.items))
    return tuple(_rename(a, names) for a in arg) if isinstance(arg, tuple) else arg
