"""Accumulators of a loop's reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.ir.dtypes import LIMITS
from dovetail.ir.kernel import Index, Loop, Position, Reduce
from dovetail.ir.ops import REDUCTIONS

_LAST = {name: most for name, (_, most) in LIMITS.items()}  # a position before any was found


def met_in_order(loop: Loop) -> frozenset[str]:
    """The reductions of a loop that find a position along its one axis."""
    if len(loop.axes) != 1:
        return frozenset()
    along = Index(axes=((loop.axes[0].name, 1),))
    places = {i.name for i in loop.body if isinstance(i, Position) and i.index == along}
    reduces = (i for i in loop.body if isinstance(i, Reduce) and i.op.startswith("arg"))
    return frozenset(r.name for r in reduces if r.args[1] in places)


class Accumulators:
    """For each reduction: ``copies`` running values, and a total they are added to."""

    def __init__(
        self,
        c: Code,
        reduces: Sequence[tuple[Reduce, tuple[str, ...], int]],
        copies: int,
        *,
        in_lanes: bool,
        in_order: frozenset[str] = frozenset(),
        exact: bool = False,
    ) -> None:
        """``reduces`` gives each reduction with its types and lanes.

        Those ``in_order`` meet the positions 0, 1, 2, … of one axis one after another. Where
        totals are ``exact``, running sums of float32 meet in float64.
        """
        self.c, self.copies, self.in_lanes, self.in_order = c, copies, in_lanes, in_order
        self.exact = exact
        self.found_by = _found_by(reduces)
        self.reduces = tuple(r for r, _, _ in reduces if r.name not in self.found_by)
        self.types = {r.name: types for r, types, _ in reduces}
        self.lanes = {r.name: lanes for r, _, lanes in reduces}
        self.total_types = {r.name: self._total_types(r) for r in self.reduces}
        self.totals = {r.name: self._slots(r, self.total_types) for r in self.reduces}
        self.running = {
            r.name: [self._slots(r, self.types) for _ in range(copies)] for r in self.reduces
        }
        for r in self.reduces:
            self._start(r, self.totals[r.name], self.total_types)

    @property
    def needed(self) -> bool:
        """Whether there is anything to reduce."""
        return bool(self.reduces)

    def begin(self) -> None:
        """Start the running values."""
        for r in self.reduces:
            for slots in self.running[r.name]:
                self._start(r, slots, self.types)

    def _total_types(self, r: Reduce) -> tuple[str, ...]:
        types = self.types[r.name]
        return ("float64",) if self.exact and (r.op, *types) == ("sum", "float32") else types

    def _slots(self, r: Reduce, types: Mapping[str, tuple[str, ...]]) -> list[str]:
        return [self.c.slot(dtype, self.lanes[r.name]) for dtype in types[r.name]]

    def _start(self, r: Reduce, slots: list[str], kinds: Mapping[str, tuple[str, ...]]) -> None:
        lanes, types = self.lanes[r.name], kinds[r.name]
        starts = [self.c.const(REDUCTIONS[r.op].identity(types[0]), types[0], lanes)]
        starts += [self.c.const(_LAST[t], t, lanes) for t in types[1:]]
        for slot, value in zip(slots, starts, strict=True):
            self.c.put(slot, value)

    def accumulate(self, r: Reduce, args: tuple[Val, ...], copy: int, mask: Val | None) -> None:
        """Take one more value (where ``mask`` allows); two for a sum are factors of it."""
        if r.name in self.found_by:
            return
        c, lanes = self.c, self.lanes[r.name]
        slots, types = self.running[r.name][copy], self.types[r.name]
        old = tuple(c.get(s, t, lanes) for s, t in zip(slots, types, strict=True))
        if r.op == "sum" and len(args) == 2:
            one, other = (c.splat(a, lanes) for a in args)
            new: tuple[Val, ...] = (c.intrinsic("fma", one, other, old[0]),)
        else:
            cast = [scalar.cast(c, a, t) for a, t in zip(args, types, strict=True)]
            value = tuple(c.splat(v, lanes) for v in cast)
            later = r.name in self.in_order
            new = _better_later(c, r.op, old, value) if later else combine(c, r.op, old, value)
        for slot, before, after in zip(slots, old, new, strict=True):
            c.put(slot, after if mask is None else c.select(mask, after, before))

    def end(self) -> None:
        """Add the running values to the totals."""
        c = self.c
        for r in self.reduces:
            lanes, types = self.lanes[r.name], self.types[r.name]
            groups = [
                tuple(c.get(s, t, lanes) for s, t in zip(slots, types, strict=True))
                for slots in self.running[r.name]
            ]
            while len(groups) > 1:
                pairs = zip(groups[::2], groups[1::2], strict=True)
                groups = [combine(c, r.op, a, b) for a, b in pairs]
            slots, types = self.totals[r.name], self.total_types[r.name]
            total = tuple(c.get(s, t, lanes) for s, t in zip(slots, types, strict=True))
            last = tuple(scalar.cast(c, v, t) for v, t in zip(groups[0], types, strict=True))
            for slot, value in zip(slots, combine(c, r.op, total, last), strict=True):
                c.put(slot, value)

    def results(self, some: Val | None) -> dict[str, Val]:
        """Each reduction's value, lanes reduced where the loop ran along them.

        ``some`` tells whether the loop has points; None where it surely has.
        """
        found = {}
        extremes = {position: value for value, position in self.found_by.items()}
        for r in self.reduces:
            lanes, types = self.lanes[r.name], self.total_types[r.name]
            slots = self.totals[r.name]
            total = tuple(self.c.get(s, t, lanes) for s, t in zip(slots, types, strict=True))
            if self.in_lanes and lanes > 1:
                total = _across(self.c, r.op, total)
            kinds = self.types[r.name]
            total = tuple(scalar.cast(self.c, v, t) for v, t in zip(total, kinds, strict=True))
            if r.name in extremes:
                found[extremes[r.name]] = total[0]
            found[r.name] = self._place(r, total[-1], some) if len(kinds) > 1 else total[-1]
        return found

    def _place(self, r: Reduce, found: Val, some: Val | None) -> Val:
        """A position, which of no points is 0.

        One met in order is the first, 0, where nothing was better than where a reduction starts.
        """
        c = self.c
        if r.name in self.in_order:
            none = c.compare("icmp eq", found, c.like(_LAST[found.dtype], found))
            return scalar.cast(c, c.select(none, c.like(0, found), found), "int64")
        return found if some is None else c.select(some, found, c.like(0, found))


def _found_by(reduces: Sequence[tuple[Reduce, tuple[str, ...], int]]) -> dict[str, str]:
    """The extremes whose position another reduction looks for, which finds them on the way."""
    positions = {
        (r.op, r.args[0], types[0], lanes): r.name for r, types, lanes in reduces if len(types) > 1
    }
    found: dict[str, str] = {}
    for r, types, lanes in reduces:
        position = positions.get((f"arg{r.op}", r.args[0], types[0], lanes))
        if position is not None and position not in found.values():
            found[r.name] = position
    return found


def combine(c: Code, op: str, left: tuple[Val, ...], right: tuple[Val, ...]) -> tuple[Val, ...]:
    """Two partial results as one."""
    if op.startswith("arg"):
        return _better(c, op, left, right)
    (a,), (b,) = left, right
    if op == "max":
        return (scalar.maximum(c, b, a),)
    if op == "min":
        return (scalar.minimum(c, b, a),)
    return (scalar.apply(c, REDUCTIONS[op].operation, a.dtype, (a, b)),)


def _better(c: Code, op: str, left: tuple[Val, ...], right: tuple[Val, ...]) -> tuple[Val, ...]:
    """The larger (smaller) value's position; a NaN beats all, the first of equals wins."""
    (a, i), (b, j) = left, right
    better = scalar.apply(c, "gt" if op == "argmax" else "lt", "bool", (b, a))
    equal = scalar.apply(c, "eq", "bool", (a, b))
    if scalar.is_float(a):
        a_broken, b_broken = c.compare("fcmp uno", a, a), c.compare("fcmp uno", b, b)
        healthy = c.op("xor", a_broken, c.like(True, a_broken))
        better = c.op("or", better, c.op("and", b_broken, healthy))
        equal = c.op("or", equal, c.op("and", a_broken, b_broken))
    earlier = c.compare("icmp slt", j, i)
    better = c.op("or", better, c.op("and", equal, earlier))
    return c.select(better, b, a), c.select(better, j, i)


