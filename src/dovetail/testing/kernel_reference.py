"""Runs kernel IR on NumPy arrays, whole axes at a time.

The oracle that generated code is tested against. Buffers are flat arrays; every axis becomes a
dimension of every value, so a kernel is a handful of array operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.ir.kernel import (
    CHECKS,
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
from dovetail.ir.size import evaluate

Array = Any


def run_kernel(
    kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> None:
    """Run a kernel; buffers of role "out" are written in place."""
    _Run(kernel, buffers, sizes or {}).run()


class _Run:
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
                self.values[i.name] = self.fold(i, loop)
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
        np = self.np
        if op == "check_divisor":
            bad = args[0] == 0
            if bool(np.any(bad & args[2])):
                raise ZeroDivisionError("an integer was divided by zero")
            return np.where(bad, args[1], args[0])
        if op in CHECKS:
            wrapped = np.where((args[0] < 0) & (op == "check"), args[0] + args[1], args[0])
            bad = (wrapped < 0) | (wrapped >= args[1])
            if bool(np.any(bad & args[2])):
                raise IndexError("index out of range in self")
            return np.where(bad, 0, wrapped)
        if op in ("cast", "round_half"):
            middle = args[0].astype("float16") if op == "round_half" else args[0]
            return middle.astype(dtype)
        if op == "round_brain":
            return _round_brain(np, args[0])
        fn = _functions(np)[op]
        return np.asarray(fn(*args)).astype(dtype)

    def fold(self, i: Reduce, loop: Loop) -> Array:
        np = self.np
        axes = tuple(self.order.index(a.name) for a in loop.axes)
        args = self.spread(i.args, loop)
        if i.op.startswith("arg"):
            return self.fold_position(i.op, args, axes)
        start = {"max": _lowest(np, i.dtype), "min": _highest(np, i.dtype)}.get(i.op)
        given = {} if start is None else {"initial": start}
        result = getattr(np, _UFUNCS[i.op]).reduce(args[0], axis=axes, keepdims=True, **given)
        return result.astype(i.dtype)

    def spread(self, names: tuple[str, ...], loop: Loop) -> list[Array]:
        """Values with all the dimensions that they have in a loop."""
        walked = {a.name for a in (*self.kernel.axes, *loop.axes)}
        shape = [self.extent[n] if n in walked else 1 for n in self.order]
        return [self.np.broadcast_to(self.values[a], shape) for a in names]

    def scan(self, i: Scan, loop: Loop) -> Array:
        """Every step of a fold along the loop's axis."""
        axis = self.order.index(loop.axes[0].name)
        (given,) = self.spread(i.args, loop)
        fold = getattr(self.np, _UFUNCS[i.op])
        return fold.accumulate(given.astype(i.dtype), axis=axis, dtype=i.dtype)

    def fold_position(self, op: str, args: list[Array], axes: tuple[int, ...]) -> Array:
        np = self.np
        if args[0].size == 0:  # of no points it is 0
            return np.max(args[1], axis=axes, keepdims=True, initial=0)
        dtype = str(args[0].dtype)
        start, extreme = (_lowest, np.max) if op == "argmax" else (_highest, np.min)
        best = extreme(args[0], axis=axes, keepdims=True, initial=start(np, dtype))
        hit = (args[0] == best) | ((args[0] != args[0]) & (best != best))
        found = np.where(hit, args[1], 2**63 - 1)
        return np.min(found, axis=axes, keepdims=True, initial=2**63 - 1)

    def store(self, i: Store, loop: Loop) -> None:
        place, value = self.np.broadcast_arrays(self.place(i.index), self.values[i.value])
        del loop
        self.buffers[i.buffer][place] = value.astype(self.buffers[i.buffer].dtype)


_UFUNCS = {
    "max": "maximum",
    "min": "minimum",
    "sum": "add",
    "prod": "multiply",
    "any": "logical_or",
    "all": "logical_and",
}


def _lowest(np: Any, dtype: str) -> Any:
    if dtype == "bool":
        return False
    return -math.inf if dtype.startswith("float") else np.iinfo(dtype).min


def _highest(np: Any, dtype: str) -> Any:
    if dtype == "bool":
        return True
    return math.inf if dtype.startswith("float") else np.iinfo(dtype).max


def _round_brain(np: Any, x: Array) -> Array:
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


def _functions(np: Any) -> dict[str, Callable[..., Array]]:
    """Each operation in NumPy's words; what it has none for is left to math."""
    exp, log = np.exp, np.log
    erf = np.vectorize(math.erf, otypes=["float64"])
    erfc = np.vectorize(math.erfc, otypes=["float64"])
    return {
        "neg": np.negative,
        "abs": np.abs,
        "not": lambda x: np.logical_not(x) if x.dtype == bool else np.invert(x),
        "isnan": np.isnan,
        **{name: getattr(np, name) for name in ("floor", "ceil", "trunc", "sqrt", "sign")},
        "round": np.rint,
        "sgn": np.sign,
        "exp": exp,
        "exp_normal": exp,
        "log": log,
        **{name: getattr(np, name) for name in ("exp2", "expm1", "log2", "log10", "log1p")},
        **{name: getattr(np, name) for name in ("sin", "cos", "tan", "tanh", "copysign")},
        **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "atan2")},
        **{name: getattr(np, f"arc{name[1:]}") for name in ("asinh", "acosh", "atanh")},
        **{name: getattr(np, name) for name in ("sinh", "cosh", "fmod", "hypot")},
        "sigmoid": lambda x: 1 / (1 + exp(-x)),
        "erf": erf,
        "erfc": erfc,
        "add": np.add,
        "sub": lambda a, b: a ^ b if a.dtype == bool else a - b,
        "mul": np.multiply,
        "div": np.divide,
        "div_int": lambda a, b: np.trunc(a / b),
        "floordiv": np.floor_divide,
        "floormod": np.mod,
        "min": np.minimum,
        "max": np.maximum,
        "pow": lambda a, b: np.power(a, b) if a.dtype.kind == "f" else _whole_power(np, a, b),
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "shl": np.left_shift,
        "shr": np.right_shift,
        "where": np.where,
        "fma": lambda a, b, c: a * b + c,
    }
