"""Python's arithmetic on numbers of floating point that come from sizes, as expressions.

A node of the graph is read as Python would run it, operation by operation, so that nothing is
rounded otherwise. What has no rule here stays a call of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.real import Number, Real, as_real, real, whole
from dovetail.ir.size import Size
from dovetail.ir.tensor import TensorDesc


def number_of(op: str, args: Sequence[Any]) -> Number | None:
    """What a function of Python's gives for numbers, where it computes in floating point."""
    rule = _RULES.get(op)
    if rule is None or not all(_is_number(arg) for arg in args):
        return None
    return rule(*args)


def folded(call: OpCall, held: Mapping[str, Number]) -> Number | None:
    """What a call on tensors of one float64 gives, where they hold numbers computed from sizes.

    PyTorch writes arithmetic on numbers that way, which would be kernels for one element. A size
    it first makes a float32; eager does not, and neither is that done here.
    """
    desc, rule = call.output, _OF_TENSORS.get(call.op)
    if rule is None or not isinstance(desc, TensorDesc) or desc.shape:
        return None
    listed = call.args[:1] if call.op == CONVERT else call.args
    args = [held.get(a.name) if isinstance(a, Ref) else a for a in listed]
    if not all(map(_is_number, args)) or (call.kwargs and call.op != SCALAR_TENSOR):
        return None
    of_size = call.op == SCALAR_TENSOR and isinstance(args[0], Size) and desc.dtype == "float32"
    return rule(*args) if desc.dtype == "float64" or of_size else None


def _is_number(arg: Any) -> bool:
    return isinstance(arg, int | float | Size | Real) and not isinstance(arg, bool)


def _is_real(value: Number) -> bool:
    return isinstance(value, float | Real)


def commutative(op: str, left: Number, right: Number) -> Number:
    """A sum or product, spelled in one way whichever operand comes first."""
    first, second = sorted((left, right), key=lambda n: (isinstance(n, int | float), str(n)))
    return real(op, first, second)


def _mixed(op: str) -> Callable[..., Number | None]:
    """An operation that is one of integers unless an operand is of floating point."""

    def rule(*args: Number) -> Number | None:
        if len(args) != 2 or not any(map(_is_real, args)):
            return None
        return commutative(op, *args) if op in ("add", "mul") else real(op, *args)

    return rule


def _rounded(op: str) -> Callable[..., Number | None]:
    """An integer of a number of floating point; of ``round`` without digits."""
    return lambda value, *digits: whole(op, value) if _is_real(value) and not digits else None


def _power(base: Number, exponent: Number) -> Number | None:
    negative = isinstance(exponent, int) and exponent < 0
    return real("pow", base, exponent) if negative or _is_real(base) or _is_real(exponent) else None


def _float(value: Number) -> Number:
    return value if _is_real(value) else as_real(Size.of("real", value))  # type: ignore[arg-type]


_RULES: dict[str, Callable[..., Number | None]] = {
    "python.truediv": lambda left, right: real("div", left, right),
    "python.pow": _power,
    "python.neg": lambda value: real("sub", -0.0, value) if _is_real(value) else None,
    "python.sym_float": _float,
    "python.sym_sqrt": lambda value: real("sqrt", value),
    "python.sym_max": _mixed("max"),
    "python.sym_min": _mixed("min"),
    "python.sym_int": _rounded("trunc"),
    **{f"python.{op}": _mixed(op) for op in ("add", "sub", "mul")},
    **{f"python.{op}": _rounded(op) for op in ("floor", "ceil", "trunc", "round")},
}

SCALAR_TENSOR = "aten.scalar_tensor.default"
CONVERT = "prims.convert_element_type.default"
_OF_TENSORS: dict[str, Callable[..., Number]] = {
    SCALAR_TENSOR: _float,
    CONVERT: _float,
    "aten.true_divide.Tensor": lambda left, right: real("div", left, right),
    "aten.pow.Tensor_Tensor": lambda left, right: real("pow", left, right),
    "aten.sqrt.default": lambda value: real("sqrt", value),
    "aten.sub.Tensor": lambda left, right: real("sub", left, right),
    **{f"aten.{op}.Tensor": partial(commutative, op) for op in ("add", "mul")},
}
