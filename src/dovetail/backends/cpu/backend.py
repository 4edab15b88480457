"""``cpu``: fused kernels generated with LLVM, PyTorch's own for products and the rest."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from dovetail.backend import Availability, Backend, Blob, Candidates, Executable, Support
from dovetail.backends.lowering import LoweringBackend
from dovetail.file.container import MAGIC
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.passes.base import Passes

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment
    from dovetail.ir.target import Target

log = logging.getLogger(__name__)


class CpuBackend(LoweringBackend):
    """Generates code for what has a lowering rule and calls ATen for library operations."""

    name = "cpu"
    keeps_views = True
    exact_processor = False
    device: ClassVar[str] = "cpu"
    effort: ClassVar[int] = 1  # of LLVM's four levels; what there is to gain is gained before it

    def __init__(self, *, convolution_error: float = 2e-5, libraries: bool = True) -> None:
        """``convolution_error``: the largest error of a convolution's result that may be.

        That is against float64 and beside the root mean square of all results, and for frozen
        weights alone: less than 2e-5 rules out Winograd's algorithm in tiles of 4 by 4, less than
        4e-6 in any (docs/decisions/0102). The algorithm works on tiles: an infinity, a NaN or a
        value far larger than all others reaches every result of its tiles, not its neighbours
        alone; 0 is for those who need them apart.

        ``libraries``: whether PyTorch may compute what it does faster and the runtime, where there
        is no PyTorch, has no kernel for. Files saved ``without_torch`` are compiled without.
        """
        self.convolution_error, self.libraries = convolution_error, libraries

    def quick(self) -> Backend | None:
        """The same kernels, left to LLVM as they are: a third of the time to compile."""
        return _QuickCpu(convolution_error=self.convolution_error, libraries=self.libraries)

    def alone(self) -> Backend:
        """The same kernels, and some in place of PyTorch's: a file's reader may have none."""
        return type(self)(convolution_error=self.convolution_error, libraries=False)

    def available(self) -> Availability:
        """Code generation needs llvmlite."""
        from dovetail.codegen.llvm.target import missing

        reason = missing()
        return Availability(not reason, reason)

    def fingerprint(self) -> str:
        """What makes the code; the level of the processor that it is for enters every key."""
        from dovetail.codegen.llvm.target import version

        return version()

    def target(self) -> Target:
        """What graphs are laid out and packed for."""
        from dovetail.file.processors import target_here

        return target_here()

    def supports(self, call: OpCall) -> Support:
        """What has a rule for its types, and library calls that fit between kernels."""
        from dovetail.backends.support import refusal

        reason = refusal(call, self.target(), "cpu")
        return Support.no(reason) if reason else Support.yes()

    def passes(self) -> Passes:
        """Instance norms as group norms, which fix no layout, rows as images, which have some.

        Images of a training step get their layouts here, before it is two graphs.
        """
        from dovetail.passes.channels_last import CHANNELS_LAST
        from dovetail.passes.conv1d import CONV1D
        from dovetail.passes.instance_norm import INSTANCE_NORM
        from dovetail.passes.pixel import PIXEL

        return Passes(pre_grad=(INSTANCE_NORM,), joint=(CHANNELS_LAST,), post_grad=(PIXEL, CONV1D))

    def lay_out(self, segment: Segment, once: frozenset[str]) -> Segment:
        """Images as convolutions run best."""
        from dovetail.schedule.layout import assign_layouts

        return assign_layouts(segment, self.target(), once)

    def candidates(self, call: OpCall, once: frozenset[str]) -> Candidates | None:
        """Libraries and kernels of products, convolutions and attention."""
        from dovetail.schedule.cpu.candidates import candidates

        return candidates(call, self.target(), once, self.convolution_error)

    def pack(self, segment: Segment, once: frozenset[str]) -> Segment:
        """Weights as kernels read them."""
        from dovetail.schedule.cpu.pack_convolution import pack_convolutions
        from dovetail.schedule.cpu.packing import pack_products

        target, error = self.target(), self.convolution_error
        segment = pack_convolutions(segment, target, once, error, libraries=self.libraries)
        if self.libraries:
            return pack_products(segment, target, once)
        from dovetail.schedule.cpu.bags import take_bags_apart

        return take_bags_apart(segment)

    def prepare(self) -> None:
        """Import the code generator and start LLVM."""
        import dovetail.backends.cpu.program  # noqa: F401
        from dovetail.codegen.llvm.target import start

        start()

    def compile(self, segment: Segment) -> Blob:
        """An artifact with generated kernels; what no plan is found for stays a segment."""
        from dovetail.backends.cpu.program import segment_artifact
        from dovetail.schedule.plan import Unschedulable

        try:
            return Blob(segment_artifact(segment, self.effort, libraries=self.libraries))
        except Unschedulable as reason:
            log.info("%s runs call by call: %s", segment.name, reason)
            return Blob(segment_to_bytes(segment))

    def load(self, blob: Blob) -> Executable:
        """Open the artifact: its code was made by this process, or comes from its own cache."""
        if not blob.data.startswith(MAGIC):
            from dovetail.runtime.interpreter import Interpreter

            return Interpreter(segment_from_bytes(blob.data))
        from dovetail.runtime.executable import load

        return load(blob.data)


class _QuickCpu(CpuBackend):
    effort = 0
