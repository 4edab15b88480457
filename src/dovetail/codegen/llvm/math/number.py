"""Values with operators: what vector math is written in.

A plain number beside a ``Number`` takes its type, and comparisons give a mask. Each operator is one
instruction, in the order in which Python computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.ir.dtypes import FLOATS

Operator = Callable[["Number", "float | Number"], "Number"]


def _operator(integer: str, floating: str = "") -> Operator:
    """An instruction by LLVM's name, of integers and of floating-point numbers."""
    return lambda x, other: x.op(floating if x.dtype in FLOATS else integer, other)


def _reflected(integer: str, floating: str) -> Operator:
    """The same of a plain number and a ``Number``."""
    return lambda x, other: _operator(integer, floating)(x.like(other), x)


def _comparison(integer: str, floating: str) -> Operator:
    """A mask; no comparison with a NaN holds."""
    return lambda x, other: x.compare(floating if x.dtype in FLOATS else integer, other)


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A value, and the function that is being written."""

    c: Code
    val: Val

    @property
    def dtype(self) -> str:
        """The type of an element."""
        return self.val.dtype

    @property
    def lanes(self) -> int:
        """How many elements there are."""
        return self.val.lanes

    def like(self, value: float | Number) -> Number:
        """A number of this type."""
        return value if isinstance(value, Number) else Number(self.c, self.c.like(value, self.val))

    def compare(self, kind: str, other: float | Number) -> Number:
        """A comparison by LLVM's name."""
        return Number(self.c, self.c.compare(kind, self.val, self.like(other).val))

    def convert(self, kind: str, dtype: str) -> Number:
        """A conversion by LLVM's name."""
        return Number(self.c, self.c.convert(kind, self.val, dtype))

    def intrinsic(self, name: str, *others: float | Number) -> Number:
        """One of LLVM's functions of this and others."""
        return Number(self.c, self.c.intrinsic(name, self.val, *(self.like(o).val for o in others)))

    def any(self) -> Val:
        """Whether any lane of a mask holds."""
        return self.val if self.lanes == 1 else self.intrinsic("vector.reduce.or").val

    def op(self, name: str, other: float | Number) -> Number:
        """An instruction by LLVM's name, of this and another."""
        return Number(self.c, self.c.op(name, self.val, self.like(other).val))

    __add__, __radd__ = _operator("add", "fadd"), _reflected("add", "fadd")
    __sub__, __rsub__ = _operator("sub", "fsub"), _reflected("sub", "fsub")
    __mul__ = _operator("mul", "fmul")
    __truediv__, __rtruediv__ = _operator("", "fdiv"), _reflected("", "fdiv")
    __and__, __or__, __xor__ = _operator("and"), _operator("or"), _operator("xor")
    __lshift__, __rshift__ = _operator("shl"), _operator("ashr")
    __lt__, __gt__ = _comparison("icmp slt", "fcmp olt"), _comparison("icmp sgt", "fcmp ogt")
    __le__, __ge__ = _comparison("icmp sle", "fcmp ole"), _comparison("icmp sge", "fcmp oge")

    def __neg__(self) -> Number:
        """Of a floating-point number."""
        text = f"fneg {self.val.type} {self.val.text}"
        return Number(self.c, self.c.new(text, self.dtype, self.lanes))

    def __abs__(self) -> Number:
        return self.intrinsic("fabs")


def select(mask: Number, yes: float | Number, no: float | Number) -> Number:
    """Lane by lane, ``yes`` where the mask holds; one of both may be a plain number."""
    other = yes if isinstance(yes, Number) else no
    assert isinstance(other, Number)
    return Number(mask.c, mask.c.select(mask.val, other.like(yes).val, other.like(no).val))


def fma(a: float | Number, b: float | Number, d: float | Number) -> Number:
    """A * b + d, rounded once."""
    first = next(x for x in (a, b, d) if isinstance(x, Number))
    return first.like(a).intrinsic("fma", b, d)


def copysign(size: float | Number, sign: Number) -> Number:
    """A size with another number's sign."""
    return sign.like(size).intrinsic("copysign", sign)


def equals(x: Number, number: float | Number) -> Number:
    """Whether x is that number."""
    return x.compare("fcmp oeq", number)


def shared(x: Number, what: str, find: Callable[[], Sequence[Number]]) -> Sequence[Number]:
    """What ``find`` finds of a number, once for all functions of it."""
    found, key = x.c.shared, f"{what} of {x.val.type} {x.val.text}"
    if key not in found:
        found[key] = tuple(each.val for each in find())
    return [Number(x.c, val) for val in found[key]]


class Variables:
    """Numbers that change, in stack slots."""

    def __init__(self, start: Sequence[Number]) -> None:
        self.c, self.types = start[0].c, [(x.dtype, x.lanes) for x in start]
        self.slots = [self.c.slot(*each) for each in self.types]
        self.put(start)

    def put(self, values: Iterable[Number]) -> None:
        """Change them."""
        for slot, value in zip(self.slots, values, strict=True):
            self.c.put(slot, value.val)

    def get(self, count: int | None = None) -> list[Number]:
        """What they are now, or the first of them."""
        found = list(zip(self.slots, self.types, strict=True))[:count]
        return [Number(self.c, self.c.get(slot, *each)) for slot, each in found]


def while_any(
    start: Sequence[Number],
    more: Callable[..., Number],
    step: Callable[..., Sequence[Number]],
) -> Number:
    """The first of some numbers, after steps taken while any lane needs more."""
    variables, c = Variables(start), start[0].c
    again, body, done = c.label("again"), c.label("step"), c.label("done")
    c.block(again)
    numbers = variables.get()
    mask = more(*numbers)
    c.line(f"br i1 {mask.any().text}, label %{body}, label %{done}")
    c.start(body)
    variables.put(step(mask, *numbers))
    c.line(f"br label %{again}")
    c.start(done)
    return variables.get(1)[0]
