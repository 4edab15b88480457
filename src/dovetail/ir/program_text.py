"""A Program as text, and back: ``parse_program(str(program)) == program``.

One line a declaration or instruction::

    program @mlp
    symbol s0 = %x[0] in 1..64
    input %x: float32[s0, 8]
    constant %w: float32[8, 4] strides [1, 8]
    temporary %h: float32[s0, 4]
    output %y: float32[s0, 4]
    guard s0 % 2 == 0
    kernel %h = mm@1(%x, %w)
    kernel %y = relu@1(%h)
    return %y

A buffer that holds a tensor packed or with a halo says how (``ir/layout.py``)::

    constant %w: float32[64, 100] as [d1 / 16: 7, d0: 64, d1: 16]

A host call's arguments are JSON, each kind of value that JSON has no form for under a tag. What a
plug-in's device does is written likewise::

    device accel {"version": "1.0", "abi": "1.0", "needs": {}}
    temporary %d: float32[s0, 4] on accel
    copy %d = %x
    launch %h = accel:relu@1 aten.relu.default(%d) {}
    launch %y = accel:mm@1 aten.mm.default(%a, %b) {} with {"hidden": 0, "operands": [...]}
    blob %z = accel:segment_0 [{"buffer": "h"}]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

from dovetail.errors import InvalidProgram, SizeError
from dovetail.ir.argument_json import arg_from_json, arg_to_json
from dovetail.ir.call import Arg, Ref
from dovetail.ir.layout import parse_layout
from dovetail.ir.program import (
    KINDS,
    VALUE,
    Attribute,
    BlobCall,
    Buffer,
    Copy,
    Guard,
    HostCall,
    Instruction,
    KernelCall,
    Launch,
    Operand,
    PluginDevice,
    Program,
    Result,
    Symbol,
)
from dovetail.ir.quantization import quantization_from_json, quantization_to_json
from dovetail.ir.size import Dim, parse_size, split_top
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc

_NAME = r"%([\w.]+)"
_BUFFER = re.compile(
    rf"(\w+) {_NAME}: (\w+)\[(.*?)\]( as \[.*?\])?(?: strides \[(.*?)\])?(?: on ([\w:.-]+))?"
    rf"(?: of {_NAME}(?: at (.+))?)?$"
)
_SYMBOL = re.compile(rf"symbol (\w+) = {_NAME}(?:\[(\d+)\])? in (-?\d+)\.\.(-?\d+)$")
_KERNEL = re.compile(r"kernel (.*?) ?= ([\w.]+@\d+)\((.*?)(?:; (.*))?\)$")
_HOST = re.compile(r"call (.*?) ?= ([\w.]+) (\[.*\]) (\{.*\})$")
_COPY = re.compile(rf"copy {_NAME} = {_NAME}$")
_DEVICE = re.compile(r"device ([\w.-]+) (\{.*\})$")
_LAUNCH = re.compile(
    r"launch (.*?) ?= ([\w.-]+):([^\s@]+@\d+(?:-\d+)?) ([\w.]+)\((.*?)\) (\{.*?\})"
    r"(?: with (\{.*\}))?$"
)
_BLOB = re.compile(r"blob (.*?) ?= ([\w.-]+):([\w.]+) (\[.*\])$")


def print_program(program: Program) -> str:
    """The text of a program; one line a declaration or instruction."""
    lines = [f"program @{program.name}"]
    lines += [_print_device(d) for d in program.devices]
    lines += [_print_symbol(s) for s in program.symbols]
    lines += [_print_buffer(b) for b in program.buffers]
    lines += [f"guard {g.left} == {g.right}" for g in program.guards]
    lines += [print_instruction(i) for i in program.instructions]
    lines.append("return " + ", ".join(map(_print_result, program.outputs)))
    return "\n".join(lines) + "\n"


def _print_device(device: PluginDevice) -> str:
    about = {
        "version": device.version,
        "abi": f"{device.abi >> 16}.{device.abi & 0xFFFF}",
        "needs": dict(device.needs),
    }
    return f"device {device.name} {json.dumps(about)}"


def _print_symbol(symbol: Symbol) -> str:
    axis = "" if symbol.axis == VALUE else f"[{symbol.axis}]"
    return f"symbol {symbol.name} = %{symbol.input}{axis} in {symbol.low}..{symbol.high}"


def _print_buffer(buffer: Buffer) -> str:
    desc = buffer.desc
    text = f"{buffer.kind} %{buffer.name}: {desc.dtype}"
    if desc.layout is not None:
        text += str(desc.layout)
    else:
        text += f"[{_join(desc.shape)}]"
        if desc.strides != contiguous_strides(desc.shape):
            text += f" strides [{_join(desc.strides)}]"
    if desc.device != "cpu":
        text += f" on {desc.device}"
    if buffer.of:
        text += f" of %{buffer.of}"
        if buffer.offset != 0:
            text += f" at {buffer.offset}"
    return text


def print_instruction(instruction: Instruction) -> str:
    """One instruction, as it stands in the text of its program."""
    if isinstance(instruction, Copy):
        return f"copy %{instruction.target} = %{instruction.source}"
    outputs = ", ".join(f"%{n}" if n else "_" for n in instruction.outputs)
    if isinstance(instruction, KernelCall):
        inputs = ", ".join(f"%{n}" for n in instruction.inputs)
        attributes = ", ".join(map(_print_attribute, instruction.attributes))
        given = f"{inputs}; {attributes}" if attributes else inputs
        return f"kernel {outputs} = {instruction.kernel}({given})"
    if isinstance(instruction, Launch):
        inputs = ", ".join(f"%{n}" if n else "_" for n in instruction.inputs)
        values = json.dumps({name: arg_to_json(v) for name, v in instruction.attributes})
        place = f"{instruction.device}:{instruction.kernel}"
        text = f"launch {outputs} = {place} {instruction.op}({inputs}) {values}"
        return text + (f" with {_print_operands(instruction)}" if instruction.operands else "")
    if isinstance(instruction, BlobCall):
        given = json.dumps([arg_to_json(a) for a in instruction.args])
        return f"blob {outputs} = {instruction.owner}:{instruction.blob} {given}"
    args = json.dumps([arg_to_json(a) for a in instruction.args])
    kwargs = json.dumps({k: arg_to_json(v) for k, v in instruction.kwargs.items()})
    return f"call {outputs} = {instruction.op} {args} {kwargs}"


def _print_operands(launch: Launch) -> str:
    rows: list[dict[str, Any]] = []
    for operand in launch.operands:
        row: dict[str, Any] = {"place": operand.place}
        if operand.dtype:
            row["as"] = [operand.dtype, list(operand.shape), list(operand.strides)]
        if operand.prepared:
            row["prepared"] = True
        if operand.quantization is not None:
            row["quantization"] = quantization_to_json(operand.quantization, lambda r: [r.name])
        rows.append(row)
    return json.dumps({"hidden": launch.hidden, "operands": rows})


def _print_attribute(value: Attribute) -> str:
    return value.hex() if isinstance(value, float) else str(value)


def _print_result(value: Result) -> str:
    if isinstance(value, str):
        return f"%{value}"
    return json.dumps(arg_to_json(value))


def _join(dims: tuple[Dim, ...]) -> str:
    return ", ".join(map(str, dims))


# ---- parsing -------------------------------------------------------------------------------


def parse_program(text: str) -> Program:
    """The program that ``text`` prints; InvalidProgram, naming the line, for anything else."""
    reader = _ProgramReader()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            reader.line(line.strip())
        except (ValueError, TypeError, KeyError, RecursionError, SizeError) as error:
            raise InvalidProgram(f"line {number}: {error}: {line.strip()!r}") from None
    return reader.program()


class _ProgramReader:
    """Collects what each line declares."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.symbols: list[Symbol] = []
        self.buffers: list[Buffer] = []
        self.guards: list[Guard] = []
        self.instructions: list[Instruction] = []
        self.outputs: tuple[Result, ...] | None = None
        self.devices: list[PluginDevice] = []

    def program(self) -> Program:
        if self.name is None or self.outputs is None:
            raise InvalidProgram("a program starts with 'program @name' and ends with 'return'")
        return Program(
            self.name,
            tuple(self.buffers),
            tuple(self.instructions),
            self.outputs,
            tuple(self.symbols),
            tuple(self.guards),
            tuple(self.devices),
        )

    def line(self, line: str) -> None:
        word = line.split(" ", 1)[0]
        if word == "program":
            self.name = _match(re.compile(r"program @([\w.]+)$"), line)[0]
        elif word == "symbol":
            name, source, axis, low, high = _match(_SYMBOL, line)
            place = VALUE if axis is None else int(axis)
            self.symbols.append(Symbol(name, source, place, int(low), int(high)))
        elif word == "device":
            self.devices.append(_parse_device(line))
        elif word in KINDS:
            self.buffers.append(_parse_buffer(line))
        elif word == "guard":
            left, right = line.removeprefix("guard ").split(" == ")
            self.guards.append(Guard(parse_size(left), parse_size(right)))
        elif word in _PARSERS:
            self.instructions.append(_PARSERS[word](line))
        elif word == "return":
            self.outputs = _parse_results(line.removeprefix("return").strip())
        else:
            raise ValueError(f"no declaration or instruction starts with {word!r}")


