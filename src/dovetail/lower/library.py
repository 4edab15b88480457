"""Operations that PyTorch's own kernels run inside a generated program."""

from __future__ import annotations

import math

from dovetail import _native
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.tensor import TensorDesc

# Their results never share memory with their operands, and they keep no reference to them.
_FRESH = (
    "mm.default",
    "addmm.default",
    "bmm.default",
    "baddbmm.default",
    "mv.default",
    "dot.default",
    "convolution.default",
    "convolution_backward.default",
    "_scaled_dot_product_flash_attention_for_cpu.default",
    "_scaled_dot_product_flash_attention_for_cpu_backward.default",
    "max_pool2d_with_indices.default",
    "max_pool2d_with_indices_backward.default",
    "avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    "embedding.default",
    "embedding_dense_backward.default",
    "index.Tensor",
    "index_select.default",
    "gather.default",
    "cat.default",
    "copy_.default",
    "sort.default",
    "topk.default",
    "cumsum.default",
)
FRESH = frozenset(f"aten.{name}" for name in _FRESH)
# Library calls that write their result where they are told.
FILLING = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm"))
# From so many multiplications on a product may be left to oneDNN (native/python/aten_product.c),
# if its sums are no longer than this.
_LARGE_PRODUCT = 2**23
_LONGEST_SUM = 1024


def is_library(call: OpCall) -> bool:
    """Whether a generated program may call PyTorch for this."""
    return call.op in FRESH


def fills(call: OpCall) -> bool:
    """Whether a call's result is written where it is told.

    A large product is not: the faster library, where there is one, returns memory of its own.
    """
    if call.op not in FILLING:
        return False
    operands = [a.desc for a in call.args if isinstance(a, Ref)][-2:]
    if call.op not in ("aten.mm.default", "aten.addmm.default") or not _native.prefers_onednn():
        return True
    left, right = operands
    if not isinstance(left, TensorDesc) or not isinstance(right, TensorDesc):
        return True
    sizes = [d for d in (*left.shape, right.shape[-1]) if isinstance(d, int)]
    if left.dtype != "float32" or len(sizes) != 3:
        return True
    return sizes[1] > _LONGEST_SUM or math.prod(sizes) < _LARGE_PRODUCT
