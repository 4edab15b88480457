"""Runs kernel IR on NumPy arrays, whole axes at a time.

The oracle that generated code is tested against. Buffers are flat arrays; every axis becomes a
dimension of every value, so a kernel is a handful of array operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dovetail.ir.expand import expand
from dovetail.ir.kernel import (
    Apply,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.ops import OPERATIONS, REDUCTIONS
from dovetail.ir.size import evaluate

Array = Any


def run_kernel(
    kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> None:
    """Run a kernel; buffers of role "out" are written in place."""
    _KernelRun(expand(kernel, _has), buffers, sizes or {}).run()


class _KernelRun:
    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> None:
        import numpy

        self.np: Any = numpy
        self.kernel, self.buffers, self.sizes = kernel, buffers, sizes
        self.values: dict[str, Array] = {}
        self.order = [a.name for a in kernel.all_axes()]
        self.extent = {a.name: evaluate(a.extent, sizes) for a in kernel.all_axes()}

    def run(self) -> None:
        for loop in self.kernel.loops:
            for i in loop.body:
                self.step(i, loop)

    def step(self, i: Instruction, loop: Loop) -> None:
        with self.np.errstate(all="ignore"):
            if isinstance(i, Store):
                self.store(i, loop)
            elif isinstance(i, Reduce):
                self.values[i.name] = self.reduce(i, loop)
            elif isinstance(i, Scan):
                self.values[i.name] = self.scan(i, loop)
            else:
                self.values[i.name] = self.value(i)

    def axis(self, name: str) -> Array:
        """0, 1, 2, … along the dimension of an axis."""
        shape = [1] * len(self.order)
        shape[self.order.index(name)] = self.extent[name]
        return self.np.arange(self.extent[name]).reshape(shape)

    def place(self, index: Index) -> Array:
        total = self.np.full([1] * len(self.order), evaluate(index.offset, self.sizes))
        for name, stride in index.axes:
            total = total + self.axis(name) * evaluate(stride, self.sizes)
        for name, stride in index.values:
            total = total + self.values[name] * evaluate(stride, self.sizes)
        return total

    def value(self, i: Instruction) -> Array:
        np = self.np
        if isinstance(i, Load):
            place, buffer = self.place(i.index), self.buffers[i.buffer]
            if i.mask is None:
                return buffer[place].astype(i.dtype)
            mask, place = np.broadcast_arrays(self.values[i.mask], place)
            safe = buffer[np.where(mask, place, 0)] if buffer.size else np.zeros(mask.shape)
            return np.where(mask, safe, 0).astype(i.dtype)
        if isinstance(i, Const):
            return np.full([1] * len(self.order), i.value, dtype=i.dtype)
        if isinstance(i, Position):
            return self.place(i.index)
        assert isinstance(i, Apply)
        args = [self.values[a] for a in i.args]
        return self.apply(i.op, i.dtype, args)

    def apply(self, op: str, dtype: str, args: list[Array]) -> Array:
        own = _OWN.get(op)
        fn = getattr(self.np, OPERATIONS[op].numpy) if own is None else partial(own, self.np)
        return self.np.asarray(fn(*args)).astype(dtype)

    def reduce(self, i: Reduce, loop: Loop) -> Array:
        axes = tuple(self.order.index(a.name) for a in loop.axes)
        args = self.spread(i.args, loop)
        if i.op.startswith("arg"):
            return self.reduce_position(i.op, args, axes)
        given = {"initial": REDUCTIONS[i.op].identity(i.dtype)} if i.op in ("max", "min") else {}
        result = self.ufunc(i.op).reduce(args[0], axis=axes, keepdims=True, **given)
        return result.astype(i.dtype)

    def ufunc(self, op: str) -> Any:
        """NumPy's function that joins two values of a reduction."""
        named = {"any": "logical_or", "all": "logical_and"}  # of numbers too
        return getattr(self.np, named.get(op) or OPERATIONS[REDUCTIONS[op].operation].numpy)

    def spread(self, names: tuple[str, ...], loop: Loop) -> list[Array]:
        """Values with all the dimensions that they have in a loop."""
        walked = {a.name for a in (*self.kernel.axes, *loop.axes)}
        shape = [self.extent[n] if n in walked else 1 for n in self.order]
        return [self.np.broadcast_to(self.values[a], shape) for a in names]

    def scan(self, i: Scan, loop: Loop) -> Array:
        """Every step of a reduction along the loop's axis."""
        axis = self.order.index(loop.axes[0].name)
        (given,) = self.spread(i.args, loop)
        return self.ufunc(i.op).accumulate(given.astype(i.dtype), axis=axis, dtype=i.dtype)

    def reduce_position(self, op: str, args: list[Array], axes: tuple[int, ...]) -> Array:
        np = self.np
        if args[0].size == 0:  # of no points it is 0
            return np.max(args[1], axis=axes, keepdims=True, initial=0)
        dtype = str(args[0].dtype)
        extreme, start = getattr(np, op[3:]), REDUCTIONS[op].identity(dtype)
        best = extreme(args[0], axis=axes, keepdims=True, initial=start)
        hit = (args[0] == best) | ((args[0] != args[0]) & (best != best))
        found = np.where(hit, args[1], 2**63 - 1)
        return np.min(found, axis=axes, keepdims=True, initial=2**63 - 1)

    def store(self, i: Store, loop: Loop) -> None:
        if i.sums:
            self.add(i, loop)
            return
        place, value = self.np.broadcast_arrays(self.place(i.index), self.values[i.value])
        self.buffers[i.buffer][place] = value.astype(self.buffers[i.buffer].dtype)

    def add(self, i: Store, loop: Loop) -> None:
        """Sums of all points that add to an element."""
        np, buffer = self.np, self.buffers[i.buffer]
        (value,) = self.spread((i.value,), loop)
        place = np.broadcast_to(self.place(i.index), value.shape)
        total = np.zeros(buffer.shape)
        np.add.at(total, place, value)
        buffer[place] = total[place]


