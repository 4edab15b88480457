"""Scans: every step of a reduction, along the lanes of a vector or lane by lane."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.reduce import combine, part
from dovetail.codegen.llvm.transpose import side_by_side
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.kernel import Scan
from dovetail.ir.ops import REDUCTIONS


class Scans:
    """For each scan of a loop what it has come to so far, carried from point to point.

    ``lanes`` says how many lanes of that a loop needs: its own number where each lane is a scan
    of its own, and where the scan goes along the lanes as many as are done at a time.
    """

    def __init__(self, c: Code, lanes: Mapping[Scan, int]) -> None:
        self.c, self.lanes = c, lanes
        self.slots = {s: c.slot(s.dtype, count) for s, count in lanes.items()}
        for s, count in lanes.items():
            c.put(self.slots[s], c.const(REDUCTIONS[s.op].identity(s.dtype), s.dtype, count))

    def step(self, s: Scan, given: Val) -> Val:
        """The next point of each lane's own scan."""
        c, slot, lanes = self.c, self.slots[s], self.lanes[s]
        value = c.splat(scalar.cast(c, given, s.dtype), lanes)
        new = _combined(c, s, c.get(slot, s.dtype, lanes), value)
        c.put(slot, new)
        return new

    def along(self, s: Scan, given: Val, lanes: int) -> Val:
        """The next ``lanes`` points of one scan."""
        c, slot, width = self.c, self.slots[s], self.lanes[s]
        value = c.splat(scalar.cast(c, given, s.dtype), lanes)
        total = c.get(slot, s.dtype, width)
        pieces = []
        for start in range(0, lanes, width):
            piece = _prefix(c, s, part(c, value, start, width))
            pieces.append(_combined(c, s, total, piece))
            total = _combined(c, s, total, _last(c, piece))
        c.put(slot, total)
        return _joined(c, pieces)


def _combined(c: Code, s: Scan, earlier: Val, later: Val) -> Val:
    return combine(c, s.op, (earlier,), (later,))[0]


def _prefix(c: Code, s: Scan, value: Val) -> Val:
    """The scan of a vector by itself: each lane takes in the one 1, 2, 4, … before it."""
    # Not 0.0, which would change -0.0, and which LLVM shifts in with a slow instruction.
    negative_zero = s.op == "sum" and s.dtype in FLOATS
    start, by = c.like(-0.0 if negative_zero else REDUCTIONS[s.op].identity(s.dtype), value), 1
    while by < value.lanes:
        value = _combined(c, s, _shifted(c, value, start, by), value)
        by *= 2
    return value


def _last(c: Code, value: Val) -> Val:
    """The last lane's value in every lane."""
    if value.lanes == 1:
        return value
    return c.shuffle(value, None, [value.lanes - 1] * value.lanes)


def _shifted(c: Code, value: Val, start: Val, by: int) -> Val:
    """Every lane moved up; the first get what the reduction starts from."""
    lanes = value.lanes
    return c.shuffle(start, value, range(lanes - by, 2 * lanes - by))


def _joined(c: Code, pieces: list[Val]) -> Val:
    """Vectors one behind the other."""
    if pieces[0].lanes == 1 and len(pieces) > 1:
        whole = Val("poison", pieces[0].dtype, len(pieces))
        for lane, piece in enumerate(pieces):
            text = f"insertelement {whole.type} {whole.text}, {piece.type} {piece.text}, i64 {lane}"
            whole = c.new(text, piece.dtype, whole.lanes)
        return whole
    return side_by_side(c, pieces)
