"""What a library computes on a processor, and where its results lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.ir.in_place import PUT
from dovetail.ir.target import PAIRS_OF_BFLOAT16, Target
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.contraction import Contraction, Factor
from dovetail.lower.index_map import numbered, variables_of
from dovetail.lower.portable import PUTS, SCATTERS, Match, match
from dovetail.schedule.cpu.attention import attention_reason
from dovetail.schedule.tiled import (
    has_dense,
    is_convolution,
    is_depthwise,
    is_matrix_product,
)

# Rows of a product for which its columns are worth copying to where vectors of them are dense: the
# copy takes about as long as three rows (benchmarks/gemm.py, transposed weights).
_PACKING_ROWS = 4
FEW_ROWS = "a product of too few rows to lay out its columns for"
# Library calls that write their result where they are told.
FILLING = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm"))
# From so many multiplications on a product may be left to oneDNN (native/python/aten_product.c),
# if its sums are no longer than this.
_LARGE_PRODUCT = 2**23
_LONGEST_SUM = 1024
# Elements up to which scatters are the runtime's: a call of PyTorch's takes 10 us beside its work,
# for which it takes, with its wider vectors, 0.6 ns an element where the runtime takes 1.1.
_SMALL_SCATTER = 1 << 15


def library_reason(contractions: Sequence[Contraction], target: Target) -> str:
    """Why a library had better compute a call with these; empty where kernels had.

    A product of one row, or one column, is a sum in a kernel: it reads each weight once, so that
    memory sets the pace, and nothing is packed.
    """
    reasons = (_reason(value, target) for value in contractions)
    found = next(filter(None, reasons), "")
    if found or len(contractions) < 2:
        return found
    if len(contractions) > 2:
        return "several products, which a library fuses"
    scores, mixed = contractions
    return attention_reason(scores, mixed, target)


def _reason(value: Contraction, target: Target) -> str:
    if not all(factor.is_plain for factor in value.factors):
        return _convolution_reason(value, target)
    if any(size == 0 for size in value.source_shape):
        return "a product of nothing"
    types = {COMPUTE.get(operand.dtype, "") for operand in value.reads}
    if len(types) > 1 or types.pop() not in FLOATS:
        return "a product that is not of floating-point numbers"
    if not value.shape:
        return "a product of vectors, which a library is better at"
    if is_matrix_product(value):
        return _matrix_reason(value, target)
    if not all(isinstance(size, int) for size in value.source_shape):
        return "a product whose sizes are not known"
    return ""


def _convolution_reason(value: Contraction, target: Target) -> str:
    """Why a library had better compute a convolution."""
    if target.kind != "cpu" or "fma" not in target.features:
        return "a convolution, which a library is better at"
    if not all(isinstance(size, int) and size > 0 for size in value.source_shape):
        return "a convolution whose sizes are not known"
    if any(operand.dtype not in FLOATS for operand in value.reads):
        return "a convolution that is not of floating-point numbers"
    if _skips_pixels(value):
        return "a transposed convolution whose taps meet, of which a kernel would skip most"
    if is_depthwise(value):
        return ""
    if value.extent("rows") == 1 or value.extent("columns") == 1 or not is_convolution(value):
        return "a convolution whose channels do not lie together"
    return ""


def _skips_pixels(value: Contraction) -> bool:
    """Whether pixels are found by division, as those of a strided transposed convolution are.

    Where a remainder is left a tap has no pixel: of 4 by 4 taps with a stride of 2, three in four.
    """
    image, _ = value.factors
    return any(place.values for place in image.index.results)


def _matrix_reason(value: Contraction, target: Target) -> str:
    """Why a library had better compute a product of matrices."""
    if target.kind != "cpu" or "fma" not in target.features:
        return "a product that a library is better at"
    if not all(multiplies(operand.dtype, target) for operand in value.reads):
        return "a product in half precision, for which libraries have instructions of their own"
    if _is_bfloat16(value) and not _is_narrow(target) and not _has_pairs(value):
        return "a product in half precision whose sums do not go along its rows"
    if _spreads_pixels(value):
        return "a transposed convolution whose channels do not lie together"
    rows = value.extent("rows")
    few = isinstance(rows, int) and rows < _PACKING_ROWS
    if few and not _has_dense_columns(value) and not _has_dense_steps(value):
        return FEW_ROWS
    return ""


def _spreads_pixels(value: Contraction) -> bool:
    """Whether rows and columns alternate in the result, and columns do not lie together in it.

    Those are the pixels and taps of a transposed convolution (lower/convolution.py). Where images
    are not channels-last its kernel would have vectors of one tap; where the channels of a weight
    are apart, as they are unless it is packed, it would gather each vector of them.
    """
    kept = [role for role in value.roles if role in ("rows", "columns")]
    runs = [role for role, before in zip(kept, ["", *kept], strict=False) if role != before]
    if runs.count("columns") < 2:
        return False
    image, weight = value.factors
    channel = value.roles.index("columns")
    return not has_dense(value, image, "sum") or not _lies_along(value, weight, channel)


def _lies_along(value: Contraction, factor: Factor, dim: int) -> bool:
    """Whether elements of an operand lie together along a dimension of the product."""
    strides = value.reads[factor.operand].strides
    pairs = zip(factor.index.results, strides, strict=True)
    return any(stride == 1 and (dim, 1) in numbered(place) for place, stride in pairs)


def multiplies(dtype: str, target: Target) -> bool:
    """Whether kernels multiply matrices of a type, which they widen as they read them.

    No library is fast in float16 without instructions for it, which no target here has (64 by 768
    by 768 takes PyTorch four times as long as in float32), or in bfloat16 where vectors have 32
    bytes. With 64 bytes oneDNN has, or imitates, instructions for bfloat16, which kernels use where
    the target has them.
    """
    if "f16c" not in target.features:
        return dtype in FLOATS
    pairs = _is_narrow(target) or PAIRS_OF_BFLOAT16 in target.features
    return dtype in FLOATS or dtype == "float16" or (dtype == "bfloat16" and pairs)


def _is_narrow(target: Target) -> bool:
    return target.vector_bytes < 64


def _is_bfloat16(value: Contraction) -> bool:
    return all(operand.dtype == "bfloat16" for operand in value.reads)


def _has_pairs(value: Contraction) -> bool:
    """Whether neighbouring steps are pairs in memory, or become so in a copy of the columns."""
    rows, columns = value.factors
    return has_dense(value, rows, "sum") and (
        has_dense(value, columns, "sum") or _has_dense_columns(value)
    )


def _has_dense_columns(value: Contraction) -> bool:
    """Whether vectors of columns can be read from where they lie."""
    _, right = value.factors
    dims = variables_of(right.index.results[-1:])
    last = value.reads[right.operand].strides[-1:]
    return last == (1,) and all(value.roles[d] == "columns" for d in dims)


def _has_dense_steps(value: Contraction) -> bool:
    """Whether vectors of steps of the sum can be read from where both operands lie."""
    return all(has_dense(value, factor, "sum") for factor in value.factors)


def runtime_kernel(call: OpCall, *, written_back: bool = False) -> Match | None:
    """The runtime's kernel for a call, where it takes less time than PyTorch's.

    ``written_back``: the result is copied over what was changed, which the runtime's kernel can
    write to where it lies (``ir/in_place.py``).
    """
    if call.op in PUTS and written_back:
        found = match(call)
        return found if isinstance(found, Match) and found.kernel == PUT else None
    if call.op not in SCATTERS:
        return None
    sizes = [desc.shape for desc in call.inputs]
    known = all(isinstance(size, int) for shape in sizes for size in shape)
    if not known or max(math.prod(map(int, shape)) for shape in sizes) > _SMALL_SCATTER:  # type: ignore[arg-type]
        return None
    found = match(call)
    return found if isinstance(found, Match) else None


def fills(call: OpCall, target: Target) -> bool:
    """Whether a call's result is written where it is told.

    A large product is not where vectors have 512 bits: the runtime asks oneDNN for it on
    processors that are faster so, and that returns memory of its own.
    """
    if call.op not in FILLING:
        return False
    operands = [a.desc for a in call.args if isinstance(a, Ref)][-2:]
    if call.op not in ("aten.mm.default", "aten.addmm.default") or target.vector_bytes < 64:
        return True
    left, right = operands
    if not isinstance(left, TensorDesc) or not isinstance(right, TensorDesc):
        return True
    sizes = [d for d in (*left.shape, right.shape[-1]) if isinstance(d, int)]
    if left.dtype != "float32" or len(sizes) != 3:
        return True
    return sizes[1] > _LONGEST_SUM or math.prod(sizes) < _LARGE_PRODUCT
