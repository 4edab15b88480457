"""A Program read back from the sections that ``encode_program`` wrote: what saving starts from.

For programs of this process, and to show those of files: what comes from elsewhere runs as the C
runtime reads and verifies it, and is decoded here from the sections that it has verified.
Devices and blobs are not read, since what is compiled for them is no Program of its own.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from dovetail.errors import InvalidArtifact
from dovetail.file import container
from dovetail.file.encode import DTYPE_NAMES, KIND_CODES, NONE
from dovetail.ir.argument_json import arg_from_json
from dovetail.ir.call import Arg, Ref
from dovetail.ir.layout import Layout
from dovetail.ir.program import (
    VALUE,
    Attribute,
    Buffer,
    Copy,
    Guard,
    HostCall,
    Instruction,
    KernelCall,
    Program,
    Symbol,
)
from dovetail.ir.real import as_real
from dovetail.ir.size import Dim, decode_sizes
from dovetail.ir.tensor import TensorDesc

_KINDS = tuple(KIND_CODES)
_KERNEL, _HOST, _COPY = 1, 2, 3
# What reading tables or JSON that are not as they should be may raise.
_UNREADABLE = (struct.error, LookupError, ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Decoded:
    """A program, the bytes of its constants by buffer, and the sections it came from by kind."""

    program: Program
    contents: Mapping[str, bytes]
    sections: Mapping[int, bytes]

    @property
    def manifest(self) -> dict[str, Any]:
        """What the manifest says."""
        return cast("dict[str, Any]", json.loads(self.sections[container.MANIFEST]))


def decode_artifact(data: bytes, name: str) -> Decoded:
    """The program in the bytes of an artifact, under this name: files do not hold it."""
    header = container.read_header(io.BytesIO(data))
    sections = {e.kind: data[e.offset : e.offset + e.size] for e in header.entries}
    return decode_sections(sections, name)


def decode_sections(sections: Mapping[int, bytes], name: str) -> Decoded:
    """The same from sections by kind."""
    try:
        return _Decoder(sections).decode(name)
    except _UNREADABLE as error:
        raise InvalidArtifact(f"a program cannot be read: {error!r}") from None


class _Decoder:
    """Tables first, then what refers to them."""

    def __init__(self, sections: Mapping[int, bytes]) -> None:
        self.sections = sections
        self.strings = sections[container.STRINGS]
        head = sections[container.SIZES]
        symbols, _, words = struct.unpack_from("<2IQ", head)
        self.rows = [struct.unpack_from("<4I2q", head, 16 + 32 * n) for n in range(symbols)]
        names = [self.text(*row[:2]) for row in self.rows]
        self.sizes = decode_sizes(head[16 + 32 * symbols :][: 16 * words], names)

    def decode(self, name: str) -> Decoded:
        self.buffers = self.all_buffers()
        self.names = [buffer.name for buffer in self.buffers]
        instructions, outputs = self.program()
        inputs = [buffer.name for buffer in self.buffers if buffer.kind == "input"]
        symbols = tuple(
            Symbol(self.text(at, size), inputs[given], VALUE if axis == NONE else axis, low, high)
            for at, size, given, axis, low, high in self.rows
        )
        made = Program(
            name, tuple(self.buffers), instructions, outputs, symbols, tuple(self.guards())
        )
        return Decoded(made, self.contents, self.sections)

    def text(self, at: int, size: int) -> str:
        return self.strings[at : at + size].decode()

    # ---- buffers ---------------------------------------------------------------------------

    def all_buffers(self) -> list[Buffer]:
        section = self.sections[container.BUFFERS]
        count, dims = struct.unpack_from("<2I", section)
        pool = struct.unpack_from(f"<{dims}I", section, 8 + 48 * count)
        rows = [struct.unpack_from("<2I4B3I2Q2I", section, 8 + 48 * n) for n in range(count)]
        names = [self.text(*row[:2]) for row in rows]
        layouts = self.layouts([row[5] for row in rows])
        self.contents: dict[str, bytes] = {}
        made = []
        for number, (name, row) in enumerate(zip(names, rows, strict=True)):
            kind, code, bits, rank, base, first, offset, start, size = row[2:11]
            shown = tuple(self.sizes[n] for n in pool[first : first + 2 * rank])
            desc = TensorDesc(DTYPE_NAMES[code, bits], shown[:rank], shown[rank:])
            if number in layouts:
                desc = replace(desc, layout=self.layout(*layouts[number], desc))
            of = "" if base == NONE else names[base]
            made.append(Buffer(name, _KINDS[kind], desc, of, self.sizes[offset]))
            if _KINDS[kind] in ("constant", "state"):
                self.contents[name] = self.sections[container.CONSTANTS][start : start + size]
        return made

    def layouts(self, ranks: list[int]) -> dict[int, tuple[int, list[tuple[int, int]]]]:
        """By buffer: the rank of the tensor that it holds, a pair an axis and a pair a part."""
        section = self.sections.get(container.LAYOUTS, bytes(8))
        count, _ = struct.unpack_from("<2I", section)
        pairs = list(struct.iter_unpack("<2I", section[8:]))
        found, at = {}, count
        for buffer, rank in pairs[:count]:
            found[buffer] = rank, pairs[at : at + rank + ranks[buffer]]
            at += rank + ranks[buffer]
        return found

    def layout(self, rank: int, pairs: list[tuple[int, int]], memory: TensorDesc) -> Layout:
        shape = [self.sizes[size] for size, _ in pairs[:rank]]
        return Layout.in_memory(shape, [zeros for _, zeros in pairs[:rank]], pairs[rank:], memory)

    def guards(self) -> list[Guard]:
        section = self.sections.get(container.GUARDS, bytes(8))
        (count,) = struct.unpack_from("<I", section)
        rows = [struct.unpack_from("<2I", section, 8 + 8 * n) for n in range(count)]
        return [Guard(self.sizes[left], self.sizes[right]) for left, right in rows]

    # ---- instructions ----------------------------------------------------------------------

    def program(self) -> tuple[tuple[Instruction, ...], tuple[str, ...]]:
        section = self.sections[container.PROGRAM]
        inputs, outputs, count, _ = struct.unpack_from("<4I", section)
        handed_out = struct.unpack_from(f"<{outputs}I", section, 16 + 4 * inputs)
        at = 16 + 4 * (inputs + outputs)
        instructions = []
        for _ in range(count):
            made, at = self.instruction(section, at)
            instructions.append(made)
        return tuple(instructions), tuple(self.names[n] for n in handed_out)

    def instruction(self, section: bytes, at: int) -> tuple[Instruction, int]:
        opcode, index, outs, ins, attributes, _ = struct.unpack_from("<6I", section, at)
        listed = struct.unpack_from(f"<{outs + ins}I", section, at + 24)
        at += 24 + 4 * (outs + ins)
        named = tuple("" if n == NONE else self.names[n] for n in listed)
        given = [self.attribute(section, at + 16 * n) for n in range(attributes)]
        made = _MAKERS[opcode](self, index, named[:outs], named[outs:], given)
        return made, at + 16 * attributes

    def attribute(self, section: bytes, at: int) -> Attribute:
        tag, size, number = struct.unpack_from("<2Iq", section, at)
        if tag == 1:
            return cast("float", struct.unpack_from("<d", section, at + 8)[0])
        return self.sizes[size] if tag == 2 else int(number)

    def kernel(
        self, index: int, outs: tuple[str, ...], ins: tuple[str, ...], given: list[Attribute]
    ) -> KernelCall:
        row = struct.unpack_from("<3I", self.sections[container.KERNELS], 8 + 24 * index)
        return KernelCall(f"{self.text(*row[:2])}@{row[2]}", outs, ins, tuple(given))

    def copy(self, _: int, outs: tuple[str, ...], ins: tuple[str, ...], __: object) -> Copy:
        return Copy(outs[0], ins[0])

    def host(
        self, index: int, outs: tuple[str, ...], ins: tuple[str, ...], given: list[Attribute]
    ) -> HostCall:
        def read(tag: str, number: Any) -> Arg:
            if tag not in ("tensor", "number", "double"):
                raise ValueError(f"a host call with an argument {tag!r}")
            if tag == "double":
                return as_real(cast("Dim", given[number]))
            return Ref(ins[number]) if tag == "tensor" else given[number]

        rows = struct.unpack_from("<4I", self.sections[container.HOST_CALLS], 8 + 16 * index)
        listed = json.loads(self.text(*rows[2:]))
        args = tuple(arg_from_json(arg, read) for arg in listed["args"])
        kwargs = {key: arg_from_json(arg, read) for key, arg in listed["kwargs"].items()}
        return HostCall(self.text(*rows[:2]), outs, args, kwargs)


_Maker = Callable[..., Instruction]
_MAKERS: dict[int, _Maker] = {
    _KERNEL: _Decoder.kernel,
    _HOST: _Decoder.host,
    _COPY: _Decoder.copy,
}
