"""A kernel under its schedule as Triton's text: one program of it is one block of threads.

Values have two dimensions where a block has rows and columns, else one. The interface between a
rendered kernel and whoever launches it is in order: a pointer for each of ``kernel.buffers`` and a
64-bit integer for each of ``call_sizes(kernel)``; the grid has ``schedule.units(kernel)`` programs.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container
from typing import NamedTuple

from dovetail.codegen.triton import loops, operations, reduce
from dovetail.codegen.triton.operations import NAMES, number
from dovetail.ir.affine import product
from dovetail.ir.dtypes import COMPUTE
from dovetail.ir.expand import expand
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.kernel_analysis import without_idle_axes
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.kernel_softmax import power_sums
from dovetail.ir.kernel_verify import InvalidKernel, verify_kernel
from dovetail.ir.ops import CHECKS
from dovetail.ir.size import Dim
from dovetail.ir.verify import verify_stage
from dovetail.schedule.gpu.blocks import BlockSchedule

PRELUDE = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice

from dovetail.codegen.triton.helpers import (
    erf_plus_one,
    first_larger,
    first_smaller,
    larger,
    multiplied,
    short_exp,
    short_sigmoid,
    short_tanh,
    smaller,
    whole_power,
)
"""


class Variable(NamedTuple):
    """A variable of the text, and along which dimensions of a block it differs."""

    name: str
    rows: bool = False
    columns: bool = False


def render(kernel: Kernel, schedule: BlockSchedule) -> str:
    """A kernel's text: a function named ``kernel.name``; ``PRELUDE`` has to stand before it."""
    return TritonRenderer(kernel, schedule).render()


