"""Kernels as the report has them: kernel IR, and what one target makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import DovetailError
from dovetail.ir.kernel_text import print_kernel
from dovetail.report.stages import back

if TYPE_CHECKING:
    from dovetail.ir.kernel import Kernel
    from dovetail.ir.target import Target


def kernel_data(kernels: Mapping[str, Kernel], target: Target) -> list[dict[str, Any]]:
    """Each kernel with its schedule, LLVM's text and assembly for a target."""
    return [_kernel(name, kernel, target) for name, kernel in kernels.items()]


def _kernel(name: str, kernel: Kernel, target: Target) -> dict[str, Any]:
    texts = {"schedule": "", "codegen": "", "assembly": ""}
    try:
        texts |= {stage.name: stage.text for stage in back(kernel, target)}
    except DovetailError as error:  # the rest of the report is true all the same
        texts["codegen"] = f"; {error}"
    return {
        "name": name,
        "target": target.name,
        "ir": print_kernel(kernel),
        "schedule": texts["schedule"],
        "llvm": texts["codegen"],
        "assembly": texts["assembly"],
    }
