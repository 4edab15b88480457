"""Loops cut where a comparison of their axis with a number changes: no masks inside the pieces.

``cat``, padding, ``roll`` and slices written into a value choose by position. Along the axis that
is vectorised each piece knows the answer, so that its loads are plain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dovetail.ir.affine import mul, product
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    reindexed,
    renamed,
)
from dovetail.schedule.limits import Limits

_BORDERS = {"ge": 0, "lt": 0, "gt": 1, "le": 1}


def split(kernel: Kernel, limits: Limits) -> Kernel:
    """The kernel with its loops cut."""
    if len(kernel.loops) == 1 and not kernel.loops[0].axes and kernel.axes:
        return _split_parallel(kernel, limits)
    loops: list[Loop] = []
    for loop in kernel.loops:
        loops += _pieces(loop, len(loops), limits) or [loop]
    return replace(kernel, loops=tuple(loops))


def _split_parallel(kernel: Kernel, limits: Limits) -> Kernel:
    """An elementwise kernel: its last axis becomes a loop's, if enough is left for threads."""
    outer = product(axis.extent for axis in kernel.axes[:-1])
    if isinstance(outer, int) and outer < limits.parallel:
        return kernel
    pieces = _pieces(Loop(kernel.axes[-1:], kernel.loops[0].body), 0, limits)
    if not pieces:
        return kernel
    return replace(kernel, axes=kernel.axes[:-1], loops=tuple(pieces))


def _pieces(loop: Loop, number: int, limits: Limits) -> list[Loop]:
    """The loop's pieces, or nothing where it is better left whole."""
    if not loop.axes or any(isinstance(i, Reduce | Scan) for i in loop.body):
        return []
    axis = loop.axes[-1]
    if not isinstance(axis.extent, int) or axis.extent < limits.cut:
        return []
    borders = sorted({b for b in _borders(loop, axis) if 0 < b < axis.extent})
    if not 0 < len(borders) < limits.pieces or len(borders) * len(loop.body) > limits.copied:
        return []
    ends = pairwise((0, *borders, axis.extent))
    return [
        LoopPart(axis, low, high, f"{number + n}").cut(loop) for n, (low, high) in enumerate(ends)
    ]


def _borders(loop: Loop, axis: Axis) -> Iterator[int]:
    """Where along the axis the outcome of a comparison changes."""
    places, numbers = _operands(loop.body, axis)
    for i in loop.body:
        if isinstance(i, Apply) and i.op in _BORDERS and i.args[0] in places:
            limit = numbers.get(i.args[1])
            if limit is not None:
                yield limit - places[i.args[0]] + _BORDERS[i.op]


def _operands(body: tuple[Instruction, ...], axis: Axis) -> tuple[dict[str, int], dict[str, int]]:
    """Positions that are the axis plus a number, and integer constants."""
    places, numbers = {}, {}
    for i in body:
        if isinstance(i, Position) and i.index.axes == ((axis.name, 1),):
            if isinstance(i.index.offset, int):
                places[i.name] = i.index.offset
        elif isinstance(i, Const) and i.dtype == "int64":
            numbers[i.name] = int(i.value)
    return places, numbers


@dataclass
class LoopPart:
    """Part of a loop: what is decided in it is folded away."""

    axis: Axis
    low: int
    high: int
    suffix: str
    names: dict[str, str] = field(default_factory=dict)  # values by their names in the whole loop
    known: dict[str, bool] = field(default_factory=dict)
    body: list[Instruction] = field(default_factory=list)

    def cut(self, loop: Loop) -> Loop:
        """The loop over this piece."""
        places, numbers = _operands(loop.body, self.axis)
        for i in loop.body:
            decided = self._decide(i, places, numbers)
            if decided is None:
                self._copy(i)
            else:
                self.known[i.name] = decided
                self._add(Const(i.name, "bool", decided))
        axis = Axis(self._axis_name(), self.high - self.low)
        return Loop((*loop.axes[:-1], axis), tuple(self.body))

    def _axis_name(self) -> str:
        return f"{self.axis.name}_{self.suffix}"

    def _decide(
        self, i: Instruction, places: dict[str, int], numbers: dict[str, int]
    ) -> bool | None:
        """A truth value that is the same all along the piece."""
        if not isinstance(i, Apply) or i.dtype != "bool":
            return None
        if i.op in _BORDERS and i.args[0] in places and i.args[1] in numbers:
            border = numbers[i.args[1]] - places[i.args[0]] + _BORDERS[i.op]
            return (self.low >= border) == (i.op in ("ge", "gt"))
        found = [self.known.get(name) for name in i.args]
        if i.op == "and" and (False in found or None not in found):
            return False not in found
        if i.op == "or" and (True in found or None not in found):
            return True in found
        return None

    def _copy(self, i: Instruction) -> None:
        if isinstance(i, Apply):
            same = self._same_as(i)
            if same is not None:
                self.names[i.name] = self.names.get(same, same)
                return
        if isinstance(i, Load) and i.mask is not None and i.mask in self.known:
            if not self.known[i.mask]:
                self._add(Const(i.name, i.dtype, False if i.dtype == "bool" else 0))
                return
            i = replace(i, mask=None)
        self._add(i)

    def _same_as(self, i: Apply) -> str | None:
        """Which operand a decided choice comes to."""
        if i.op == "where" and i.args[0] in self.known:
            return i.args[1] if self.known[i.args[0]] else i.args[2]
        if i.dtype == "bool" and i.op in ("and", "or") and any(a in self.known for a in i.args):
            return next(a for a in i.args if a not in self.known)
        return None

    def _index(self, index: Index) -> Index:
        """An index of the whole loop in the part, which has an axis of its own."""
        moved = index.shift(mul(index.stride(self.axis.name), self.low))
        name = self._axis_name()
        axes = tuple((name if n == self.axis.name else n, s) for n, s in index.axes)
        return Index(moved.offset, axes, index.values)

    def _add(self, i: Instruction) -> None:
        name = i.name and f"{i.name}_{self.suffix}"
        self.body.append(renamed(reindexed(i, self._index), name, self.names))
        if i.name:
            self.names[i.name] = name