def _better_later(
    c: Code, op: str, left: tuple[Val, ...], right: tuple[Val, ...]
) -> tuple[Val, ...]:
    """As ``_better``, where the right position is the later one: it has to be better to win."""
    (a, i), (b, j) = left, right
    if not scalar.is_float(a):
        better = scalar.apply(c, "gt" if op == "argmax" else "lt", "bool", (b, a))
    else:
        above = c.compare("fcmp ugt" if op == "argmax" else "fcmp ult", b, a)
        better = c.op("and", above, c.compare("fcmp ord", a, a))
    return c.select(better, b, a), c.select(better, j, i)


def _across(c: Code, op: str, total: tuple[Val, ...]) -> tuple[Val, ...]:
    """Reduce the lanes: halves, quarters, …."""
    lanes = total[0].lanes
    while lanes > 1:
        half = lanes // 2
        low = tuple(part(c, v, 0, half) for v in total)
        high = tuple(part(c, v, half, half) for v in total)
        total = combine(c, op, low, high)
        lanes = half
    return total


def part(c: Code, value: Val, start: int, count: int) -> Val:
    """Some lanes of a value."""
    if count == value.lanes:
        return value
    if count == 1:
        text = f"extractelement {value.type} {value.text}, i64 {start}"
        return c.new(text, value.dtype, 1)
    return c.shuffle(value, None, range(start, start + count))
