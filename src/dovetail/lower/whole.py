"""Which operators are not decomposed, for backends whose code comes from these rules."""

from __future__ import annotations

from dovetail.ir.call import OpCall
from dovetail.ir.strides import is_row_major
from dovetail.lower.library import is_library

# Operators that PyTorch has a decomposition for, but that have a rule of their own here.
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
    }
)


def stays_whole(call: OpCall) -> bool:
    """Whether an operator with a decomposition is better kept."""
    if call.op == "aten.roll.default":  # its metadata is wrong for other layouts
        return is_row_major(call.inputs[0])
    return call.op in _WHOLE or is_library(call)
