"""Which operators are taken apart, and which stay whole because a backend claims them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail.capture._torch.decompositions import (
    composite_decomposition,
    composite_operators,
    core_aten_decompositions,
    export_composites,
    lstm_layer,
    named_decompositions,
)
from dovetail.capture._torch.quantized import quantized_rules
from dovetail.capture.from_fx import describe
from dovetail.capture.ops import OpOverload, is_random, op_name, resolve_op
from dovetail.errors import UnsupportedGraph
from dovetail.ir import Arg, Attr, OpCall, Ref, ScalarDesc, TensorDesc

Claims = Callable[[OpCall], bool]
Rule = Callable[..., Any]
# What a backend thinks of operators: those it would take apart, and the calls it wants whole.
Opinion = tuple[Mapping[Any, Rule], Claims]


def core_decompositions() -> Mapping[Any, Rule]:
    """PyTorch's core ATen decompositions, less those of random operators.

    A decomposed random operator would draw other numbers than eager for the same seed.
    """
    rules, quantized = _core_decompositions(), quantized_rules()
    return {**rules, **quantized} if quantized else rules


@functools.cache
def _core_decompositions() -> Mapping[Any, Rule]:
    table = core_aten_decompositions()
    whole = set(map(resolve_op, _WHOLE))
    rules = {op: rule for op, rule in table.items() if not is_random(op) and op not in whole}
    own: dict[str, Rule] = {
        "aten._efficientzerotensor.default": _zeros,
        "aten.native_dropout_backward.default": _dropout_backward,
        "aten.roll.default": _roll,
    }
    return rules | {resolve_op(name): rule for name, rule in own.items()}


# Taken apart, the first two are index_put, which counts negative indices from the end where eager
# refuses them; the others are index_copy, which refuses them where eager counts.
_WHOLE = (
    "aten.index_add.default",
    "aten.index_copy.default",
    "aten.index_fill.int_Scalar",
    "aten.index_fill.int_Tensor",
)


def _zeros(size: Sequence[int], **kwargs: Any) -> Any:
    """Zeros with memory behind them: a tensor without any is of use to autograd alone."""
    return torch.zeros(size, **{k: v for k, v in kwargs.items() if k != "pin_memory"})


def _dropout_backward(grad: Any, mask: Any, scale: float) -> Any:
    """Laid out as any product, which is as eager's; PyTorch's own copies it into rows."""
    return grad * (mask.type_as(grad) * scale)


def _roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """A roll as eager does it, joined of two parts: the result is laid out as eager's.

    PyTorch's own decomposition, and its metadata for the operator, are row-major always.
    """
    if not dims:
        return _roll(x.reshape(-1), shifts, (0,)).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        if x.numel() == 0:
            return x.clone()
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


def keeping_claimed(opinions: Sequence[Opinion], *, frozen: bool = False) -> dict[Any, Rule]:
    """The tables as one: the first backend that claims a call, or has a rule for it, decides.

    ``frozen``: parameters are constants, so that more of what reads them pays.
    """
    found: dict[Any, Rule] = {}
    asked: tuple[Claims, ...] = ()
    for table, claims in opinions:
        asked = (*asked, claims)
        for op, rule in table.items():
            if op not in found:  # those after it are not asked
                chosen = _lstm_layer if frozen and rule is _lstm_layer_of_one else rule
                found[op] = functools.partial(_unless_claimed, op, chosen, asked)
    return found


def composite_rules(names: frozenset[str], claims: Claims) -> dict[Any, Rule]:
    """Rules for composite operators, which PyTorch takes apart before any table is asked."""
    rules: dict[Any, Rule] = {}
    for name in sorted(names):
        op = resolve_op(name)
        rule = composite_decomposition(op)
        rules[op] = functools.partial(_unless_claimed, op, rule, (claims,))
    return rules


def export_table(opinions: Sequence[Opinion], composites: frozenset[str]) -> dict[Any, Rule]:
    """Rules for a torch.export program, which holds composite operators whole.

    They are taken apart as under torch.compile, except those the first backend names and claims.
    """
    rules = {
        op: composite_decomposition(op)
        for op in composite_operators()
        if op_name(op) not in composites
    }
    opinions = [(_with_composites(table), claims) for table, claims in opinions]
    return rules | composite_rules(composites, opinions[0][1]) | keeping_claimed(opinions)


def _with_composites(table: Mapping[Any, Rule]) -> Mapping[Any, Rule]:
    """A table that has core ATen's rules has those of composite operators too."""
    if not core_decompositions().keys() <= table.keys():
        return table
    rules = export_composites()
    return {op: rule for op, rule in rules.items() if not is_random(op)} | dict(table)