class TritonRenderer:
    """Writes one kernel: row code once, loops step by step or, where it is persistent, at once."""

    def __init__(self, kernel: Kernel, schedule: BlockSchedule) -> None:
        kernel = expand(without_idle_axes(kernel), operations.has)
        self.kernel = verify_stage("codegen", kernel, verify_kernel)
        self.schedule = schedule
        self.lines: list[str] = []
        self.depth = 1
        self.sizes = {dim: f"s{n}" for n, dim in enumerate(call_sizes(kernel))}
        self.stored = {b.name: b.dtype for b in kernel.buffers}
        self.types = {i.name: i.dtype for i in kernel.instructions()}
        self.memo: ChainMap[object, Variable] = ChainMap({})
        self.names: ChainMap[str, Variable] = ChainMap({})
        self.taken: set[str] = set()
        self.row_mask = self.column_mask = ""
        self.row_axes = frozenset[str]()
        self.fixed = set[str]()  # axes along which a block stands still
        self.erf_sums = _erf_sums(self.kernel)
        self.in_loop = False
        self.columns = schedule.columns  # of the loop at hand
        self.at_once = False  # whether the loop at hand is done in one step
        self.number = 0  # of that loop
        # Of a persistent block: at which part of which columns it stands, the order of their axes,
        # and what was computed at each part.
        self.stands = frozenset[Axis](), 0
        self.orders: dict[frozenset[Axis], tuple[Axis, ...]] = {}
        self.memos: dict[tuple[frozenset[Axis], int], ChainMap[object, Variable]] = {}
        self.pairs = power_sums(self.kernel) if schedule.online else {}
        self.passes = _passes(self.kernel, self.pairs)
        for name in (kernel.name, *self.stored, *self.types, *(a.name for a in kernel.all_axes())):
            if name and not name.isidentifier():
                raise InvalidKernel(f"{name!r} is not a name")

    def render(self) -> str:
        """The function."""
        pointers = [f"p_{name}" for name in self.stored]
        parameters = ", ".join([*pointers, *self.sizes.values()])
        self.lines += ["@triton.jit", f"def {self.kernel.name}({parameters}):"]
        self._places()
        if self.schedule.walked:
            loops.walk(self)
        else:
            self.loops()
        if len(self.lines) == 2:
            self.line("pass")
        return "\n".join(self.lines) + "\n"

    # ---- where a block stands ------------------------------------------------------------------

    def _places(self) -> None:
        """The block's rows, and its columns where they are points of parallel axes."""
        s, axes = self.schedule, self.kernel.axes
        outer = tuple(a for a in axes if a.name not in s.along)
        inner = tuple(a for a in axes if a.name in s.along)
        self.row_axes = frozenset(a.name for a in outer)
        whole = ".to(tl.int64)" if s.wide else ""
        self.line(f"block = tl.program_id(0){whole}")
        if inner:
            total = self.extent(inner)
            self.line(f"across = ({total} + {s.columns - 1}) // {s.columns}")
            self.walk(inner, f"block % across * {s.columns}")
            self.line("block = block // across")
        spread = "[:, None]" if s.columns else ""
        if s.walked:
            self.line("x = block")
            self._decode("x", tuple(a for a in outer if a.name not in s.walked))
            self.fixed |= self.row_axes - {*s.walked}
            return
        if s.rows == 1:
            self.line("x = block")
            self._decode("x", outer)
            self.fixed |= self.row_axes
            return
        if self._is_within(outer, s.rows):
            self._within("x", f"block * {s.rows}", s.rows, spread, outer)
            return
        self.line(f"x = (block * {s.rows} + tl.arange(0, {s.rows})){spread}")
        self.row_mask = self._mask("x", product(a.extent for a in outer), s.rows)
        self._decode("x", outer)

    def walk(self, axes: tuple[Axis, ...], start: str) -> None:
        """The columns from ``start`` on."""
        self.fixed -= {a.name for a in axes}
        if start and self._is_within(axes, self.columns):
            self.column_mask = ""
            self._within("y", start, self.columns, "[None, :]", axes)
            return
        whole = ".to(tl.int64)" if self.schedule.wide else ""
        place = f"tl.arange(0, {self.columns}){whole}[None, :]"
        self.line(f"y = {start} + {place}" if start else f"y = {place}")
        self.column_mask = self._mask("y", product(a.extent for a in axes), self.columns)
        self._decode("y", axes)

    def _mask(self, name: str, extent: Dim, step: int) -> str:
        """The name of the mask of points that there are; empty where there are all."""
        if isinstance(extent, int) and extent % step == 0:
            return ""
        self.line(f"in_{name} = {name} < {self.size(extent)}")
        return f"in_{name}"

    def _is_within(self, axes: tuple[Axis, ...], count: int) -> bool:
        """Whether so many points always lie along the last axis alone."""
        extents = [a.extent for a in axes]
        known = all(isinstance(e, int) for e in extents)
        return known and count > 1 and len(axes) > 1 and int(extents[-1]) % count == 0  # type: ignore[arg-type]

    def _within(
        self, name: str, start: str, count: int, spread: str, axes: tuple[Axis, ...]
    ) -> None:
        """Points along the last axis; the positions on the others are numbers of the block's."""
        last, whole = axes[-1], ".to(tl.int64)" if self.schedule.wide else ""
        # A difference, not a remainder: of that Triton would not know that accesses can be wide.
        self.line(f"first_{name} = {start}")
        self.line(f"{name} = first_{name} // {last.extent}")
        along = f"first_{name} - {name} * {last.extent}"
        self.line(f"i_{last.name} = {along} + tl.arange(0, {count}){whole}{spread}")
        self._decode(name, axes[:-1])
        self.fixed |= {a.name for a in axes[:-1]}

    def _decode(self, name: str, axes: tuple[Axis, ...]) -> None:
        """A point's number as a position on each axis, the last one fastest."""
        for n, axis in reversed(list(enumerate(axes))):
            if n == 0:
                self.line(f"i_{axis.name} = {name}")
                continue
            self.line(f"i_{axis.name} = {name} % {self.size(axis.extent)}")
            self.line(f"{name} = {name} // {self.size(axis.extent)}")

    def extent(self, axes: tuple[Axis, ...]) -> str:
        """How many points axes have."""
        return self.size(product(a.extent for a in axes))

    # ---- structure -----------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One more line at the present depth."""
        self.lines.append("    " * self.depth + text)

    def size(self, dim: Dim) -> str:
        """A size: a number, one that is given, or a product of such."""
        if isinstance(dim, int):
            return str(dim)
        if dim in self.sizes:
            return self.sizes[dim]
        if dim.op != "mul":
            raise InvalidKernel(f"the size {dim} is not given")
        return f"({' * '.join(self.size(arg) for arg in dim.args)})"

    def shape(self, rows: bool, columns: bool) -> str:
        """The shape of what differs along these dimensions."""
        s = self.schedule
        sizes = [s.rows if rows else 1]
        if s.columns:
            sizes.append(self.columns if columns else 1)
        return str(sizes)

    @property
    def constant(self) -> str:
        """The shape of a number."""
        return self.shape(False, False)

    def loops(self) -> None:
        """All loops, in order; two that are done as one are done where the first stands."""
        pairs = self.pairs
        for place, loop in enumerate(self.kernel.loops):
            self.number, self.in_loop = place, bool(loop.axes) or bool(self.schedule.along)
            if place - 1 in pairs:
                continue
            if place in pairs:
                loops.sum_powers(self, loop, pairs[place])
            elif not loop.axes:
                for i in loop.body:
                    self.emit(i)
            elif self.schedule.persistent:
                loops.keep(self, loop)
            else:
                loops.step(self, loop)

    def stand(self, axes: tuple[Axis, ...], part: int, count: int) -> frozenset[Axis]:
        """Stand at a part of a loop's columns; nothing to do where the block stands there."""
        key = frozenset(axes)
        if (key, part) != self.stands:
            start = str(part * self.columns) if count > 1 else ""
            self.walk(self.orders.setdefault(key, axes), start)
            if part + 1 < count:
                self.column_mask = ""
            self.stands = key, part
        return key

    # ---- instructions --------------------------------------------------------------------------

    def emit(self, i: Instruction) -> None:
        """One instruction."""
        if isinstance(i, Store):
            self._store(i)
        elif isinstance(i, Reduce):
            reduce.step(self, i)
        elif isinstance(i, Scan):
            reduce.scan(self, i)
        elif isinstance(i, Apply) and i.op in CHECKS:
            self._check(i)
        else:
            key, text, rows, columns = self._value(i)
            self.define(i.name, text, rows, columns, key)

    def define(
        self, name: str, text: str, rows: bool, columns: bool, key: object = None
    ) -> Variable:
        """A variable for a value; one that is there already where ``key`` says it is the same."""
        if key is not None and key in self.memo:
            self.names[name] = self.memo[key]
            return self.memo[key]
        unique, count = name, 0
        while unique in self.taken:
            count += 1
            unique = f"{name}_{count}"
        self.taken.add(unique)
        self.line(f"{unique} = {text}")
        self.names[name] = Variable(unique, rows, columns)
        if key is not None:
            self.memo[key] = self.names[name]
        return self.names[name]

    def _value(self, i: Instruction) -> tuple[object, str, bool, bool]:
        """What makes a value the same as another, its text, and where it differs."""
        if isinstance(i, Const):
            text = f"tl.full({self.constant}, {number(i.value, i.dtype)}, {NAMES[i.dtype]})"
            return ("const", i.dtype, repr(i.value)), text, False, False
        if isinstance(i, Position):
            text, rows, columns = self.place(i.index)
            return ("position", i.index), f"({text}).to(tl.int64)", rows, columns
        if isinstance(i, Load):
            return self._load(i)
        assert isinstance(i, Apply)
        given = [self.names[a] for a in i.args]
        args = [v.name for v in given]
        if i.op == "cast":
            text = operations.cast(args[0], self.types[i.args[0]], i.dtype)
        elif i.name in self.erf_sums:
            text = f"erf_plus_one({self.names[self.erf_sums[i.name]].name})"
        else:
            text = operations.apply(i.op, self.types[i.args[-1]], args, short=self.schedule.short)
        rows, columns = any(v.rows for v in given), any(v.columns for v in given)
        return (i.op, i.dtype, *args), text, rows, columns

    def applied(self, i: Apply, text: str) -> str:
        """An operation of one operand on another one."""
        return operations.apply(i.op, i.dtype, [f"({text})"], short=self.schedule.short)

    def place(self, index: Index) -> tuple[str, bool, bool]:
        """A place in memory, and along which dimensions it differs."""
        moving = [name for name, _ in index.axes if name not in self.fixed]
        rows = any(name in self.row_axes for name in moving)
        columns = any(name not in self.row_axes for name in moving)
        terms = [(f"i_{name}", stride) for name, stride in index.axes]
        for name, stride in index.values:
            found = self.names[name]
            rows, columns = rows or found.rows, columns or found.columns
            terms.append((found.name, stride))
        texts = [n if stride == 1 else f"{n} * {self.size(stride)}" for n, stride in terms]
        if not texts:
            offset = self.size(index.offset)
            whole = "int64" if self.schedule.wide else "int32"
            return f"tl.full({self.constant}, 0, tl.{whole}) + {offset}", False, False
        if index.offset != 0:
            texts.insert(0, self.size(index.offset))
        return " + ".join(texts), rows, columns

    def masks(self, rows: bool, columns: bool) -> list[str]:
        """The masks of what is there, along the dimensions that matter."""
        found = [self.row_mask if rows else "", self.column_mask if columns else ""]
        return [mask for mask in found if mask]

    def _load(self, i: Load) -> tuple[object, str, bool, bool]:
        place, rows, columns = self.place(i.index)
        masks = self.masks(rows, columns)
        key: tuple[object, ...] = ("load", i.buffer, place)
        if i.mask is not None:
            found = self.names[i.mask]
            masks.append(found.name)
            key = (*key, found.name)
            if (found.rows and not rows) or (found.columns and not columns):
                rows, columns = rows or found.rows, columns or found.columns
                place = f"tl.broadcast_to({place}, {self.shape(rows, columns)})"
        stored = self.stored[i.buffer]
        rest = f", {' & '.join(masks)}, other=0" if masks else ""
        if columns and not self.schedule.persistent and i.index in self.passes:
            first, last = self.passes[i.index]
            policy = "evict_last" if self.number < last else "evict_first"
            rest += f', eviction_policy="{policy}"' if first != last else ""
        wider = "" if COMPUTE[stored] == stored else f".to({NAMES[COMPUTE[stored]]})"
        return key, f"tl.load(p_{i.buffer} + ({place}){rest}){wider}", rows, columns

    def _store(self, i: Store) -> None:
        if i.sums:
            self.line(f"sum_{i.buffer} = sum_{i.buffer} + {self.names[i.value].name}")
            return
        place, rows, columns = self.place(i.index)
        value, stored = self.names[i.value], self.stored[i.buffer]
        if self.schedule.rows == 1 and columns:
            rows = True  # the only one
        if not rows or (self.in_loop and not columns):
            place = f"tl.broadcast_to({place}, {self.shape(True, self.in_loop)})"
        text = operations.cast(value.name, self.types[i.value], COMPUTE[stored])
        masks = self.masks(True, self.in_loop)
        rest = f", {' & '.join(masks)}" if masks else ""
        self.line(f"tl.store(p_{i.buffer} + ({place}), {text}{rest})")

    def _check(self, i: Apply) -> None:
        """An index, wrapped if negative where that is meant, or a divisor; a bad one is fatal."""
        index, extent, allowed = (self.names[a] for a in i.args)
        found = (index, extent, allowed)
        rows, columns = any(v.rows for v in found), any(v.columns for v in found)
        text = index.name
        if i.op == "check":
            text = f"tl.where({text} < 0, {text} + {extent.name}, {text})"
        given = self.define(f"{i.name}_given", text, rows, columns).name
        divides = i.op == "check_divisor"
        bad = f"{given} == 0" if divides else f"({given} < 0) | ({given} >= {extent.name})"
        wrong = self.define(f"{i.name}_bad", bad, rows, columns).name
        used = " & ".join([wrong, allowed.name, *self.masks(rows, columns)])
        self.line(f'tl.device_assert(({used}) == 0, "{_WRONG[i.op]}")')
        instead = extent.name if divides else "0"
        self.define(i.name, f"tl.where({wrong}, {instead}, {given})", rows, columns)


