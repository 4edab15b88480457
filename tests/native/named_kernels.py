"""Kernel IR as format 1.2 had it, with names of sizes, axes, buffers and values."""

from dovetail.file import kernel_codes as codes
from dovetail.file.kernel_encode import _KernelWriter, number
from dovetail.ir.dtypes import DTYPES


class NamedWriter(_KernelWriter):
    """Writes one kernel; ``called`` says what something is called instead of its own name."""

    def __init__(self, kernel, strings, called):
        super().__init__(kernel)
        self.strings, self.called = strings, called

    def text(self, text):
        return number(self.strings.setdefault(self.called.get(text, text), len(self.strings)))

    def body(self):
        kernel = self.kernel
        out = self.text(kernel.name) + number(len(self.sizes))
        out += b"".join(self.text(str(size)) for size in self.sizes)
        out += number(len(kernel.buffers))
        for b in kernel.buffers:
            dtype, role = DTYPES[b.dtype].number, codes.ROLE_CODES[b.role]
            out += self.text(b.name) + number(dtype) + number(role)
        out += number(len(self.all_axes)) + number(len(kernel.axes))
        out += b"".join(self.text(a.name) + self._dim(a.extent) for a in self.all_axes)
        out += number(len(kernel.loops))
        return out + b"".join(map(self._loop, kernel.loops))

    def _define(self, i):
        return self.text(i.name) + super()._define(i)


def encode_named(kernels, called=None):
    """The section, in the form of 1.2."""
    strings = {}
    bodies = [NamedWriter(kernel, strings, called or {}).body() for kernel in kernels]
    out = number(len(strings))
    out += b"".join(number(len(text.encode())) + text.encode() for text in strings)
    return out + number(len(bodies)) + b"".join(number(len(b)) + b for b in bodies)
