"""Writes LLVM IR as text: values with a type and a lane count, constants, blocks, intrinsics.

Loop counters and accumulators live in stack slots; LLVM's SROA pass turns them into registers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dovetail.ir.dtypes import DTYPES, FLOATS, KERNEL_DTYPES, DType

_NAMES = re.compile(r"%[\w.]+")
_FLOATS = {"f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat"}


def _suffix(row: DType) -> str:
    """How LLVM's intrinsics name a type; integers have no sign there."""
    return row.short if row.kind == "float" else "i1" if row.kind == "bool" else f"i{row.bits}"


SUFFIXES = {row.name: _suffix(row) for row in KERNEL_DTYPES} | {"ptr": "p0"}
TYPES = {name: _FLOATS.get(text, text) for name, text in SUFFIXES.items()} | {"ptr": "ptr"}


@dataclass(frozen=True, slots=True)
class Val:
    """An LLVM value: its text, element dtype, and lanes (1: a scalar)."""

    text: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """Its LLVM type."""
        return vector_type(self.dtype, self.lanes)


def vector_type(dtype: str, lanes: int) -> str:
    """The LLVM type of ``lanes`` elements."""
    return TYPES[dtype] if lanes == 1 else f"<{lanes} x {TYPES[dtype]}>"


def suffix(dtype: str, lanes: int) -> str:
    """How intrinsics name the type."""
    return SUFFIXES[dtype] if lanes == 1 else f"v{lanes}{SUFFIXES[dtype]}"