def _passes(kernel: Kernel, pairs: Container[int]) -> dict[Index, tuple[int, int]]:
    """The first and the last loop that reads each place; of ``pairs`` the two are one."""
    found: dict[Index, tuple[int, int]] = {}
    for place, loop in enumerate(kernel.loops):
        number = place - 1 if place - 1 in pairs else place
        for i in loop.body:
            if isinstance(i, Load) and loop.axes:
                found[i.index] = found.get(i.index, (number, number))[0], number
    return found


def _erf_sums(kernel: Kernel) -> dict[str, str]:
    """Sums of 1 and an error function in float32, by name, and what that is a function of."""
    named = {i.name: i for i in kernel.instructions() if i.name}
    found: dict[str, str] = {}
    for i in named.values():
        if not isinstance(i, Apply) or i.op != "add" or i.dtype != "float32":
            continue
        for one, other in (i.args, i.args[::-1]):
            const, erf = named.get(one), named.get(other)
            if isinstance(const, Const) and const.value == 1 and isinstance(erf, Apply):
                if erf.op == "erf":
                    found[i.name] = erf.args[0]
    return found


_WRONG = {
    "check": "index out of range",
    "check_index": "index out of range",
    "check_bounds": "index out of bounds",
    "check_divisor": "integer division by zero",
}
