"""Give each call of a graph to the first backend that takes it, and cut the graph there.

Calls are kept in graph order and a segment is a run of neighbours with the same backend, so
segments cannot form a cycle and placing is linear in the size of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from dovetail.backend import Backend
from dovetail.capture.from_fx import GraphReader, body, needed_symbols, outputs_of
from dovetail.ir import Arg, Input, OpCall, Ref, ScalarDesc, Segment, Size, Table, TensorDesc
from dovetail.ir.call import leaves

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
    reader = GraphReader(gm)
    calls = [call for node in body(gm) if (call := reader.read(node)) is not None]
    outputs = reader.arg(outputs_of(gm))
    chosen = [_choose(call, backends) for call in calls]
    runs = _runs(calls, [index for index, _ in chosen])
    cutter = _Cutter(reader.inputs, reader.constants, outputs)
    segments = cutter.cut([(run, tuple(backends[index:])) for index, run in runs])
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
        answer = backend.supports(call)
        if answer:
            return index, tuple(refusals)
        refusals.append((backend.name, answer.reason))
    return len(backends) - 1, tuple(refusals)


def _runs(calls: Sequence[OpCall], chosen: Sequence[int]) -> list[tuple[int, list[OpCall]]]:
    runs: list[tuple[int, list[OpCall]]] = []
    for call, index in zip(calls, chosen, strict=True):
        if not runs or runs[-1][0] != index:
            runs.append((index, []))
        runs[-1][1].append(call)
    return runs


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

    def cut(self, runs: Sequence[tuple[list[OpCall], tuple[Backend, ...]]]) -> list[PlacedSegment]:
        self.results = [{} for _ in runs]
        bodies = []
        for number, (calls, _) in enumerate(runs):
            for call in calls:
                self.maker |= dict.fromkeys((call.name, *(s for s, _ in call.binds)), number)
            bodies.append(self._body(number, calls))
        for out in leaves(tuple(self.outputs)):
            self._need(out)
        return [
            PlacedSegment(
                Segment(f"segment_{n}", tuple(i for _, i in inputs), calls, tuple(made.values())),
                backends,
                tuple(key for key, _ in inputs),
                tuple(made),
            )
            for n, ((inputs, calls), made, (_, backends)) in enumerate(
                zip(bodies, self.results, runs, strict=True)
            )
        ]

    def _body(
        self, number: int, calls: list[OpCall]
    ) -> tuple[list[tuple[Key, Input]], tuple[OpCall, ...]]:
        """The inputs of a segment, and its calls with those inputs' names."""
        inputs: dict[Key, Input] = {}
        for call in calls:
            for ref in call.refs():
                if self.maker.get(ref.name) != number and (ref.name, ref.path) not in inputs:
                    inputs[ref.name, ref.path] = self._input(ref)
                    self._need(ref)
        rename = {key: given.ref for key, given in inputs.items() if key[1]}
        for symbol in sorted(needed_symbols(calls, ())):
            size = Size.symbol(symbol)
            inputs[symbol, ()] = Input(symbol, ScalarDesc("int", size), "size")
            self._need(size)
        renamed = (_renamed(call, rename) for call in calls) if rename else calls
        return list(inputs.items()), tuple(renamed)

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
