"""``portable``: the C runtime's built-in kernels. No code generation, no torch at run time.

It takes what the kernels cover and leaves the rest to ATen. A model that they cover completely
becomes an artifact that runs where there is no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.backend import Availability, Backend, Blob, Executable, Support
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.portable import ASSERTIONS, FLOATS, RULES, match
from dovetail.lower.to_program import lower_segment
from dovetail.lower.views import view_offsets

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment

# Operators that core ATen's decompositions would take apart, and one kernel runs whole.
_WHOLE = frozenset(op for op in RULES if op.startswith("aten."))


class PortableBackend(Backend):
    """Plain C kernels that come with the runtime."""

    name = "portable"

    def available(self) -> Availability:
        """Where the extension is built."""
        try:
            from dovetail import _native  # noqa: F401
        except ImportError:
            return Availability(False, "the C extension dovetail._native is not built")
        return Availability(True)

    def fingerprint(self) -> str:
        """The kernels and their versions."""
        from dovetail import _native

        return "portable:" + _native.sha256("\n".join(_native.kernels()).encode()).hex()[:16]

    def supports(self, call: OpCall) -> Support:
        """What a kernel covers, and views."""
        if any(True for _ in call.subgraphs()) or call.binds:
            return Support.no("subgraphs and data-dependent sizes")
        if call.op in ASSERTIONS:
            return Support.yes()
        if view_offsets(call) is not None and all(d.device == "cpu" for d in call.inputs):
            return Support.yes()
        found = match(call)
        return Support.no(found) if isinstance(found, str) else Support.yes()

    def keeps_whole(self, call: OpCall) -> bool:
        """Operators with a kernel of their own, for the dtypes that it has."""
        dtypes = {d.dtype for d in call.inputs if isinstance(d, TensorDesc)}
        return call.op in _WHOLE and dtypes <= {*FLOATS, "int64", "int32", "bool"}

    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """Core ATen's, and attention as products and a softmax."""
        import torch

        attention = torch.ops.aten.scaled_dot_product_attention.default
        return {**super().decompositions(), attention: _attention}

    def compile(self, segment: Segment) -> Blob:
        """A program of kernels, as the bytes of an artifact."""
        from dovetail.backends.executable import artifact_bytes, plain_results

        lowered = lower_segment(segment, lambda _: True)
        results = plain_results(lowered.program.outputs)
        return Blob(artifact_bytes(segment, lowered, results))

    def load(self, blob: Blob) -> Executable:
        """Open the artifact in memory."""
        from dovetail.backends.executable import load

        return load(blob.data)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention, written out as PyTorch documents it."""
    import torch

    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(repeats, -3) for t in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        rows, columns = (torch.arange(t.shape[-2], device=t.device) for t in (query, key))
        attn_mask = columns[None, :] <= rows[:, None]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, True)
    return weights @ value
