"""Operations that PyTorch's own kernels run inside a generated program."""

from __future__ import annotations

from dovetail.ir.call import OpCall

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


def is_library(call: OpCall) -> bool:
    """Whether a generated program may call PyTorch for this."""
    return call.op in FRESH
