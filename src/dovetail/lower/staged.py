"""Long folds in two steps: first parts, which threads share, then the parts.

The parts follow from the shape alone, so a result does not depend on the threads. They also keep
sums exact: no running value takes more than a part's elements, as in PyTorch's cascade.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.ir.affine import mul, product
from dovetail.ir.size import Dim, Size
from dovetail.lower.rules import Lower
from dovetail.lower.values import Builder, Indices, Reduction, Value

LONG = 1 << 16  # elements folded to one that are worth cutting where few others are folded
LONGEST = 1 << 17  # and always
FEW = 16  # results, beside which threads have too little to do
SMALLEST, LARGEST = 1 << 12, 1 << 14  # elements in a part
COLUMN, COLUMN_PART = 1 << 10, 1 << 8  # the same down columns, where lanes hold other results
ROWS = 4  # along the dimension that is cut, where the others' sizes are not known

Body = Callable[[Builder, Indices], tuple[str, ...]]
# What puts two folds together.
_JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


@dataclass(frozen=True)
class Fold:
    """A fold of an expression over some dimensions of a shape."""

    op: str
    shape: tuple[Dim, ...]
    dims: tuple[int, ...]
    body: Body
    reads: tuple[Value, ...]
    dtype: str
    accumulate: str

    @property
    def wide(self) -> str:
        """What parts are put together in: few enough that sums can be without error."""
        exact = self.op == "sum" and self.accumulate == "float32"
        return "float64" if exact else self.accumulate

    def value(self, lower: Lower) -> Reduction:
        """It in one step."""
        return Reduction(
            lower.fresh(self.op),
            self.dtype,
            self.op,
            self.shape,
            self.dims,
            self.body,
            self.reads,
            self.accumulate,
        )


def fold(lower: Lower, whole: Fold) -> Value:
    """The fold, in two steps where it is long."""
    cut = where_to_cut(whole)
    if cut is None:
        return whole.value(lower)
    place, length = cut
    size = whole.shape[place]
    count, rest = Size.binary("floordiv", size, length), Size.binary("mod", size, length)
    found: list[Value] = [_parts(lower, whole, place, count, length)]
    if rest != 0:
        found.append(_rest(lower, whole, place, mul(count, length), rest))
    return _join(lower, whole, found)


def where_to_cut(whole: Fold) -> tuple[int, int] | None:
    """A dimension to cut and the length of its parts; None: the fold is short enough."""
    kept = [d for d, size in enumerate(whole.shape) if d not in whole.dims and size != 1]
    results = product(whole.shape[d] for d in kept)
    total = product(whole.shape[d] for d in whole.dims)
    if whole.op not in _JOIN or results == 0 or total == 0:
        return None
    long = [d for d in whole.dims if whole.shape[d] != 1]
    is_column = bool(kept) and (not long or kept[-1] > long[-1])
    few = isinstance(results, int) and results < FEW
    if not isinstance(total, int):
        wanted = COLUMN_PART if is_column else LARGEST
        return _symbolic_cut(whole, wanted) if is_column or few else None
    if is_column:
        return _cut(whole, total, COLUMN_PART) if total >= COLUMN else None
    if total < (LONG if few else LONGEST):
        return None
    return _cut(whole, total, min(max(total // FEW, SMALLEST), LARGEST))


def _cut(whole: Fold, total: int, wanted: int) -> tuple[int, int] | None:
    """Where parts have about as many elements as wanted, and best where none is left over."""
    sizes = {d: int(whole.shape[d]) for d in whole.dims if whole.shape[d] != 1}  # type: ignore[arg-type]
    place = next(iter(sizes))
    if total // sizes[place] > wanted:
        place = max(sizes, key=lambda d: sizes[d])
    size = sizes[place]
    length = max(wanted // (total // size), 1)
    near = [n for n in range(length, length // 2, -1) if size % n == 0]
    length = near[0] if near else length
    return (place, length) if length < size else None


def _symbolic_cut(whole: Fold, wanted: int) -> tuple[int, int] | None:
    place = next(d for d in whole.dims if isinstance(whole.shape[d], Size))
    others = product(whole.shape[d] for d in whole.dims if d != place)
    return place, max(wanted // others, 1) if isinstance(others, int) else ROWS


def _parts(lower: Lower, whole: Fold, place: int, count: Dim, length: int) -> Reduction:
    """The fold of all whole parts."""
    finer = (*whole.shape[:place], count, length, *whole.shape[place + 1 :])

    def part(b: Builder, index: Indices) -> tuple[str, ...]:
        at = index[place].scale(length) + index[place + 1]
        return whole.body(b, (*index[:place], at, *index[place + 2 :]))

    dims = tuple(d + (d >= place) for d in whole.dims)
    first = Fold(whole.op, finer, dims, part, whole.reads, whole.dtype, whole.accumulate)
    parts = first.value(lower)

    wide = whole.wide

    def last(b: Builder, index: Indices) -> tuple[str, ...]:
        return (b.cast(b.read(parts, index), wide),)

    kept_before = sum(d not in whole.dims for d in range(place))
    again = Fold(whole.op, parts.shape, (kept_before,), last, (parts,), wide, wide)
    return again.value(lower)


def _rest(lower: Lower, whole: Fold, place: int, start: Dim, rest: Dim) -> Reduction:
    """The fold of what is left behind the last part."""
    shape = (*whole.shape[:place], rest, *whole.shape[place + 1 :])

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        return whole.body(b, (*index[:place], index[place].shift(start), *index[place + 1 :]))

    left = Fold(whole.op, shape, whole.dims, body, whole.reads, whole.dtype, whole.accumulate)
    return left.value(lower)


def _join(lower: Lower, whole: Fold, found: list[Value]) -> Value:
    """The parts' fold, and what was left over, rounded once."""

    def body(b: Builder, index: Indices) -> str:
        each = [b.cast(b.read(v, index), whole.wide) for v in found]
        total = each[0] if len(each) == 1 else b.apply(_JOIN[whole.op], whole.wide, *each)
        return b.cast(total, whole.accumulate)

    return lower.inner(whole.op, whole.dtype, found[0].shape, body, tuple(found))
