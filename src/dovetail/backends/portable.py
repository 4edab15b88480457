"""``portable``: the C runtime's built-in kernels. No code generation, no torch at run time.

It takes what the kernels cover and leaves the rest to ATen. A model that they cover completely
becomes an artifact that runs where there is no PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dovetail.backend import Availability, Backend, Blob, Executable, Support
from dovetail.backends.segment_artifact import ManifestEntry, artifact_bytes, dim_entry, window
from dovetail.ir import Arg, Ref, Size
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.program import Buffer
from dovetail.ir.size import symbols_of
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.portable import ASSERTIONS, RULES, match
from dovetail.lower.to_program import Lowering, declare_inputs, known_size
from dovetail.lower.views import view_offsets

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment

# Operators that core ATen's decompositions would take apart, and one kernel runs whole.
_WHOLE = frozenset(op for op in RULES if op.startswith("aten."))


class PortableBackend(Backend):
    """Plain C kernels that come with the runtime."""

    name = "portable"
    keeps_views = True
    exact_processor = False

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
        if not all(map(_tells_strides, call.inputs)):
            return Support.no("strides that vary apart from the sizes")
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

        from dovetail.capture._torch.decompositions import composite_decomposition

        attention = torch.ops.aten.scaled_dot_product_attention.default
        # Asked for now: while a program is decomposed, the rule stands in for PyTorch's own.
        rule = functools.partial(_attention, composite_decomposition(attention))
        return {**super().decompositions(), attention: rule}

    def compile(self, segment: Segment) -> Blob:
        """A program of kernels, as the bytes of an artifact."""
        lowering = Lowering(lambda _: True)
        symbols = declare_inputs(lowering, segment)
        for call in segment.calls:
            lowering.call(call)
        results = _Windows(segment, lowering)
        entries = [results.entry(out) for out in segment.outputs]
        lowered = lowering.program(segment.name, results.handed_out, symbols)
        return Blob(artifact_bytes(segment, lowered, entries))

    def load(self, blob: Blob) -> Executable:
        """Open the artifact in memory."""
        from dovetail.runtime.executable import load

        return load(blob.data)


def _tells_strides(desc: TensorDesc) -> bool:
    """Whether a tensor's strides follow from its shape: a program reads symbols from shapes."""
    known = set().union(*map(symbols_of, desc.shape))
    return all(symbols_of(stride) <= known for stride in desc.strides)


class _Windows:
    """How each output of a segment comes from what its program hands out.

    Memory is handed out once, and inputs are given back as they are. A view is a window on either,
    so it has the strides that were promised for it whether they leave gaps or expand.
    """

    def __init__(self, segment: Segment, lowering: Lowering) -> None:
        self.lowering = lowering
        self.positions = {given.name: n for n, given in enumerate(segment.inputs)}
        self.handed_out: list[str] = []

    def entry(self, out: Arg) -> ManifestEntry:
        """What the manifest says of one output."""
        if not isinstance(out, Ref) or known_size(out.desc) is not None:
            made = self.lowering.result(out)
            return {"size": str(made)} if isinstance(made, Size) else {"value": made}
        buffer = self.lowering.buffers[self.lowering.values[out.name, out.path]]
        is_view = buffer.kind == "view"
        owner = self.lowering.buffers[buffer.of] if is_view else buffer
        seen = window(buffer.desc.shape, buffer.desc.strides, buffer.offset) if is_view else {}
        if owner.kind == "input":
            own = {"input_strides": [dim_entry(d) for d in owner.desc.strides]} if is_view else {}
            return {"input": self.positions[self.lowering.taken[owner.name]], **seen, **own}
        return {"tensor": self._place(owner), **seen}

    def _place(self, owner: Buffer) -> int:
        if owner.name not in self.handed_out:
            if owner.kind != "host":
                self.lowering.buffers[owner.name] = replace(owner, kind="output")
            self.handed_out.append(owner.name)
        return self.handed_out.index(owner.name)


def _attention(
    whole: Callable[..., Any], query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> Any:
    """Scaled dot-product attention written out, for the types that the kernels have.

    Others stay PyTorch's (``whole``): its kernels keep the scores of bfloat16 in float32, which
    this does not.
    """
    import torch

    if query.dtype not in (torch.float32, torch.float64):
        return whole(query, key, value, *args, **kwargs)
    result = _written_out(query, key, value, *args, **kwargs)
    if kwargs.get("dropout_p", args[1] if len(args) > 1 else 0.0) > 0.0:
        return result
    return _laid_out_as(whole(query, key, value, *args, **kwargs), result)


def _laid_out_as(promised: Any, result: Any) -> Any:
    """The result of attention, its dimensions in the order in which PyTorch's kernel lays them out.

    That follows the layout of the query, so what comes next may be a view that no other layout
    allows. Nothing but the layout of ``promised`` is used, so the calls that make it leave the
    program.
    """
    from dovetail.capture._torch.symbols import size_hint

    strides = promised.stride()
    steps = [s if isinstance(s, int) else size_hint(s) or 0 for s in strides]
    order = sorted(range(len(steps)), key=lambda d: -steps[d])
    if order == sorted(order) or not promised.permute(order).is_contiguous():
        return result
    return result.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])


def _written_out(
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
    """Attention as PyTorch documents it. A row in which every score is masked is zeros."""
    import torch

    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        rows, columns = (torch.arange(t.shape[-2], device=t.device) for t in (query, key))
        scores = torch.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    elif attn_mask is not None:  # added, as PyTorch does it: a NaN that is masked stays one
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
        scores = scores + attn_mask
    weights = torch.ops.aten._safe_softmax.default(scores, -1)  # noqa: SLF001
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, True)
    return weights @ value
