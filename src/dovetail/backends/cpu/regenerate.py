"""Code for kernels that a file holds as kernel IR, where its own code may not or cannot run.

Nobody vouches for the kernels of a file without a trusted signature. Nothing of the file's own
words becomes part of LLVM's text: a kernel's function is called by its number. The runtime shows
before a call that every access without mask or gathered index lies within its buffer; the code
itself checks the others, and what it divides by, while it runs (guard.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence

from dovetail.backends.cpu.code import schedule_kernel
from dovetail.codegen.llvm.module import Rendered, joined, rendered
from dovetail.codegen.llvm.target import assemble, missing
from dovetail.errors import SizeError
from dovetail.file.encode import code_section
from dovetail.file.kernel_decode import decode_kernels, has_names
from dovetail.file.processors import PROCESSORS, target_here
from dovetail.ir.kernel import Index, Instruction, Kernel, Load, Position, Store
from dovetail.ir.target import Target

log = logging.getLogger(__name__)
# What is compiled for whoever sends it, of a kernel and of all kernels of a file: instructions,
# each term of an index counted as one, so that no thread's stack is short; and lines of LLVM's
# text, for its time. It takes about a second for the longest kernel. Those of real models have a
# few hundred of the ones and some thousands of the others.
MOST_IN_KERNEL, MOST_IN_FILE = 2000, 30000
MOST_LINES_IN_KERNEL, MOST_LINES_IN_FILE = 20000, 400000
# What LLVM takes apart, lane by lane, and the lines that each lane then counts for.
_APART = re.compile(
    r"(?:[su](?:div|rem) <(\d+) x [^,]*, %|@llvm\.masked\.(?:gather|scatter)\.v(\d+))"
)
_EACH = 4


def regenerate(kernel_ir: bytes, trusted: bool) -> tuple[bytes | None, str]:
    """A code section for this machine, or None; and why kernels are missing there, if some are.

    Its function ``k0`` is the first kernel of the section.
    """
    if missing():
        return None, f"to compile them, {missing()}"
    if has_names(kernel_ir):
        return None, "those of a file of format 1.2 are only interpreted; export the model again"
    try:
        kernels, target = decode_kernels(kernel_ir), target_here()
        parts = list(_all_of(kernels, target) if trusted else _modest(kernels, target))
        code = assemble(joined(parts, guarded=not trusted), target)
    except Exception as error:  # whatever a stranger's kernel does to the compiler, it can be run
        log.warning("kernels of a file cannot be compiled, and are interpreted: %s", error)
        return None, f"they cannot be compiled: {error}"
    left = len(kernels) - len(parts)
    problem = f"{left} of {len(kernels)} are too large to compile for a file that is not trusted"
    return b"".join(code_section([(PROCESSORS[target.name], code)]).pieces), problem if left else ""


def _all_of(kernels: Sequence[Kernel], target: Target) -> Iterator[Rendered]:
    return (
        rendered(f"k{n}", *schedule_kernel(kernel, target), target)
        for n, kernel in enumerate(kernels)
    )


def _modest(kernels: Sequence[Kernel], target: Target) -> Iterator[Rendered]:
    """Kernels that take neither LLVM nor a thread's stack more than a real one does."""
    total = lines = 0
    for n, kernel in enumerate(kernels):
        size = sum(map(_size, kernel.instructions()))
        if size > MOST_IN_KERNEL or total + size > MOST_IN_FILE or lines > MOST_LINES_IN_FILE:
            continue
        try:
            part = rendered(f"k{n}", *schedule_kernel(kernel, target), target, guarded=True)
        except SizeError as error:  # the others can be compiled all the same
            log.info("the kernel %s of a file is interpreted: %s", kernel.name, error)
            continue
        total, length = total + size, _length(part)
        lines += length  # also of one that is left out: it took time to write
        if length <= MOST_LINES_IN_KERNEL:
            yield part


def _length(part: Rendered) -> int:
    """Lines of text, those that become many by what they become."""
    texts = (part.text, *part.functions.values())
    apart = sum(int(a or b) for text in texts for a, b in _APART.findall(text))
    return sum(text.count("\n") for text in texts) + _EACH * apart


def _size(i: Instruction) -> int:
    index = i.index if isinstance(i, Load | Store | Position) else Index()
    return 1 + len(index.axes) + len(index.values)
