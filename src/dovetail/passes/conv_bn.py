"""Convolution + batch norm in inference, where the weights are constants: one convolution.

A batch norm that was taken apart is folded step by step: what adds a constant to each channel of a
convolution's result, or multiplies it by one, whatever it comes from.

The new weights are computed in the graph from the old ones; as everything they depend on is
constant, the constants pass then moves that computation out of the per-call graph.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dovetail.passes.constants import constant_nodes
from dovetail.passes.graphs import calls, insert_call, replace, value_of
from dovetail.passes.verify import fill_metadata

aten = torch.ops.aten


def fold_conv_bn(gm: fx.GraphModule) -> fx.GraphModule:
    """Fold each batch norm that directly follows a convolution into its weights."""
    if not any(True for _ in calls(gm, aten.convolution.default)):
        return gm
    constant = constant_nodes(gm)
    for norm in calls(gm, aten._native_batch_norm_legit_no_training.default):
        conv = norm.args[0]
        if _is_foldable(norm, conv, constant):
            _fold(gm, conv, norm)
    fill_metadata(gm)
    for conv in calls(gm, aten.convolution.default):
        batched = value_of(conv).dim() == value_of(conv.args[1]).dim()
        found = conv if batched else None
        while found is not None:
            found = _fold_step(gm, found, constant)
    return gm


def _is_foldable(norm: fx.Node, conv: Any, constant: set[fx.Node]) -> bool:
    if not isinstance(conv, fx.Node) or conv.target is not aten.convolution.default:
        return False
    if len(conv.users) != 1 or _output(norm) is None:
        return False
    if conv.args[6] and conv.args[8] != 1:  # transposed and grouped: channels interleave
        return False
    weights = [*conv.args[1:3], *norm.args[1:5]]
    same_dtype = all(value_of(w).is_floating_point() for w in weights if w is not None)
    return same_dtype and all(w is None or w in constant for w in weights)


def _output(norm: fx.Node) -> fx.Node | None:
    """The normalised tensor, if that is all that is used of the result."""
    users = [u for u in norm.users if u.users or u.op == "output"]
    if len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0:
        return users[0]
    return None


def _fold(gm: fx.GraphModule, conv: fx.Node, norm: fx.Node) -> None:
    weight, bias = conv.args[1], conv.args[2]
    gamma, beta, mean, var, _, eps = norm.args[1:7]

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return insert_call(gm, norm, target, *args, **kwargs)

    scale = call(aten.rsqrt.default, call(aten.add.Scalar, var, eps))
    scale = scale if gamma is None else call(aten.mul.Tensor, scale, gamma)
    shift = call(aten.neg.default, mean) if bias is None else call(aten.sub.Tensor, bias, mean)
    shift = call(aten.mul.Tensor, shift, scale)
    shift = shift if beta is None else call(aten.add.Tensor, shift, beta)
    dtype = value_of(weight).dtype
    column = call(aten.reshape.default, scale, _weight_shape(conv))
    scaled = call(aten.mul.Tensor, weight, column)
    scaled, shift = (call(aten._to_copy.default, x, dtype=dtype) for x in (scaled, shift))
    folded = call(aten.convolution.default, conv.args[0], scaled, shift, *conv.args[3:])
    result = _output(norm)
    assert result is not None
    folded.meta = {k: v for k, v in result.meta.items() if k != "val"}
    replace(result, folded)


def _weight_shape(conv: fx.Node) -> list[int]:
    """The shape under which a per-channel vector scales the convolution's output channels."""
    rank = value_of(conv).dim()
    transposed = conv.args[6]
    return [1, -1, *[1] * (rank - 2)] if transposed else [-1, *[1] * (rank - 1)]


# ---- batch norms that were taken apart -------------------------------------------------------

_STEPS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)


def _fold_step(gm: fx.GraphModule, conv: fx.Node, constant: set[fx.Node]) -> fx.Node | None:
    """The convolution that does what its only user does to each channel; None where none can."""
    user = next(iter(conv.users), None)
    if len(conv.users) != 1 or user is None or user.target not in _STEPS or user.kwargs:
        return None
    image, weight, bias, *rest = conv.args
    first, second = user.args
    other = second if first is conv else first
    if not _is_of_channels(other, conv, constant) or (user.target is _STEPS[1] and other is first):
        return None
    if weight not in constant or not (bias is None or bias in constant):
        return None
    if rest[3] and rest[5] != 1:  # transposed and grouped: channels interleave
        return None

    def call(target: Any, *args: Any) -> fx.Node:
        made = insert_call(gm, user, target, *args)
        constant.add(made)
        return made

    channels = call(aten.reshape.default, other, [-1])
    if user.target is aten.mul.Tensor:
        column = call(aten.reshape.default, channels, _weight_shape(conv))
        weight = call(aten.mul.Tensor, weight, column)
        bias = None if bias is None else call(aten.mul.Tensor, bias, channels)
    elif bias is not None:
        bias = call(user.target, bias, channels)
    else:
        channels = call(aten.expand.default, channels, [value_of(conv).shape[1]])
        bias = channels if user.target is aten.add.Tensor else call(aten.neg.default, channels)
    folded = insert_call(gm, user, aten.convolution.default, image, weight, bias, *rest)
    folded.meta = dict(user.meta)
    replace(user, folded)
    return folded


def _is_of_channels(other: Any, conv: fx.Node, constant: set[fx.Node]) -> bool:
    """Whether a constant has a number for each channel of a convolution's result, or one in all."""
    if other not in constant:
        return False
    values = [value_of(node) for node in (other, conv)]
    if not all(isinstance(v, torch.Tensor) and v.dtype == torch.float32 for v in values):
        return False
    shape = [1] * (values[1].dim() - values[0].dim()) + list(values[0].shape)
    if len(shape) != values[1].dim():
        return False
    of_channels = shape.pop(1) in (1, values[1].shape[1])
    return of_channels and all(isinstance(n, int) and n == 1 for n in shape)