def literal(value: float | int | bool, dtype: str) -> str:
    """A constant as LLVM writes it."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in FLOATS:
        number = _round32(float(value)) if dtype == "float32" else float(value)
        return f"0x{struct.unpack('>Q', struct.pack('>d', number))[0]:016X}"
    return str(_wrap(int(value), dtype))


def _round32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]  # type: ignore[no-any-return]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _wrap(value: int, dtype: str) -> int:
    bits = DTYPES[dtype].bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Code:
    """One function's text under construction."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.declared: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.shared: dict[str, tuple[Val, ...]] = {}  # found once, used where it was found
        self._types: dict[str, str] = {}  # of the values so far
        self._count = 0

    # ---- text ------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + text)

    def new(self, text: str, dtype: str, lanes: int) -> Val:
        """An instruction with a result."""
        self._count += 1
        name = f"%t{self._count}"
        self.lines.append(f"  {name} = {text}")
        self._types[name] = vector_type(dtype, lanes)
        return Val(name, dtype, lanes)

    def label(self, stem: str) -> str:
        """A block's name, not used before."""
        self._count += 1
        return f"{stem}{self._count}"

    def block(self, label: str) -> None:
        """Start a block; the one before falls through."""
        self.line(f"br label %{label}")
        self.lines.append(f"{label}:")

    def start(self, label: str) -> None:
        """Start a block after a terminator."""
        self.lines.append(f"{label}:")

    def slot(self, dtype: str, lanes: int) -> str:
        """A stack slot, allocated in the entry block."""
        self._count += 1
        name = f"%slot{self._count}"
        self.slots.append(f"  {name} = alloca {vector_type(dtype, lanes)}")
        return name

    def put(self, slot: str, value: Val) -> None:
        """Write a stack slot."""
        self.line(f"store {value.type} {value.text}, ptr {slot}")

    def get(self, slot: str, dtype: str, lanes: int) -> Val:
        """Read a stack slot."""
        return self.new(f"load {vector_type(dtype, lanes)}, ptr {slot}", dtype, lanes)

    def opaque(self, value: Val) -> Val:
        """A value that LLVM knows nothing of."""
        slot = self.slot(value.dtype, value.lanes)
        self.line(f"store volatile {value.type} {value.text}, ptr {slot}")
        return self.new(f"load volatile {value.type}, ptr {slot}", value.dtype, value.lanes)

    def when(self, test: Val, body: Callable[[], None], *, seldom: bool = False) -> None:
        """Run ``body`` where a scalar test holds."""
        some, end = self.label("some"), self.label("done")
        note = ", !prof !0" if seldom else ""
        self.line(f"br i1 {test.text}, label %{some}, label %{end}{note}")
        self.start(some)
        body()
        self.block(end)

    def freeze(self, value: Val) -> Val:
        """A value that stays what it is, also where it comes from nothing defined."""
        return self.new(f"freeze {value.type} {value.text}", value.dtype, value.lanes)

    def each(self, low: Val, high: Val, step: int, body: Callable[[Val], None]) -> None:
        """``for i in range(low, high, step)``."""
        slot = self.slot("int64", 1)
        head, inside, end = self.label("head"), self.label("body"), self.label("end")
        self.put(slot, low)
        self.block(head)
        i = self.get(slot, "int64", 1)
        more = self.compare("icmp slt", i, high)
        self.line(f"br i1 {more.text}, label %{inside}, label %{end}")
        self.start(inside)
        shared, self.shared = self.shared, dict(self.shared)
        body(i)
        self.shared = shared
        self.put(slot, self.op("add", i, self.const(step, "int64")))
        self.line(f"br label %{head}")
        self.start(end)

    # ---- values ----------------------------------------------------------------------------

    def const(self, value: float | int | bool, dtype: str, lanes: int = 1) -> Val:
        """A number, in every lane."""
        text = literal(value, dtype)
        return Val(text if lanes == 1 else f"splat ({TYPES[dtype]} {text})", dtype, lanes)

    def like(self, value: float | int | bool, other: Val) -> Val:
        """A number of another value's type."""
        return self.const(value, other.dtype, other.lanes)

    def splat(self, value: Val, lanes: int) -> Val:
        """A scalar in every lane."""
        if value.lanes == lanes:
            return value
        if not value.text.startswith("%"):
            return Val(f"splat ({value.type} {value.text})", value.dtype, lanes)
        key = f"{lanes} x {value.dtype} {value.text}"  # int8 and uint8 may share a text
        return self.once(key, lambda: self._splat(value, lanes))

    def _splat(self, value: Val, lanes: int) -> Val:
        empty = f"{vector_type(value.dtype, lanes)} poison"
        text = f"insertelement {empty}, {value.type} {value.text}, i64 0"
        one = self.new(text, value.dtype, lanes)
        return self._shuffle(one, None, lanes, "zeroinitializer")

    def shuffle(self, left: Val, right: Val | None, picks: Iterable[int | None]) -> Val:
        """Lanes of two vectors, counted through both; where it is None any will do."""
        listed = ["i32 poison" if n is None else f"i32 {n}" for n in picks]
        return self._shuffle(left, right, len(listed), f"<{', '.join(listed)}>")

    def _shuffle(self, left: Val, right: Val | None, lanes: int, picks: str) -> Val:
        second = "poison" if right is None else right.text
        both = f"{left.type} {left.text}, {left.type} {second}"
        return self.new(f"shufflevector {both}, <{lanes} x i32> {picks}", left.dtype, lanes)

    def once(self, key: str, make: Callable[[], Val]) -> Val:
        """A value that is made where it is first needed, and found again within that scope."""
        if key not in self.shared:
            self.shared[key] = (make(),)
        return self.shared[key][0]

    def alike(self, *values: Val) -> tuple[Val, ...]:
        """The values with one lane count."""
        lanes = max(v.lanes for v in values)
        return tuple(self.splat(v, lanes) for v in values)

    def op(self, name: str, left: Val, right: Val) -> Val:
        """A two-operand instruction; its result has the operands' type."""
        left, right = self.alike(left, right)
        text = f"{name} {left.type} {left.text}, {right.text}"
        return self.new(text, left.dtype, left.lanes)

    def compare(self, kind: str, left: Val, right: Val) -> Val:
        """A comparison: "fcmp olt", "icmp sge", …."""
        left, right = self.alike(left, right)
        return self.new(f"{kind} {left.type} {left.text}, {right.text}", "bool", left.lanes)

    def select(self, mask: Val, yes: Val, no: Val) -> Val:
        """Lane by lane, ``yes`` where ``mask`` is true."""
        if mask.lanes == 1:
            yes, no = self.alike(yes, no)
        else:
            mask, yes, no = self.alike(mask, yes, no)
        text = f"select {mask.type} {mask.text}, {yes.type} {yes.text}, {no.type} {no.text}"
        return self.new(text, yes.dtype, yes.lanes)

    def convert(self, kind: str, value: Val, dtype: str) -> Val:
        """A conversion: "fpext", "sitofp", "bitcast", …."""
        to = vector_type(dtype, value.lanes)
        return self.new(f"{kind} {value.type} {value.text} to {to}", dtype, value.lanes)

    def intrinsic(self, name: str, *args: Val) -> Val:
        """An LLVM intrinsic overloaded on the type of its first operand."""
        args = self.alike(*args)
        first = args[0]
        lanes = 1 if name.startswith("vector.reduce") else first.lanes
        full = f"llvm.{name}.{suffix(first.dtype, first.lanes)}"
        return self.call(full, first.dtype, lanes, *args)

    def call(self, name: str, dtype: str, lanes: int, *args: Val | tuple[str, str]) -> Val:
        """A call of a function of LLVM's, which is noted; arguments may be types with texts."""
        given = [(a.type, a.text) if isinstance(a, Val) else a for a in args]
        to = vector_type(dtype, lanes)
        self.declare(name, to, [kind for kind, _ in given])
        return self.new(f"call {to} @{name}({', '.join(map(' '.join, given))})", dtype, lanes)

    def outline(
        self, name: str, to: str, given: tuple[Val, ...], write: Callable[[Code], str]
    ) -> None:
        """A function of the module that files do not list; ``write`` says what it returns."""
        if name in self.functions:
            return
        inside = Code(self.lanes)
        result = write(inside)
        head = ", ".join(f"{v.type} {v.text}" for v in given)
        lines = [*inside.slots, *inside.lines, f"  ret {result}", "}"]
        self.globals |= inside.globals
        self.declared |= inside.declared
        self.functions |= inside.functions
        self.functions[name] = "\n".join([f"define private {to} @{name}({head}) #0 {{", *lines])

    def apart(self, name: str, body: Callable[[], None]) -> None:
        """What ``body`` writes as a function of its own, which is told the values that it uses.

        Registers are then given out for it alone: around a loop that needs all of them LLVM keeps
        what the rest of a function needs later, and the loop's own values wait in memory.
        """
        lines, self.lines = self.lines, []
        slots, self.slots = self.slots, []
        shared, self.shared = self.shared, {}
        body()
        inside, self.lines = [*self.slots, *self.lines], lines
        self.slots, self.shared = slots, shared
        own = {line.partition(" = ")[0].strip() for line in inside if " = " in line}
        own |= {f"%{line[:-1]}" for line in inside if line.endswith(":")}
        used = dict.fromkeys(n for line in inside for n in _NAMES.findall(line))
        given = ", ".join(f"{self._types.get(n, 'ptr')} {n}" for n in used if n not in own)
        head = f"define internal void @{name}({given}) #0 {{"
        self.functions[name] = "\n".join([head, "entry:", *inside, "  ret void", "}"])
        self.line(f"call void @{name}({given})")

    def declare(self, name: str, to: str, types: list[str]) -> None:
        """Note that a function is needed."""
        self.declared[name] = f"declare {to} @{name}({', '.join(types)})"
