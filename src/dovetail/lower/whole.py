"""Which operators are not decomposed, for backends whose code comes from these rules."""

from __future__ import annotations

from dovetail.ir.call import OpCall
from dovetail.ir.strides import is_row_major

# Operators that PyTorch has a decomposition for, but that have a rule of their own here, or that a
# library computes.
_WHOLE = (
    *("_softmax.default", "_log_softmax.default", "native_layer_norm.default"),
    *("native_group_norm.default", "gelu.default", "silu.default", "hardtanh.default"),
    *("linalg_vector_norm.default", "max.dim", "min.dim", "embedding.default"),
    *("var_mean.correction", "var.correction", "std.correction", "std_mean.correction"),
    *("masked_fill.Scalar", "masked_fill.Tensor", "split_with_sizes.default", "unbind.int"),
    *("t.default", "transpose.int", "rsub.Scalar", "_unsafe_view.default", "detach.default"),
    *("mm.default", "addmm.default", "bmm.default", "baddbmm.default", "mv.default", "dot.default"),
    *("convolution.default", "convolution_backward.default"),
    *("_scaled_dot_product_flash_attention_for_cpu.default",),
    *("_scaled_dot_product_flash_attention_for_cpu_backward.default",),
    *("max_pool2d_with_indices.default", "max_pool2d_with_indices_backward.default"),
    *("avg_pool2d.default", "_adaptive_avg_pool2d.default", "embedding_dense_backward.default"),
    *("index.Tensor", "index_select.default", "gather.default", "cat.default", "copy_.default"),
    *("sort.default", "topk.default", "cumsum.default"),
    *("gelu_backward.default", "select_backward.default"),
)


def stays_whole(call: OpCall) -> bool:
    """Whether an operator with a decomposition is better kept."""
    if call.op == "aten.roll.default":  # its metadata is wrong for other layouts
        return is_row_major(call.inputs[0])
    if call.op == "aten.native_layer_norm_backward.default":
        return _has_all_gradients(call)
    return call.op.removeprefix("aten.") in _WHOLE


def _has_all_gradients(call: OpCall) -> bool:
    """Whether a layer norm's gradients are those of its input, weight and bias, of many rows."""
    rows = len(call.inputs[0].shape) - len(call.args[2])
    return call.args[7] == (True, True, True) and rows > 0
