"""Kernel IR read back from a section of a file, to be compiled again. See SPEC.md.

The C runtime reads the section too, and its check is what generated code relies on. So both must
understand the same by the same bytes: everything goes by number, this reader makes up the names
(n0: the first attribute of a call, a0, b0, v0), and what it understood is encoded again and must
give the bytes it came from.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from dovetail.errors import CannotSave, InvalidArtifact, UnsupportedArtifact
from dovetail.file import kernel_codes as codes
from dovetail.file.kernel_encode import UNNAMED, encode_kernels
from dovetail.ir.dtypes import COMPUTED, KERNEL_DTYPES, LIMITS
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Instruction,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.kernel_verify import InvalidKernel, verify_kernel
from dovetail.ir.ops import OPERATIONS_BY_NUMBER, REDUCTIONS_BY_NUMBER, Operation, Reducer
from dovetail.ir.size import Dim, Size

_ROLES = tuple(codes.ROLE_CODES)


def has_names(data: bytes) -> bool:
    """Whether a section is of the form of 1.2, which only the C runtime reads."""
    return data[:1] not in (b"", UNNAMED)


def decode_kernels(data: bytes) -> tuple[Kernel, ...]:
    """The kernels that ``encode_kernels`` wrote; InvalidArtifact for anything else."""
    if has_names(data):
        raise UnsupportedArtifact(
            "the kernel IR is of format 1.2, which is only interpreted: export the model again"
        )
    kernels = _read(data)
    if _encoded(kernels) != data:
        raise _invalid("is not written the one way it can be")
    return kernels


def split_kernels(data: bytes) -> dict[str, bytes]:
    """Each kernel of a section that ``kernels_section`` wrote, encoded as it is, by name."""
    bodies = {}
    for each in _split(data):
        name = each.take(each.number(codes.MAX_NAME)).decode("latin-1")
        bodies[name] = each.data[each.at :]
    return bodies


def _split(data: bytes) -> Iterator[_ByteReader]:
    """A reader for each kernel; they come before it is known that nothing follows."""
    reader = _ByteReader(data)
    reader.take(len(UNNAMED))
    for _ in range(reader.number(limit=codes.MAX_KERNELS)):
        yield _ByteReader(reader.take(reader.number(limit=len(reader.data))))
    reader.finish()


def _read(data: bytes) -> tuple[Kernel, ...]:
    kernels = []
    for body in _split(data):
        kernels.append(_KernelReader(body).kernel())
        body.finish()
    return tuple(kernels)


def _encoded(kernels: Sequence[Kernel]) -> bytes:
    try:
        return encode_kernels(kernels)
    except CannotSave as error:
        raise _invalid(str(error)) from None


def _invalid(problem: str) -> InvalidArtifact:
    return InvalidArtifact(f"kernel IR section: {problem}")


class _ByteReader:
    """Bytes from front to back."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise _invalid("ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, limit: int) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if shift > 63:
                raise _invalid("a number of more than 64 bits")
        if value > limit:
            raise _invalid(f"{value} is out of range")
        return value

    def integer(self) -> int:
        value = self.number(2**64 - 1)
        return value >> 1 if value % 2 == 0 else -(value + 1 >> 1)

    def finish(self) -> None:
        if self.at != len(self.data):
            raise _invalid("has bytes left over")


