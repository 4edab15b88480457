"""Kernel IR: what a generated kernel computes, with no target in it.

A kernel runs a parallel iteration space (``axes``); for every point of it the ``loops`` run in
order. A loop has axes of its own (none: straight-line code per point) and a body of instructions.
A ``Reduce`` reduces a value over the loop's axes, and its result, like everything computed in a
loop without axes, can be read by later loops of the same point. Softmax is three loops over a
row: the maximum, the sum of exponentials, the stores. A ``Scan`` reduces along the one axis of
its loop and shows every step: at each point it is the reduction of all points up to there.

Memory is addressed in elements by affine expressions over axes, plus gathered integer values.
float16 and bfloat16 exist in memory only: a load widens them to float32, a store rounds. Types are
listed in ``dtypes.py``, operations and reductions in ``ops.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dovetail.ir.affine import Affine
from dovetail.ir.size import Dim, symbols_of

Index = Affine  # a position in a buffer, in elements


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of an iteration space, from 0 up to ``extent``."""

    name: str
    extent: Dim


@dataclass(frozen=True, slots=True)
class Load:
    """Read an element; where ``mask`` is false memory is not touched and the value is zero."""

    name: str
    dtype: str
    buffer: str
    index: Index
    mask: str | None = None

    @property
    def uses(self) -> tuple[str, ...]:
        """The values it reads."""
        mask = () if self.mask is None else (self.mask,)
        return (*(name for name, _ in self.index.values), *mask)


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    name: str
    dtype: str
    value: float | int | bool
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """An affine expression over axes and sizes, as an int64 value."""

    name: str
    index: Index
    dtype: str = "int64"
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Operands:
    """What is computed from other values."""

    name: str
    dtype: str
    op: str
    args: tuple[str, ...]

    @property
    def uses(self) -> tuple[str, ...]:
        """The values it reads."""
        return self.args


class Apply(_Operands):
    """A pure operation on values."""


class Reduce(_Operands):
    """Reduce a value over the axes of its loop."""


class Scan(_Operands):
    """An inclusive prefix of a reduction of one value, along the one axis of its loop."""


@dataclass(frozen=True, slots=True)
class Store:
    """Write an element, or (``sums``) add to one, which is zero before the kernel begins.

    Several points may add to one element; where a kernel does, a GPU's schedule says how.
    """

    buffer: str
    index: Index
    value: str
    dtype: str = ""
    name: str = ""
    sums: bool = False

    @property
    def uses(self) -> tuple[str, ...]:
        """The values it reads."""
        return (self.value, *(name for name, _ in self.index.values))


Instruction = Load | Const | Position | Apply | Reduce | Scan | Store


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions run for every point of the loop's axes, the last one fastest."""

    axes: tuple[Axis, ...]
    body: tuple[Instruction, ...]

    def reindexed(self, change: Callable[[Index], Index]) -> Loop:
        """The loop with other indices."""
        return Loop(self.axes, tuple(reindexed(i, change) for i in self.body))


def reindexed(i: Instruction, change: Callable[[Index], Index]) -> Instruction:
    """An instruction with another index, if it has one."""
    if not isinstance(i, Load | Store | Position):
        return i
    index = change(i.index)
    return i if index is i.index else replace(i, index=index)


def renamed(i: Instruction, name: str, names: Mapping[str, str]) -> Instruction:
    """An instruction under another name; what it uses may have other ``names``, too."""

    def new(name: str) -> str:
        return names.get(name, name)

    def moved(index: Index) -> Index:
        values = tuple((new(value), stride) for value, stride in index.values)
        return Index(index.offset, index.axes, values) if index.values else index

    i = reindexed(i, moved)
    if isinstance(i, Load):
        return replace(i, name=name, mask=None if i.mask is None else new(i.mask))
    if isinstance(i, Store):
        return replace(i, name=name, value=new(i.value))
    if isinstance(i, Apply | Reduce | Scan):
        return replace(i, name=name, args=tuple(map(new, i.args)))
    return replace(i, name=name)


@dataclass(frozen=True, slots=True)
class KernelBuffer:
    """Memory a kernel reads ("in"), writes ("out") or both ("inout")."""

    name: str
    dtype: str
    role: str = "in"


@dataclass(frozen=True, slots=True)
class Kernel:
    """Buffers, a parallel iteration space, and the loops that run at each of its points.

    ``tile`` is the rows and vectors of its tiles of registers where measuring chose them; empty:
    they are the scheduler's.
    """

    name: str
    buffers: tuple[KernelBuffer, ...]
    axes: tuple[Axis, ...]
    loops: tuple[Loop, ...]
    tile: tuple[int, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction, in order."""
        for loop in self.loops:
            yield from loop.body

    def all_axes(self) -> tuple[Axis, ...]:
        """The axes of the kernel and of its loops, each once."""
        return tuple(dict.fromkeys((*self.axes, *(a for loop in self.loops for a in loop.axes))))

    def dims(self) -> Iterator[Dim]:
        """Every size in the kernel."""
        yield from (axis.extent for axis in self.all_axes())
        for instruction in self.instructions():
            if isinstance(instruction, Load | Store | Position):
                yield from instruction.index.dims()

    def symbols(self) -> frozenset[str]:
        """The symbols its sizes depend on."""
        return frozenset().union(*map(symbols_of, self.dims()))
