"""Convolutions of images of one pixel as products of matrices.

Squeeze-and-excite has two in every block. A library's convolution takes longer to begin with them
than their few products take; a product of few rows reads each weight once, as it lies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dovetail.passes.base import Pass
from dovetail.passes.graphs import calls, insert_call, replace, value_of
from dovetail.passes.verify import fill_metadata

aten = torch.ops.aten
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def use_products(gm: fx.GraphModule) -> fx.GraphModule:
    """Rewrite each convolution whose image, weight and result have one place each."""
    for node in calls(gm, aten.convolution.default):
        if _is_of_one_pixel(node):
            _rewrite(gm, node)
    return gm


def _rank(node: fx.Node) -> int:
    """The dimensions of a call's result."""
    return int(value_of(node).dim())


def _is_of_one_pixel(node: fx.Node) -> bool:
    image, weight, _, _, pads, _, transposed, _, groups = node.args
    values = [value_of(each) for each in (image, weight, node) if isinstance(each, fx.Node)]
    if transposed or groups != 1 or any(pads) or len(values) < 3:
        return False
    return all(
        isinstance(value, torch.Tensor)
        and value.dim() == _rank(node)
        and value.is_floating_point()
        and all(isinstance(n, int) and n == 1 for n in value.shape[2:])
        for value in values
    )


def _rewrite(gm: fx.GraphModule, node: fx.Node) -> None:
    image, weight, bias, *_ = node.args
    places = list(range(2, _rank(node)))

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return insert_call(gm, node, target, *args, **kwargs)

    rows, columns = (call(aten.squeeze.dims, each, places) for each in (image, weight))
    right = call(aten.permute.default, columns, [1, 0])
    if bias is None:
        made = call(aten.mm.default, rows, right)
    else:
        made = call(aten.addmm.default, bias, rows, right)
    made.meta |= {k: v for k, v in node.meta.items() if k != "val"}
    for place in places:
        made = call(aten.unsqueeze.default, made, place)
    fill_metadata(gm)
    wanted, found = value_of(node), value_of(made)
    if found.stride() != wanted.stride():
        dense = torch.contiguous_format
        kind = dense if wanted.is_contiguous() else _FORMATS.get(wanted.dim(), dense)
        made = call(aten.clone.default, made, memory_format=kind)
        fill_metadata(gm)
    replace(node, made)


PIXEL = Pass("pixel", use_products)
