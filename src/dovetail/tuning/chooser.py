"""Each call of a segment that has candidates gets the fastest, or the rules' and why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dovetail.backend import Backend, Candidates
from dovetail.cache.key import Key
from dovetail.ir.call import OpCall
from dovetail.ir.segment import Segment
from dovetail.place.verdicts import Selection
from dovetail.sources import Unidentified
from dovetail.tuning.decide import decide, least
from dovetail.tuning.measure import Compile, measure
from dovetail.tuning.problem import Problem, problem_of
from dovetail.tuning.remembered import choice_key, recall, remember

log = logging.getLogger(__name__)
MEASURED = "measured"
UNSTEADY = "the machine was too busy for times to tell"


@dataclass
class Chooser:
    """Chooses for the segments of a compilation; problems alike are measured once.

    ``compile_`` makes code in the way that the options say. Without it nothing is measured: what
    the rules take is told alone.
    """

    compile_: Compile | None = None
    remembers: bool = True  # whether the cache is asked, and told
    known: dict[tuple[int, str], Selection] = field(default_factory=dict)

    def choose(
        self, segment: Segment, backend: Backend, once: frozenset[str]
    ) -> tuple[Segment, dict[str, Selection]]:
        """The segment with candidates in its calls, and what was chosen by the calls' names."""
        selections = dict(self._selections(segment, backend, once))
        if self.compile_ is None:
            return segment, selections
        calls = tuple(_by(call, selections.get(call.name)) for call in segment.calls)
        changed = any(new is not old for new, old in zip(calls, segment.calls, strict=True))
        return (replace(segment, calls=calls) if changed else segment), selections

    def _selections(
        self, segment: Segment, backend: Backend, once: frozenset[str]
    ) -> Iterator[tuple[str, Selection]]:
        for call in segment.calls:
            found = backend.candidates(call, once)
            if found is not None:
                yield call.name, self._selection(segment, call, found, backend, once)

    def _selection(
        self,
        segment: Segment,
        call: OpCall,
        found: Candidates,
        backend: Backend,
        once: frozenset[str],
    ) -> Selection:
        told = Selection(found.taken, found.reason, estimates=found.estimates, taken=found.taken)
        if self.compile_ is None or not found.others:
            return told
        problem = problem_of(segment, call, once)
        if isinstance(problem, str):
            return replace(told, reason=f"{problem}, so nothing was measured: {told.reason}")
        key = id(backend), problem.text
        if key not in self.known:
            self.known[key] = self._solve(problem, found, backend, told)
        return self.known[key]

    def _solve(
        self, problem: Problem, found: Candidates, backend: Backend, told: Selection
    ) -> Selection:
        """What was chosen before, else what is measured now."""
        key = self._key(problem, found, backend)
        known = recall(key, found) if key is not None else None
        if known is not None:
            return replace(known, estimates=found.estimates, taken=found.taken)
        assert self.compile_ is not None
        times = measure(problem, backend, found.taken, found.others, self.compile_)
        if len(times) < 2:
            return replace(told, reason=f"there is no other code: {told.reason}")
        seconds = tuple((name, least(each)) for name, each in times.items())
        chosen = decide(times, found.taken)
        log.info("%s by %s: %s", problem.call, chosen or "the rules", seconds)
        if not chosen:  # not remembered: another process may find the machine idle
            return replace(told, reason=f"{UNSTEADY}: {told.reason}", seconds=seconds)
        selection = replace(told, chosen=chosen, reason=MEASURED, seconds=seconds)
        if key is not None:
            remember(key, selection)
        return selection

    def _key(self, problem: Problem, found: Candidates, backend: Backend) -> Key | None:
        import torch

        try:
            key = choice_key(problem, backend, found, torch.get_num_threads())
        except Unidentified as error:
            log.info("no choice of %s is kept: %s", backend.name, error)
            return None
        return key if self.remembers else None


def _by(call: OpCall, selection: Selection | None) -> OpCall:
    """A call by what was chosen, where the rules would take something else."""
    if selection is None or selection.chosen == selection.taken:
        return call
    return replace(call, candidate=selection.chosen)
