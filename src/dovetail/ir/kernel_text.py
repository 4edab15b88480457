"""Kernel IR as text, both ways: ``parse_kernel(str(print_kernel(k))) == k``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dovetail.errors import UnsupportedGraph
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
from dovetail.ir.size import Dim, parse_size


def print_kernel(kernel: Kernel) -> str:
    """The kernel, a line an instruction."""
    buffers = ", ".join(f"{b.role} {b.name}: {b.dtype}" for b in kernel.buffers)
    tile = f" in tiles of {' x '.join(map(str, kernel.tile))}" if kernel.tile else ""
    lines = [f"kernel {kernel.name}({buffers}) over [{_axes(kernel.axes)}]{tile} {{"]
    for loop in kernel.loops:
        lines.append(f"  loop [{_axes(loop.axes)}] {{")
        lines += [f"    {_instruction(i)}" for i in loop.body]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.name}: {a.extent}" for a in axes)


def _index(index: Index) -> str:
    terms = [str(index.offset)]
    terms += [f"{name} * ({stride})" for name, stride in index.axes]
    terms += [f"%{name} * ({stride})" for name, stride in index.values]
    return " | ".join(terms)


def _instruction(i: Instruction) -> str:
    match i:
        case Load():
            mask = "" if i.mask is None else f" if {i.mask}"
            return f"{i.name}: {i.dtype} = load {i.buffer}[{_index(i.index)}]{mask}"
        case Const():
            value = i.value.hex() if isinstance(i.value, float) else repr(i.value)
            return f"{i.name}: {i.dtype} = const {value}"
        case Position():
            return f"{i.name}: {i.dtype} = position [{_index(i.index)}]"
        case Apply():
            return f"{i.name}: {i.dtype} = {i.op}({', '.join(i.args)})"
        case Reduce():
            return f"{i.name}: {i.dtype} = reduce {i.op}({', '.join(i.args)})"
        case Scan():
            return f"{i.name}: {i.dtype} = scan {i.op}({', '.join(i.args)})"
        case Store():
            return f"store {i.buffer}[{_index(i.index)}] {'+=' if i.sums else '='} {i.value}"


_HEAD = re.compile(r"kernel (\S+)\((.*)\) over \[([^]]*)\](?: in tiles of (\d+) x (\d+))? \{")
_LOOP = re.compile(r"loop \[(.*)\] \{")
_STORE = re.compile(r"store (\S+)\[(.*)\] (\+?=) (\S+)")
_VALUE = re.compile(r"(\S+): (\w+) = (.*)")
_LOAD = re.compile(r"load (\S+)\[(.*)\](?: if (\S+))?")
_CALL = re.compile(r"(reduce |scan )?(\w+)\((.*)\)")


def parse_kernel(text: str) -> Kernel:
    """The kernel that ``print_kernel`` wrote; UnsupportedGraph for anything else."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        head = _match(_HEAD, lines[0])
        buffers = tuple(_parse_buffer(b) for b in _split(head[2]))
        loops = tuple(_parse_loops(iter(lines[1:])))
        tile = tuple(map(int, head.groups()[3:])) if head[4] else ()
        return Kernel(head[1], buffers, _parse_axes(head[3]), loops, tile=tile)
    except (ValueError, IndexError, StopIteration) as error:
        raise UnsupportedGraph(f"this text is no kernel: {error}") from None


def _match(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError(f"cannot read {line!r}")
    return found


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _parse_buffer(text: str) -> KernelBuffer:
    role, name, dtype = _match(re.compile(r"(\w+) (\w+): (\w+)"), text).groups()
    return KernelBuffer(name, dtype, role)


def _parse_axes(text: str) -> tuple[Axis, ...]:
    found = []
    for part in re.split(r",\s*(?=\w+:)", text) if text.strip() else []:
        name, _, extent = part.partition(":")
        found.append(Axis(name.strip(), parse_size(extent)))
    return tuple(found)


def _parse_loops(lines: Iterator[str]) -> Iterator[Loop]:
    for line in lines:
        if line == "}":
            return
        axes = _parse_axes(_match(_LOOP, line)[1])
        body = []
        while (inner := next(lines)) != "}":
            body.append(_parse_instruction(inner))
        yield Loop(axes, tuple(body))
    raise ValueError("the kernel does not end")


def _parse_instruction(line: str) -> Instruction:
    if line.startswith("store "):
        buffer, index, sign, value = _match(_STORE, line).groups()
        return Store(buffer, _parse_index(index), value, sums=sign == "+=")
    name, dtype, rest = _match(_VALUE, line).groups()
    if rest.startswith("load "):
        found = _match(_LOAD, rest)
        return Load(name, dtype, found[1], _parse_index(found[2]), found[3])
    if rest.startswith("const "):
        return Const(name, dtype, _parse_number(rest.removeprefix("const "), dtype))
    if rest.startswith("position "):
        return Position(name, _parse_index(rest.removeprefix("position ")[1:-1]), dtype)
    kind, op, args = _match(_CALL, rest).groups()
    kinds: dict[str | None, type[Apply | Reduce | Scan]] = {"reduce ": Reduce, "scan ": Scan}
    return kinds.get(kind, Apply)(name, dtype, op, tuple(_split(args)))


def _parse_number(text: str, dtype: str) -> float | int | bool:
    if dtype.startswith("float"):
        return float.fromhex(text)
    return ast.literal_eval(text)  # type: ignore[no-any-return]


def _parse_index(text: str) -> Index:
    offset, *terms = text.split(" | ")
    axes: list[tuple[str, Dim]] = []
    values: list[tuple[str, Dim]] = []
    for term in terms:
        name, _, stride = term.partition(" * ")
        step = parse_size(stride[1:-1])
        if name.startswith("%"):
            values.append((name[1:], step))
        else:
            axes.append((name, step))
    return Index(parse_size(offset), tuple(axes), tuple(values))
