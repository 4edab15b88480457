"""Another reader, written from SPEC.md alone: what it finds is the Program that was written."""

import hashlib
import json
import struct

import pytest

from dovetail.file import container
from dovetail.file.encode import encode_program
from dovetail.ir.argument_json import arg_from_json
from dovetail.ir.program import Buffer, Copy, Guard, HostCall, KernelCall, Program, Symbol
from dovetail.ir.size import Size
from dovetail.ir.tensor import TensorDesc
from tests.artifact.cases import cases, package_of

pytestmark = pytest.mark.xdist_group("artifact")

KINDS = ["input", "output", "constant", "state", "temporary", "host", "view"]
DTYPES = {(0, 64): "int64", (0, 32): "int32", (2, 32): "float32", (2, 64): "float64"}
DTYPES |= {(2, 16): "float16", (4, 16): "bfloat16", (6, 8): "bool"}
BINARY = [None, None, "add", "sub", "mul", "floordiv", "mod", "max", "min"]


def covered(kind, minor, body):
    """What the digest of a section is the SHA-256 of."""
    if kind != 11 or minor < 3:
        return body
    leaves = (body[at : at + 65536] for at in range(0, len(body), 65536))
    return b"".join(hashlib.sha256(leaf).digest() for leaf in leaves)


class Reader:
    def __init__(self, data):
        self.data = data
        assert data[:8] == bytes.fromhex("89445654 0D0A1A0A")
        major, minor, head, size, count = struct.unpack_from("<HHIQI", data, 8)
        assert (major, head, size) == (1, 128, len(data))
        blank = data[:80] + bytes(32) + data[112 : 128 + 64 * count]
        assert data[80:112] == hashlib.sha256(blank).digest()
        self.sections = {}
        for i in range(count):
            kind, _, offset, length = struct.unpack_from("<IIQQ", data, 128 + 64 * i)
            body = data[offset : offset + length]
            digest = data[128 + 64 * i + 24 : 128 + 64 * i + 56]
            assert digest == hashlib.sha256(covered(kind, minor, body)).digest()
            self.sections[kind] = body
        self.minor = minor

    def text(self, offset, length):
        return self.sections[2][offset : offset + length].decode()

    def program(self):
        self.read_sizes()
        self.read_buffers()
        body = self.sections[5]
        inputs, outputs, count, _ = struct.unpack_from("<4I", body)
        listed = struct.unpack_from(f"<{inputs + outputs}I", body, 16)
        at, instructions = 16 + 4 * len(listed), []
        for _ in range(count):
            instruction, at = self.instruction(body, at)
            instructions.append(instruction)
        assert at == len(body)
        assert [b.name for b in self.buffers if b.kind == "input"] == [
            self.buffers[i].name for i in listed[:inputs]
        ]
        symbols = [
            Symbol(name, self.buffers[listed[source]].name, axis, low, high)
            for name, source, axis, low, high in self.symbols
        ]
        results = tuple(self.buffers[i].name for i in listed[inputs:])
        name = json.loads(self.sections[1])["name"]
        return Program(
            name, tuple(self.buffers), tuple(instructions), results, tuple(symbols), self.guards()
        )

    def read_sizes(self):
        body = self.sections[3]
        symbols, sizes, words = struct.unpack_from("<IIQ", body)
        self.symbols, self.sizes, stack = [], [], []
        for i in range(symbols):
            *name, source, axis, low, high = struct.unpack_from("<4I2q", body, 16 + 32 * i)
            self.symbols.append((self.text(*name), source, axis, low, high))
        for i in range(words):
            opcode, operand = struct.unpack_from("<2q", body, 16 + 32 * symbols + 16 * i)
            if opcode == 0:
                stack.append(operand)
            elif opcode == 1:
                stack.append(Size.symbol(self.symbols[operand][0]))
            elif opcode == 9:
                assert operand == len(self.sizes)
                self.sizes.append(stack.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(Size(BINARY[opcode], (left, right)))
        assert not stack
        assert len(self.sizes) == sizes

    def read_buffers(self):
        body = self.sections[4]
        count, dims = struct.unpack_from("<2I", body)
        pool = struct.unpack_from(f"<{dims}I", body, 8 + 48 * count)
        self.buffers = []
        for i in range(count):
            row = struct.unpack_from("<2I4B3I2Q2I", body, 8 + 48 * i)
            name, (kind, code, bits, rank), (base, first, offset) = row[:2], row[2:6], row[6:9]
            assert row[11:] == (1, 0)
            sizes = [self.sizes[n] for n in pool[first : first + 2 * rank]]
            desc = TensorDesc(DTYPES[code, bits], tuple(sizes[:rank]), tuple(sizes[rank:]))
            of = self.buffers[base].name if base != 0xFFFFFFFF else ""
            made = Buffer(self.text(*name), KINDS[kind], desc, of, self.sizes[offset])
            self.buffers.append(made)

    def guards(self):
        body = self.sections.get(6, bytes(8))
        (count,) = struct.unpack_from("<I", body)
        pairs = [struct.unpack_from("<2I", body, 8 + 8 * i) for i in range(count)]
        return tuple(Guard(self.sizes[a], self.sizes[b]) for a, b in pairs)

    def instruction(self, body, at):
        opcode, index, outs, ins, attributes, zero = struct.unpack_from("<6I", body, at)
        assert zero == 0
        listed = struct.unpack_from(f"<{outs + ins}I", body, at + 24)
        at += 24 + 4 * len(listed)
        names = ["" if n == 0xFFFFFFFF else self.buffers[n].name for n in listed]
        values = []
        for i in range(attributes):
            tag, size = struct.unpack_from("<2I", body, at + 16 * i)
            (value,) = struct.unpack_from("<d" if tag == 1 else "<q", body, at + 16 * i + 8)
            values.append(self.sizes[size] if tag == 2 else value)
        at += 16 * attributes
        outputs, inputs = tuple(names[:outs]), tuple(names[outs:])
        if opcode == 3:
            return Copy(outputs[0], inputs[0]), at
        if opcode == 1:
            row = struct.unpack_from("<6I", self.sections[7], 8 + 24 * index)
            kernel = f"{self.text(*row[:2])}@{row[2]}"
            return KernelCall(kernel, outputs, inputs, tuple(values)), at
        row = struct.unpack_from("<4I", self.sections[8], 8 + 16 * index)
        arguments = json.loads(self.text(*row[2:]))

        def read(tag, value):
            from dovetail.ir.call import Ref

            return Ref(inputs[value]) if tag == "tensor" else values[value]

        args = tuple(arg_from_json(a, read) for a in arguments["args"])
        kwargs = {k: arg_from_json(v, read) for k, v in arguments["kwargs"].items()}
        return HostCall(self.text(*row[:2]), outputs, args, kwargs), at


@pytest.mark.parametrize("backend", ["portable", "aten"])
@pytest.mark.parametrize("name", sorted(cases()))
def test_another_reader_finds_the_same_program(name, backend):
    package = package_of(name, backend)
    sections, features = encode_program(package.program, package.contents, package.manifest)
    data = b"".join(container.chunks(*container.lay_out(sections, features)))
    found = Reader(data).program()
    written = package.program
    tensors = tuple(o for o in written.outputs if isinstance(o, str))
    assert found.buffers == written.buffers
    assert found.instructions == written.instructions
    assert (found.symbols, found.guards) == (written.symbols, written.guards)
    assert found.outputs == tensors
    assert found.name == written.name
