"""One name for one thing: every kind of view-by-shape is a reshape, and two in a row are one."""

from __future__ import annotations

import torch
from torch import fx

from dovetail.passes.graphs import calls, escaping, value_of

aten = torch.ops.aten
_TO_RESHAPE = (aten.view.default, aten._unsafe_view.default)


def normalize_views(gm: fx.GraphModule) -> fx.GraphModule:
    """Turn views by shape into reshapes and skip the first of two in a row.

    A reshape is valid for any strides, so later passes and backends may change layouts.
    """
    for node in calls(gm, *_TO_RESHAPE):
        node.target = aten.reshape.default
    held = escaping(gm)
    for node in calls(gm, aten.reshape.default):
        source = node.args[0]
        if _is_inner_reshape(source) and node not in held and _is_plain(source.args[0]):
            node.args = (source.args[0], *node.args[1:])
    return gm


def _is_inner_reshape(node: object) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.reshape.default


def _is_plain(node: object) -> bool:
    """Contiguous, so that both reshapes are views of it and merging them copies nothing more."""
    if not isinstance(node, fx.Node):
        return False
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.is_contiguous()
