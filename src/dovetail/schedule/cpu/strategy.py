"""The schedule of a kernel on a processor.

Every value is a scalar or a vector along one axis, the vector axis. A unit of work is one point
of the remaining parallel axes, times (where the vector axis is parallel) one block of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.ir.affine import product
from dovetail.ir.dtypes import FLOATS, item_bytes
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Kernel,
    Load,
    Loop,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.kernel_analysis import varying, without_idle_axes
from dovetail.ir.ops import CHECKS
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.schedule.cpu import patterns
from dovetail.schedule.cpu.code_size import FUNCTIONS
from dovetail.schedule.cpu.cost import cost, grain
from dovetail.schedule.cpu.register_tiles import tiling_of
from dovetail.schedule.cpu.tile import tile_of
from dovetail.schedule.cpu.volume import Budget, Form, Volume, divides, step_counts
from dovetail.schedule.schedule import LOOPS, LoopSchedule, Schedule, Steps

_ELEMENT = 4  # bytes, of most
NARROWEST = 64  # elements of a vector axis in a unit of work, at least: WIDE of the widest vectors
UNKNOWN = 256  # points that a loop of unknown length is taken to have
LATENCY = 4  # cycles of an addition: so many independent ones keep an adder busy
WIDE = LATENCY  # vectors next to each other that are reduced together
UNROLL = LATENCY  # independent accumulators along the vector axis
CHUNK = 16  # steps that are summed before their sum is added to the total: errors grow slowly
EXACT = 256  # elements of a row whose sum float64 completes; shorter rows take a sixth longer so
LONG = 32  # steps of a loop from which on what follows it counts for less and less
SHORT = 12  # instructions beside a scan for which there are registers, however wide they are
BUDGET = Budget()
FACTORS = 4  # of float32 whose product stays in the range of float64


def make_schedule(kernel: Kernel, target: Target, budget: Budget | None = None) -> Schedule:
    """The schedule of a kernel; ``budget`` is what compiling it may take."""
    return _Strategy(without_idle_axes(kernel), target, budget or BUDGET).schedule()


def vector_axis(kernel: Kernel) -> Axis | None:
    """The axis to vectorise: where most accesses are next to each other in memory.

    An axis of a loop stands for the last axis of every loop.
    """
    inner = [loop.axes[-1] for loop in kernel.loops if loop.axes]
    candidates = [*sorted(inner, key=_length)[-1:], *kernel.axes[-1:]]
    if not candidates:
        return None
    return max(candidates, key=lambda axis: _score(kernel, axis))


def _length(axis: Axis) -> float:
    return axis.extent if isinstance(axis.extent, int) else float("inf")


def _score(kernel: Kernel, axis: Axis) -> float:
    if isinstance(axis.extent, int) and axis.extent == 1:
        return -1e9
    score = 0.0
    longest = max((_length(loop.axes[-1]) for loop in kernel.loops if loop.axes), default=0)
    for loop in kernel.loops:
        often = 1.0 if loop.axes else min(1.0, LONG / max(longest, 1))  # against a long loop's body
        name = loop.axes[-1].name if loop.axes and axis not in kernel.axes else axis.name
        for instruction in loop.body:
            if isinstance(instruction, Load | Store):
                stride = instruction.index.stride(name)
                weight = often * (2.0 if isinstance(instruction, Store) else 1.0)
                score += weight if stride in (1, -1) else (0 if stride == 0 else -2 * weight)
    if isinstance(axis.extent, int) and axis.extent < 16:
        score -= 4 * (16 - axis.extent) / 16
    return score


def block_of(kernel: Kernel, target: Target) -> int:
    """Elements of a parallel vector axis in a unit of work: half of the nearest cache.

    They are fewer where each is a long reduction.
    """
    loops = [product(a.extent for a in loop.axes) for loop in kernel.loops]
    points = max((n if isinstance(n, int) else UNKNOWN for n in loops), default=1)
    most = target.l1_bytes // 2 // _ELEMENT
    return max(NARROWEST, most >> max(points - 1, 0).bit_length())


def is_light(kernel: Kernel) -> bool:
    """Whether several vectors' worth of a kernel's values fit the registers."""
    body = list(kernel.instructions())
    scans = len(body) <= SHORT and any(isinstance(i, Scan) for i in body)
    for i in body:
        if i.dtype in ("float64", "int64") and not isinstance(i, Const) and not scans:
            return False
        if isinstance(i, Apply) and (i.op in FUNCTIONS or i.op in ("div", *CHECKS)):
            return False
    return True


class _Strategy:
    def __init__(self, kernel: Kernel, target: Target, budget: Budget) -> None:
        self.kernel, self.target, self.budget = kernel, target, budget
        self.tiling = tiling_of(kernel, target)
        self.axis = vector_axis(kernel) if self.tiling is None else self.tiling.axis
        self.is_row = self.axis is not None and self.axis not in kernel.axes
        self.name = None if self.axis is None else self.axis.name
        self.vector = LOOPS if self.is_row else self.name
        self.lanes = self._lanes() if self.axis is not None else 1
        self.form = Form()

    def schedule(self) -> Schedule:
        kernel, target, vector, tiling = self.kernel, self.target, self.vector, self.tiling
        varies = varying(kernel, vector)
        erf_sums = patterns.erf_plus_one(kernel)
        volume = Volume(kernel, target, vector, self.lanes, UNROLL, varies, erf_sums)
        self.form = volume.form(self.budget)
        is_parallel = self.axis is not None and not self.is_row
        block = block_of(kernel, target) if is_parallel else 0
        if tiling is not None:
            block = tiling.block or tiling.tiles.columns(self.lanes)
        return Schedule(
            target=target.name,
            vector=vector,
            lanes=self.lanes,
            loops=tuple(map(self._loop, kernel.loops)),
            block=block,
            steps=self._steps(self.axis.extent) if self.axis is not None and block else None,
            tile=tile_of(kernel, self.axis, block, target) if tiling is None else None,
            register_tiles=None if tiling is None else tiling.tiles,
            calls=tuple(sorted(self.form.called)),
            erf_plus_one=erf_sums,
            cost=cost(kernel) if tiling is None else tiling.cost,
            grain=grain(target),
        )

    def _lanes(self) -> int:
        """Lanes of a value that varies; a scan of a short axis has no more than it needs."""
        if self.tiling is not None:
            return self.target.vector_bytes // item_bytes(self.tiling.dtype)
        lanes, extent = self.target.lanes, self.axis.extent if self.axis is not None else 1
        scans = any(isinstance(i, Scan) for i in self.kernel.instructions())
        if scans and isinstance(extent, int) and extent < lanes:
            return max(2, 1 << (extent - 1).bit_length())
        return lanes * self._width()

    def _width(self) -> int:
        """How many vectors stand next to each other: one alone would wait for its own sums."""
        reduces = any(isinstance(i, Reduce | Scan) for i in self.kernel.instructions())
        if self.axis is None or self.is_row or not reduces or not is_light(self.kernel):
            return 1
        extent = self.axis.extent
        return WIDE if not isinstance(extent, int) or extent >= WIDE * self.target.lanes else 1

    def _steps(self, extent: Dim, unroll: int = 1) -> Steps:
        counts = step_counts(extent, self.lanes, unroll)
        if divides(extent, self.lanes):
            return Steps(counts, "none")
        return Steps(counts, "all" if self.form.once and counts else "rest")

    def _loop(self, loop: Loop) -> LoopSchedule:
        """How one loop is done."""
        if not loop.axes:
            moving = None if self.is_row else self.name
            return LoopSchedule(interleaved=self._interleaved(loop, moving))
        if self.tiling is not None:
            return LoopSchedule()
        last = loop.axes[-1]
        reduces = any(isinstance(i, Reduce) for i in loop.body)
        steps, chunk = None, CHUNK
        if self.is_row:
            unroll = UNROLL if reduces and not self.form.once else 1
            most = max(step_counts(last.extent, self.lanes, unroll), default=1)
            steps = self._steps(last.extent, most)
            chunk = CHUNK * self.lanes * steps.most
        if not reduces or (isinstance(last.extent, int) and last.extent <= chunk):
            chunk = 0
        sums = self.is_row and any(
            isinstance(i, Reduce) and (i.op, i.dtype) == ("sum", "float32") for i in loop.body
        )
        moving = last.name if self.is_row else self.name
        return LoopSchedule(
            steps=steps,
            chunk=chunk,
            exact=sums and _length(last) >= EXACT,
            multiply_adds=patterns.multiply_adds(loop),
            scans=self._scans(loop) if self.is_row else (),
            interleaved=self._interleaved(loop, moving),
        )

    def _interleaved(self, loop: Loop, moving: str | None) -> tuple[patterns.Group, ...]:
        if moving is None or self.lanes == 1:
            return ()
        roles = {b.name: b.role for b in self.kernel.buffers}
        return patterns.interleaved(loop, moving, roles)

    def _scans(self, loop: Loop) -> tuple[tuple[str, int], ...]:
        """How many points of each scan along the lanes are done together: what a register holds."""
        found: dict[str, int] = {}
        widened = _widened(self.kernel)
        for s in loop.body:
            if isinstance(s, Scan):
                # Parts of a product may leave the range that the whole stays in.
                is_product = s.op == "prod" and s.dtype in FLOATS
                most = FACTORS if s.args[0] in widened else 1
                most = min(most, self.lanes) if is_product else self.lanes
                found[s.name] = min(most, self.target.vector_bytes // item_bytes(s.dtype))
        return tuple(found.items())


def _widened(kernel: Kernel) -> frozenset[str]:
    """Values of float64 that were float32."""
    types: Mapping[str, str] = {i.name: i.dtype for i in kernel.instructions()}
    return frozenset(
        i.name
        for i in kernel.instructions()
        if isinstance(i, Apply) and i.op == "cast" and i.dtype == "float64"
        if types[i.args[0]] == "float32"
    )
