"""Long reductions and scans in two steps: first parts, then the parts.

Where to cut is for the strategies of a target (``cpu/cut.py``, ``gpu/cut.py``). The parts follow
from the shape and the target, never from the threads there are, and so does the result. They also
keep sums exact: no running value takes more than a part's elements, as in PyTorch's cascade.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.ir.affine import mul, product
from dovetail.ir.ops import REDUCTIONS
from dovetail.ir.size import Dim, Size
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.calls import Lowered
from dovetail.lower.expression import Builder, Compute, Read, ScanStep, inline
from dovetail.lower.index_map import IndexMap, Indices
from dovetail.lower.reindex import reshape
from dovetail.lower.rules import Lower
from dovetail.lower.values import Computed, Reduction, Scanned, Value, View, operands_of
from dovetail.schedule.moments import MomentParts, squares_of
from dovetail.schedule.softmax import SoftmaxParts, sum_of_powers

ROWS = 4  # along the dimension that is cut, where the others' sizes are not known


@dataclass(frozen=True)
class ScanCut:
    """A running sum whose one step is done in so many parts."""

    step: ScanStep
    parts: int


@dataclass(frozen=True)
class DimensionCut:
    """A dimension whose parts are of this length; of those ``outer``, each element is a part.

    Where parts ``lead``, what is made of one lies apart from what is made of the next, and what
    remains beside each other, as it does in the memory that is read.
    """

    place: int
    length: int
    outer: tuple[int, ...] = ()
    lead: bool = False


Cut = DimensionCut | ScanCut


def cut(found: Lowered, where: Callable[[Value], Cut | None]) -> Lowered:
    """What a call became, with its long reductions and scans in parts."""
    long = {v: place for v in found.made if (place := where(v)) is not None}
    return PartCutter(found, long).lowered() if long else found


def wide(whole: Reduction) -> str:
    """What parts are put together in: few enough that sums can be without error."""
    exact = whole.op == "sum" and whole.accumulate == "float32"
    return "float64" if exact else whole.accumulate


@dataclass(frozen=True)
class ReductionPart:
    """Some elements of a reduction: all whole parts, with a dimension of their own, or the rest."""

    shape: tuple[Dim, ...]
    dims: tuple[int, ...]  # reduced in the first step
    places: tuple[int, ...]  # of the parts among the dimensions that remain: the second reduces
    at: IndexMap  # where in the whole an element stands
    lead: bool = False

    @property
    def made(self) -> tuple[Dim, ...]:
        """The dimensions that remain."""
        return tuple(size for d, size in enumerate(self.shape) if d not in self.dims)

    @property
    def strides(self) -> tuple[Dim, ...]:
        """How what is made of the parts lies."""
        last = [d for d in range(len(self.made)) if d not in self.places]
        order = [*self.places, *last] if self.lead else [*range(len(self.made))]
        dense = contiguous_strides([self.made[d] for d in order])
        return tuple(dense[order.index(d)] for d in range(len(order)))

    def first(self, lower: Lower, whole: Reduction) -> Reduction:
        """One element for every part."""

        def body(b: Builder, index: Indices) -> tuple[str, ...]:
            return inline(b, whole.expression, whole.reads, self.at.at(index))

        name, form = lower.fresh(whole.op), (self.shape, self.dims)
        made = Reduction(name, whole.dtype, whole.op, *form, body, whole.reads, whole.accumulate)
        made.strides = self.strides
        return made

    def second(self, lower: Lower, whole: Reduction, first: Value) -> Value:
        """The parts' reduction."""
        if not self.places:
            return first
        dtype = wide(whole)

        def body(b: Builder, index: Indices) -> tuple[str, ...]:
            return (b.cast(b.read(first, index), dtype),)

        name = lower.fresh(whole.op)
        return Reduction(name, dtype, whole.op, first.shape, self.places, body, (first,), dtype)


def parts_of(whole: Reduction, how: DimensionCut) -> list[ReductionPart]:
    """A reduction's elements in parts along a dimension, and what is left behind the last one."""
    shape, place, length = whole.source_shape, how.place, how.length
    size, before, behind = shape[place], shape[:place], shape[place + 1 :]
    count, rest = Size.binary("floordiv", size, length), Size.binary("mod", size, length)

    def in_part(i: Indices) -> Indices:
        return (*i[:place], i[place].scale(length) + i[place + 1], *i[place + 2 :])

    def in_rest(i: Indices) -> Indices:
        return (*i[:place], i[place].shift(mul(count, length)), *i[place + 1 :])

    dims = tuple(d + (d >= place) for d in whole.dims if d not in how.outer)
    parts = {place, *(d + (d >= place) for d in how.outer)}
    kept = [d for d in range(len(shape) + 1) if d not in dims]
    places = tuple(n for n, d in enumerate(kept) if d in parts)
    at = IndexMap.of(len(shape) + 1, in_part)
    fine = (*before, count, length, *behind)
    found = [ReductionPart(fine, dims, places, at, how.lead)]
    if rest != 0:
        at = IndexMap.of(len(shape), in_rest)
        found.append(ReductionPart((*before, rest, *behind), whole.dims, (), at))
    return found


