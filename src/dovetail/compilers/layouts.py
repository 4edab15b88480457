"""Each segment in the layouts that its backend chooses; frozen constants get theirs once."""

from __future__ import annotations

from dataclasses import replace

from dovetail.compilers.placed import PlacedGraph
from dovetail.ir import OpCall, Segment
from dovetail.place.cut import PlacedSegment
from dovetail.place.placement import Placement
from dovetail.place.prepare import Preparation
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
    segments = [_laid_out(placed, work) for placed in every.segments]
    if all(new is old for new, old in zip(segments, every.segments, strict=True)):
        return graph
    if work is None or graph.once is None:
        every = with_verdicts(replace(every, segments=tuple(segments)))
        return replace(graph, every=replace(graph.every, placement=every))
    once, every = map(with_verdicts, work.finish(segments))
    return replace(
        graph,
        once=replace(graph.once, placement=once),
        every=replace(graph.every, placement=every),
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


def _laid_out(placed: PlacedSegment, work: Preparation | None) -> PlacedSegment:
    constants = frozenset(work.constants(placed)) if work is not None else frozenset()
    segment = placed.backends[0].lay_out(placed.segment, constants)
    if segment is placed.segment:
        return placed
    there = replace(placed, segment=segment)
    if work is None:
        return there
    return work.move(there, _added(placed.segment, segment))


def _added(before: Segment, after: Segment) -> list[OpCall]:
    known = {call.name for call in before.calls}
    return [call for call in after.calls if call.name not in known]
