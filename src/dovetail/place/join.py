"""A segment that nothing needs yet can wait for a later one of its backend, and join it.

One pass from the end. A call may wait until the first that needs its result; on another backend
that must be a later stage. What has an effect stays where it is, and what comes before a write
stays before it. A view of an input goes to the first that uses it by itself, so that a device is
given the input, which it may have already, and not a view that was made elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from dovetail.ir import OpCall
from dovetail.place.cost import is_free
from dovetail.place.uses import Uses

Place = tuple[int, int]  # a stage and a backend
_MIXED = -1  # as a backend: several, so that whoever asks is not the only one
_EffectOf = Callable[[str], str | None]


def join_later(
    calls: Sequence[OpCall],
    uses: Sequence[Uses],
    groups: Sequence[tuple[Place, list[int]]],
    effect_of: _EffectOf,
) -> list[tuple[Place, list[int]]]:
    """The groups in order, fewer where one can wait."""
    joiner = _Joiner(calls, uses, effect_of)
    joiner.needs.before_writes(groups, effect_of)
    for place, members in reversed(groups):
        joiner.add(place, members)
    found = joiner.found
    return [(place, sorted(members)) for place, members in sorted(found.items())]


class _Joiner:
    def __init__(self, calls: Sequence[OpCall], uses: Sequence[Uses], effect_of: _EffectOf) -> None:
        self.calls, self.effect_of = calls, effect_of
        self.needs = _Needs(calls, uses)
        self.later: dict[int, int] = {}  # backend → the next stage that it has a group at
        self.found: dict[Place, list[int]] = {}
        self.views = _views_of_inputs(calls, uses, self.needs.makers)

    def add(self, place: Place, members: Sequence[int]) -> None:
        """Place a group, all later ones being placed: as it is, or with a later one."""
        views = [n for n in members if n in self.views] if self.views else []
        others = [n for n in members if n not in self.views] if views else members
        stage, backend = place
        target = self.later.get(backend)
        if others:
            if target is not None and self._may_wait(others, target, backend):
                stage = target
            self._put(others, (stage, backend))
        for n in reversed(views):
            self._put([n], self._place_of_view(n, stage, place))

    def _may_wait(self, members: Sequence[int], stage: int, backend: int) -> bool:
        return self.needs.allow(members, stage, backend) and not any(
            self.effect_of(self.calls[n].op) for n in members
        )

    def _place_of_view(self, position: int, stage: int, place: Place) -> Place:
        """With the first that uses it where that is of the same backend, else with its group."""
        backend = place[1]
        needs = self.needs
        if needs.backend[position] == backend and (needs.stage[position], backend) in self.found:
            return (needs.stage[position], backend)
        return (stage, backend) if needs.allow([position], stage, backend) else place

    def _put(self, members: Sequence[int], place: Place) -> None:
        if place in self.found:
            self.found[place].extend(members)
        else:
            self.found[place] = list(members)
        self.later[place[1]] = min(place[0], self.later.get(place[1], place[0]))
        self.needs.note(members, place)


def _views_of_inputs(
    calls: Sequence[OpCall], uses: Sequence[Uses], makers: Mapping[str, int]
) -> set[int]:
    """Calls that only look at inputs and constants: they may run whenever they are needed."""
    found: set[int] = set()
    if any(is_free(op) for op in {call.op for call in calls}):
        for position, call in enumerate(calls):
            if is_free(call.op) and not call.binds:
                sources = (makers.get(name) for name in uses[position].names())
                if all(source is None or source in found for source in sources):
                    found.add(position)
    return found


class _Needs:
    """For each call the earliest stage that needs it, and the backend there."""

    def __init__(self, calls: Sequence[OpCall], uses: Sequence[Uses]) -> None:
        self.calls, self.uses = calls, uses
        self.makers = {call.name: position for position, call in enumerate(calls)}
        for position, call in enumerate(calls):
            if call.binds:
                self.makers.update((symbol, position) for symbol, _ in call.binds)
        self.stage = [sys.maxsize] * len(calls)
        self.backend = [_MIXED] * len(calls)

    def before_writes(
        self, groups: Sequence[tuple[Place, list[int]]], effect_of: _EffectOf
    ) -> None:
        """Everything before a write is needed when it happens."""
        if all(effect_of(op) != "write" for op in {call.op for call in self.calls}):
            return
        writes = {
            n: place
            for place, members in groups
            for n in members
            if effect_of(self.calls[n].op) == "write"
        }
        write: Place | None = None
        for position in range(len(self.calls) - 1, -1, -1):
            if write is not None:
                self.stage[position], self.backend[position] = write
            write = writes.get(position, write)

    def allow(self, members: Sequence[int], stage: int, backend: int) -> bool:
        """Whether these calls may run as late as ``stage``."""
        needed, by = self.stage, self.backend
        for n in members:
            if stage > needed[n] or (stage == needed[n] and by[n] != backend):
                return False
        return True

    def note(self, members: Sequence[int], place: Place) -> None:
        """These calls run at ``place`` and need what they use there."""
        stage, backend = place
        needed, by, makers = self.stage, self.backend, self.makers
        for position in members:
            for name in self.uses[position].names():
                maker = makers.get(name)
                if maker is None or stage > needed[maker]:
                    continue
                if stage < needed[maker]:
                    needed[maker], by[maker] = stage, backend
                elif by[maker] != backend:
                    by[maker] = _MIXED
