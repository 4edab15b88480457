"""``reference``: core ATen, call by call, every result held against its descriptor.

It is the oracle that other backends are tested against: slow and simple. It checks dtype, device
and shape of each result; strides and values are for the tests that use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.backend import Availability, Backend, Blob, Executable, Support, torch_available
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.runtime.check import check_result

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment


class ReferenceBackend(Backend):
    """An interpreter over the functional graph, decomposed to core ATen."""

    name = "reference"
    runs_anywhere = True
    keeps_views = True
    exact_processor = False
    tags = frozenset({"debug"})

    def available(self) -> Availability:
        """Wherever PyTorch is."""
        return torch_available()

    def supports(self, call: OpCall) -> Support:  # noqa: ARG002
        """Whatever core ATen or a custom library defines."""
        return Support.yes()

    def keeps_whole(self, call: OpCall) -> bool:  # noqa: ARG002
        """Nothing: an oracle should stand on few operators."""
        return False

    def compile(self, segment: Segment) -> Blob:
        """The segment itself is the code."""
        return Blob(segment_to_bytes(segment))

    def load(self, blob: Blob) -> Executable:
        """An interpreter that checks every result."""
        from dovetail.runtime.interpreter import Interpreter

        return Interpreter(segment_from_bytes(blob.data), check=check_result)
