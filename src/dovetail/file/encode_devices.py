"""The sections of a file that devices need: who they are, their operations, vendor blobs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.errors import InvalidProgram
from dovetail.file import container
from dovetail.file.container import Section
from dovetail.ir.call import Arg, Attr, Ref
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.program import Attribute, BlobCall, Launch, Operand, Program
from dovetail.ir.size import Size

NONE = 0xFFFFFFFF
# DLPack's device types: the host, and a device that only its own library knows.
HOST_DEVICE, EXTENSION_DEVICE = 1, 12
# DVP_ATTR_... of dovetail_plugin.h.
_NONE, _INT, _FLOAT, _TEXT, _INTS, _FLOATS = range(6)

# A vendor's bytes, by the name of the blob.
Blobs = Mapping[str, bytes]


class DeviceTables:
    """Collects operations and blobs while the encoder goes through a program."""

    def __init__(
        self, program: Program, blobs: Blobs, text: Callable[[str], tuple[int, int]]
    ) -> None:
        self.program, self.blobs, self.shared_text = program, blobs, text
        self.index = {device.name: n for n, device in enumerate(program.devices)}
        self.text = bytearray()
        self.places: dict[str, int] = {}
        self.operations: list[bytes] = []
        self.arguments: list[bytes] = []
        self.calls: list[tuple[BlobCall, str]] = []
        self.launches: list[bytes] = []  # those with operands that are more than their buffers say
        self.operands: list[bytes] = []
        self.numbers: list[int] = []

    def place(self, device: str) -> tuple[int, int]:
        """A buffer's device: DLPack's type, and the index in the table of devices."""
        if device in self.index:
            return EXTENSION_DEVICE, self.index[device]
        return HOST_DEVICE, 0

    # ---- launches --------------------------------------------------------------------------

    def launch(self, launch: Launch) -> tuple[int, list[Attribute]]:
        """Note an operation: its index, and the numbers that its instruction carries."""
        kernel, _, versions = launch.kernel.rpartition("@")
        least, _, greatest = versions.partition("-")
        numbers: list[Attribute] = []
        first = len(self.arguments)
        for name, value in launch.attributes:
            self.arguments.append(self._argument(name, value, numbers))
        row = struct.pack(
            "<8I",
            self.index[launch.device],
            self._string(launch.op),
            self._string(kernel),
            int(least),
            int(greatest or 0),
            first,
            len(launch.attributes),
            0,
        )
        if launch.operands:
            self._operands(launch)
        self.operations.append(row)
        return len(self.operations) - 1, numbers

    def _operands(self, launch: Launch) -> None:
        """What operands are beside what their buffers say."""
        row = len(self.operations), launch.hidden, len(launch.operands), 0
        self.launches.append(struct.pack("<4I", *row))
        hidden = len(launch.inputs) - launch.hidden
        places = {name: n for n, name in enumerate(launch.inputs) if n >= hidden}
        for operand in launch.operands:
            self.operands.append(self._operand(operand, places))

    def _operand(self, operand: Operand, places: Mapping[str, int]) -> bytes:
        given, held = operand.quantization, DTYPES.get(operand.dtype)
        first = len(self.numbers)
        rank = len(operand.shape) if held else len(given.block) if given else 0
        flags = (given is not None) | 2 * (held is not None) | 4 * operand.prepared
        scale, zero, real = 0.0, 0, None
        least = greatest = 0
        scales = zeros = NONE
        if given is not None:
            self.numbers += given.block
            real, least, greatest = DTYPES[given.real], given.least, given.greatest
            if isinstance(given.scale, Ref):
                scales = places[given.scale.name]
            else:
                scale = given.scale
            if isinstance(given.zero_point, Ref):
                zeros = places[given.zero_point.name]
            else:
                zero = given.zero_point
        if held is not None:
            self.numbers += (*operand.shape, *operand.strides)
        types = [n for row in (held, real) for n in ((row.dlpack, row.bits) if row else (0, 0))]
        return struct.pack(
            "<2I4B2BH2Id3q2I",
            operand.place, flags, *types[:2], rank, 0, *types[2:], 0, scales, zeros,
            scale, zero, least, greatest, first, 0,
        )  # fmt: skip

    def _argument(self, name: str, value: Arg, numbers: list[Attribute]) -> bytes:
        def row(kind: int, count: int, place: int) -> bytes:
            return struct.pack("<4I", self._string(name), kind, count, place)

        at = len(numbers)
        if value is None:
            return row(_NONE, 1, 0)
        if isinstance(value, str | Attr):
            return row(_TEXT, 1, self._string(value if isinstance(value, str) else value.value))
        if isinstance(value, float):
            numbers.append(value)
            return row(_FLOAT, 1, at)
        if isinstance(value, int | Size):
            numbers.append(int(value) if isinstance(value, int) else value)
            return row(_INT, 1, at)
        if isinstance(value, tuple | list) and any(isinstance(v, float) for v in value):
            if any(isinstance(v, Size) for v in value):
                raise InvalidProgram(f"the argument {name} mixes fractions and dynamic sizes")
            numbers += [float(v) for v in value]
            return row(_FLOATS, len(value), at)
        if isinstance(value, tuple | list) and all(isinstance(v, int | Size) for v in value):
            numbers += [int(v) if isinstance(v, int) else v for v in value]
            return row(_INTS, len(value), at)
        raise InvalidProgram(f"the argument {name} is a {type(value).__name__}, which has no form")

    def _string(self, text: str) -> int:
        """The place of a zero-terminated string in the section's own text."""
        if "\0" in text:
            raise InvalidProgram(f"{text!r} holds a zero byte")
        if text not in self.places:
            self.places[text] = len(self.text)
            self.text += text.encode() + b"\0"
        return self.places[text]

    # ---- blobs -----------------------------------------------------------------------------

    def blob(self, call: BlobCall) -> tuple[int, list[str], list[Attribute]]:
        """Note a call of a blob: its index, the buffers and the numbers that it is given."""
        buffers: list[str] = []
        numbers: list[Attribute] = []
        given: list[Any] = []
        for arg in call.args:
            if isinstance(arg, Ref):
                given.append({"tensor": len(buffers)})
                buffers.append(arg.name)
            elif isinstance(arg, Size):
                given.append({"number": len(numbers)})
                numbers.append(arg)
            elif arg is None and call.owner in self.index:
                buffers.append("")  # its contents are in the code
            else:
                given.append(arg)
        self.calls.append((call, json.dumps(given, separators=(",", ":"))))
        return len(self.calls) - 1, buffers, numbers

    # ---- sections --------------------------------------------------------------------------

    def sections(self) -> list[Section]:
        """The sections, none for a program that knows only the host."""
        made = [Section(container.DEVICES, [self._devices()])] if self.program.devices else []
        if self.launches:
            counts = len(self.launches), len(self.operands), len(self.numbers), 0
            rows = b"".join((*self.launches, *self.operands))
            numbers = struct.pack(f"<{len(self.numbers)}q", *self.numbers)
            data = struct.pack("<4I", *counts) + rows + numbers
            made.append(Section(container.OPERANDS, [data]))
        if self.calls:
            made.append(Section(container.BLOBS, self._blobs()))
        return made

    def features(self) -> int:
        """What a reader must know to run this."""
        devices = container.FEATURE_DEVICES if self.program.devices else 0
        return devices | (container.FEATURE_BACKENDS if self.program.blob_backends() else 0)

    def _devices(self) -> bytes:
        devices, needs = b"", b""
        count = 0
        for device in self.program.devices:
            names = self._string(device.name), self._string(device.version)
            devices += struct.pack("<4I", *names, device.abi, len(device.needs))
            for name, least in device.needs:
                needs += struct.pack("<2Iq", self._string(name), 0, least)
                count += 1
        head = (len(self.program.devices), count, len(self.operations), len(self.arguments))
        rows = b"".join((devices, needs, *self.operations, *self.arguments))
        return struct.pack("<6I", *head, len(self.text), 0) + rows + bytes(self.text)

    def _blobs(self) -> Sequence[bytes]:
        """A table, then each blob on a border of its own; a blob that is called twice lies once."""
        end = 8 + 40 * len(self.calls)
        table = struct.pack("<2I", len(self.calls), 0)
        pieces: list[bytes] = []
        starts: dict[str, int] = {}
        for call, arguments in self.calls:
            data = self.blobs[call.blob]
            if call.blob not in starts:
                start = -(-end // container.ALIGNMENT) * container.ALIGNMENT
                pieces += [bytes(start - end), data]
                starts[call.blob], end = start, start + len(data)
            device = self.index.get(call.owner, -1) + 1
            strings = (*self.shared_text(call.owner), *self.shared_text(arguments))
            table += struct.pack("<6I2Q", *strings, device, 0, starts[call.blob], len(data))
        return [table, *pieces]
