"""Calls of a placed graph that depend on constants alone leave what runs at every call.

A backend adds such calls when it lays out a segment (``Backend.lay_out``). Those on frozen
constants move to the part that runs once: a weight is reformatted or packed when the model is
linked, again when it was written to, and a saved file holds the result. Those on constants that the
graph holds itself, which nobody writes to, are run while it is compiled, and it holds the results.
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
        self.names = names_of(self.once) | names_of(self.every)

    def constants(self, placed: PlacedSegment) -> dict[str, Ref]:
        """The inputs of a segment that are made once, by name, and what makes each."""
        known = {(given.name, ()): out for out, given in self.made if isinstance(out, Ref)}
        inputs = zip(placed.segment.inputs, placed.sources, strict=True)
        return {given.name: known[key] for given, key in inputs if key in known}

    def move(self, placed: PlacedSegment, calls: Iterable[OpCall]) -> PlacedSegment:
        """A segment without those of its calls that depend on what is made once."""
        constants = self.constants(placed)
        name = f"segment_{len(self.once.segments) + len(self.added)}"
        apart, rest = take_apart(placed, calls, frozenset(constants), self.names, name)
        if apart is None:
            return placed
        for (unique, _), made in zip(apart.results, apart.segment.output_descs(), strict=True):
            self.made.append((Ref(unique, made), Input(unique, made, "constant")))
        refs = [constants[given.name] for given in apart.segment.inputs]
        self.added.append(replace(apart, sources=tuple((ref.name, ref.path) for ref in refs)))
        return rest

    def finish(self, segments: Sequence[PlacedSegment]) -> tuple[Placement, Placement]:
        """Both parts, with what still goes from one to the other."""
        used = used_in(self.every, segments)
        own = self.every.inputs[: len(self.every.inputs) - len(self.once.outputs)]
        kept = [(out, given) for out, given in self.made if (given.name, ()) in used]
        once = replace(
            self.once,
            segments=(*self.once.segments, *self.added),
            outputs=tuple(out for out, _ in kept),
        )
        inputs = (*own, *(given for _, given in kept))
        return once, replace(self.every, segments=tuple(segments), inputs=inputs)


def take_apart(
    placed: PlacedSegment,
    calls: Iterable[OpCall],
    known: frozenset[str],
    names: set[str],
    name: str,
) -> tuple[PlacedSegment | None, PlacedSegment]:
    """A segment of those calls that depend on known inputs alone, if any, and the rest.

    The rest takes what the others made as constants, under names of the graph that are free.
    """
    segment = placed.segment
    moved: dict[str, OpCall] = {}
    for call in calls:
        needs = {ref.name for ref in call.refs()}
        if needs and needs <= known | moved.keys():
            moved[call.name] = call
    if not moved:
        return None, placed
    rest = tuple(call for call in segment.calls if call.name not in moved)
    needed, taken = _used(rest, segment.outputs), _used(moved.values(), ())
    inputs = list(zip(segment.inputs, placed.sources, strict=True))
    given = [(i, key) for i, key in inputs if i.name in taken]
    made = [call for call in moved.values() if call.name in needed]
    keys = tuple((_free(call.name, names), ()) for call in made)
    for call, key in zip(made, keys, strict=True):
        inputs.append((Input(call.name, call.output, "constant"), key))
    results = tuple(Ref(call.name, call.output) for call in made)
    apart = Segment(name, tuple(i for i, _ in given), tuple(moved.values()), results)
    kept = [(i, key) for i, key in inputs if i.name in needed or i.kind == "size"]
    body = replace(segment, inputs=tuple(i for i, _ in kept), calls=rest)
    return (
        PlacedSegment(apart, placed.backends, tuple(key for _, key in given), keys),
        replace(placed, segment=body, sources=tuple(key for _, key in kept)),
    )


def _free(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _used(calls: Iterable[OpCall], outputs: Sequence[Arg]) -> set[str]:
    """The values that calls and outputs name."""
    used = {ref.name for call in calls for ref in call.refs()}
    return used | {leaf.name for leaf in leaves(tuple(outputs)) if isinstance(leaf, Ref)}


def names_of(part: Placement) -> set[str]:
    """The values of a part that have names."""
    keys = [key for placed in part.segments for key in (*placed.sources, *placed.results)]
    given = (each.name for each in part.inputs)
    return {*given, *part.constants, *part.symbols, *(name for name, _ in keys)}


def used_in(part: Placement, segments: Iterable[PlacedSegment]) -> set[ValueKey]:
    """What segments and a part's outputs take, and what its symbols are read from."""
    used = {key for placed in segments for key in placed.sources}
    used |= {(r.name, r.path) for r in leaves(part.outputs) if isinstance(r, Ref)}
    return used | {(part.inputs[n].name, ()) for n, _ in part.symbols.values()}
