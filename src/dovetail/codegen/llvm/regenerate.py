"""Code for kernels that a file holds as kernel IR, where its own code may not or cannot run.

Nobody vouches for the kernels of a file without a trusted signature. Nothing of the file's own
words becomes part of LLVM's text: a kernel's function is called by its number. The runtime shows
before a call that every access without mask or gathered index lies within its buffer; kernels
with others, or that could stop by their data, are left to the interpreter, which checks each.
"""

from __future__ import annotations

import logging

from dovetail.codegen.llvm.module import generate
from dovetail.codegen.llvm.target import host, missing
from dovetail.errors import DovetailError
from dovetail.file.encode import code_section
from dovetail.file.kernel_decode import decode_kernels, has_names
from dovetail.ir.kernel import CHECKS, Apply, Kernel, Load, Store

log = logging.getLogger(__name__)
_MAY_FAIL = frozenset({*CHECKS, "div_int", "floordiv", "floormod"})


def regenerate(kernel_ir: bytes, trusted: bool) -> tuple[bytes | None, str]:
    """A code section for this machine, or None; and why kernels are missing there, if some are.

    Its function ``k0`` is the first kernel of the section.
    """
    if missing():
        return None, f"to compile them, {missing()}"
    if has_names(kernel_ir):
        return None, "those of a file of format 1.2 are only interpreted; export the model again"
    try:
        kernels = decode_kernels(kernel_ir)
        chosen = {f"k{n}": k for n, k in enumerate(kernels) if trusted or cannot_fail(k)}
        if not chosen:
            return None, "none of them can be compiled safely"
        target = host()
        section = code_section({target.level: generate(chosen, target)})
    except (DovetailError, ArithmeticError, AssertionError, LookupError, ValueError) as error:
        log.warning("kernels of a file cannot be compiled, and are interpreted: %s", error)
        return None, f"they cannot be compiled: {error}"
    left = len(kernels) - len(chosen)
    return b"".join(section.pieces), f"{left} cannot be compiled safely" if left else ""


def cannot_fail(kernel: Kernel) -> bool:
    """Whether no data can make a kernel stop or reach out of its buffers."""
    for i in kernel.instructions():
        if isinstance(i, Load | Store) and i.index.values:
            return False
        if isinstance(i, Load) and i.mask is not None:
            return False
        if isinstance(i, Apply) and i.op in _MAY_FAIL:
            return False
    return True
