"""How much code a kernel becomes, and how it is written where that is too much.

LLVM takes about as long for a kernel as it has instructions for whole registers. A body is written
several times: unrolled, over whole vectors, and once more for the rest. Where that is too much it
is written once, under a mask, which costs little beside so much work. If it is still too much, the
functions of math that it needs several times become functions of the module, which are called.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.codegen.llvm import math, scalar
from dovetail.codegen.llvm.emit import Code, Val, suffix, vector_type
from dovetail.codegen.llvm.math import error_function
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Apply, Axis, Instruction, Kernel, Load, Loop, Reduce, Scan
from dovetail.ir.ops import CHECKS
from dovetail.ir.size import Dim

MOST = 400  # instructions for whole registers: about 14 ms
LEAST_CALLED = 24  # a function shorter than this is not worth a call
_BUFFER, _LOOP, _FOLD = 10, 12, 24  # beside the bodies
_ANGLES = {"float32": 50, "float64": 100}  # the reduction of large angles, which is called
SECOND = 0.7  # what an instruction takes more where it needs a second register
_CHECK, _ACCESS, _GATHER, _WORDS, _OTHER = 8, 4, 10, 8, 2
_WORD = 4  # bytes of the least that is gathered
_NARROW_MASKS = 16  # lanes of processors that mask elements of any size
_WIDE = ("double", "i64")
GROWN = "erf_plus_one"
Function = tuple[str, str]  # an operation, and the type it is computed in


@dataclass(frozen=True, slots=True)
class Form:
    """How a kernel is written: once under masks or several times, and what it calls."""

    once: bool = False
    called: frozenset[Function] = frozenset()


def strides(extent: Dim, lanes: int, unroll: int) -> list[int]:
    """How many vectors the loops over whole ones take at a time; none that would not run."""
    counts = list(dict.fromkeys((unroll, 1)))
    if not isinstance(extent, int):
        return counts
    # Blocks and chunks hold a whole number of unrolled steps, so what is left is the axis's.
    left = {unroll: extent, 1: extent % (lanes * unroll) if unroll > 1 else extent}
    return [count for count in counts if left[count] >= lanes * count]


def divides(extent: Dim, lanes: int) -> bool:
    """Whether there is no rest."""
    return isinstance(extent, int) and extent % lanes == 0


def _copies(extent: Dim, lanes: int, unroll: int, once: bool) -> int:
    """How often a body along an axis is written."""
    if once:
        return 1
    return sum(strides(extent, lanes, unroll)) + (not divides(extent, lanes))


class Volume:
    """The instructions of a kernel, counted."""

    def __init__(
        self,
        kernel: Kernel,
        axis: Axis | None,
        lanes: int,
        native: int,
        unroll: int,
        varies: Mapping[str, bool],
        grown: Mapping[str, str],
    ) -> None:
        self.kernel, self.axis, self.lanes, self.unroll = kernel, axis, lanes, unroll
        self.native = native
        self.is_row = axis is not None and axis not in kernel.axes
        self.varies, self.grown = varies, grown
        self.dtypes = {b.name: b.dtype for b in kernel.buffers}
        self.counts: dict[int, tuple[float, int]] = {}
        self.types = {i.name: i.dtype for i in kernel.instructions()}

    def form(self) -> Form:
        """The form to write a kernel in."""
        if self._total(once=False) <= MOST:
            return Form()
        once = self._masks_well()
        over = self._total(once) - MOST
        called: set[Function] = set()
        for name, saved in self._savings(once):
            if over <= 0:
                break
            called.add(name)
            over -= saved
        return Form(once, frozenset(called))

    def _masks_well(self) -> bool:
        if any(isinstance(i, Scan) for i in self.kernel.instructions()):
            return False
        least = 1 if self.native >= _NARROW_MASKS else 4
        return self.native >= 8 and all(item_bytes(b.dtype) >= least for b in self.kernel.buffers)

    def _total(self, once: bool) -> float:
        total = float(_BUFFER * len(self.kernel.buffers))
        code = self.kernel.instructions()
        angles = {i.dtype for i in code if isinstance(i, Apply) and i.op in math.CIRCULAR}
        total += sum(_ANGLES[dtype] for dtype in angles)
        for loop in self.kernel.loops:
            body, folds = self._counted(loop)
            total += self._written(loop, folds, once) * body + _LOOP + _FOLD * folds
        return total

    def _counted(self, loop: Loop) -> tuple[float, int]:
        """The instructions of a loop's body, and how many of them are folds."""
        if id(loop) not in self.counts:
            folds = sum(isinstance(i, Reduce | Scan) for i in loop.body)
            self.counts[id(loop)] = sum(map(self._weight, loop.body)), folds
        return self.counts[id(loop)]

    def _written(self, loop: Loop, folds: int, once: bool) -> int:
        """How often a loop's body is written."""
        if self.axis is None or (self.is_row and not loop.axes):
            return 1
        if not self.is_row:
            return _copies(self.axis.extent, self.lanes, 1, once)
        return _copies(loop.axes[-1].extent, self.lanes, self.unroll if folds else 1, once)

    def _savings(self, once: bool) -> list[tuple[Function, float]]:
        """The functions of math, by the instructions that a call of each would save."""
        uses: Counter[Function] = Counter()
        weights: dict[Function, float] = {}
        for loop in self.kernel.loops:
            written = self._written(loop, self._counted(loop)[1], once)
            for i in loop.body:
                name = self.function(i)
                if name is not None:
                    uses[name, i.dtype] += written
                    weights[name, i.dtype] = self._weight(i)
        found = [(n, (uses[n] - 1) * w) for n, w in weights.items() if w >= LEAST_CALLED]
        return sorted((f for f in found if f[1]), key=lambda f: -f[1])

    def function(self, i: Instruction) -> str | None:
        """The function of math on vectors that an instruction is."""
        if not isinstance(i, Apply):
            return None
        op = GROWN if i.name in self.grown else i.op
        if op in math.FUNCTIONS or op in math.BINARY or op == GROWN:
            return op if self._lanes(i) > 1 else None
        return None

    def _lanes(self, i: Instruction) -> int:
        return self.lanes if self.varies[i.name] else 1

    def _weight(self, i: Instruction) -> float:
        if isinstance(i, Load):
            return self._access(i)
        if not isinstance(i, Apply):
            return _OTHER
        if i.op in CHECKS:
            return _CHECK * _parts(self._lanes(i), self.native)
        op = GROWN if i.name in self.grown else i.op
        types = tuple(self.types[name] for name in i.args)
        types = types[:1] if op == GROWN else types
        return weight(op, i.dtype, types, self._lanes(i), self.native)

    def _access(self, i: Load) -> float:
        """A gather computes an address for each lane, and finds small elements in words."""
        step = 0 if self.axis is None else i.index.stride(self.axis.name)
        gathers = any(self.varies[name] for name, _ in i.index.values) or step not in (0, 1, -1)
        if not gathers:
            return _ACCESS
        words = _WORDS if item_bytes(self.dtypes[i.buffer]) < _WORD else 0
        return _ACCESS + (_GATHER + words) * _parts(self._lanes(i), self.native)


