"""Segments that save less time than their copies take go to the next backend.

Giving a segment back joins the host's calls around it, and with them other segments of the
accelerator, so stages are worked out anew until nothing changes; each time takes one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.backend import Backend
from dovetail.ir import Arg, Desc, OpCall, Ref
from dovetail.ir.call import leaves
from dovetail.ir.segment import ValueKey
from dovetail.place.cost import Costs, is_free
from dovetail.place.stages import Group, group
from dovetail.place.uses import Uses
from dovetail.place.verdicts import Choice

# Operators that copy elements to another layout, where no view has it.
MOVES = frozenset({"aten.clone.default", "aten.reshape.default", "aten.contiguous.default"})
ROUNDS = 8  # gains become small after two or three


class Weigher:
    """Weighs what each segment saves against what its copies cost."""

    def __init__(
        self,
        calls: Sequence[OpCall],
        uses: Sequence[Uses],
        choices: Sequence[Choice],
        backends: Sequence[Backend],
        outputs: Sequence[Arg],
        kept: frozenset[str],
        costs: Costs,
    ) -> None:
        self.calls, self.uses, self.choices, self.backends = calls, uses, choices, backends
        self.kept, self.costs = kept, costs  # what stays on a device from call to call
        self.returned = {
            (out.name, out.path) for out in leaves(tuple(outputs)) if isinstance(out, Ref)
        }
        self.made = {call.name: n for n, call in enumerate(calls)}

    def computing(self) -> list[Group]:
        """Segments that compute something: one that only changes a layout pays for no copy."""
        groups = self.group()
        for _ in range(ROUNDS):
            if not self._give_back(groups, [self._only_moves(g) for g in groups]):
                break
            groups = self.group()
        return groups

    def settle(self) -> list[Group]:
        """Segments that pay for themselves."""
        groups = self.computing()
        if not any(map(self._copies_cost, self.backends)):
            return groups
        for _ in range(ROUNDS):
            borders = self._borders(groups)
            objections = [self._objection(g, b) for g, b in zip(groups, borders, strict=True)]
            if not self._give_back(groups, objections):
                break
            groups = self.group()
        return groups

    def group(self) -> list[Group]:
        """Segments as the choices are now."""
        return group(self.calls, self.uses, [choice.chosen for choice in self.choices])

    def _copies_cost(self, backend: Backend) -> bool:
        return backend.transfer is not None and backend.transfer.seconds(1, 1) > 0

    def _only_moves(self, segment: Group) -> str:
        """Why a segment of a backend with its own memory should not be one; empty: it may be."""
        position, members = segment
        if self.backends[position].transfer is None:
            return ""
        return (
            "" if any(not is_move(self.calls[n]) for n in members) else "it only changes a layout"
        )

    def _give_back(self, groups: Sequence[Group], reasons: Sequence[str]) -> bool:
        for (_, members), reason in zip(groups, reasons, strict=True):
            for position in members if reason else ():
                choice = self.choices[position]
                choice.move(choice.next_after(choice.chosen), reason)
        return any(reasons)

    def _objection(self, segment: Group, border: dict[ValueKey, Desc]) -> str:
        """Why a segment does not pay; empty when it does."""
        position, members = segment
        backend = self.backends[position]
        if not self._copies_cost(backend) or backend.transfer is None:
            return ""
        saved = sum(self._saved(n) for n in members)
        size = sum(map(self.costs.span, border.values()))
        copies = backend.transfer.seconds(len(border), size)
        if saved >= copies:
            return ""
        return f"too small: {show_seconds(saved)} saved, {show_seconds(copies)} of copies"

    def _saved(self, position: int) -> float:
        """Seconds that a call takes less here than on the next backend."""
        call, choice = self.calls[position], self.choices[position]
        other = choice.next_after(choice.chosen)
        there = self.costs.seconds(call, self.backends[other], choice.answer(other))
        here = self.costs.seconds(call, self.backends[choice.chosen], choice.answer(choice.chosen))
        return (there or 0.0) - (here or 0.0)

    def _borders(self, groups: Sequence[Group]) -> list[dict[ValueKey, Desc]]:
        """The tensors each segment takes in and hands out, those that are kept left out."""
        owner = [0] * len(self.calls)
        for number, (_, members) in enumerate(groups):
            for position in members:
                owner[position] = number
        borders: list[dict[ValueKey, Desc]] = [{} for _ in groups]
        for position, use in enumerate(self.uses):
            for ref in use.refs:
                source = self.made.get(ref.name)
                if ref.name in self.kept or (
                    source is not None and owner[source] == owner[position]
                ):
                    continue
                borders[owner[position]][ref.name, ref.path] = ref.desc
                if source is not None:
                    borders[owner[source]][ref.name, ref.path] = ref.desc
        for name, path in self.returned:
            if name in self.made:
                source = self.made[name]
                desc = _element(self.calls[source].output, path)
                borders[owner[source]][name, path] = desc
        return borders


def is_move(call: OpCall) -> bool:
    """Whether a call gives the elements that it is given, at most in another order or layout."""
    return is_free(call.op) or call.op in MOVES


def _element(desc: Desc, path: tuple[int, ...]) -> Desc:
    for index in path:
        desc = desc[index] if isinstance(desc, tuple) else None
    return desc


def show_seconds(seconds: float) -> str:
    """A time in the unit that reads best."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns" if seconds else "0 µs"