def _match(pattern: re.Pattern[str], line: str) -> tuple[Any, ...]:
    found = pattern.match(line)
    if found is None:
        raise ValueError("not understood")
    return found.groups()


def _parse_buffer(line: str) -> Buffer:
    kind, name, dtype, shape, parts, strides, device, of, offset = _match(_BUFFER, line)
    if parts:
        gaps = "" if strides is None else f" strides [{strides}]"
        layout = parse_layout(f"[{shape}]{parts}{gaps}")
        desc = TensorDesc(dtype, layout.extents, layout.strides, device or "cpu", layout)
    else:
        dims = _parse_dims(shape)
        steps = contiguous_strides(dims) if strides is None else _parse_dims(strides)
        desc = TensorDesc(dtype, dims, steps, device or "cpu")
    return Buffer(name, kind, desc, of or "", parse_size(offset) if offset else 0)


def _parse_kernel(line: str) -> KernelCall:
    outputs, kernel, inputs, attributes = _match(_KERNEL, line)
    values = tuple(map(_parse_attribute, split_top(attributes or "")))
    return KernelCall(kernel, _parse_names(outputs), _parse_names(inputs), values)


def _parse_host(line: str) -> HostCall:
    outputs, op, args, kwargs = _match(_HOST, line)
    return HostCall(
        op,
        _parse_names(outputs),
        cast("tuple[Arg, ...]", arg_from_json(json.loads(args))),
        {key: arg_from_json(value) for key, value in json.loads(kwargs).items()},
    )


