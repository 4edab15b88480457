"""Code for kernels that a file holds as kernel IR, where its own code may not or cannot run.

Nobody vouches for the kernels of a file without a trusted signature. Nothing of the file's own
words becomes part of LLVM's text: a kernel's function is called by its number. The runtime shows
before a call that every access without mask or gathered index lies within its buffer; the code
itself checks the others, and what it divides by, while it runs (guard.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dovetail.codegen.llvm.module import generate
from dovetail.codegen.llvm.target import host, missing
from dovetail.file.encode import code_section
from dovetail.file.kernel_decode import decode_kernels, has_names
from dovetail.ir.kernel import Index, Instruction, Kernel, Load, Position, Store

log = logging.getLogger(__name__)
# Instructions of a kernel, and of all kernels of a file, that are compiled for whoever sends them,
# each term of an index counted as one. LLVM takes about a millisecond for each; the largest kernels
# of real models have a few hundred.
MOST_IN_KERNEL, MOST_IN_FILE = 2000, 30000


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
        chosen = dict(_named(kernels) if trusted else _of_modest_size(kernels))
        target = host()
        code = generate(chosen, target, guarded=not trusted)
    except Exception as error:  # whatever a stranger's kernel does to the compiler, it can be run
        log.warning("kernels of a file cannot be compiled, and are interpreted: %s", error)
        return None, f"they cannot be compiled: {error}"
    left = len(kernels) - len(chosen)
    problem = f"{left} of {len(kernels)} are too large to compile for a file that is not trusted"
    return b"".join(code_section({target.level: code}).pieces), problem if left else ""


def _named(kernels: Sequence[Kernel]) -> list[tuple[str, Kernel]]:
    return [(f"k{n}", kernel) for n, kernel in enumerate(kernels)]


def _of_modest_size(kernels: Sequence[Kernel]) -> list[tuple[str, Kernel]]:
    """Kernels that take neither LLVM nor a thread's stack more than a real one does."""
    chosen, total = [], 0
    for name, kernel in _named(kernels):
        size = sum(map(_size, kernel.instructions()))
        if size <= MOST_IN_KERNEL and total + size <= MOST_IN_FILE:
            chosen.append((name, kernel))
            total += size
    return chosen


def _size(i: Instruction) -> int:
    index = i.index if isinstance(i, Load | Store | Position) else Index()
    return 1 + len(index.axes) + len(index.values)