def _unless_claimed(
    op: Any, rule: Rule, asked: tuple[Claims, ...], /, *args: Any, **kwargs: Any
) -> Any:
    """What the rule makes of a call, unless one of those asked claims it.

    A partial of this is made for each of a thousand operators at every compilation, and few are
    ever called: what takes time is done here.
    """
    name = op_name(op) if isinstance(op, OpOverload) else str(op)
    try:
        call = _call(name, args, kwargs)
        claimed = any(claims(call) for claims in asked)
    except UnsupportedGraph:
        claimed = False
    return NotImplemented if claimed else rule(*args, **kwargs)


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
    table = named_decompositions(EXTRA)
    rules = {op: rule for op, rule in table.items() if not is_random(op)}
    for op in [op for op in rules if op_name(op).startswith(_BATCH_NORMS)]:
        rules[op] = functools.partial(_unless_without_epsilon, rules[op])
    for name in ("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"):
        rules[resolve_op(name)] = _class_loss
    rules[resolve_op("aten.mkldnn_rnn_layer.default")] = _lstm_layer_of_one
    return rules


# Forward batch norms that take an epsilon as their last argument and compute statistics.
_BATCH_NORMS = (
    "aten.native_batch_norm.",
    "aten._native_batch_norm_legit.",
    "aten._native_batch_norm_legit_functional.",
)


def _unless_without_epsilon(rule: Rule, *args: Any, **kwargs: Any) -> Any:
    """What the rule makes of a batch norm with an epsilon; ATen's zero variance is no division."""
    epsilon = kwargs["eps"] if "eps" in kwargs else args[-1]
    return NotImplemented if epsilon == 0 else rule(*args, **kwargs)


# Steps of a recurrence up to which it is written out: 10 ms of a first call each.
_MOST_STEPS = 128
_LSTM = 2  # ideep's number of the kind


def _lstm_layer(x: Any, *args: Any) -> Any:
    """One layer of an LSTM in one direction as a product for all steps, then step by step.

    PyTorch makes a call of oneDNN of it where nothing is trained; with packed weights kernels take
    0.4 to 0.85 of its time.
    """
    *weights, hidden, cell, reverse, lengths, kind, _, layers, biases, both, _, train = args
    steps = x.shape[0]
    plain = kind == _LSTM and layers == 1 and not (lengths or both or train)
    plain = plain and x.dtype == torch.float32
    if not plain or not isinstance(steps, int) or not 0 < steps <= _MOST_STEPS:
        return NotImplemented
    state = hidden.squeeze(0), cell.squeeze(0)
    out, (hidden, cell) = lstm_layer(x, state, weights, biases, reverse)
    return out, hidden.unsqueeze(0), cell.unsqueeze(0), x.new_empty(0, dtype=torch.uint8)


def _lstm_layer_of_one(x: Any, *args: Any) -> Any:
    """The same for a batch of one, whose kernels read weights as they lie.

    For more of them each step would lay out weights that are not packed: up to twice oneDNN's time.
    """
    return _lstm_layer(x, *args) if x.shape[1] == 1 else NotImplemented


def _class_loss(
    scores: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> tuple[Any, Any]:
    """The loss by classes, and the total weight.

    What the scores are gathered by is itself looked up: a class that does not exist is eager's
    IndexError then, where a gather out of range is a RuntimeError.
    """
    dim = 1 if scores.dim() > 1 else 0
    count = scores.shape[dim]
    kept = target != ignore_index
    place = torch.where(kept, target, 0)
    place = torch.where(place < 0, place - count, place)  # no class counts from the end
    place = _looked_up(torch.arange(count, device=scores.device), place)
    found = -scores.gather(dim, place.unsqueeze(dim)).squeeze(dim)
    weights = kept if weight is None else torch.where(kept, _looked_up(weight, place), 0)
    loss = torch.where(kept, found if weight is None else found * weights, 0)
    if reduction == 0:
        return loss, scores.new_zeros(()) if dim else weights.sum().to(scores.dtype)
    total = weights.sum().to(scores.dtype)
    return loss.sum() / total if reduction == 1 else loss.sum(), total


def _looked_up(table: Any, place: Any) -> Any:
    """Elements of a table; a single place is not taken for a number to wait for."""
    return table[place] if place.dim() else table[place.unsqueeze(0)].squeeze(0)


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
    "nll_loss2d_forward",
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
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
)
