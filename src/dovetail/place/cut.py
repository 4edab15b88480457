"""Cut a graph into segments: what each takes in, and what later ones need of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.backend import Backend
from dovetail.ir import Arg, Input, OpCall, Ref, ScalarDesc, Segment, Size, Table, TensorDesc
from dovetail.ir.call import leaves
from dovetail.place.stages import Group
from dovetail.place.uses import Uses

# A value that crosses a segment's border: a call's or input's name, and a path into its result.
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment, the backends that may run it (best first), and its place in the data flow."""

    segment: Segment
    backends: tuple[Backend, ...]
    sources: tuple[Key, ...]  # one per input of the segment
    results: tuple[Key, ...]  # one per output of the segment


class Cutter:
    """Works out each segment's inputs and outputs, in one pass over the calls."""

    def __init__(
        self, inputs: Sequence[Input], constants: dict[str, Any], outputs: Sequence[Arg]
    ) -> None:
        self.given = {i.name: i for i in inputs}
        self.constants = constants
        self.outputs = outputs
        self.symbols = input_symbols(inputs)
        self.maker: dict[str, int] = {}  # a call's name, or a symbol it binds → its segment
        self.results: list[dict[Key, Arg]] = []

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
        return [
            PlacedSegment(
                Segment(f"segment_{n}", tuple(inputs.values()), body, tuple(made.values())),
                backends,
                tuple(inputs),
                tuple(made),
            )
            for n, ((inputs, body), made, backends) in enumerate(
                zip(bodies, self.results, runners, strict=True)
            )
        ]

    def _body(
        self, number: int, calls: Sequence[OpCall], uses: Sequence[Uses], members: Sequence[int]
    ) -> tuple[dict[Key, Input], tuple[OpCall, ...]]:
        """The inputs of a segment, and its calls with those inputs' names."""
        inputs: dict[Key, Input] = {}
        symbols: set[str] = set()
        maker = self.maker
        rename: dict[Key, Ref] = {}
        for position in members:
            use = uses[position]
            for ref in use.refs:
                source = maker.get(ref.name)
                key = (ref.name, ref.path)
                if source == number or key in inputs:
                    continue
                given = inputs[key] = self._input(ref)
                if ref.path:
                    rename[key] = given.ref
                if source is not None:
                    self.results[source].setdefault(key, ref)
            if use.symbols:
                symbols |= use.symbols
        for symbol in sorted(s for s in symbols if maker.get(s) != number) if symbols else ():
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
        kind = "constant" if ref.name in self.constants else "tensor"
        if not ref.path:
            return Input(ref.name, ref.desc, kind)
        name = "_".join([ref.name, *map(str, ref.path)])
        while name in self.maker or name in self.given:
            name += "_"  # some other value is called that already
        return Input(name, ref.desc, kind)


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
