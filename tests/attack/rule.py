"""The rule by which operators come on the list that untrusted files may call.

An operator is a candidate by what it is; it comes on the list (``dovetail.ir.host_operators``) when
the attack finds nothing. What the rule leaves out is left out for a reason that no sample could
show, or that the attack showed for a whole family.
"""

from __future__ import annotations

from typing import Any

import torch

# Of the names that PyTorch keeps for itself, those that graphs of models hold.
_PRIVATE = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _cdist_forward _euclidean_dist _fused_rms_norm
    _log_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training _pdist_forward
    _prelu_kernel _safe_softmax _scaled_dot_product_flash_attention_for_cpu _softmax _to_copy
    _trilinear _unsafe_index _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _weight_norm_interface
"""
PRIVATE = frozenset(_PRIVATE.split())
# Families, by a part of the name, and why none of them may be called.
FAMILIES = {
    "backward": "takes what a forward call saved (indices, shapes, statistics) on trust",
    "empty": "hands out memory that nothing has written",
    "resize": "hands out memory that nothing has written",
    "sparse": "takes another layout's invariants on trust",
    "nested": "takes another layout's invariants on trust",
    "quantize": "takes scales, zero points and packed weights on trust",
    "mkldnn": "takes packed weights on trust",
    "cudnn": "belongs to a device",
    "miopen": "belongs to a device",
    "from_file": "opens files by name",
    "as_strided": "sees elements of a storage that lie outside the tensor",
    "bincount": "the values of a tensor decide how much memory it takes",
    "repeat_interleave": "the values of a tensor decide how much memory it takes",
    "embedding_bag": "takes offsets on trust",
    "segment_reduce": "takes lengths and offsets on trust",
    "ctc_loss": "takes labels and lengths on trust",
    "ldl_solve": "hands pivots to LAPACK on trust",
    "lu_solve": "hands pivots to LAPACK on trust",
    "lu_unpack": "takes pivots on trust",
    "_foreach": "lists of tensors in place of graphs of calls: no model needs one",
    "sym_": "gives numbers, which no program can take",
}
# What the attack found, once it is known how: kept so that nobody wonders why it is missing.
FOUND = {
    "aten._native_batch_norm_legit": "reads statistics that are not there unless it is training",
    "aten._upsample_bilinear2d_aa": "reads out of bounds for images of one element",
    "aten._upsample_bicubic2d_aa": "reads out of bounds for images of one element",
    "aten.binary_cross_entropy": "returns memory that nothing wrote for an empty target",
    "aten.fractional_max_pool2d": "never ends for negative sizes",
    "aten.fractional_max_pool3d": "never ends for negative sizes",
    "aten.gelu_backward": "reads out of bounds where shapes differ",
    "aten.lcm": "divides the least integer by -1, which ends the process",
    "aten.median": "returns memory that nothing wrote for an expanded tensor",
    "aten.nanmedian": "returns memory that nothing wrote for an expanded tensor",
    "aten.polygamma": "never ends for large negative numbers",
    "aten.special_laguerre_polynomial_l": "takes as many steps as a number says",
    "aten.special_legendre_polynomial_p": "takes as many steps as a number says",
    "aten.special_zeta": "never ends for large negative numbers",
    **{
        f"aten.special_{kind}chebyshev_polynomial_{letter}": "takes as many steps as a number says"
        for kind in ("", "shifted_")
        for letter in "tuvw"
    },
    "aten.native_batch_norm": "writes to running statistics, which its schema does not say",
}


def refusal(op: Any) -> str:
    """Why an operator is no candidate; empty if it is one."""
    schema = op._schema
    base = schema.name.removeprefix("aten::")
    if schema.name == base:
        return "is not PyTorch's own (aten)"
    if schema.is_mutable:
        return "writes to its arguments"
    if not schema.returns or any("Tensor" not in str(r.real_type) for r in schema.returns):
        return "gives something else than tensors"
    family = next((why for part, why in FAMILIES.items() if part in base), "")
    if family and torch.Tag.pointwise not in op.tags:
        return family
    if base.startswith("_") and base not in PRIVATE:
        return "is PyTorch's own affair: its name starts with _"
    return FOUND.get(f"aten.{base}", "")
