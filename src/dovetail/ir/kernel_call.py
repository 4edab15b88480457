"""How a kernel is called: which of its buffers and sizes go where in the runtime's ``dvt_call``.

Generated native code and the C interpreter of kernel IR are called alike: outputs, inputs, and
the sizes that differ from call to call as attributes. The order is part of the file format.
"""

from __future__ import annotations

from dovetail.ir.kernel import Kernel, KernelBuffer
from dovetail.ir.size import Size


def call_outputs(kernel: Kernel) -> tuple[KernelBuffer, ...]:
    """The buffers a kernel writes, in the order of its list; it may read its own results."""
    return tuple(b for b in kernel.buffers if b.role != "in")


def call_inputs(kernel: Kernel) -> tuple[KernelBuffer, ...]:
    """The buffers a kernel only reads, in the order of its list."""
    return tuple(b for b in kernel.buffers if b.role == "in")


def call_sizes(kernel: Kernel) -> tuple[Size, ...]:
    """The sizes that are no plain numbers, each once, in the order in which they appear."""
    return tuple(dict.fromkeys(dim for dim in kernel.dims() if isinstance(dim, Size)))
