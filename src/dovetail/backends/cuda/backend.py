"""``cuda``: fused kernels as Triton's code, PyTorch's own for products and the rest."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING, ClassVar

from dovetail.backend import Availability, Blob, Executable, Support
from dovetail.backends.lowering import LoweringBackend
from dovetail.errors import UnsupportedArtifact
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.ir.target import TARGETS, Target
from dovetail.passes.base import Passes

if TYPE_CHECKING:
    from dovetail.backends.cuda.program import CudaProgram
    from dovetail.ir import OpCall, Segment

log = logging.getLogger(__name__)
OLDEST = (8, 0)  # compute capability: what Triton has conversions to bfloat16 for


@functools.cache
def target_of(index: int) -> Target:
    """The target of a GPU of this machine: an H200's figures, under its own instructions."""
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    name = f"sm_{major}{minor}"
    return TARGETS.get(name) or dataclasses.replace(TARGETS["sm_90"], name=name)


class CudaBackend(LoweringBackend):
    """Generates code for what has a lowering rule and calls ATen for library operations."""

    name = "cuda"
    keeps_views = True
    device: ClassVar[str] = "cuda"
    exact_processor = False

    def available(self) -> Availability:
        """Kernels need Triton, a GPU and PyTorch's CUDA."""
        from dovetail.codegen.triton.compile import missing

        reason = missing() or no_gpu()
        return Availability(not reason, reason)

    def fingerprint(self) -> str:
        """What makes the code, and for which GPUs, in their order."""
        import torch

        from dovetail.codegen.triton.compile import version

        gpus = (target_of(n).name for n in range(torch.cuda.device_count()))
        return " ".join([version(), *gpus])

    def supports(self, call: OpCall) -> Support:
        """What has a rule for its types, and library calls that fit between kernels."""
        from dovetail.backends.support import refusal

        reason = refusal(call, TARGETS["sm_90"], "cuda")  # the same for all GPUs
        return Support.no(reason) if reason else Support.yes()

    def passes(self) -> Passes:
        """Of training graphs: places of pools in few bytes, images as cuDNN multiplies them."""
        from dovetail.backends.cuda.training import LAYOUTS
        from dovetail.passes.pool_places import POOL_PLACES

        return Passes(joint=(POOL_PLACES, LAYOUTS))

    def lay_out(self, segment: Segment, once: frozenset[str]) -> Segment:
        """Images as matrix instructions take them."""
        from dovetail.schedule.layout import assign_layouts
        from dovetail.schedule.plan import Unschedulable

        try:
            return assign_layouts(segment, _multiplying(_target_for(segment)), once)
        except Unschedulable:
            return segment

    def compile(self, segment: Segment) -> Blob:
        """The segment and its kernels' code; what no plan is found for has none, and runs so."""
        from dovetail.backends.cuda.program import CudaProgram
        from dovetail.backends.cuda.stored import StoredSegment, store
        from dovetail.schedule.plan import Unschedulable

        try:
            program = CudaProgram(segment, _target_for(segment))
        except Unschedulable as reason:
            log.info("%s runs call by call: %s", segment.name, reason)
            return Blob(segment_to_bytes(segment))
        program.compile()
        held = StoredSegment(segment, program.target.name, program.code, program.digests())
        return Blob(store(held), ready=program)

    def load(self, blob: Blob) -> Executable:
        """A program on the GPU, whose code is that of the blob; Triton is not asked for it."""
        from dovetail.backends.cuda.run import CudaExecutable
        from dovetail.backends.cuda.stored import is_stored

        if not is_stored(blob.data):
            from dovetail.runtime.interpreter import Interpreter

            return Interpreter(segment_from_bytes(blob.data))
        return CudaExecutable(blob.ready or program_of(blob.data))


def program_of(data: bytes) -> CudaProgram:
    """A stored segment as a program: with its own code, or with new where that is another's.

    UnsupportedArtifact where new code is needed and Triton is not there.
    """
    from dovetail.backends.cuda.program import CudaProgram
    from dovetail.backends.cuda.stored import stored
    from dovetail.codegen.triton.compile import missing

    held = stored(data)
    program = CudaProgram(held.segment, _target_for(held.segment))
    target, name = program.target.name, held.segment.name
    if held.target == target and held.digests == program.digests():
        program.code = dict(held.code)
        return program
    other = held.target != target
    why = f"is for {held.target}, not {target}" if other else "is of another dovetail's kernels"
    if missing():
        raise UnsupportedArtifact(
            f"the code of {name} {why}; to compile it again, {missing()}, or save the model here"
        )
    log.info("the code of %s %s: it is compiled again", name, why)
    program.compile()
    return program


def _multiplying(target: Target) -> Target:
    """A target without the matrix instructions that cuDNN is not allowed to use for float32."""
    import torch

    if torch.backends.cudnn.conv.fp32_precision == "tf32":
        return target
    kept = tuple(name for name in target.tensor_cores if name != "tfloat32")
    return dataclasses.replace(target, tensor_cores=kept)


def _target_for(segment: Segment) -> Target:
    from dovetail.backends.cuda.program import device_of

    return target_of(device_of(segment))


@functools.cache
def no_gpu() -> str:
    """Why there is no GPU for this code; empty where there is one."""
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    found = torch.cuda.get_device_capability()
    if found < OLDEST:
        return f"the device's compute capability is {found[0]}.{found[1]}, not 8.0 or more"
    return ""
