"""Calls of a placed graph that depend on frozen constants alone move to the part that runs once.

A backend adds such calls when it lays out a segment (``Backend.lay_out``): a weight is reformatted
or packed when the model is linked, again when it was written to, and a saved file holds the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from dovetail.ir import Arg, Input, OpCall, Ref, Segment
from dovetail.ir.call import leaves
from dovetail.ir.segment import ValueKey
from dovetail.place.cut import PlacedSegment
from dovetail.place.placement import Placement


@dataclass
class Preparation:
    """The part of a graph that runs once, and the other, while calls move from this to that."""

    once: Placement
    every: Placement
    added: list[PlacedSegment] = field(default_factory=list)
    made: list[tuple[Ref, Input]] = field(default_factory=list)  # what once gives, every takes

    def __post_init__(self) -> None:
        given = self.every.inputs[len(self.every.inputs) - len(self.once.outputs) :]
        self.made = list(zip(self.once.outputs, given, strict=True))
        self.names = set(_names(self.once)) | set(_names(self.every))

    def constants(self, placed: PlacedSegment) -> dict[str, Ref]:
        """The inputs of a segment that are made once, by name, and what makes each."""
        known = {(given.name, ()): out for out, given in self.made if isinstance(out, Ref)}
        inputs = zip(placed.segment.inputs, placed.sources, strict=True)
        return {given.name: known[key] for given, key in inputs if key in known}

    def move(self, placed: PlacedSegment, calls: Iterable[OpCall]) -> PlacedSegment:
        """A segment without those of its calls that depend on what is made once."""
        constants = self.constants(placed)
        moved: dict[str, OpCall] = {}
        for call in calls:
            names = {ref.name for ref in call.refs()}
            if names and names <= constants.keys() | moved.keys():
                moved[call.name] = call
        if not moved:
            return placed
        segment = placed.segment
        rest = tuple(call for call in segment.calls if call.name not in moved)
        needed = _used(rest, segment.outputs)
        inputs = list(zip(segment.inputs, placed.sources, strict=True))
        results: list[tuple[Ref, ValueKey]] = []
        for call in moved.values():
            if call.name in needed:
                unique = self._name(call.name)
                inputs.append((Input(call.name, call.output, "constant"), (unique, ())))
                results.append((Ref(call.name, call.output), (unique, ())))
                given = Input(unique, call.output, "constant")
                self.made.append((Ref(unique, call.output), given))
        self._add(placed, tuple(moved.values()), constants, results)
        kept = [(i, key) for i, key in inputs if i.name in needed or i.kind == "size"]
        body = replace(segment, inputs=tuple(i for i, _ in kept), calls=rest)
        return replace(placed, segment=body, sources=tuple(key for _, key in kept))

    def _add(
        self,
        placed: PlacedSegment,
        calls: tuple[OpCall, ...],
        constants: dict[str, Ref],
        results: Sequence[tuple[Ref, ValueKey]],
    ) -> None:
        """A segment of the part that runs once for calls that moved."""
        taken = _used(calls, ())
        inputs = tuple(i for i in placed.segment.inputs if i.name in taken)
        name = f"segment_{len(self.once.segments) + len(self.added)}"
        segment = Segment(name, inputs, calls, tuple(ref for ref, _ in results))
        sources = tuple((constants[i.name].name, constants[i.name].path) for i in inputs)
        keys = tuple(key for _, key in results)
        self.added.append(PlacedSegment(segment, placed.backends, sources, keys))

    def finish(self, segments: Sequence[PlacedSegment]) -> tuple[Placement, Placement]:
        """Both parts, with what still goes from one to the other."""
        used = {key for placed in segments for key in placed.sources}
        used |= {(r.name, r.path) for r in leaves(self.every.outputs) if isinstance(r, Ref)}
        used |= {(self.every.inputs[n].name, ()) for n, _ in self.every.symbols.values()}
        own = self.every.inputs[: len(self.every.inputs) - len(self.once.outputs)]
        kept = [(out, given) for out, given in self.made if (given.name, ()) in used]
        once = replace(
            self.once,
            segments=(*self.once.segments, *self.added),
            outputs=tuple(out for out, _ in kept),
        )
        inputs = (*own, *(given for _, given in kept))
        return once, replace(self.every, segments=tuple(segments), inputs=inputs)

    def _name(self, name: str) -> str:
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name


def _used(calls: Iterable[OpCall], outputs: Sequence[Arg]) -> set[str]:
    """The values that calls and outputs name."""
    used = {ref.name for call in calls for ref in call.refs()}
    return used | {leaf.name for leaf in leaves(tuple(outputs)) if isinstance(leaf, Ref)}


def _names(part: Placement) -> Iterable[str]:
    yield from (given.name for given in part.inputs)
    yield from part.constants
    yield from part.symbols
    for placed in part.segments:
        yield from (name for name, _ in (*placed.sources, *placed.results))
