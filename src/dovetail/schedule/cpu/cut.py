"""Where reductions and scans are cut for the threads of a processor."""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.affine import product
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.ops import REDUCTIONS
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.target import Target
from dovetail.lower.contraction import Contraction
from dovetail.lower.expression import ScanStep
from dovetail.lower.index_map import numbered
from dovetail.lower.values import Reduction, Scanned, Value
from dovetail.schedule.parts import Cut, DimensionCut, ScanCut, cut_near, cut_symbolic, extents

# Elements, of float32 on an x86-64-v4 with two threads: where a second step began to pay.
LONG = 1 << 16  # reduced to one that are worth cutting where few others are reduced
LONGEST = 1 << 17  # and always
SMALLEST, LARGEST = 1 << 12, 1 << 14  # in a part
COLUMN, COLUMN_PART = 1 << 10, 1 << 8  # the same down columns, where lanes hold other results
LONG_SCAN = 1 << 18  # from which on a scan that has few beside it is shared among threads
FEW_SCANS = 4  # so many beside it keep the threads busy
SCAN_PARTS = 16  # that it is then done in


def place_to_cut(value: Value, target: Target) -> Cut | None:
    """How a value is done in parts; None: it is not."""
    if isinstance(value, Scanned):
        return scan_to_share(value)
    if isinstance(value, Reduction) and not isinstance(value, Contraction):
        return where_to_cut(value, target)
    return None


def where_to_cut(whole: Reduction, target: Target) -> DimensionCut | None:
    """How a reduction is cut; None: it is short enough.

    Where elements of other dimensions than the last lie together, so do the results of a part.
    """
    results, total, is_column = extents(whole)
    if REDUCTIONS[whole.op].finds_position or results == 0 or total == 0:
        return None
    few = isinstance(results, int) and results < target.cores  # too little for threads to share
    if not isinstance(total, int):
        wanted = COLUMN_PART if is_column else LARGEST
        return cut_symbolic(whole, wanted) if is_column or few else None
    if is_column:
        return cut_near(whole, total, COLUMN_PART) if total >= COLUMN else None
    if _lies_in_columns(whole):
        found = cut_near(whole, total, COLUMN_PART) if total >= COLUMN else None
        return None if found is None else replace(found, lead=True)
    if total < (LONG if few else LONGEST):
        return None
    return cut_near(whole, total, min(max(total // target.cores, SMALLEST), LARGEST))


def _lies_in_columns(whole: Reduction) -> bool:
    """Whether elements that are not added up lie together in most of what is read.

    Those of channels do in a channels-last image, though its last dimension is added up.
    """
    dense = [
        any(
            (d, 1) in numbered(place) for d in range(len(whole.source_shape)) if d not in whole.dims
        )
        for read in whole.expression.reads
        for place, stride in zip(read.index.results, whole.reads[read.operand].strides, strict=True)
        if stride == 1 and place.axes
    ]
    return 2 * sum(dense) > len(dense)


def scan_to_share(value: Scanned) -> ScanCut | None:
    """How a long running sum that has too few beside it for threads is shared among them."""
    size, total = value.shape[value.dim], product(value.shape)
    steps = [node for node in value.expression.nodes if isinstance(node, ScanStep)]
    if len(steps) != 1 or steps[0].op != "sum" or steps[0].dtype not in FLOATS:
        return None
    if not isinstance(size, int) or not isinstance(total, int) or size % SCAN_PARTS != 0:
        return None
    dense = value.strides == contiguous_strides(value.shape)
    if not dense or total < LONG_SCAN or total // size >= FEW_SCANS:
        return None
    return ScanCut(steps[0], SCAN_PARTS)
