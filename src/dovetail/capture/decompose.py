"""Which operators are taken apart, and which stay whole because a backend claims them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail.capture import _torch
from dovetail.capture.from_fx import describe
from dovetail.capture.ops import OpOverload, is_random, op_name, resolve_op
from dovetail.errors import UnsupportedGraph
from dovetail.ir import Arg, Attr, OpCall, Ref, ScalarDesc, TensorDesc

Claims = Callable[[OpCall], bool]
Rule = Callable[..., Any]


@functools.cache
def core_decompositions() -> Mapping[Any, Rule]:
    """PyTorch's core ATen decompositions, less those of random operators.

    A decomposed random operator would draw other numbers than eager for the same seed.
    """
    table = _torch.core_aten_decompositions()
    return {op: rule for op, rule in table.items() if not is_random(op)}


def keeping_claimed(table: Mapping[Any, Rule], claims: Claims) -> dict[Any, Rule]:
    """The table, with each rule standing back where the backend claims the call."""
    return {op: _unless_claimed(op, rule, claims) for op, rule in table.items()}


def composite_rules(names: frozenset[str], claims: Claims) -> dict[Any, Rule]:
    """Rules for composite operators, which PyTorch takes apart before any table is asked."""
    rules = {}
    for name in sorted(names):
        op = resolve_op(name)
        rules[op] = _unless_claimed(op, _torch.composite_decomposition(op), claims)
    return rules


def export_table(
    table: Mapping[Any, Rule], composites: frozenset[str], claims: Claims
) -> dict[Any, Rule]:
    """Rules for a torch.export program, which holds composite operators whole.

    They are taken apart as under torch.compile, except those a backend names and claims.
    """
    rules = {
        op: _torch.composite_decomposition(op)
        for op in _torch.composite_operators()
        if op_name(op) not in composites
    }
    return rules | composite_rules(composites, claims) | keeping_claimed(table, claims)


def _unless_claimed(op: Any, rule: Rule, claims: Claims) -> Rule:
    name = op_name(op) if isinstance(op, OpOverload) else str(op)

    @functools.wraps(rule)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        try:
            claimed = claims(_call(name, args, kwargs))
        except UnsupportedGraph:
            claimed = False
        return NotImplemented if claimed else rule(*args, **kwargs)

    return decompose


def _call(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OpCall:
    """A call as it would stand in the graph, its result not known yet."""
    return OpCall(name, name, tuple(map(_arg, args)), {k: _arg(v) for k, v in kwargs.items()})


def _arg(value: Any) -> Arg:
    if isinstance(value, tuple | list):
        return tuple(map(_arg, value))
    desc = describe(value)
    if isinstance(desc, TensorDesc):
        return Ref("", desc)
    if isinstance(desc, ScalarDesc):
        return desc.size if desc.size is not None else value
    for kind in ("dtype", "device", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return Attr(kind, str(value).removeprefix("torch."))
    return value


@functools.cache
def extra_decompositions() -> Mapping[Any, Rule]:
    """Rules for operators that core ATen keeps but generated code is better off without."""
    table = _torch.named_decompositions(EXTRA)
    return {op: rule for op, rule in table.items() if not is_random(op)}


EXTRA = (
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "gelu_backward",
    "silu_backward",
    "sigmoid_backward",
    "tanh_backward",
    "threshold_backward",
    "hardtanh_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "nll_loss_forward",
    "nll_loss_backward",
    "mse_loss",
    "mse_loss_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "elu",
    "elu_backward",
    "hardswish",
    "hardsigmoid",
    "softplus",
    "logit",
    "addcmul",
    "addcdiv",
    "lerp",
    "_fused_rms_norm",
)
