"""Convolutions along one dimension as convolutions of images one pixel high.

Layouts are chosen, and weights packed, for images: a row of pixels with its channels together is
computed in tiles of registers, one that lies along the row is not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dovetail.passes.base import Pass
from dovetail.passes.constants import constant_nodes
from dovetail.passes.graphs import calls, insert_call, replace, value_of
from dovetail.passes.verify import fill_metadata

aten = torch.ops.aten
_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}  # of a height of one


def use_images(gm: fx.GraphModule) -> fx.GraphModule:
    """Rewrite each convolution along one dimension whose weight is constant."""
    found = [node for node in calls(gm, aten.convolution.default) if _is_along_one(node)]
    constant = constant_nodes(gm) if found else ()
    for node in found:
        if node.args[1] in constant:
            _rewrite(gm, node)
    return gm


def _is_along_one(node: fx.Node) -> bool:
    image, weight, *_ = node.args
    made = value_of(node)
    if not isinstance(image, fx.Node) or not isinstance(weight, fx.Node):
        return False
    return isinstance(made, torch.Tensor) and made.dim() == 3 and made.is_contiguous()


def _rewrite(gm: fx.GraphModule, node: fx.Node) -> None:
    image, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return insert_call(gm, node, target, *args, **kwargs)

    given = zip(_DEFAULTS.values(), (stride, padding, dilation, output_padding), strict=True)
    steps, pads, holes, more = ([first, *numbers] for first, numbers in given)
    flat = (call(aten.unsqueeze.default, each, 2) for each in (image, weight))
    wide = call(aten.convolution.default, *flat, bias, steps, pads, holes, transposed, more, groups)
    wide.meta |= {k: v for k, v in node.meta.items() if k != "val"}
    made = call(aten.squeeze.dim, wide, 2)
    fill_metadata(gm)
    if value_of(made).stride() != value_of(node).stride():
        made = call(
            aten.clone.default, made, memory_format=torch.contiguous_format
        )  # of a row with its channels together
    replace(node, made)


CONV1D = Pass("conv1d", use_images)
