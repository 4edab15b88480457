"""Each segment in the layouts that its backend chooses; constants get theirs once.

Frozen ones do in the part that runs once, those that the graph holds while it is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.compilers.placed import PlacedGraph
from dovetail.ir import OpCall, Ref, Segment
from dovetail.ir.segment import is_write
from dovetail.place.cut import PlacedSegment
from dovetail.place.placement import Placement
from dovetail.place.prepare import Preparation, names_of, take_apart, used_in
from dovetail.place.verdicts import Verdict


def lay_out(graph: PlacedGraph) -> PlacedGraph:
    """A placed graph with tensors inside its segments laid out as their backends like them.

    The same graph where nothing changes. Graphs of training stay as they are: what a forward graph
    saves is laid out as the backward graph was traced for.
    """
    every = graph.every.placement
    if graph.kind != "inference" or every is None:
        return graph
    once = graph.once.placement if graph.once is not None else None
    work = Preparation(once, every) if once is not None else None
    held = GraphConstants(every, work.names if work is not None else names_of(every))
    segments = [_laid_out(placed, work, held) for placed in every.segments]
    if all(new is old for new, old in zip(segments, every.segments, strict=True)):
        return graph
    if work is None or graph.once is None:
        every = with_verdicts(held.finish(replace(every, segments=tuple(segments))))
        return replace(graph, every=replace(graph.every, placement=every))
    once, every = map(with_verdicts, work.finish(segments))
    return replace(
        graph,
        once=replace(graph.once, placement=once),
        every=replace(graph.every, placement=held.finish(every)),
    )


def with_verdicts(part: Placement) -> Placement:
    """A part whose calls all have a verdict: those that a backend added run there."""
    known = {verdict.call for verdict in part.verdicts}
    added = [
        Verdict(call.name, call.op, placed.backends[0].name)
        for placed in part.segments
        for call in placed.segment.calls
        if call.name not in known
    ]
    return replace(part, verdicts=(*part.verdicts, *added))


def _laid_out(
    placed: PlacedSegment, work: Preparation | None, held: GraphConstants
) -> PlacedSegment:
    frozen = frozenset(work.constants(placed)) if work is not None else frozenset()
    segment = placed.backends[0].lay_out(placed.segment, frozen | held.inputs(placed).keys())
    if segment is placed.segment:
        return placed
    added = _added(placed.segment, segment)
    there = held.run(replace(placed, segment=segment), added)
    return there if work is None else work.move(there, added)


def _added(before: Segment, after: Segment) -> list[OpCall]:
    known = {call.name for call in before.calls}
    return [call for call in after.calls if call.name not in known]


def _may_write(placed: PlacedSegment, constants: Mapping[str, Any]) -> bool:
    """Whether a segment writes to a constant, or to what may be a view of one."""
    inputs = zip(placed.segment.inputs, placed.sources, strict=True)
    others = {given.name for given, (name, _) in inputs if name not in constants}
    targets = (call.args[0] for call in placed.segment.calls if is_write(call))
    return any(not isinstance(ref, Ref) or ref.name not in others for ref in targets)


class GraphConstants:
    """The constants that a part of a graph holds itself: tensors that nobody writes to."""

    def __init__(self, part: Placement, names: set[str]) -> None:
        self.constants, self.names = dict(part.constants), names
        self.fixed = not any(_may_write(placed, self.constants) for placed in part.segments)

    def inputs(self, placed: PlacedSegment) -> dict[str, Any]:
        """Those among the inputs of a segment, by name; none where one may be written to."""
        inputs = zip(placed.segment.inputs, placed.sources, strict=True)
        known = self.constants if self.fixed else {}
        return {i.name: known[name] for i, (name, _) in inputs if name in known}

    def run(self, placed: PlacedSegment, calls: list[OpCall]) -> PlacedSegment:
        """A segment without those of its calls that depend on these alone: they are run."""
        given = self.inputs(placed)
        apart, rest = take_apart(placed, calls, frozenset(given), self.names, "constants")
        if apart is None:
            return placed
        import torch

        from dovetail.capture._torch.state import no_dispatch_modes
        from dovetail.runtime.interpreter import Interpreter

        with no_dispatch_modes(), torch.no_grad():
            made = Interpreter(apart.segment)([given[i.name] for i in apart.segment.inputs])
        names = (name for name, _ in apart.results)
        self.constants |= dict(zip(names, made, strict=True))
        return rest

    def finish(self, part: Placement) -> Placement:
        """The part with the constants that it still needs, and those that were made."""
        used = {name for name, _ in used_in(part, part.segments)}
        constants = {name: value for name, value in self.constants.items() if name in used}
        return replace(part, constants=constants)
