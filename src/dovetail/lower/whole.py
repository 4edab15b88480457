"""Which operators are not decomposed, for backends whose code comes from these rules."""

from __future__ import annotations

from dovetail.ir.call import OpCall
from dovetail.ir.strides import is_row_major

# Operators that PyTorch has a decomposition for, but that have a rule of their own here, or that a
# library computes.
_WHOLE = frozenset(
    {
        "aten._softmax.default",
        "aten._log_softmax.default",
        "aten.native_layer_norm.default",
        "aten.native_group_norm.default",
        "aten.gelu.default",
        "aten.silu.default",
        "aten.hardtanh.default",
        "aten.linalg_vector_norm.default",
        "aten.max.dim",
        "aten.min.dim",
        "aten.embedding.default",
        "aten.var_mean.correction",
        "aten.var.correction",
        "aten.std.correction",
        "aten.std_mean.correction",
        "aten.masked_fill.Scalar",
        "aten.masked_fill.Tensor",
        "aten.split_with_sizes.default",
        "aten.unbind.int",
        "aten.t.default",
        "aten.transpose.int",
        "aten.rsub.Scalar",
        "aten._unsafe_view.default",
        "aten.detach.default",
        "aten.mm.default",
        "aten.addmm.default",
        "aten.bmm.default",
        "aten.baddbmm.default",
        "aten.mv.default",
        "aten.dot.default",
        "aten.convolution.default",
        "aten.convolution_backward.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "aten.max_pool2d_with_indices.default",
        "aten.max_pool2d_with_indices_backward.default",
        "aten.avg_pool2d.default",
        "aten._adaptive_avg_pool2d.default",
        "aten.embedding_dense_backward.default",
        "aten.index.Tensor",
        "aten.index_select.default",
        "aten.gather.default",
        "aten.cat.default",
        "aten.copy_.default",
        "aten.sort.default",
        "aten.topk.default",
        "aten.cumsum.default",
    }
)


def stays_whole(call: OpCall) -> bool:
    """Whether an operator with a decomposition is better kept."""
    if call.op == "aten.roll.default":  # its metadata is wrong for other layouts
        return is_row_major(call.inputs[0])
    return call.op in _WHOLE
