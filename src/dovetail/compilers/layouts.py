"""Each segment in the layouts that its backend chooses; constants get theirs once.

Frozen ones do in the part that runs once, those that the graph holds while it is compiled. Between
the layouts of what is computed and of what is packed, calls get their candidates (``tuning/``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.compilers.placed import PlacedGraph
from dovetail.ir import OpCall, Ref, Segment
from dovetail.ir.segment import is_write
from dovetail.place.cut import PlacedSegment
from dovetail.place.placement import Placement
from dovetail.place.prepare import Preparation, names_of, take_apart, used_in
from dovetail.place.verdicts import Selection, Verdict
from dovetail.tuning.chooser import Chooser


def lay_out(graph: PlacedGraph, chooser: Chooser | None = None) -> PlacedGraph:
    """A placed graph with tensors inside its segments laid out as their backends like them.

    The same graph where nothing changes. Tensors of training stay as they are: what a forward graph
    saves is laid out as the backward graph was traced for. ``chooser``: it is told of every call.
    """
    every = graph.every.placement
    if every is None:
        return graph
    if graph.kind != "inference":
        return graph if chooser is None else _with_choices(graph, every, chooser)
    once = graph.once.placement if graph.once is not None else None
    work = Preparation(once, every) if once is not None else None
    held = GraphConstants(every, work.names if work is not None else names_of(every))
    tools = _Tools(work, held, chooser)
    segments = [tools.laid_out(placed) for placed in every.segments]
    every = _with_selections(every, tools.selections)
    if all(new is old for new, old in zip(segments, every.segments, strict=True)):
        return graph if not tools.selections else _replaced(graph, every)
    if work is not None:
        work.every = every
    if work is None or graph.once is None:
        every = with_verdicts(held.finish(replace(every, segments=tuple(segments))))
        return _replaced(graph, every)
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


def _replaced(graph: PlacedGraph, every: Placement) -> PlacedGraph:
    return replace(graph, every=replace(graph.every, placement=every))


def _with_choices(graph: PlacedGraph, every: Placement, chooser: Chooser) -> PlacedGraph:
    """A graph whose calls have candidates, and stay where they are."""
    segments, selections = [], dict[str, Selection]()
    for placed in every.segments:
        segment, found = chooser.choose(placed.segment, placed.backends[0], frozenset())
        segments.append(replace(placed, segment=segment))
        selections |= found
    every = replace(_with_selections(every, selections), segments=tuple(segments))
    return _replaced(graph, every) if selections else graph


def _with_selections(part: Placement, selections: Mapping[str, Selection]) -> Placement:
    """A part whose verdicts say what was chosen."""
    if not selections:
        return part
    told = (replace(v, selection=selections.get(v.call)) for v in part.verdicts)
    return replace(part, verdicts=tuple(told))


@dataclass
class _Tools:
    """What segments of a graph are laid out with."""

    work: Preparation | None
    held: GraphConstants
    chooser: Chooser | None
    selections: dict[str, Selection] = field(default_factory=dict)  # by the calls' names

    def laid_out(self, placed: PlacedSegment) -> PlacedSegment:
        """The segment as it runs at each call."""
        backend, work = placed.backends[0], self.work
        frozen = frozenset(work.constants(placed)) if work is not None else frozenset()
        constants = frozen | self.held.inputs(placed).keys()
        segment = backend.lay_out(placed.segment, constants)
        if self.chooser is not None:
            once = constants | _made_of(constants, _added(placed.segment, segment))
            segment, found = self.chooser.choose(segment, backend, once)
            self.selections |= found
        segment = backend.pack(segment, constants)
        if segment is placed.segment:
            return placed
        added = _added(placed.segment, segment)
        there = self.held.run(replace(placed, segment=segment), added)
        return there if work is None else work.move(there, added)


def _made_of(constants: frozenset[str], calls: list[OpCall]) -> frozenset[str]:
    """The calls that depend on constants alone."""
    made = set(constants)
    for call in calls:
        if {ref.name for ref in call.refs()} <= made:
            made.add(call.name)
    return frozenset(made - constants)


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
