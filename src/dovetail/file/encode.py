"""A Program as sections of a file. The layouts are those of SPEC.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import CannotSave, InvalidProgram
from dovetail.file import container
from dovetail.file.container import Section, section
from dovetail.file.encode_devices import Blobs, DeviceTables
from dovetail.ir.argument_json import arg_to_json
from dovetail.ir.call import Ref
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.program import (
    VALUE,
    Attribute,
    BlobCall,
    Buffer,
    Copy,
    HostCall,
    Instruction,
    KernelCall,
    Launch,
    Program,
)
from dovetail.ir.real import Real
from dovetail.ir.size import Dim, Size, SizeProgram

NONE = 0xFFFFFFFF
KIND_CODES = {
    name: code
    for code, name in enumerate(
        ("input", "output", "constant", "state", "temporary", "host", "view")
    )
}
DTYPE_NAMES = {(row.dlpack, row.bits): name for name, row in DTYPES.items()}

# A constant's bytes, by buffer name.
Contents = Mapping[str, bytes | memoryview]
# Kernels that come from a file's own code: kernel → symbol.
Generated = Mapping[str, str]


def encode_program(
    program: Program,
    contents: Contents,
    manifest: Mapping[str, Any],
    *,
    generated: Generated | None = None,
    blobs: Blobs | None = None,
    debug: bool = True,
) -> tuple[list[Section], int]:
    """The sections of a program, and the features a reader must have to run it."""
    encoder = _Encoder(program, contents, generated or {}, blobs or {})
    sections = encoder.sections()
    sections.append(section(container.MANIFEST, json.dumps(manifest).encode()))
    if debug:
        sections.append(section(container.DEBUG, str(program).encode()))
    features = container.FEATURE_HOST if program.host_ops() else 0
    features |= encoder.devices.features()
    return sections, features | (container.FEATURE_CODE if generated else 0)


class _Encoder:
    """Collects names, sizes and tables while it goes through a program."""

    def __init__(
        self, program: Program, contents: Contents, generated: Generated, blobs: Blobs
    ) -> None:
        self.program, self.contents, self.generated = program, contents, generated
        self.index = {b.name: i for i, b in enumerate(program.buffers)}
        self.inputs = {b.name: i for i, b in enumerate(program.inputs)}
        self.strings = bytearray()
        self.spans: dict[bytes, int] = {}
        self.sizes: dict[Dim, int] = {}
        self.data: list[bytes | memoryview] = []
        self.data_size = 0
        self.places: dict[int, int] = {}
        self.kernels: dict[str, int] = {}
        self.hosts: list[tuple[int, int, int, int]] = []
        self.devices = DeviceTables(program, blobs, self.text)

    def sections(self) -> list[Section]:
        buffers = self.buffers()
        code = self.instructions()
        guards = self.guards()
        layouts = self.layouts()
        symbols = self.symbols()
        made = [
            section(container.BUFFERS, buffers),
            section(container.PROGRAM, code),
            section(container.SIZES, symbols),
        ]
        if self.program.guards:
            made.append(section(container.GUARDS, guards))
        if layouts:
            made.append(section(container.LAYOUTS, layouts))
        if self.kernels:
            made.append(section(container.KERNELS, self.kernel_table()))
        if self.hosts:
            rows = b"".join(struct.pack("<4I", *row) for row in self.hosts)
            made.append(
                section(container.HOST_CALLS, struct.pack("<2I", len(self.hosts), 0) + rows)
            )
        made += self.devices.sections()
        made.append(section(container.STRINGS, bytes(self.strings)))
        made.append(Section(container.CONSTANTS, self.data))
        return made

    # ---- shared tables ---------------------------------------------------------------------

    def text(self, text: str) -> tuple[int, int]:
        data = text.encode()
        if data not in self.spans:
            self.spans[data] = len(self.strings)
            self.strings += data
        return self.spans[data], len(data)

    def size(self, dim: Dim) -> int:
        return self.sizes.setdefault(dim, len(self.sizes))

    def symbols(self) -> bytes:
        rows = b"".join(
            struct.pack(
                "<4I2q",
                *self.text(s.name),
                self.inputs[s.input],
                NONE if s.axis == VALUE else s.axis,
                s.low,
                s.high,
            )
            for s in self.program.symbols
        )
        code = SizeProgram([s.name for s in self.program.symbols], self.sizes).code()
        head = struct.pack("<2IQ", len(self.program.symbols), len(self.sizes), len(code) // 16)
        return head + rows + code

    def guards(self) -> bytes:
        rows = [(self.size(g.left), self.size(g.right)) for g in self.program.guards]
        return struct.pack("<2I", len(rows), 0) + b"".join(struct.pack("<2I", *r) for r in rows)

    def kernel_table(self) -> bytes:
        rows = b""
        for kernel in self.kernels:
            name, version = kernel.rsplit("@", 1)
            symbol = self.generated.get(kernel)
            rows += struct.pack(
                "<6I",
                *self.text(name),
                int(version),
                int(symbol is not None),
                *self.text(symbol or ""),
            )
        return struct.pack("<2I", len(self.kernels), 0) + rows

    # ---- buffers ---------------------------------------------------------------------------

    def buffers(self) -> bytes:
        dims: list[int] = []
        rows = b"".join(self.buffer(buffer, dims) for buffer in self.program.buffers)
        head = struct.pack("<2I", len(self.program.buffers), len(dims))
        return head + rows + struct.pack(f"<{len(dims)}I", *dims)

    def buffer(self, buffer: Buffer, dims: list[int]) -> bytes:
        desc = buffer.desc
        at = len(dims)
        dims += [self.size(d) for d in (*desc.shape, *desc.strides)]
        start, size = self.place(buffer)
        base = self.index[buffer.of] if buffer.of else NONE
        if desc.dtype not in DTYPES or DTYPES[desc.dtype].bits < 8:
            raise CannotSave(f"{buffer.name} is of dtype {desc.dtype}, which no file holds")
        code, bits = DTYPES[desc.dtype].dlpack, DTYPES[desc.dtype].bits
        fixed = struct.pack(
            "<2I4B3I", *self.text(buffer.name), KIND_CODES[buffer.kind], code, bits, desc.rank,
            base, at, self.size(buffer.offset),
        )  # fmt: skip
        return fixed + struct.pack("<2Q2I", start, size, *self.devices.place(desc.device))

    def layouts(self) -> bytes:
        """What buffers hold packed or with a halo; nothing where there is none."""
        rows = [(n, b.desc.layout) for n, b in enumerate(self.program.buffers) if b.desc.layout]
        pairs: list[tuple[int, int]] = []
        for _, layout in rows:
            pairs += zip(map(self.size, layout.shape), layout.before, strict=True)
            pairs += layout.order
        if max((number for pair in pairs for number in pair), default=0) > NONE:
            raise CannotSave("a layout has a halo or a step of more than 32 bits")
        heads = [(n, len(layout.shape)) for n, layout in rows]
        listed = b"".join(struct.pack("<2I", *pair) for pair in (*heads, *pairs))
        return struct.pack("<2I", len(heads), len(pairs)) + listed if heads else b""

    def place(self, buffer: Buffer) -> tuple[int, int]:
        """Where a constant's bytes go; constants start on 64-byte borders."""
        if buffer.kind not in ("constant", "state"):
            return 0, 0
        data = self.contents[buffer.name]
        if id(data) in self.places:  # one constant on several devices lies in the file once
            return self.places[id(data)], len(data)
        start = -(-self.data_size // container.ALIGNMENT) * container.ALIGNMENT
        self.data += [bytes(start - self.data_size), data]
        self.data_size = start + len(data)
        self.places[id(data)] = start
        return start, len(data)

    # ---- instructions ----------------------------------------------------------------------

    def instructions(self) -> bytes:
        inputs = [self.index[b.name] for b in self.program.inputs]
        outputs = [self.index[o] for o in self.program.outputs if isinstance(o, str)]
        words = [*inputs, *outputs]
        code = b"".join(map(self.instruction, self.program.instructions))
        head = struct.pack(
            "<4I", len(inputs), len(outputs), len(self.program.instructions), 0
        ) + struct.pack(f"<{len(words)}I", *words)
        return head + code

    def instruction(self, instruction: Instruction) -> bytes:
        if isinstance(instruction, KernelCall):
            index = self.kernels.setdefault(instruction.kernel, len(self.kernels))
            inputs = [self.index[n] for n in instruction.inputs]
            return self.pack(1, index, instruction.outputs, inputs, instruction.attributes)
        if isinstance(instruction, Copy):
            return self.pack(3, 0, (instruction.target,), [self.index[instruction.source]], ())
        if isinstance(instruction, Launch):
            index, numbers = self.devices.launch(instruction)
            inputs = [self.index[n] if n else NONE for n in instruction.inputs]
            return self.pack(5, index, instruction.outputs, inputs, numbers)
        if isinstance(instruction, BlobCall):
            index, buffers, numbers = self.devices.blob(instruction)
            inputs = [self.index[n] if n else NONE for n in buffers]
            return self.pack(4, index, instruction.outputs, inputs, numbers)
        return self.host(instruction)

    def host(self, call: HostCall) -> bytes:
        inputs: list[int] = []
        sizes: list[Attribute] = []

        def operand(arg: Any) -> Any:
            if isinstance(arg, Ref):
                inputs.append(self.index[arg.name])
                return {"tensor": len(inputs) - 1}
            if isinstance(arg, Size):
                sizes.append(arg)
                return {"number": len(sizes) - 1}
            if isinstance(arg, Real):
                sizes.append(arg.bits)
                return {"double": len(sizes) - 1}
            raise InvalidProgram(f"no file holds an argument of type {type(arg).__name__}")

        args = [arg_to_json(a, operand) for a in call.args]
        kwargs = {key: arg_to_json(value, operand) for key, value in call.kwargs.items()}
        text = json.dumps({"args": args, "kwargs": kwargs}, separators=(",", ":"))
        self.hosts.append((*self.text(call.op), *self.text(text)))
        return self.pack(2, len(self.hosts) - 1, call.outputs, inputs, sizes)

    def pack(
        self,
        opcode: int,
        index: int,
        outputs: Sequence[str],
        inputs: Sequence[int],
        attributes: Sequence[Attribute],
    ) -> bytes:
        words = [self.index[n] if n else NONE for n in outputs] + list(inputs)
        head = (opcode, index, len(outputs), len(inputs), len(attributes), 0)
        return (
            struct.pack("<6I", *head)
            + struct.pack(f"<{len(words)}I", *words)
            + b"".join(map(self.attribute, attributes))
        )

    def attribute(self, value: Attribute) -> bytes:
        if isinstance(value, float):
            return struct.pack("<2Id", 1, 0, value)
        if isinstance(value, Size):
            return struct.pack("<2Iq", 2, self.size(value), 0)
        return struct.pack("<2Iq", 0, 0, value)


def code_section(objects: Sequence[tuple[int, bytes]]) -> Section:
    """Objects, each with the number of its processor (file/processors.py)."""
    at = -(-(8 + 24 * len(objects)) // 16) * 16
    table, pieces = struct.pack("<2I", len(objects), 0), []
    for number, code in sorted(objects):
        table += struct.pack("<2I2Q", number, 0, at, len(code))
        pieces += [code, bytes(-len(code) % 16)]
        at += len(code) + len(pieces[-1])
    head = table + bytes(-len(table) % 16)
    return section(container.CODE, b"".join([head, *pieces]))


def scalar_bytes(dtype: str, value: int | float | bool) -> bytes:
    """A number as one element of ``dtype``, as the kernels read it."""
    row = DTYPES.get(dtype)
    if row is not None and row.format:
        if row.kind in ("int", "uint"):
            half = 1 << (row.bits - 1)
            value = (int(value) + half) % (2 * half) - half
            value = value % (2 * half) if row.kind == "uint" else value
        return struct.pack(f"<{row.format}", bool(value) if dtype == "bool" else value)
    if dtype == "bfloat16":
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        rounded = 0x7FC0 if value != value else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return struct.pack("<H", rounded)
    raise ValueError(f"no bytes for a number of dtype {dtype}")
