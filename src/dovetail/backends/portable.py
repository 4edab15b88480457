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
from dovetail.lower.to_program import lower_segment, phantom_name
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
        from dovetail.file.container import chunks, lay_out
        from dovetail.file.encode import encode_program, scalar_bytes

        lowered = lower_segment(segment, lambda _: True)
        contents = {name: scalar_bytes(*scalar) for name, scalar in lowered.scalars.items()}
        manifest = segment_manifest(segment, lowered.program.outputs)
        sections, features = encode_program(lowered.program, contents, manifest, debug=False)
        return Blob(b"".join(chunks(*lay_out(sections, features))))

    def load(self, blob: Blob) -> Executable:
        """Open the artifact in memory."""
        from dovetail.runtime.loaded import open_native

        return _Executable(open_native(blob.data))


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


def segment_manifest(segment: Segment, outputs: Any) -> dict[str, Any]:
    """Which inputs of a segment are tensors, and what its outputs are."""
    results = [None if value is None or isinstance(value, str) else str(value) for value in outputs]
    return {
        "sizes": [i.name if i.kind == "size" else None for i in segment.inputs],
        "results": results,
        "inputs": {"tuple": []},
        "outputs": {"tuple": []},
    }


class _Executable:
    """Tensors to the native program, sizes to the expressions among the outputs."""

    def __init__(self, native: Any) -> None:
        import json

        from dovetail.ir.size import SizeProgram, parse_size

        self.native = native
        manifest = json.loads(native.section(1))
        self.sizes: list[str | None] = manifest["sizes"]
        self.results: list[str | None] = manifest["results"]
        names = [name for name in self.sizes if name]
        texts = [text for text in self.results if text is not None]
        self.program = SizeProgram(names, [parse_size(t) for t in texts]) if texts else None
        self.phantoms: set[str] = {i[0] for i in native.inputs()}
        self._empty: Callable[..., Any] | None = None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        tensors = []
        numbers = []
        for value, size in zip(inputs, self.sizes, strict=True):
            if size is None:
                tensors.append(value)
                continue
            numbers.append(value)
            if phantom_name(size) in self.phantoms:
                tensors.append(self._phantom(value))
        made = self.native(*tensors)
        if self.program is None:
            return made  # type: ignore[no-any-return]
        values, found = iter(self.program.evaluate(numbers)), iter(made)
        return [next(found) if text is None else next(values) for text in self.results]

    def _phantom(self, size: int) -> Any:
        """A tensor of no elements that carries a size in its shape."""
        if self._empty is None:
            import torch

            self._empty = torch.empty
        return self._empty((size, 0))
