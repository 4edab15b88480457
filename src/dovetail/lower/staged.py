"""Long folds in two steps: first parts, which threads share, then the parts.

The parts follow from the shape alone, so a result does not depend on the threads. They also keep
sums exact: no running value takes more than a part's elements, as in PyTorch's cascade.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dovetail.ir.affine import mul, product
from dovetail.ir.size import Dim, Size
from dovetail.lower.expression import Bodies, Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.rules import Lower
from dovetail.lower.values import Reduction, Value

LONG = 1 << 16  # elements folded to one that are worth cutting where few others are folded
LONGEST = 1 << 17  # and always
FEW = 16  # results, beside which threads have too little to do
SMALLEST, LARGEST = 1 << 12, 1 << 14  # elements in a part
COLUMN, COLUMN_PART = 1 << 10, 1 << 8  # the same down columns, where lanes hold other results
ROWS = 4  # along the dimension that is cut, where the others' sizes are not known

# What puts two folds together.
_JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


@dataclass(frozen=True)
class Fold:
    """A fold of an expression over some dimensions of a shape."""

    op: str
    shape: tuple[Dim, ...]
    dims: tuple[int, ...]
    body: Bodies
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


@dataclass(frozen=True)
class Piece:
    """Elements of a fold: all whole parts, which have a dimension of their own, or the rest."""

    shape: tuple[Dim, ...]
    dims: tuple[int, ...]  # folded in the first step
    parts: int | None  # folded in the second: the parts, among the dimensions that remain
    at: Callable[[Indices], Indices]  # where in the whole an element stands

    def first(self, lower: Lower, whole: Fold) -> Reduction:
        """One element for every part."""

        def body(b: Builder, index: Indices) -> tuple[str, ...]:
            return whole.body(b, self.at(index))

        return replace(whole, shape=self.shape, dims=self.dims, body=body).value(lower)

    def second(self, lower: Lower, whole: Fold, first: Value) -> Value:
        """The parts' fold."""
        if self.parts is None:
            return first
        wide = whole.wide

        def body(b: Builder, index: Indices) -> tuple[str, ...]:
            return (b.cast(b.read(first, index), wide),)

        return Fold(whole.op, first.shape, (self.parts,), body, (first,), wide, wide).value(lower)


def pieces(whole: Fold, place: int, length: int) -> list[Piece]:
    """A fold's elements in parts along a dimension, and what is left behind the last one."""
    size, before, behind = whole.shape[place], whole.shape[:place], whole.shape[place + 1 :]
    count, rest = Size.binary("floordiv", size, length), Size.binary("mod", size, length)

    def in_part(i: Indices) -> Indices:
        return (*i[:place], i[place].scale(length) + i[place + 1], *i[place + 2 :])

    def in_rest(i: Indices) -> Indices:
        return (*i[:place], i[place].shift(mul(count, length)), *i[place + 1 :])

    dims = tuple(d + (d >= place) for d in whole.dims)
    kept = sum(d not in whole.dims for d in range(place))
    found = [Piece((*before, count, length, *behind), dims, kept, in_part)]
    if rest != 0:
        found.append(Piece((*before, rest, *behind), whole.dims, None, in_rest))
    return found


def fold(lower: Lower, whole: Fold) -> Value:
    """The fold, in two steps where it is long."""
    cut = where_to_cut(whole)
    if cut is None:
        return whole.value(lower)
    found = [(piece, piece.first(lower, whole)) for piece in pieces(whole, *cut)]
    return join(lower, whole, [piece.second(lower, whole, first) for piece, first in found])


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


def join(lower: Lower, whole: Fold, found: list[Value]) -> Value:
    """The parts' fold, and what was left over, rounded once."""

    def body(b: Builder, index: Indices) -> str:
        each = [b.cast(b.read(v, index), whole.wide) for v in found]
        total = each[0] if len(each) == 1 else b.apply(_JOIN[whole.op], whole.wide, *each)
        return b.cast(total, whole.accumulate)

    return lower.inner(whole.op, whole.dtype, found[0].shape, body, tuple(found))