def join(lower: Lower, whole: Reduction, found: Sequence[Value]) -> Value:
    """The parts' reduction, and what was left over, rounded once."""
    dtype, op = wide(whole), REDUCTIONS[whole.op].operation

    def body(b: Builder, index: Indices) -> str:
        each = [b.cast(b.read(v, index), dtype) for v in found]
        total = each[0] if len(each) == 1 else b.apply(op, dtype, *each)
        return b.cast(total, whole.accumulate)

    return lower.inner(whole.op, whole.dtype, found[0].shape, body, tuple(found))


def extents(whole: Reduction) -> tuple[Dim, Dim, bool]:
    """How many results a reduction has, of how many elements each, and whether down columns."""
    shape = whole.source_shape
    kept = [d for d, size in enumerate(shape) if d not in whole.dims and size != 1]
    long = [d for d in whole.dims if shape[d] != 1]
    is_column = bool(kept) and (not long or kept[-1] > long[-1])
    return product(shape[d] for d in kept), product(shape[d] for d in whole.dims), is_column


def cut_near(whole: Reduction, total: int, wanted: int) -> DimensionCut | None:
    """Where parts have about as many elements as wanted, and best where none is left over."""
    shape = whole.source_shape
    sizes = {d: int(shape[d]) for d in whole.dims if shape[d] != 1}  # type: ignore[arg-type]
    place = next(iter(sizes))
    if total // sizes[place] > wanted:
        place = max(sizes, key=lambda d: sizes[d])
    size = sizes[place]
    length = max(wanted // (total // size), 1)
    near = [n for n in range(length, length // 2, -1) if size % n == 0]
    length = near[0] if near else length
    return DimensionCut(place, length) if length < size else None


def cut_symbolic(whole: Reduction, wanted: int) -> DimensionCut | None:
    """The same where the sizes of some dimensions are not known."""
    shape = whole.source_shape
    place = next(d for d in whole.dims if isinstance(shape[d], Size))
    others = product(shape[d] for d in whole.dims if d != place)
    return DimensionCut(place, max(wanted // others, 1) if isinstance(others, int) else ROWS)


class PartCutter:
    """Rewrites values in the order in which they are made."""

    def __init__(self, found: Lowered, long: Mapping[Value, Cut]) -> None:
        self.found, self.long = found, long
        self.lower = found.fresh_names()
        self.known: dict[Value, Value] = {}
        self.totals: dict[Value, Callable[[], Value]] = {}  # sums that go with what was cut before

    def lowered(self) -> Lowered:
        """The same call, in parts."""
        for value in self.found.made:
            self.known[value] = self._rewritten(value)
        return self.found.replaced(tuple(self.known.get(v, v) for v in self.found.results))

    def _rewritten(self, value: Value) -> Value:
        if value in self.totals:
            return self.totals[value]()
        now = self._with_operands(value)
        if value not in self.long:
            return now
        how = self.long[value]
        if isinstance(how, ScanCut):
            assert isinstance(now, Scanned)
            return self._shared(now, how)
        assert isinstance(now, Reduction)
        return self._in_parts(value, now, parts_of(now, how), lead=how.lead)

    def _with_operands(self, value: Value) -> Value:
        """A value that reads what its operands have become."""
        if all(self.known.get(v, v) is v for v in operands_of(value)):
            return value
        new = copy.copy(value)
        if isinstance(new, View):
            new.rebase(self.known[new.base])
        elif isinstance(new, Computed):
            new.reads = tuple(self.known.get(r, r) for r in new.reads)
        return new

    def _readers(self, value: Value) -> Iterator[Value]:
        return (v for v in self.found.made if value in operands_of(v))

    def _in_parts(
        self, value: Value, whole: Reduction, parts: list[ReductionPart], *, lead: bool
    ) -> Value:
        squares = squares_of(value, self.found.made) if len(parts) == 1 and lead else None
        if squares is not None:
            return self._moments(whole, parts[0], squares)
        firsts = [part.first(self.lower, whole) for part in parts]
        total = sum_of_powers(value, self.found.made)
        if total is not None:
            return self._softmax(whole, parts, firsts, total)
        readers = list(self._readers(value))
        single = all(len(part.places) <= 1 for part in parts)
        if single and len(readers) == 1 and _adds_up(readers[0], value, wide(whole)):
            outer = readers[0]
            assert isinstance(outer, Reduction)
            self.totals[outer] = lambda: self._sum_of_sums(outer, parts, firsts)
            return whole
        each = zip(parts, firsts, strict=True)
        return join(self.lower, whole, [p.second(self.lower, whole, first) for p, first in each])

    def _moments(self, whole: Reduction, part: ReductionPart, squares: Reduction) -> Value:
        """The sum that the mean is made of; the squares come with what it has become."""
        found = MomentParts(self.lower, whole, part)
        self.totals[squares] = lambda: join(
            self.lower, whole, [found.deviations(self.known[squares.reads[1]])]
        )
        return join(self.lower, whole, [found.total()])

    def _softmax(
        self, whole: Reduction, parts: list[ReductionPart], tops: list[Reduction], total: Value
    ) -> Value:
        """Every row's maximum; its sum of powers, relative to the parts' maxima, comes later."""
        found = SoftmaxParts(
            self.lower, whole, [(p.dims, p.at, next(iter(p.places), None)) for p in parts], tops
        )

        def joined(op: str, firsts: Sequence[Value]) -> Value:
            like = copy.copy(whole)
            like.op = op
            each = zip(parts, firsts, strict=True)
            return join(self.lower, like, [p.second(self.lower, like, f) for p, f in each])

        highest = joined("max", tops)
        self.totals[total] = lambda: joined("sum", found.sums(highest))
        return highest

    def _sum_of_sums(
        self, outer: Reduction, parts: list[ReductionPart], firsts: list[Reduction]
    ) -> Value:
        """A sum of sums that are in parts: over the parts as well."""
        found: list[Value] = []
        for part, first in zip(parts, firsts, strict=True):
            place, shape, dims = next(iter(part.places), None), outer.source_shape, outer.dims
            if place is None:
                found.append(_sum_of(self.lower, outer, first, shape, dims, lambda i: i, None))
                continue
            fine = (*shape[:place], first.shape[place], *shape[place:])
            added = (place, *(d + (d >= place) for d in dims))

            def without(index: Indices, place: int = place) -> Indices:
                return (*index[:place], *index[place + 1 :])

            found.append(_sum_of(self.lower, outer, first, fine, added, without, place))
        return found[0] if len(found) == 1 else join(self.lower, outer, found)

    def _shared(self, value: Scanned, how: ScanCut) -> Value:
        """A running sum in parts that threads share, each going on from those before it."""
        step, dim = how.step, value.dim
        dtype, size = step.dtype, value.shape[dim]
        assert isinstance(size, int)
        each = size // how.parts
        finer = (*value.shape[:dim], how.parts, each, *value.shape[dim + 1 :])
        element = replace(value.expression, results=step.uses).needed()

        def x(b: Builder, index: Indices) -> str:
            place = index[dim].scale(each) + index[dim + 1]
            at = (*index[:dim], place, *index[dim + 2 :])
            return inline(b, element, value.reads, at)[0]

        name, dims = self.lower.fresh("sum"), (dim + 1,)
        sums = Reduction(
            name, dtype, "sum", finer, dims, lambda b, i: (x(b, i),), value.reads, dtype
        )
        ends = Scanned(
            self.lower.fresh("sum"),
            dtype,
            sums.shape,
            None,
            dim,
            lambda b, i: b.scan("sum", dtype, b.read(sums, i)),
            (sums,),
        )

        def body(b: Builder, index: Indices) -> str:
            before = (*index[:dim], index[dim].shift(-1), *index[dim + 2 :])
            later = b.apply("gt", "bool", b.position(index[dim]), b.const(0, "int64"))
            start = b.masked(later, lambda: b.read(ends, before))
            so_far = b.scan("sum", dtype, x(b, index))
            total = b.apply("add", dtype, start, so_far)
            return b.cast(total, value.expression.dtype_of(value.expression.results[0]))

        name, reads = self.lower.fresh("sum"), (*value.reads, ends)
        parts = Scanned(name, value.dtype, finer, None, dim + 1, body, reads)
        return reshape(self.lower, value.name, parts, value.shape, value.strides)


def _adds_up(value: Value, inner: Value, dtype: str) -> bool:
    """Whether a value adds up elements of another, and does nothing else, in this type."""
    if not isinstance(value, Reduction) or value.op != "sum" or value.accumulate != dtype:
        return False
    kinds = [
        node.op if isinstance(node, Compute) else type(node) for node in value.expression.nodes
    ]
    return value.reads == (inner,) and kinds in ([Read], [Read, "cast"])


def _sum_of(
    lower: Lower,
    outer: Reduction,
    inner: Value,
    shape: Sequence[Dim],
    dims: Sequence[int],
    plain: Callable[[Indices], Indices],
    place: int | None,
) -> Reduction:
    """``outer`` over another value, which has one dimension more at ``place`` if that is given."""
    (read,) = outer.expression.reads

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        at = read.index.at(plain(index))
        if place is not None:
            at = (*at[:place], index[place], *at[place:])
        return (b.cast(b.read(inner, at), outer.accumulate),)

    name, dtype = lower.fresh(outer.op), outer.accumulate
    return Reduction(name, dtype, outer.op, shape, dims, body, (inner,), dtype)