class _KernelReader:
    """One kernel's body."""

    def __init__(self, reader: _ByteReader) -> None:
        self.reader = reader
        self.sizes: list[Dim] = []
        self.buffers: list[KernelBuffer] = []
        self.axes: list[Axis] = []
        self.types: list[str] = []

    def kernel(self) -> Kernel:
        name = self.reader.take(self._count(codes.MAX_NAME)).decode("latin-1")
        self.sizes = [Size.symbol(f"n{n}") for n in range(self._count(codes.MAX_SIZES))]
        self.buffers = [self._buffer(n) for n in range(self._count(codes.MAX_BUFFERS))]
        count = self._count(codes.MAX_AXES)
        own = self._count(count)
        self.axes = [Axis(f"a{n}", self._dim()) for n in range(count)]
        loops = tuple(self._loop() for _ in range(self._count(codes.MAX_LOOPS)))
        try:
            return verify_kernel(Kernel(name, tuple(self.buffers), tuple(self.axes[:own]), loops))
        except InvalidKernel as error:
            raise _invalid(f"a kernel: {error}") from None

    def _count(self, limit: int) -> int:
        return self.reader.number(limit)

    def _below(self, limit: int) -> int:
        if not limit:
            raise _invalid("an index into an empty list")
        return self.reader.number(limit - 1)

    def _buffer(self, number: int) -> KernelBuffer:
        dtype = KERNEL_DTYPES[self._below(len(KERNEL_DTYPES))].name
        return KernelBuffer(f"b{number}", dtype, _ROLES[self._below(len(_ROLES))])

    def _dim(self) -> Dim:
        place = self._count(len(self.sizes))
        return self.sizes[place - 1] if place else self.reader.integer()

    def _loop(self) -> Loop:
        axes = [self.axes[self._below(len(self.axes))] for _ in range(self._count(codes.MAX_AXES))]
        if len(set(axes)) != len(axes):
            raise _invalid("a loop's axis is there twice")
        count = self._count(2 * codes.MAX_VALUES)
        return Loop(tuple(axes), tuple(self._instruction() for _ in range(count)))

    def _instruction(self) -> Instruction:
        kind = self._below(codes.SCAN + 1)
        if kind == codes.STORE:
            buffer, index = self._place()
            return Store(buffer, index, self._value())
        if len(self.types) >= codes.MAX_VALUES:
            raise _invalid("too many values")
        name, dtype = f"v{len(self.types)}", COMPUTED[self._below(len(COMPUTED))]
        made = self._definition(kind, name, dtype)
        self.types.append(dtype)
        return made

    def _definition(self, kind: int, name: str, dtype: str) -> Instruction:
        if kind == codes.LOAD:
            buffer, index = self._place()
            mask = self._count(len(self.types))
            if mask and self.types[mask - 1] != "bool":
                raise _invalid("a mask that is no bool")
            return Load(name, dtype, buffer, index, f"v{mask - 1}" if mask else None)
        if kind == codes.CONST:
            return Const(name, dtype, self._constant(dtype))
        if kind == codes.POSITION:
            index = self._index()
            if dtype != "int64" or index.values:
                raise _invalid("a position that is not int64, or gathers")
            return Position(name, index, dtype)
        if kind == codes.APPLY:
            return self._operation(Apply, OPERATIONS_BY_NUMBER, name, dtype)
        make = Reduce if kind == codes.REDUCE else Scan
        return self._operation(make, REDUCTIONS_BY_NUMBER, name, dtype)

    def _operation(
        self,
        make: type[Apply | Reduce | Scan],
        table: Sequence[Operation | Reducer],
        name: str,
        dtype: str,
    ) -> Apply | Reduce | Scan:
        operation = table[self._below(len(table))]
        args = [self._below(len(self.types)) for _ in range(operation.arity)]
        if not operation.admits(tuple(self.types[a] for a in args), dtype):
            raise _invalid(f"operands that do not fit {operation.name}")
        return make(name, dtype, operation.name, tuple(f"v{a}" for a in args))

    def _constant(self, dtype: str) -> float | int | bool:
        if dtype.startswith("float"):
            (value,) = struct.unpack("<d", self.reader.take(8))
            return float(value)
        value = self.reader.integer()
        least, most = LIMITS[dtype]
        if not least <= value <= most:
            raise _invalid("a constant that its type does not hold")
        return bool(value) if dtype == "bool" else int(value)

    def _value(self) -> str:
        return f"v{self._below(len(self.types))}"

    def _place(self) -> tuple[str, Index]:
        return self.buffers[self._below(len(self.buffers))].name, self._index()

    def _index(self) -> Index:
        offset = self._dim()
        axes = tuple(
            (self.axes[self._below(len(self.axes))].name, self._dim())
            for _ in range(self._count(codes.MAX_TERMS))
        )
        values = tuple((self._value(), self._dim()) for _ in range(self._count(codes.MAX_TERMS)))
        return Index(offset, axes, values)
