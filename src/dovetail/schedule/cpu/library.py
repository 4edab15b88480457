"""What a library computes on a processor, and where its results lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.ir.target import Target
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.contraction import Contraction

# Rows, or columns, up to which a product is a sum in a kernel, where what surrounds it fuses and
# nothing is packed: it reads each weight once, so that memory sets the pace. A library uses each
# weight it has loaded for many rows.
MOST_ROWS = 1
# Library calls that write their result where they are told.
FILLING = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm"))
# From so many multiplications on a product may be left to oneDNN (native/python/aten_product.c),
# if its sums are no longer than this.
_LARGE_PRODUCT = 2**23
_LONGEST_SUM = 1024


def library_reason(contractions: Sequence[Contraction]) -> str:
    """Why a library had better compute a call with these; empty where kernels had."""
    if len(contractions) > 1:
        return "several products, which a library fuses"
    return _reason(contractions[0]) if contractions else ""


def _reason(value: Contraction) -> str:
    if not all(factor.is_plain for factor in value.factors):
        return "a convolution, which a library is better at"
    if not all(isinstance(size, int) and size > 0 for size in value.source_shape):
        return "a product whose sizes are not known"
    types = {operand.dtype for operand in value.reads}
    if len(types) > 1 or COMPUTE[types.pop()] not in FLOATS:
        return "a product that is not of floating-point numbers"
    if not value.shape:
        return "a product of vectors, which a library is better at"
    if all(int(value.extent(role)) > MOST_ROWS for role in ("rows", "columns")):  # type: ignore[arg-type]
        return "a product that a library is better at"
    return ""


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
