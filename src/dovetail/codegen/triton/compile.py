"""Triton's text as code of a GPU; no GPU is needed to make it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import linecache
from dataclasses import dataclass
from typing import Any

from dovetail.codegen.triton.render import PRELUDE, render
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.kernel import Apply, Kernel
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.ops import CHECKS
from dovetail.ir.target import Target
from dovetail.schedule.gpu.blocks import BlockSchedule

_ALIGNED = 16  # bytes; where every buffer begins, so that accesses can be as wide


@dataclass(frozen=True, slots=True)
class Cubin:
    """A kernel's code, and what a launch of it needs beside its arguments.

    It takes two more pointers behind them, which are null: memory that this code does not use.
    """

    name: str
    code: bytes
    warps: int
    shared_bytes: int


def missing() -> str:
    """Why nothing can be compiled; empty when it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    return ""


def version() -> str:
    """Triton's version, on which code depends, without importing it; who has none has none."""
    try:
        return f"triton {importlib.metadata.version('triton')}"
    except importlib.metadata.PackageNotFoundError:  # a build that is on the path alone
        return _imported_version()


def _imported_version() -> str:
    if missing():
        return "no triton"
    import triton

    return f"triton {triton.__version__}"


def function_of(text: str, name: str, **given: Any) -> Any:
    """Triton's function for a rendered kernel; ``given`` are names that it finds instead."""
    whole = f"{PRELUDE}\n\n{text}"
    file = f"<dovetail {name} {hash(whole):x}>"
    linecache.cache[file] = (len(whole), None, whole.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": f"dovetail_kernel_{name}"}
    exec(compile(whole, file, "exec"), scope)
    scope.update(given)
    return scope[name]


def compile_kernel(kernel: Kernel, schedule: BlockSchedule, target: Target) -> Cubin:
    """A kernel's code for a target."""
    import triton
    from triton.backends.compiler import GPUTarget

    function = function_of(render(kernel, schedule), kernel.name)
    signature = {f"p_{b.name}": f"*{DTYPES[b.dtype].triton}" for b in kernel.buffers}
    attributes = {(n,): [["tt.divisibility", _ALIGNED]] for n in range(len(signature))}
    signature |= {f"s{n}": "i64" for n in range(len(call_sizes(kernel)))}
    source = triton.compiler.ASTSource(function, signature, {}, attributes)
    checks = any(isinstance(i, Apply) and i.op in CHECKS for i in kernel.instructions())
    options = {
        "num_warps": schedule.warps,
        "enable_fp_fusion": False,  # rounds as eager does
        "enable_reflect_ftz": False,
        "debug": checks,  # a check of an index becomes an assertion of the device
        "sanitize_overflow": False,
    }
    capability = int(target.name.removeprefix("sm_"))
    made = triton.compile(
        source, target=GPUTarget("cuda", capability, target.warp), options=options
    )
    found = made.metadata
    return Cubin(found.name, made.asm["cubin"], schedule.warps, found.shared)
