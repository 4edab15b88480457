"""How much code a kernel becomes, and how it is written where that is too much.

LLVM takes about as long for a kernel as it has instructions for whole registers. A body is written
several times: unrolled, over whole vectors, and once more for the rest. Where that is too much it
is written once, under a mask, which costs little beside so much work. If it is still too much, the
functions of math that it needs several times become functions of the module, which are called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Apply, Instruction, Kernel, Load, Loop, Reduce, Scan
from dovetail.ir.ops import CHECKS
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.schedule.cpu.code_size import CIRCULAR, FUNCTIONS, lines
from dovetail.schedule.schedule import LOOPS

_BUFFER, _LOOP, _REDUCTION = 10, 12, 24  # instructions beside the bodies
_ANGLES = {"float32": 50, "float64": 100}  # the reduction of large angles, which is called
_SECOND = 0.7  # what an instruction takes more where it needs a second register
_CHECK, _ACCESS, _GATHER, _WORDS, _OTHER = 8, 4, 10, 8, 2
_WORD = 4  # bytes of the least that is gathered
ERF_PLUS_ONE = "erf_plus_one"
Function = tuple[str, str]  # an operation, and the type it is computed in


@dataclass(frozen=True, slots=True)
class Budget:
    """What compiling one kernel may take, in instructions for whole registers.

    LLVM takes about 35 us for each (docs/decisions/0036).
    """

    kernel: int = 400  # about 14 ms
    call: int = 24  # a function shorter than this is not worth a call


@dataclass(frozen=True, slots=True)
class Form:
    """How a kernel is written: once under masks or several times, and what it calls."""

    once: bool = False
    called: frozenset[Function] = frozenset()


def step_counts(extent: Dim, lanes: int, unroll: int) -> tuple[int, ...]:
    """How many vectors the loops over whole ones take at a time; none that would not run."""
    counts = tuple(dict.fromkeys((unroll, 1)))
    if not isinstance(extent, int):
        return counts
    # Blocks and chunks hold a whole number of unrolled steps, so what is left is the axis's.
    left = {unroll: extent, 1: extent % (lanes * unroll) if unroll > 1 else extent}
    return tuple(count for count in counts if left[count] >= lanes * count)


def divides(extent: Dim, lanes: int) -> bool:
    """Whether there is no rest."""
    return isinstance(extent, int) and extent % lanes == 0


def _copies(extent: Dim, lanes: int, unroll: int, once: bool) -> int:
    """How often a body along an axis is written."""
    if once:
        return 1
    return sum(step_counts(extent, lanes, unroll)) + (not divides(extent, lanes))


class Volume:
    """The instructions of a kernel, counted."""

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        vector: str | None,
        lanes: int,
        unroll: int,
        varies: Mapping[str, bool],
        erf_sums: tuple[str, ...],
    ) -> None:
        self.kernel, self.target = kernel, target
        self.vector, self.lanes, self.unroll = vector, lanes, unroll
        self.avx512_lanes = target.lanes if "avx512f" in target.features else 0
        self.extents = {a.name: a.extent for a in kernel.axes}
        self.varies, self.erf_sums = varies, frozenset(erf_sums)
        self.dtypes = {b.name: b.dtype for b in kernel.buffers}
        self.types = {i.name: i.dtype for i in kernel.instructions()}
        self.counts = [self._counted(loop) for loop in kernel.loops]

    def form(self, budget: Budget) -> Form:
        """The form to write a kernel in."""
        if self._total(once=False) <= budget.kernel:
            return Form()
        once = self._masks_well()
        over = self._total(once) - budget.kernel
        called: set[Function] = set()
        for name, saved in self._savings(once, budget.call):
            if over <= 0:
                break
            called.add(name)
            over -= saved
        return Form(once, frozenset(called))

    def _masks_well(self) -> bool:
        least = self.target.mask_bytes
        if not least or any(isinstance(i, Scan) for i in self.kernel.instructions()):
            return False
        return all(item_bytes(b.dtype) >= least for b in self.kernel.buffers)

    def _total(self, once: bool) -> float:
        total = float(_BUFFER * len(self.kernel.buffers))
        code = self.kernel.instructions()
        angles = {i.dtype for i in code if isinstance(i, Apply) and i.op in CIRCULAR}
        total += sum(_ANGLES[dtype] for dtype in angles)
        for loop, (body, reductions) in zip(self.kernel.loops, self.counts, strict=True):
            written = self._written(loop, reductions, once)
            total += written * body + _LOOP + _REDUCTION * reductions
        return total

    def _counted(self, loop: Loop) -> tuple[float, int]:
        """The instructions of a loop's body, and how many of them are reductions or scans."""
        along = loop.axes[-1].name if self.vector == LOOPS and loop.axes else self.vector
        reductions = sum(isinstance(i, Reduce | Scan) for i in loop.body)
        return sum(self._weight(i, along) for i in loop.body), reductions

    def _written(self, loop: Loop, reductions: int, once: bool) -> int:
        """How often a loop's body is written."""
        if self.vector is None or (self.vector == LOOPS and not loop.axes):
            return 1
        if self.vector != LOOPS:
            return _copies(self.extents[self.vector], self.lanes, 1, once)
        unroll = self.unroll if reductions else 1
        return _copies(loop.axes[-1].extent, self.lanes, unroll, once)

    def _savings(self, once: bool, shortest: int) -> list[tuple[Function, float]]:
        """The functions of math, by the instructions that a call of each would save."""
        uses: Counter[Function] = Counter()
        weights: dict[Function, float] = {}
        for loop, (_, reductions) in zip(self.kernel.loops, self.counts, strict=True):
            written = self._written(loop, reductions, once)
            for i in self._functions(loop):
                name = (self._op(i), i.dtype)
                uses[name] += written
                weights[name] = self._weight(i, None)
        found = [(n, (uses[n] - 1) * w) for n, w in weights.items() if w >= shortest]
        return sorted((f for f in found if f[1]), key=lambda f: -f[1])

    def _functions(self, loop: Loop) -> Iterator[Apply]:
        """The functions of math on vectors."""
        for i in loop.body:
            if isinstance(i, Apply) and self._op(i) in FUNCTIONS and self._lanes(i) > 1:
                yield i

    def _op(self, i: Apply) -> str:
        return ERF_PLUS_ONE if i.name in self.erf_sums else i.op

    def _lanes(self, i: Instruction) -> int:
        return self.lanes if self.varies[i.name] else 1

    def _weight(self, i: Instruction, along: str | None) -> float:
        """Instructions for whole registers that one of the kernel becomes."""
        if isinstance(i, Load):
            return self._access(i, along)
        if not isinstance(i, Apply):
            return _OTHER
        lanes = self._lanes(i)
        if i.op in CHECKS:
            return _CHECK * self._registers(lanes)
        op, types = self._op(i), tuple(self.types[name] for name in i.args)
        count, wide = lines(op, i.dtype, types, lanes, lanes == self.avx512_lanes)
        return count - wide + wide * self._registers(lanes)

    def _access(self, i: Load, along: str | None) -> float:
        """A gather computes an address for each lane, and finds small elements in words."""
        step = 0 if along is None else i.index.stride(along)
        gathers = any(self.varies[name] for name, _ in i.index.values) or step not in (0, 1, -1)
        if not gathers:
            return _ACCESS
        words = _WORDS if item_bytes(self.dtypes[i.buffer]) < _WORD else 0
        return _ACCESS + (_GATHER + words) * self._registers(self._lanes(i))

    def _registers(self, lanes: int) -> float:
        """What an instruction on 64-bit numbers takes: they may need two registers."""
        return 1 + _SECOND * (lanes > self.target.lanes // 2)