def _parts(lanes: int, native: int) -> float:
    """What an instruction on 64-bit numbers takes: they may need two registers."""
    return 1 + SECOND * (lanes > native // 2)


@functools.cache
def weight(op: str, dtype: str, types: tuple[str, ...], lanes: int, native: int) -> float:
    """Instructions of an operation, counted by the registers they need."""
    c = Code(native)
    _write(c, op, dtype, tuple(Val(f"%a{n}", t, lanes) for n, t in enumerate(types)))
    wide = sum(any(t in line for t in _WIDE) for line in c.lines)
    return len(c.lines) - wide + wide * _parts(lanes, native)


def _write(c: Code, op: str, dtype: str, args: tuple[Val, ...]) -> Val:
    if op == GROWN:
        return error_function.erf_plus_one(c, args[0])
    return scalar.apply(c, op, dtype, args)


def call(c: Code, op: str, dtype: str, args: tuple[Val, ...]) -> Val:
    """Call a function of math, and note it for the module."""
    args = c.alike(*args)
    name, to = f"math.{op}.{suffix(dtype, args[0].lanes)}", vector_type(dtype, args[0].lanes)
    given = tuple(Val(f"%a{n}", a.dtype, a.lanes) for n, a in enumerate(args))
    c.outline(name, to, given, lambda inside: f"{to} {_write(inside, op, dtype, given).text}")
    text = ", ".join(f"{a.type} {a.text}" for a in args)
    return c.new(f"call {to} @{name}({text})", dtype, args[0].lanes)
