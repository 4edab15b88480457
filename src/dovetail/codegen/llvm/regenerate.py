"""Code for kernels that a file holds as kernel IR, where its own code may not or cannot run.

Nobody vouches for the kernels of a file without a trusted signature. Their names must be plain,
as they become part of LLVM's text, and only kernels that cannot go wrong for any data become
code: the runtime shows before a call that every access without mask or gathered index lies
within its buffer. It interprets the others, and checks each access while it does.
"""

from __future__ import annotations

import logging
import re

from dovetail.codegen.llvm.module import generate
from dovetail.codegen.llvm.target import host, missing
from dovetail.errors import DovetailError
from dovetail.file.encode import code_section
from dovetail.file.kernel_decode import decode_kernels
from dovetail.ir.kernel import CHECKS, Apply, Kernel, Load, Store
from dovetail.ir.kernel_verify import verify_kernel

log = logging.getLogger(__name__)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_MAY_FAIL = frozenset({*CHECKS, "div_int", "floordiv", "floormod"})


def regenerate(kernel_ir: bytes, trusted: bool) -> bytes | None:
    """A code section for this machine, or None where none can be made."""
    if missing():
        return None
    try:
        kernels = [k for k in decode_kernels(kernel_ir) if _PLAIN_NAME.match(k.name)]
        for kernel in kernels:
            verify_kernel(kernel)
        chosen = {k.name: k for k in kernels if trusted or cannot_fail(k)}
        if not chosen:
            return None
        target = host()
        section = code_section({target.level: generate(chosen, target)})
    except (DovetailError, LookupError, ValueError, TypeError, AssertionError) as error:
        log.warning("kernels of a file cannot be compiled, and are interpreted: %s", error)
        return None
    return b"".join(section.pieces)


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
