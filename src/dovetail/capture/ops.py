"""Operators by name, both ways: ``torch.ops.aten.add.Tensor`` ⇄ "aten.add.Tensor".

Names come from files, so a name resolves only to an operator PyTorch's dispatcher has, a
higher-order operator, or an arithmetic function listed here.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from dovetail.capture._torch.operators import operator_types, schema_of
from dovetail.capture._torch.quantized import NAMESPACE, define_quantized
from dovetail.errors import UnsupportedGraph

if TYPE_CHECKING:
    from dovetail.ir.call import OpCall

OpOverload, OpOverloadPacket, HigherOrderOperator = operator_types()

_PYTHON: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in [
        "add",
        "sub",
        "mul",
        "floordiv",
        "truediv",
        "mod",
        "neg",
        "pow",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and_",
        "or_",
        "not_",
        "lshift",
        "rshift",
        "pos",
        "abs",
        "index",
    ]
} | {"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round}
_PYTHON |= {
    name: getattr(torch, name)
    for name in [
        "sym_int",
        "sym_float",
        "sym_max",
        "sym_min",
        "sym_not",
        "sym_ite",
        "sym_sqrt",
        "sym_sum",
        *(f"_sym_{name}" for name in ("acos", "asin", "atan", "cos", "cosh", "log2", "sin")),
        *(f"_sym_{name}" for name in ("sinh", "tan", "tanh")),
    ]
    if hasattr(torch, name)
}


def _winograd_convolution(*args: Any) -> Any:
    """``aten.convolution``; transformed weights and the size of tiles are for generated code."""
    return torch.ops.aten.convolution.default(*args[:9])


def _panel_convolution(image: Any, panels: Any, *args: Any) -> Any:
    """``aten.convolution``, of weights whose first axis is split."""
    weight = panels.flatten(0, 1)
    return torch.ops.aten.convolution.default(image, weight, *args)


_PYTHON["winograd_convolution"] = _winograd_convolution
_PYTHON["panel_convolution"] = _panel_convolution
_PYTHON_NAMES = {fn: name for name, fn in _PYTHON.items()}
_PREFIXES = ("python", "higher_order")


@functools.cache
def op_name(target: Any) -> str:
    """The name of what an FX node calls."""
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if target in _PYTHON_NAMES:
        return f"python.{_PYTHON_NAMES[target]}"
    raise UnsupportedGraph(f"{target!r} is not an operator")


@functools.cache
def resolve_op(name: str) -> Callable[..., Any]:
    """What ``op_name`` named."""
    prefix, _, rest = name.partition(".")
    if prefix == "python" and rest in _PYTHON:
        return _PYTHON[rest]
    parts = name.split(".")
    if prefix == NAMESPACE:
        define_quantized()
    target: Any = torch.ops
    if all(part.isidentifier() for part in parts):
        for part in parts:
            target = getattr(target, part, None)
    if not isinstance(target, OpOverload | HigherOrderOperator):
        raise UnsupportedGraph(f"this PyTorch has no operator {name!r}")
    return cast(Callable[..., Any], target)


def is_write(target: Any) -> bool:
    """Whether an operator writes to one of its arguments."""
    return isinstance(target, OpOverload) and bool(schema_of(target).is_mutable)


def is_random(target: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


# PyTorch's own operators do what their schemas say. Others may print, send, or draw random numbers
# without saying so: their tags are easily forgotten.
_OWN_NAMESPACES = frozenset({"aten", "prims", NAMESPACE})


def keeps_its_word(target: Any) -> bool:
    """Whether an operator surely does no more than its schema says."""
    return not isinstance(target, OpOverload) or target.namespace in _OWN_NAMESPACES


# Arguments with which an operator that can draw random numbers draws none.
_DRAWS_NONE = {"dropout_p": 0.0, "dropout": 0.0, "train": False, "training": False}


def draws(call: OpCall) -> bool:
    """Whether a call draws random numbers: attention without dropout, say, does not."""
    target = resolve_op(call.op)
    if not is_random(target):
        return False
    for position, argument in enumerate(schema_of(target).arguments):
        if argument.name in _DRAWS_NONE:
            given = call.args[position : position + 1] or (argument.default_value,)
            if call.kwargs.get(argument.name, given[0]) == _DRAWS_NONE[argument.name]:
                return False
    return True


@functools.cache
def is_view_op(name: str) -> bool:
    """Whether an operator gives its argument's memory seen differently (reshape may copy)."""
    if name in ("aten.reshape.default", "aten._unsafe_view.default"):
        return True
    if name.startswith(("python.", "higher_order.")):
        return False
    target = resolve_op(name)
    schema = schema_of(target)
    return not schema.is_mutable and any(made.alias_info is not None for made in schema.returns)
