"""``onnxruntime``: whole segments compiled by ONNX Runtime, as a vendor's graph compiler would be.

A segment becomes an ONNX model; its bytes are the blob, which any process can load and any ONNX
tool can read. Operators that have no ONNX, or not with ATen's meaning, are refused with a reason.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from dovetail.backend import (
    Availability,
    Blob,
    Executable,
    Support,
    torch_available,
)
from dovetail.backends.lowering import LoweringBackend

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment

_NEEDED = ("onnx", "onnxruntime")
# Gradients that have a rule in ``lower/`` but none here: what they are made of has.
_IN_PARTS = (
    "aten.gelu_backward.default",
    "aten.native_layer_norm_backward.default",
    "aten.select_backward.default",
)


class OnnxRuntimeBackend(LoweringBackend):
    """Compiles segments to ONNX models and runs them in ONNX Runtime."""

    name = "onnxruntime"
    exact_processor = False

    def available(self) -> Availability:
        """Where the packages are installed."""
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            names = " and ".join(missing)
            return Availability(False, f"no {names}: pip install 'dovetail[onnx]'")
        return torch_available()

    def fingerprint(self) -> str:
        """The engine's version and the operator set models are written in."""
        import onnxruntime

        from dovetail.backends.onnx.convert import OPSET

        return f"onnxruntime {onnxruntime.__version__} opset {OPSET}"

    def supports(self, call: OpCall) -> Support:
        """What can be written in ONNX with the meaning it has in ATen."""
        from dovetail.backends.onnx.convert import refusal

        reason = refusal(call)
        return Support.no(reason) if reason else Support.yes()

    def keeps_whole(self, call: OpCall) -> bool:
        """Operators with a rule of their own; whether it covers the call is asked later."""
        from dovetail.backends.onnx.convert import all_rules

        if call.op.removeprefix("aten.") in all_rules():
            return True
        return call.op not in _IN_PARTS and super().keeps_whole(call)

    def compile(self, segment: Segment) -> Blob:
        """The segment as an ONNX model."""
        from dovetail.backends.onnx.convert import to_model

        return Blob(to_model(segment))

    def load(self, blob: Blob) -> Executable:
        """An inference session; UnsupportedGraph where the bytes are no model of ours."""
        from dovetail.backends.onnx.run import OnnxExecutable

        return OnnxExecutable(blob.data)
