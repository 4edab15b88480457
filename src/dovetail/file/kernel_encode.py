"""Kernel IR as a section of a file. SPEC.md describes the bytes.

A file carries its generated kernels in this form too, so that one whose native code is not
trusted or is for another processor can be compiled again, or interpreted by the C runtime.
Everything in it goes by number. A kernel has one encoding only, which both readers insist on: so
two of them that agree on the bytes agree on the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from dovetail.errors import CannotSave
from dovetail.file import kernel_codes as codes
from dovetail.ir.dtypes import DTYPES, LIMITS
from dovetail.ir.expand import expand
from dovetail.ir.kernel import (
    Apply,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.kernel_verify import InvalidKernel, verify_kernel
from dovetail.ir.ops import OPERATIONS, REDUCTIONS, Operation, Reducer
from dovetail.ir.size import INT64_MAX, INT64_MIN, Dim, Size

UNNAMED = b"\0"  # how a section starts whose kernels name nothing; before 1.3 names stood there


def encode_kernels(kernels: Sequence[Kernel]) -> bytes:
    """The section; CannotSave names what the format has no way to write."""
    bodies = {kernel.name: encode_kernel(kernel) for kernel in kernels}
    if len(bodies) != len(kernels):
        raise CannotSave("two generated kernels have one name")
    return kernels_section(bodies)


def encode_kernel(kernel: Kernel) -> bytes:
    """What the section says of a kernel, all but its name; CannotSave where it cannot say it."""
    return _KernelWriter(kernel).body()


def kernels_section(bodies: Mapping[str, bytes]) -> bytes:
    """The section of kernels that are encoded already, by name."""
    if len(bodies) > codes.MAX_KERNELS:
        raise CannotSave(f"{len(bodies)} generated kernels; a file holds {codes.MAX_KERNELS}")
    out = bytearray(UNNAMED + number(len(bodies)))
    for name, body in bodies.items():
        if not codes.PLAIN_NAME.fullmatch(name):
            raise CannotSave(f"{name!r} is no name for a kernel in a file")
        head = number(len(name)) + name.encode()
        out += number(len(head) + len(body)) + head + body
    return bytes(out)


def number(value: int) -> bytes:
    """An unsigned number, seven bits a byte, the lowest first (LEB128)."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(value: int) -> bytes:
    """A signed 64-bit number: the sign in the lowest bit, so that small ones stay short."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise CannotSave(f"{value} in a kernel does not fit 64 bits")
    return number(value << 1 if value >= 0 else (-value << 1) - 1)


def has_number(op: str) -> bool:
    """Whether files hold an operation as it is."""
    return op not in OPERATIONS or OPERATIONS[op].number >= 0


def _wrapped(value: int, dtype: str) -> int:
    """A constant as its type holds it."""
    if not INT64_MIN <= value <= INT64_MAX or dtype not in LIMITS:
        raise CannotSave(f"a kernel has the constant {value}, which does not fit 64 bits")
    if dtype == "bool":
        return int(value != 0)
    least, most = LIMITS[dtype]
    return (value - least) % (most - least + 1) + least


class _KernelWriter:
    """Numbers what a kernel names, and writes it down."""

    def __init__(self, kernel: Kernel) -> None:
        try:
            verify_kernel(kernel)
        except InvalidKernel as error:
            raise CannotSave(f"the kernel {kernel.name} is not valid: {error}") from None
        kernel = self.kernel = expand(kernel, has_number)
        self.sizes = {size: n for n, size in enumerate(call_sizes(kernel))}
        self.buffers = {b.name: n for n, b in enumerate(kernel.buffers)}
        self.all_axes = kernel.all_axes()
        self.values: dict[str, int] = {}
        self.types: dict[str, str] = {}
        self.axes: dict[str, int] = {}
        self.count = 0

    def body(self) -> bytes:
        kernel = self.kernel
        self._within("buffers", len(kernel.buffers), codes.MAX_BUFFERS)
        self._within("sizes", len(self.sizes), codes.MAX_SIZES)
        self._within("axes", len(self.all_axes), codes.MAX_AXES)
        self._within("loops", len(kernel.loops), codes.MAX_LOOPS)
        out = number(len(self.sizes)) + number(len(kernel.buffers))
        for b in kernel.buffers:
            out += number(DTYPES[b.dtype].number) + number(codes.ROLE_CODES[b.role])
        out += number(len(self.all_axes)) + number(len(kernel.axes))
        out += b"".join(self._dim(a.extent) for a in self.all_axes)
        out += number(len(kernel.loops))
        out += b"".join(map(self._loop, kernel.loops))
        self._within("values", self.count, codes.MAX_VALUES)
        return out

    def _within(self, what: str, count: int, limit: int) -> None:
        if count > limit:
            raise CannotSave(f"the kernel {self.kernel.name} has {count} {what}, more than {limit}")

    def _dim(self, dim: Dim) -> bytes:
        return number(self.sizes[dim] + 1) if isinstance(dim, Size) else b"\0" + integer(dim)

    # ---- loops and instructions ------------------------------------------------------------

    def _loop(self, loop: Loop) -> bytes:
        places = {axis: n for n, axis in enumerate(self.all_axes)}
        own = [places[axis] for axis in loop.axes]
        self.axes = {a.name: places[a] for a in (*self.kernel.axes, *loop.axes)}
        out = number(len(own)) + b"".join(map(number, own)) + number(len(loop.body))
        return out + b"".join(map(self._instruction, loop.body))

    def _instruction(self, i: Instruction) -> bytes:
        match i:
            case Load():
                mask = number(0 if i.mask is None else self.values[i.mask] + 1)
                rest = number(self.buffers[i.buffer]) + self._index(i.index) + mask
                return number(codes.LOAD) + self._define(i) + rest
            case Const():
                return number(codes.CONST) + self._define(i) + self._constant(i)
            case Position():
                return number(codes.POSITION) + self._define(i) + self._index(i.index)
            case Apply():
                return self._apply(i)
            case Reduce():
                return number(codes.REDUCE) + self._operation(i, REDUCTIONS)
            case Scan():
                return number(codes.SCAN) + self._operation(i, REDUCTIONS)
            case Store():
                if i.sums:
                    raise CannotSave("sums in memory are for blocks of a GPU alone")
                place = number(self.buffers[i.buffer]) + self._index(i.index)
                return number(codes.STORE) + place + number(self.values[i.value])

    def _define(self, i: Load | Const | Position | Apply | Reduce | Scan) -> bytes:
        """A value's type; it gets the next number."""
        self.values[i.name], self.types[i.name] = self.count, i.dtype
        self.count += 1
        return number(DTYPES[i.dtype].number)

    def _constant(self, i: Const) -> bytes:
        if i.dtype.startswith("float"):
            return struct.pack("<d", i.value)
        return integer(_wrapped(int(i.value), i.dtype))

    def _apply(self, i: Apply) -> bytes:
        return number(codes.APPLY) + self._operation(i, OPERATIONS)

    def _operation(
        self,
        i: Apply | Reduce | Scan,
        table: Mapping[str, Operation] | Mapping[str, Reducer],
    ) -> bytes:
        if table[i.op].number < 0:
            raise CannotSave(
                f"the kernel {self.kernel.name} uses {i.op!r}, which has no number in the file "
                "format: give it one in ir/ops.py, or an expansion"
            )
        args = b"".join(number(self.values[a]) for a in i.args)
        return self._define(i) + number(table[i.op].number) + args

    def _index(self, index: Index) -> bytes:
        self._within("terms in an index", len(index.axes), codes.MAX_TERMS)
        self._within("terms in an index", len(index.values), codes.MAX_TERMS)
        axes = ((self.axes[name], stride) for name, stride in index.axes)
        values = ((self.values[name], stride) for name, stride in index.values)
        out = self._dim(index.offset) + number(len(index.axes))
        out += b"".join(number(n) + self._dim(stride) for n, stride in axes)
        out += number(len(index.values))
        return out + b"".join(number(n) + self._dim(stride) for n, stride in values)
