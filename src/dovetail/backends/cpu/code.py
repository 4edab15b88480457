"""Kernels with their schedules for a target, ready for LLVM's renderer."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail import history
from dovetail.codegen.llvm.module import Scheduled
from dovetail.codegen.llvm.scalar import has
from dovetail.ir.expand import expand
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_verify import verify_kernel
from dovetail.ir.target import Target
from dovetail.ir.verify import verify_stage
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.schedule import Schedule


def scheduled(kernels: Mapping[str, Kernel], target: Target) -> dict[str, Scheduled]:
    """Kernels by name, in operations that the renderer has, each with its schedule."""
    with history.step("schedule"):
        return {name: schedule_kernel(kernel, target) for name, kernel in kernels.items()}


def schedule_kernel(kernel: Kernel, target: Target) -> Scheduled:
    """One of them."""
    kernel = verify_stage("codegen", expand(kernel, has), verify_kernel)
    schedule = make_schedule(kernel, target)

    def verify(schedule: Schedule) -> None:
        from dovetail.schedule.verify_schedule import verify_schedule  # with ``debug`` alone

        verify_schedule(kernel, schedule, target)

    return kernel, verify_stage("schedule", schedule, verify)
