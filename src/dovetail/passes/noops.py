"""Views and casts that change nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dovetail.capture.from_fx import describe, is_unknown
from dovetail.ir import TensorDesc
from dovetail.passes.graphs import calls, escaping, replace, returned, value_of, written

aten = torch.ops.aten

# Results share memory with the first argument anyway: equal descriptors mean equal tensors.
_VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.alias.default,
    aten.detach.default,
)
# Results are fresh memory: safe to skip only where nobody could tell.
_COPIES = (aten._to_copy.default, aten.clone.default, aten.constant_pad_nd.default)


def remove_noops(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace a view or copy by its source where the two cannot be told apart."""
    held, results = escaping(gm) | written(gm), returned(gm)
    for node in calls(gm, *_VIEWS):
        source = node.args[0]
        if node in results or not isinstance(source, fx.Node):
            continue
        if _same(node, source) and _keeps_offset(node):
            if node in held:
                held.add(source)
            replace(node, source)
    for node in calls(gm, *_COPIES):
        source = node.args[0]
        if node in held or source in held or not isinstance(source, fx.Node):
            continue
        if _same(node, source) and _keeps_values(node):
            replace(node, source)
    return gm


def _same(node: fx.Node, source: fx.Node) -> bool:
    """Whether both have the same dtype, shape, strides, device and lazy bits."""
    mine, theirs = value_of(node), value_of(source)
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return False
    if type(mine) is not type(theirs) or mine.layout is not torch.strided:
        return False
    if mine.is_conj() != theirs.is_conj() or mine.is_neg() != theirs.is_neg():
        return False
    desc = describe(mine)
    return isinstance(desc, TensorDesc) and desc == describe(theirs) and not is_unknown(desc)


def _keeps_offset(node: fx.Node) -> bool:
    """A slice of equal shape starts where its source does; a permutation moves nothing."""
    if node.target is aten.permute.default:
        return list(_dims(node)) == sorted(_dims(node))
    if node.target is aten.transpose.int:
        rank = value_of(node).dim() or 1
        first, second = (int(d) % rank for d in node.args[1:3])
        return first == second
    return True


def _dims(node: fx.Node) -> Any:
    rank = value_of(node).dim()
    return [d % rank for d in node.args[1]]


def _keeps_values(node: fx.Node) -> bool:
    if node.target is aten.constant_pad_nd.default:
        return all(isinstance(p, int) and p == 0 for p in node.args[1])
    return True