def _round_bfloat16(np: Any, x: Array) -> Array:
    bits = np.ascontiguousarray(x, dtype="float32").view("uint32")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), np.float32("nan"), rounded.astype("uint32").view("float32"))


def _whole_power(np: Any, base: Array, exponent: Array) -> Array:
    """Powers of integers, which wrap; with a negative exponent all but 1 and -1 give 0."""
    left = np.where(exponent < 0, exponent & 1, exponent)  # of 1 and -1 only that bit counts
    result, square = np.ones_like(base * exponent), base
    while np.any(left):  # as often as there are bits
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left >> 1
    kept = np.abs(base) == 1
    return np.where((exponent < 0) & ~kept, 0, result)


def _check(np: Any, index: Array, size: Array, used: Array, *, wraps: bool = False) -> Array:
    index = np.where((index < 0) & wraps, index + size, index)
    bad = (index < 0) | (index >= size)
    if bool(np.any(bad & used)):
        raise IndexError("index out of range in self")
    return np.where(bad, 0, index)


def _check_divisor(np: Any, divisor: Array, instead: Array, used: Array) -> Array:
    bad = divisor == 0
    if bool(np.any(bad & used)):
        raise ZeroDivisionError("an integer was divided by zero")
    return np.where(bad, instead, divisor)


# What NumPy has no function for.
_OWN: dict[str, Callable[..., Array]] = {
    "cast": lambda _, x: x,
    "from_bits": lambda np, x: np.asarray(x).view("float64"),
    "round_half": lambda _, x: x.astype("float16"),
    "round_bfloat16": _round_bfloat16,
    "erf": lambda np, x: np.vectorize(math.erf, otypes=["float64"])(x),
    "erfc": lambda np, x: np.vectorize(math.erfc, otypes=["float64"])(x),
    "sub": lambda _, a, b: a ^ b if a.dtype == bool else a - b,
    "div_int": lambda np, a, b: np.trunc(a / b),
    "pow": lambda np, a, b: (np.power if a.dtype.kind == "f" else partial(_whole_power, np))(a, b),
    "fma": lambda _, a, b, c: a * b + c,
    "check": partial(_check, wraps=True),
    "check_index": _check,
    "check_bounds": _check,
    "check_divisor": _check_divisor,
}


def _has(op: str) -> bool:
    return op in _OWN or bool(OPERATIONS[op].numpy)
