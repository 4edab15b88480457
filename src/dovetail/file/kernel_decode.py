"""Kernel IR read back from a section of a file, to be compiled again. See SPEC.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dovetail.errors import InvalidArtifact, SizeError
from dovetail.file import kernel_codes as codes
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Buffer,
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
from dovetail.ir.kernel_verify import InvalidKernel, verify_kernel
from dovetail.ir.size import Dim, parse_size

_DTYPES = tuple(codes.DTYPE_CODES)
_ROLES = tuple(codes.ROLE_CODES)


def decode_kernels(data: bytes | memoryview) -> tuple[Kernel, ...]:
    """The kernels that ``encode_kernels`` wrote; InvalidArtifact for anything else."""
    reader = _Reader(bytes(data))
    strings = tuple(reader.text() for _ in range(reader.number(limit=len(data))))
    kernels = []
    for _ in range(reader.number(limit=codes.MAX_KERNELS)):
        body = _Reader(reader.take(reader.number(limit=len(data))))
        kernels.append(_KernelReader(body, strings).kernel())
        body.finish()
    reader.finish()
    return tuple(kernels)


def _invalid(problem: str) -> InvalidArtifact:
    return InvalidArtifact(f"kernel IR section: {problem}")


class _Reader:
    """Bytes from front to back."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise _invalid("ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, limit: int = 2**32 - 1) -> int:
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

    def text(self) -> str:
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise _invalid("a name is not UTF-8") from None

    def finish(self) -> None:
        if self.at != len(self.data):
            raise _invalid("has bytes left over")


class _KernelReader:
    """One kernel's body."""

    def __init__(self, reader: _Reader, strings: tuple[str, ...]) -> None:
        self.reader, self.strings = reader, strings
        self.sizes: list[Dim] = []
        self.buffers: list[Buffer] = []
        self.axes: list[Axis] = []
        self.names: list[str] = []
        self.types: list[str] = []

    def kernel(self) -> Kernel:
        name = self._text()
        try:
            self.sizes = [parse_size(self._text()) for _ in range(self._count(codes.MAX_SIZES))]
            self.buffers = [self._buffer() for _ in range(self._count(codes.MAX_BUFFERS))]
            count = self._count(codes.MAX_AXES)
            own = self._count(count)
            self.axes = [Axis(self._text(), self._dim()) for _ in range(count)]
            loops = tuple(self._loop() for _ in range(self._count(codes.MAX_LOOPS)))
            return verify_kernel(Kernel(name, tuple(self.buffers), tuple(self.axes[:own]), loops))
        except (SizeError, InvalidKernel) as error:
            raise _invalid(f"kernel {name}: {error}") from None

    def _count(self, limit: int) -> int:
        return self.reader.number(limit)

    def _below(self, limit: int) -> int:
        if not limit:
            raise _invalid("an index into an empty list")
        return self.reader.number(limit - 1)

    def _text(self) -> str:
        return self.strings[self._below(len(self.strings))]

    def _dtype(self) -> str:
        return _DTYPES[self._below(len(_DTYPES))]

    def _buffer(self) -> Buffer:
        return Buffer(self._text(), self._dtype(), _ROLES[self._below(len(_ROLES))])

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
        name, dtype = self._text(), self._dtype()
        made = self._definition(kind, name, dtype)
        self.names.append(name)
        self.types.append(dtype)
        return made

    def _definition(self, kind: int, name: str, dtype: str) -> Instruction:
        if kind == codes.LOAD:
            buffer, index = self._place()
            mask = self._count(len(self.names))
            if mask and self.types[mask - 1] != "bool":
                raise _invalid("a mask that is no bool")
            return Load(name, dtype, buffer, index, self.names[mask - 1] if mask else None)
        if kind == codes.CONST:
            return Const(name, dtype, self._constant(dtype))
        if kind == codes.POSITION:
            index = self._index()
            if dtype != "int64" or index.values:
                raise _invalid("a position that is not int64, or gathers")
            return Position(name, index, dtype)
        if kind == codes.APPLY:
            return self._operation(Apply, codes.OPERATION_TABLE, name, dtype)
        make = Reduce if kind == codes.REDUCE else Scan
        return self._operation(make, codes.FOLD_TABLE, name, dtype)

    def _operation(
        self,
        make: type[Apply | Reduce | Scan],
        table: Sequence[codes.Operation | codes.Fold],
        name: str,
        dtype: str,
    ) -> Apply | Reduce | Scan:
        operation = table[self._below(len(table))]
        args = [self._below(len(self.names)) for _ in range(operation.arity)]
        if not operation.admits(tuple(self.types[a] for a in args), dtype):
            raise _invalid(f"operands that do not fit {operation.name}")
        return make(name, dtype, operation.name, tuple(self.names[a] for a in args))

    def _constant(self, dtype: str) -> float | int | bool:
        if dtype.startswith("float"):
            (value,) = struct.unpack("<d", self.reader.take(8))
            return float(value)
        value = self.reader.integer()
        return bool(value) if dtype == "bool" else int(value)

    def _value(self) -> str:
        return self.names[self._below(len(self.names))]

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
