"""Which operations have a rule, and what a rule is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.ir.affine import add, mul
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.ir.real import Real
from dovetail.ir.size import UNKNOWN, Dim, Size
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.expression import Bodies, Body, Builder
from dovetail.lower.index_map import IndexMap, Indices, numbered
from dovetail.lower.values import Pointwise, Reduction, Value, View


class Refused(Exception):
    """A rule does not cover this call; the message says why."""


Rule = Callable[["Lower", OpCall], Any]
_DECLARED: dict[str, list[tuple[str, Rule]]] = {}  # by module


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Declare what lowers operators of ATen, by name without the namespace.

    It counts where ``families`` lists the function's module.
    """

    def declare(fn: Rule) -> Rule:
        _DECLARED.setdefault(fn.__module__, []).extend((name, fn) for name in names)
        return fn

    return declare


def declared_in(module: str) -> Iterable[tuple[str, Rule]]:
    """The rules that a module declares, with the operators they are for."""
    return tuple(_DECLARED.get(module, ()))


@dataclass
class Lower:
    """The values lowered so far, by name and path; rules read operands from here."""

    values: dict[tuple[str, tuple[int, ...]], Value] = field(default_factory=dict)
    _count: int = 0

    def value(self, ref: Any) -> Value:
        """The value of a tensor operand."""
        if not isinstance(ref, Ref):
            raise Refused(f"an operand that is no tensor: {ref!r}")
        if (ref.name, ref.path) not in self.values:
            raise Refused(f"nothing is known of {ref}")
        return self.values[ref.name, ref.path]

    def fresh(self, stem: str) -> str:
        """A name for a value that is in no graph."""
        self._count += 1
        return f"{stem}.{self._count}"

    def pointwise(
        self,
        call: OpCall,
        body: Body,
        reads: tuple[Value | None, ...],
        cost: float = 1.0,
        function: str = "",
        nth: int | None = None,
        library: str = "",
        cpu_library: str = "",
    ) -> Pointwise:
        """An expression for a call's result, or for one of several; None is no operand."""
        desc = result(call, nth)
        name = call.name if nth is None else f"{call.name}.{nth}"
        given = [value for value in reads if value is not None]
        form = desc.dtype, desc.shape, desc.strides
        return Pointwise(name, *form, body, given, cost, function, library, cpu_library)

    def reduction(
        self,
        op: str,
        dtype: str,
        source_shape: Sequence[Dim],
        dims: Sequence[int],
        body: Body | Bodies,
        reads: tuple[Value, ...],
        accumulate: str = "",
    ) -> Reduction:
        """A reduction that is a step of a rule's own, in its own type unless that is given."""
        name = self.fresh(op)
        return Reduction(name, dtype, op, source_shape, dims, body, reads, accumulate or dtype)

    def inner(
        self,
        stem: str,
        dtype: str,
        shape: tuple[Dim, ...],
        body: Body,
        reads: tuple[Value | None, ...],
        cost: float = 1.0,
    ) -> Pointwise:
        """An expression that is a step of a rule's own; None is no operand."""
        given = [value for value in reads if value is not None]
        return Pointwise(self.fresh(stem), dtype, shape, None, body, given, cost)

    def mapped(
        self, stem: str, value: Value, change: Callable[[Builder, str], str], cost: float = 1.0
    ) -> Pointwise:
        """A step of a rule's own that changes each element of a value by itself."""

        def body(b: Builder, index: Indices) -> str:
            return change(b, b.read(value, index))

        return self.inner(stem, value.dtype, value.shape, body, (value,), cost)


def argument(call: OpCall, position: int, name: str, default: Any = None) -> Any:
    """An argument by position or keyword."""
    if position < len(call.args):
        return call.args[position]
    return call.kwargs.get(name, default)


def tensor(desc: Any) -> TensorDesc:
    """A descriptor that must be a tensor's."""
    if not isinstance(desc, TensorDesc):
        raise Refused("its result is no tensor")
    return desc


def result(call: OpCall, nth: int | None = None) -> TensorDesc:
    """What is known of a call's result, or of one of several."""
    if nth is None:
        return tensor(call.output)
    if not isinstance(call.output, tuple):
        raise Refused("its results are no tensors")
    return tensor(call.output[nth])


def axis(given: Any, rank: int) -> int:
    """A dimension, counted from the front."""
    return static(given, "a dimension") % max(rank, 1)


def compute(dtype: str) -> str:
    """What elements of ``dtype`` are computed in."""
    if dtype not in COMPUTE:
        raise Refused(f"no code for {dtype}")
    return COMPUTE[dtype]


def is_float(dtype: str) -> bool:
    """Whether a storage type is a floating-point type."""
    return COMPUTE.get(dtype) in FLOATS


def static(value: Any, what: str) -> int:
    """An argument that must be a number."""
    if not isinstance(value, int):
        raise Refused(f"{what} is not a constant")
    return value


def size_of(value: Any, what: str) -> Dim:
    """An argument that must be a whole number, known or computed from sizes."""
    if isinstance(value, Size):
        return value
    return static(value, what)


def dims_of(given: Any, rank: int) -> tuple[int, ...]:
    """Dimensions, counted from the front; none given means all."""
    if given is None or given == () or not rank:
        return tuple(range(rank))
    listed = given if isinstance(given, tuple) else (given,)
    return tuple(sorted(axis(d, rank) for d in listed))


def problem(call: OpCall) -> str:
    """Why a call's tensors cannot be handled by generated code; empty when they can."""
    if len({desc.device for desc in (*call.inputs, *call.outputs)}) > 1:
        return "tensors on several devices"
    for desc in (*call.inputs, *call.outputs):
        if desc.dtype not in COMPUTE:
            return f"no code for {desc.dtype}"
        if len(desc.strides) != len(desc.shape):
            return "a tensor without strides"
        if UNKNOWN in (*desc.shape, *desc.strides):
            return "a size without an expression"
    return ""


def number(value: Any) -> bool:
    """Whether an argument is a plain number."""
    return isinstance(value, bool | int | float) and not isinstance(value, Size)


def scalar(value: Any) -> bool:
    """Whether an argument is a number, be it known or computed from sizes."""
    return number(value) or isinstance(value, Size | Real)


def view(
    name: str,
    base: Value,
    shape: tuple[Dim, ...],
    index: Callable[[Indices], Indices],
    strides: tuple[Dim, ...] | None = None,
) -> View:
    """A reindexing of ``base``, which ``index`` says of each index; its strides follow from that.

    They are given where dimensions of one element have strides that matter to nobody but PyTorch.
    """
    places = IndexMap.of(len(shape), index)
    steps: list[Dim] = [0] * len(shape)
    offset: Dim = 0
    for place, stride in zip(places.results, base.strides, strict=True):
        offset = add(offset, mul(stride, place.offset))
        for n, factor in numbered(place):
            steps[n] = add(steps[n], mul(stride, factor))
    return View(name, base, shape, tuple(steps) if strides is None else strides, offset, places)
