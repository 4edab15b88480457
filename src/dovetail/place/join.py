"""A segment that nothing needs yet can wait for a later one of its backend, and join it.

One pass from the end. A call may wait until the first that needs its result; on another backend
that must be a later stage. What has an effect stays where it is, and what comes before a write
stays before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from dovetail.ir import OpCall
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
    needs = _Needs(calls, uses)
    needs.before_writes(groups, effect_of)
    later: dict[int, int] = {}  # backend → the next stage that it has a group at
    found: dict[Place, list[int]] = {}
    for (stage, backend), members in reversed(groups):
        place = (stage, backend)
        target = later.get(backend)
        if target is not None and needs.allow(members, target, backend):
            if not any(effect_of(calls[n].op) for n in members):
                place = (target, backend)
        found.setdefault(place, []).extend(members)
        later[backend] = place[0]
        needs.note(members, place)
    return [(place, sorted(members)) for place, members in sorted(found.items())]


class _Needs:
    """For each call the earliest stage that needs it, and the backend there."""

    def __init__(self, calls: Sequence[OpCall], uses: Sequence[Uses]) -> None:
        self.calls, self.uses = calls, uses
        self.makers = {call.name: position for position, call in enumerate(calls)}
        for position, call in enumerate(calls):
            for symbol, _ in call.binds:
                self.makers[symbol] = position
        self.stage = [sys.maxsize] * len(calls)
        self.backend = [_MIXED] * len(calls)

    def before_writes(
        self, groups: Sequence[tuple[Place, list[int]]], effect_of: _EffectOf
    ) -> None:
        """Everything before a write is needed when it happens."""
        writes = {
            n: place
            for place, members in groups
            for n in members
            if effect_of(self.calls[n].op) == "write"
        }
        write: Place | None = None
        for position in range(len(self.calls) - 1 if writes else -1, -1, -1):
            if write is not None:
                self.stage[position], self.backend[position] = write
            write = writes.get(position, write)

    def allow(self, members: Sequence[int], stage: int, backend: int) -> bool:
        """Whether these calls may run as late as ``stage``."""
        needed, by = self.stage, self.backend
        return all(stage + (by[n] != backend) <= needed[n] for n in members)

    def note(self, members: Sequence[int], place: Place) -> None:
        """These calls run at ``place`` and need what they use there."""
        stage, backend = place
        for position in members:
            use = self.uses[position]
            for ref in use.refs:
                self._need(ref.name, stage, backend)
            for symbol in use.symbols:
                self._need(symbol, stage, backend)

    def _need(self, name: str, stage: int, backend: int) -> None:
        maker = self.makers.get(name)
        if maker is None or stage > self.stage[maker]:
            return
        if stage < self.stage[maker]:
            self.stage[maker], self.backend[maker] = stage, backend
        elif self.backend[maker] != backend:
            self.backend[maker] = _MIXED
