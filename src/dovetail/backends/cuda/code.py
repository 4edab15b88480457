"""Kernels with their schedules for a GPU, ready for Triton's renderer."""

from __future__ import annotations

from dovetail.codegen.triton.operations import has
from dovetail.ir.expand import expand
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_verify import verify_kernel
from dovetail.ir.target import Target
from dovetail.ir.verify import verify_stage
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.gpu.strategy import make_schedule
from dovetail.schedule.verify_schedule import verify_schedule


def schedule_blocks(kernel: Kernel, target: Target) -> tuple[Kernel, BlockSchedule]:
    """A kernel in operations that the renderer has, with its schedule."""
    kernel = verify_stage("codegen", expand(kernel, has), verify_kernel)
    schedule = make_schedule(kernel, target)
    return kernel, verify_stage("schedule", schedule, lambda s: verify_schedule(kernel, s, target))
