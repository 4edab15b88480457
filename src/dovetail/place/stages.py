"""Which calls can run together: a segment is all calls of one backend at one stage.

A call's stage is the highest stage among what it depends on, plus one wherever that runs on
another backend. An edge between segments therefore always leads to a higher stage, so segments
cannot form a cycle, and working out all stages is one pass over the calls.

Effects keep their order: random operators and control flow form a chain, and a write waits for
everything before it and holds back everything after it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.capture.from_fx import needed_symbols
from dovetail.capture.ops import is_random, is_write, resolve_op
from dovetail.ir import OpCall, Ref, Segment, Size


@dataclass(slots=True)
class Uses:
    """What a call needs, worked out once: values by reference, and symbols."""

    refs: list[Ref]
    symbols: frozenset[str]


def uses_of(call: OpCall) -> Uses:
    """The values and symbols a call depends on, those of its subgraphs included."""
    refs: list[Ref] = []
    symbols: frozenset[str] = frozenset()
    for leaf in call.leaves():
        if isinstance(leaf, Ref):
            refs.append(leaf)
        elif isinstance(leaf, Size):
            symbols |= leaf.symbols()
        elif isinstance(leaf, Segment):
            symbols |= needed_symbols(leaf.calls, leaf.outputs) - set(leaf.symbols())
    return Uses(refs, symbols)


def group(
    calls: Sequence[OpCall], uses: Sequence[Uses], chosen: Sequence[int]
) -> list[tuple[int, list[int]]]:
    """Segments in an order in which they can run: a backend's index, and positions of calls."""
    groups: dict[tuple[int, int], list[int]] = {}
    for position, stage in enumerate(_Stages().of(calls, uses, chosen)):
        groups.setdefault((stage, chosen[position]), []).append(position)
    return [(backend, members) for (_, backend), members in sorted(groups.items())]


class _Stages:
    def __init__(self) -> None:
        self.made: dict[str, tuple[int, int]] = {}  # a value or symbol → its stage and backend
        self.highest: dict[int, int] = {}  # backend → its highest stage so far
        self.effect: tuple[int, int] | None = None  # where the last effect happens
        self.write: tuple[int, int] | None = None  # where the last write happens

    def of(
        self, calls: Sequence[OpCall], uses: Sequence[Uses], chosen: Sequence[int]
    ) -> Iterable[int]:
        for call, use, backend in zip(calls, uses, chosen, strict=True):
            stage = self._earliest(call, use, backend)
            self.highest[backend] = max(stage, self.highest.get(backend, 0))
            place = self.made[call.name] = (stage, backend)
            for symbol, _ in call.binds:
                self.made[symbol] = place
            if (kind := effect_of(call.op)) is not None:
                self.effect = place
                self.write = place if kind == "write" else self.write
            yield stage

    def _earliest(self, call: OpCall, use: Uses, backend: int) -> int:
        before = [self.made[r.name] for r in use.refs if r.name in self.made]
        before += [self.made[s] for s in use.symbols if s in self.made]
        if self.write is not None:
            before.append(self.write)
        kind = effect_of(call.op)
        if kind is not None and self.effect is not None:
            before.append(self.effect)
        if kind == "write":
            before += [(stage, other) for other, stage in self.highest.items()]
        return max((stage + (other != backend) for stage, other in before), default=0)


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
    return "order" if is_random(target) else None