def _parse_copy(line: str) -> Copy:
    return Copy(*_match(_COPY, line))


def _parse_launch(line: str) -> Launch:
    outputs, device, kernel, op, inputs, values, more = _match(_LAUNCH, line)
    attributes = tuple((k, arg_from_json(v)) for k, v in json.loads(values).items())
    found: dict[str, Any] = json.loads(more) if more else {"operands": [], "hidden": 0}
    operands = tuple(map(_parse_operand, found["operands"]))
    names = _parse_names(outputs), _parse_names(inputs)
    return Launch(device, kernel, op, *names, attributes, operands, int(found["hidden"]))


def _parse_operand(row: dict[str, Any]) -> Operand:
    dtype, shape, strides = row.get("as", ["", [], []])
    given = row.get("quantization")
    held = None if given is None else quantization_from_json(given, lambda data: Ref(str(data[0])))
    sizes = tuple(map(int, shape)), tuple(map(int, strides))
    return Operand(int(row["place"]), str(dtype), *sizes, bool(row.get("prepared", False)), held)


def _parse_blob(line: str) -> BlobCall:
    outputs, owner, name, given = _match(_BLOB, line)
    args = cast("tuple[Arg, ...]", arg_from_json(json.loads(given)))
    return BlobCall(name, owner, _parse_names(outputs), args)


def _parse_device(line: str) -> PluginDevice:
    name, text = _match(_DEVICE, line)
    about = json.loads(text)
    major, minor = map(int, about["abi"].split("."))
    needs = tuple((str(k), int(v)) for k, v in about["needs"].items())
    return PluginDevice(name, str(about["version"]), major << 16 | minor, needs)


_PARSERS: dict[str, Callable[[str], Instruction]] = {
    "kernel": _parse_kernel,
    "call": _parse_host,
    "copy": _parse_copy,
    "launch": _parse_launch,
    "blob": _parse_blob,
}


def _parse_results(text: str) -> tuple[Result, ...]:
    return tuple(
        part[1:] if part.startswith("%") else arg_from_json(json.loads(part))
        for part in split_top(text)
    )


def _parse_names(text: str) -> tuple[str, ...]:
    names = split_top(text)
    if any(not re.fullmatch(r"%[\w.]+|_", name) for name in names):
        raise ValueError("a buffer's name starts with %")
    return tuple("" if name == "_" else name[1:] for name in names)


def _parse_attribute(text: str) -> Attribute:
    if "0x" in text or text in ("nan", "inf", "-inf"):
        return float.fromhex(text)
    return parse_size(text)


def _parse_dims(text: str) -> tuple[Dim, ...]:
    return tuple(map(parse_size, split_top(text)))
