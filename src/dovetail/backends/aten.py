"""``aten``: every call by PyTorch's own kernels. It supports everything and stands last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.backend import Availability, Backend, Blob, Executable, Support, torch_available
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment


class AtenBackend(Backend):
    """Calls ATen's kernels in order; operators stay whole, as in eager."""

    name = "aten"
    runs_anywhere = True
    keeps_views = True
    exact_processor = False
    writes_in_place = True

    def available(self) -> Availability:
        """Wherever PyTorch is."""
        return torch_available()

    def supports(self, call: OpCall) -> Support:  # noqa: ARG002
        """Everything that was captured can be called."""
        return Support.yes()

    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """None: ATen has a kernel for each operator."""
        return {}

    def compile(self, segment: Segment) -> Blob:
        """The segment itself is the code."""
        return Blob(segment_to_bytes(segment))

    def load(self, blob: Blob) -> Executable:
        """Resolve operators and number registers."""
        from dovetail.runtime.interpreter import Interpreter

        return Interpreter(segment_from_bytes(blob.data))
