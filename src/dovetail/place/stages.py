"""Which calls can run together: a segment is all calls of one backend at one stage.

A call's stage is the highest stage among what it depends on, plus one wherever that runs on
another backend. An edge between segments therefore always leads to a higher stage, so segments
cannot form a cycle, and working out all stages is one pass over the calls. A second pass, from the
end, lets a segment wait for a later one of its backend where nothing needs it sooner.

Effects keep their order: random operators, control flow, collectives and custom operators form a
chain, and a write waits for everything before it and holds back everything after it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from dovetail.capture.ops import is_random, is_write, keeps_its_word, resolve_op
from dovetail.ir import OpCall
from dovetail.place.join import Place, join_later
from dovetail.place.uses import Uses

# A segment to be: the position of its backend in the list, and those of its calls.
Group = tuple[int, list[int]]


def group(calls: Sequence[OpCall], uses: Sequence[Uses], chosen: Sequence[int]) -> list[Group]:
    """Segments in an order in which they can run: a backend's position, and those of calls."""
    groups: dict[tuple[int, int], list[int]] = {}
    stages = _Stages()
    for position, (call, use, backend) in enumerate(zip(calls, uses, chosen, strict=True)):
        key = stages.add(call, use, backend)
        members = groups.get(key)
        if members is None:
            groups[key] = [position]
        else:
            members.append(position)
    ordered = sorted(groups.items())
    if len(ordered) > 2:
        ordered = join_later(calls, uses, ordered, effect_of)
    return [(backend, members) for (_, backend), members in ordered]


class _Stages:
    def __init__(self) -> None:
        self.made: dict[str, Place] = {}  # where a value or symbol is made
        self.highest: dict[int, int] = {}  # backend → its highest stage so far
        self.effect: Place | None = None  # where the last effect happens
        self.write: Place | None = None  # where the last write happens

    def add(self, call: OpCall, use: Uses, backend: int) -> Place:
        """Where a call runs; its effect and results are known to those after it."""
        kind = effect_of(call.op)
        stage = self._after_values(use, backend)
        if kind is not None or self.write is not None:
            stage = max(stage, self._after_effects(kind, backend))
        place = self.made[call.name] = (stage, backend)
        if stage > self.highest.get(backend, -1):
            self.highest[backend] = stage
        for symbol, _ in call.binds:
            self.made[symbol] = place
        if kind is not None:
            self.effect = place
            self.write = place if kind == "write" else self.write
        return place

    def _after_values(self, use: Uses, backend: int) -> int:
        """The earliest stage at which what a call uses is there."""
        found = 0
        made = self.made
        for ref in use.refs:
            place = made.get(ref.name)
            if place is not None:
                stage = place[0] if place[1] == backend else place[0] + 1
                if stage > found:
                    found = stage
        for symbol in use.symbols:
            if symbol in made:
                found = max(found, _following(made[symbol], backend))
        return found

    def _after_effects(self, kind: str | None, backend: int) -> int:
        """The earliest stage that keeps the order of effects."""
        before = [] if self.write is None else [self.write]
        if kind is not None and self.effect is not None:
            before.append(self.effect)
        if kind == "write":
            before += [(stage, other) for other, stage in self.highest.items()]
        return max((_following(place, backend) for place in before), default=0)


def _following(place: Place, backend: int) -> int:
    stage, other = place
    return stage + (other != backend)


@functools.cache
def effect_of(op: str) -> str | None:
    """``"write"``, ``"order"`` for what must keep its order, or None."""
    if op.startswith("python."):
        return None
    if op.startswith("higher_order."):  # may write in place, or draw random numbers in its body
        return "write" if "auto_functionalized" in op or "mutation" in op else "order"
    target = resolve_op(op)
    if is_write(target):
        return "write"
    return "order" if is_random(target) or not keeps_its_word(target) else None
