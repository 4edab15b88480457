"""Mean and variance of long columns in one pass: each part's sums relative to its first element.

Two passes read everything twice, the second to square what is left of each element without the
mean. From sums of the deviations from any number, and of their squares, those from the mean follow;
a number out of the part itself is so near that hardly anything is lost in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.ir.affine import Affine, product
from dovetail.lower.expression import Bodies, Builder, inline
from dovetail.lower.index_map import Indices
from dovetail.lower.reductions import squared_deviations
from dovetail.lower.rules import Lower
from dovetail.lower.values import Pointwise, Reduction, Value

if TYPE_CHECKING:
    from dovetail.schedule.parts import ReductionPart

WIDE = "float64"  # what parts are put together in


def squares_of(total: Value, made: Sequence[Value]) -> Reduction | None:
    """The sum of squared deviations from the mean that a sum leads to, if there is one."""
    if not isinstance(total, Reduction) or total.op != "sum" or total.accumulate != "float32":
        return None
    for value in made:
        if not isinstance(value, Reduction) or len(value.reads) != 2:
            continue
        source, mean = value.reads
        if not isinstance(mean, Pointwise) or mean.reads != (total,) or total.reads != (source,):
            continue
        same = squared_deviations(Lower(), source, mean, total.dims, "float32")
        kinds = [(v.op, v.dims, v.source_shape, v.accumulate) for v in (value, same)]
        if kinds[0] == kinds[1] and value.expression == same.expression:
            return value
    return None


class MomentParts:
    """The sums of a part's deviations from its first element, and of their squares."""

    def __init__(self, lower: Lower, whole: Reduction, part: ReductionPart) -> None:
        self.lower, self.whole, self.part = lower, whole, part
        self.count = product(part.shape[d] for d in part.dims)
        self.off, self.squares = self._sum(squared=False), self._sum(squared=True)

    def _element(self, b: Builder, index: Indices) -> str:
        (x,) = inline(b, self.whole.expression, self.whole.reads, self.part.at.at(index))
        return b.cast(x, "float32")

    def _sum(self, *, squared: bool) -> Reduction:
        part = self.part

        def body(b: Builder, index: Indices) -> tuple[str, ...]:
            start = tuple(Affine() if d in part.dims else i for d, i in enumerate(index))
            off = b.apply("sub", "float32", self._element(b, index), self._element(b, start))
            return (b.apply("mul", "float32", off, off) if squared else off,)

        name, reads = self.lower.fresh("sum"), self.whole.reads
        made = Reduction(name, "float32", "sum", part.shape, part.dims, body, reads, "float32")
        made.strides = part.strides
        return made

    def _start(self, b: Builder, index: Indices) -> str:
        """A part's first element."""
        dims, left = self.part.dims, iter(index)
        whole = (Affine() if d in dims else next(left) for d in range(len(self.part.shape)))
        return b.cast(self._element(b, tuple(whole)), WIDE)

    def total(self) -> Reduction:
        """The sum of all elements."""

        def body(b: Builder, index: Indices) -> tuple[str, ...]:
            count = b.const(float(self.count), WIDE)  # type: ignore[arg-type]
            base = b.apply("mul", WIDE, count, self._start(b, index))
            return (b.apply("add", WIDE, base, b.cast(b.read(self.off, index), WIDE)),)

        return self._over_parts(body, (self.off, *self.whole.reads))

    def deviations(self, mean: Value) -> Reduction:
        """The sum of the squares of all elements without the mean."""

        def body(b: Builder, index: Indices) -> tuple[str, ...]:
            row = tuple(i for d, i in enumerate(index) if d not in self.part.places)
            shift = b.apply("sub", WIDE, self._start(b, index), b.cast(b.read(mean, row), WIDE))
            count, two = (b.const(n, WIDE) for n in (float(self.count), 2.0))  # type: ignore[arg-type]
            off, squares = (b.cast(b.read(v, index), WIDE) for v in (self.off, self.squares))
            twice = b.apply("mul", WIDE, two, off)
            slope = b.apply("add", WIDE, twice, b.apply("mul", WIDE, count, shift))
            return (b.apply("add", WIDE, squares, b.apply("mul", WIDE, shift, slope)),)

        return self._over_parts(body, (self.off, self.squares, mean, *self.whole.reads))

    def _over_parts(self, body: Bodies, reads: tuple[Value, ...]) -> Reduction:
        name, shape, places = self.lower.fresh("sum"), self.off.shape, self.part.places
        return Reduction(name, WIDE, "sum", shape, places, body, reads, WIDE)
