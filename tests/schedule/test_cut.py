"""Long reductions and scans in parts: where, and that nothing else changes."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from dovetail.ir.kernel import Reduce
from dovetail.ir.size import Size
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.target import TARGETS
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.calls import Lowered
from dovetail.lower.reductions import reduction
from dovetail.lower.rules import Lower
from dovetail.lower.values import Pointwise, Reduction, Scanned, Source, View
from dovetail.schedule.cpu.cut import (
    COLUMN_PART,
    LARGEST,
    LONG,
    LONG_SCAN,
    place_to_cut,
    scan_to_share,
    where_to_cut,
)
from dovetail.schedule.parts import DimensionCut, cut, parts_of
from tests.codegen.kernels import kernels_of

CPU = TARGETS["x86-64-v4"]
WHERE = partial(place_to_cut, target=CPU)


def long_sum(*shape, dims=(0,), op="sum"):
    x = Source("x", "float32", shape)
    return x, reduction(Lower(), x, op, dims, "float32", "float32")


def lowered(x, *results):
    return Lowered.of((x,), results, tuple((n,) for n in range(len(results))))


def values_of(found):
    return [type(value).__name__ for value in found.made]


def test_a_short_reduction_stays_whole():
    x, total = long_sum(LONG - 1)
    found = lowered(x, total)
    assert cut(found, WHERE) is found


def test_a_long_one_is_parts_their_sum_and_a_rounding():
    x, total = long_sum(LONG)
    first, second, last = cut(lowered(x, total), WHERE).made
    assert (first.source_shape, first.dims, first.dtype) == ((16, LONG // 16), (1,), "float32")
    assert (second.source_shape, second.dims, second.dtype) == ((16,), (0,), "float64")
    assert isinstance(last, Pointwise)
    assert (last.shape, last.dtype) == ((), "float32")
    assert str(first.expression.reads[0].index) == f"[{LONG // 16}*d0 + d1]"


def test_what_is_left_over_is_a_part_of_its_own():
    x, total = long_sum(LONG + 1)
    found = cut(lowered(x, total), WHERE)
    assert values_of(found) == ["Reduction"] * 3 + ["Pointwise"]
    covered = sum(
        torch.Size(part.shape).numel() for part in parts_of(total, where_to_cut(total, CPU))
    )
    assert covered == LONG + 1


@pytest.mark.parametrize("shape", [(LONG + 7,), (5003, 64), (3, 70_001)])
def test_parts_cover_every_element_once(shape):
    _, total = long_sum(
        *shape, dims=(len(shape) - 1,) if len(shape) == 2 and shape[0] == 3 else (0,)
    )
    how = where_to_cut(total, CPU)
    place = how.place
    size, seen = shape[place], []
    for part in parts_of(total, how):
        at = part.at.results[place]
        extents = {f"d{n}": extent for n, extent in enumerate(part.shape)}
        terms = [range(0, extents[name] * step, step) for name, step in at.axes]
        for outer in terms[0]:
            seen += [at.offset + outer + inner for inner in (terms[1] if terms[1:] else (0,))]
    assert sorted(seen) == list(range(size))


def test_columns_are_cut_sooner():
    _, column = long_sum(1 << 10, 64)
    assert where_to_cut(column, CPU) == DimensionCut(0, COLUMN_PART)
    _, row = long_sum(64, 1 << 10, dims=(1,))
    assert where_to_cut(row, CPU) is None


def test_a_size_that_is_not_known():
    _, total = long_sum(Size.symbol("s0"))
    assert where_to_cut(total, CPU) == DimensionCut(0, LARGEST)


def test_positions_are_not_cut():
    x = Source("x", "float32", (1 << 20,))
    place = Reduction(
        "place", "int64", "argmax", x.shape, (0,), lambda b, i: (b.read(x, i), b.position(i[0])),
        (x,), "int64",
    )  # fmt: skip
    assert where_to_cut(place, CPU) is None


def test_the_target_says_how_many_threads_are_worth_feeding():
    _, total = long_sum(8, LONG, dims=(1,))
    assert where_to_cut(total, CPU) is not None
    assert where_to_cut(total, replace(CPU, cores=4)) is None


def test_a_scan_that_is_alone_is_shared():
    desc = TensorDesc("float32", (LONG_SCAN,), (1,))
    x = Source("x", "float32", desc.shape)

    def body(b, index):
        return b.cast(b.scan("sum", "float64", b.cast(b.read(x, index), "float64")), "float32")

    scan = Scanned("@", desc.dtype, desc.shape, desc.strides, 0, body, (x,))
    assert scan_to_share(scan) is not None
    found = cut(lowered(x, scan), WHERE)
    assert values_of(found) == ["Reduction", "Scanned", "Scanned", "View"]
    (result,) = found.results
    assert isinstance(result, View)
    assert (result.name, result.shape) == ("@", (LONG_SCAN,))
    short = Scanned("@", "float32", (64,), None, 0, body, (x,))
    assert scan_to_share(short) is None


def test_readers_of_what_was_cut_read_the_whole():
    x, total = long_sum(LONG)
    shape = (LONG,)

    def body(b, index):
        return b.apply("div", "float32", b.read(x, index), b.read(total, ()))

    share = Pointwise("@", "float32", shape, contiguous_strides(shape), body, (x, total))
    found = cut(lowered(x, share), WHERE)
    (result,) = found.results
    assert result is not share
    assert result.expression is share.expression
    assert share.reads == (x, total)
    assert result.reads[0] is x
    assert isinstance(result.reads[1], Pointwise)


def test_softmax_of_a_long_row_finds_maxima_and_sums_of_parts_together():
    first, *others = kernels_of(lambda x: x.softmax(-1), torch.randn(2, 1 << 18))
    reduced = [i.op for i in first.instructions() if isinstance(i, Reduce)]
    assert reduced == ["max", "sum"]
    assert len(first.axes) == 1
    assert len(others) == 2
