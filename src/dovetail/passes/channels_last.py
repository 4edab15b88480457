"""Images of a training step channels-last, where its convolutions gain more than copies cost.

A forward and a backward graph share what one saves for the other, so that the layout of images is
chosen before there are two of them. Which convolutions have theirs channels-last is a minimum cut,
as for graphs without gradients (``schedule/layout.py``). Calls that follow the layout of what they
read are described anew; all others, and whoever takes the results, get the strides of before.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.symbols import fake_mode_of
from dovetail.capture.from_fx import describe
from dovetail.capture.metadata import compute
from dovetail.capture.ops import is_random, is_write
from dovetail.min_cut import MinCut
from dovetail.passes.base import Pass
from dovetail.passes.graphs import calls, value_of
from dovetail.passes.strides import copy_with_strides, output_descs, restore
from dovetail.passes.verify import fill_metadata

aten = torch.ops.aten
# Their images, by position among their arguments.
_IMAGES = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1)}
# Beside pointwise calls, those whose results lie as the image does that they read.
_FOLLOWING = frozenset(
    {
        aten._to_copy.default,
        aten.avg_pool2d.default,
        aten.avg_pool2d_backward.default,
        aten.cat.default,
        aten.clone.default,
        aten.constant_pad_nd.default,
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.upsample_bilinear2d.vec,
        aten.upsample_bilinear2d_backward.default,
        aten.upsample_nearest2d.vec,
        aten.upsample_nearest2d_backward.default,
    }
)
# Calls that read any layout alike; their results are sums, of no layout worth a choice.
_READING = frozenset(
    {
        aten.mean.default,
        aten.mean.dim,
        aten.sum.default,
        aten.sum.dim_IntList,
        aten.var_mean.correction,
    }
)
# Picoseconds an element to copy an image to another layout, as a kernel or as part of one.
_COPY = 150
# What PyTorch's convolutions take beside their work, on one thread of an x86-64-v4, of 42 layers:
# an element of row-major images, which they copy, and a weight of channels-last ones, from so many
# on and of several taps. The backward call makes two products; of very many weights the one that
# sums over pixels has no good kernel. In picoseconds.
_ROW_MAJOR = {aten.convolution.default: 180, aten.convolution_backward.default: 500}
_MANY_WEIGHTS, _WEIGHT, _TOO_MANY_WEIGHTS, _BESIDE = 1 << 17, 1000, 1 << 21, 8000


def lay_out_images(gm: fx.GraphModule) -> fx.GraphModule:
    """Give images the layouts that cost a training step least."""
    convolutions = [n for n in calls(gm, *_IMAGES) if _is_of_images(n)]
    if not convolutions or not _has_fixed_sizes(gm):
        return gm
    chosen = _channels_last(gm, convolutions)
    if not chosen:
        return gm
    expected = output_descs(gm)
    _Rewriter(gm, chosen).run()
    return restore(gm, expected)


def _is_image(value: Any) -> bool:
    """Whether a value has two layouts: channels that lie together or do not."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.device.type != "cpu":
        return False
    return all(value.stride())  # else it is a smaller tensor, expanded


def _is_of_images(node: fx.Node) -> bool:
    """Whether a call is a convolution that has the choice."""
    images = [node.args[place] for place in _IMAGES.get(node.target, ())]
    values = [value_of(n) for n in images if isinstance(n, fx.Node)]
    return bool(values) and all(
        _is_image(v) and v.dtype in (torch.float32, torch.bfloat16) for v in values
    )


def _has_fixed_sizes(gm: fx.GraphModule) -> bool:
    values = [value_of(n) for n in gm.graph.find_nodes(op="placeholder")]
    sizes = [n for v in values for n in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    return not any(isinstance(n, torch.SymInt) for n in sizes)


# ---- which convolutions ------------------------------------------------------------------------


def _channels_last(gm: fx.GraphModule, convolutions: list[fx.Node]) -> set[fx.Node]:
    """The convolutions whose images are to be channels-last."""
    cut = MinCut()
    for node in convolutions:
        row_major, last = _picoseconds(node)
        cut.add(node, cut.right, last)
        cut.add(cut.left, node, row_major)
    sides: dict[fx.Node, object] = {}
    for node in calls(gm):
        if node.target is operator.getitem and node.args[0] in sides:
            sides[node] = sides[node.args[0]]
            continue
        if node in convolutions or _follows(node):
            sides[node] = node
        if node.target in _READING:
            continue
        for image in _images_of(node):
            cost = _COPY * value_of(image).numel()
            maker, reader = sides.get(image, cut.right), sides.get(node, cut.right)
            cut.add(maker, reader, cost)
            cut.add(reader, maker, cost)
    found = cut.lefts()
    return {node for node in convolutions if node in found}


def _picoseconds(node: fx.Node) -> tuple[int, int]:
    """What the choice adds to a convolution's time, row-major and channels-last."""
    forward = node.target == aten.convolution.default
    images = [*_images_of(node), *([node] if forward else [])]
    row_major = _ROW_MAJOR[node.target] * sum(value_of(n).numel() for n in images)
    weight = value_of(node.args[1 if forward else 2])
    count = weight.numel()
    if count <= _MANY_WEIGHTS or math.prod(weight.shape[2:]) == 1:
        return row_major, 0
    summed = not forward and count > _TOO_MANY_WEIGHTS
    return row_major, (_BESIDE if summed else _WEIGHT) * count


def _images_of(node: fx.Node) -> list[fx.Node]:
    """The images among a call's arguments, not a convolution's weight."""
    places = _IMAGES.get(node.target)
    given = node.all_input_nodes if places is None else [node.args[n] for n in places]
    return [n for n in given if isinstance(n, fx.Node) and _is_image(value_of(n))]


def _follows(node: fx.Node) -> bool:
    """Whether a call's result lies as the images do that it reads."""
    target = node.target
    if is_random(target) or is_write(target) or node.kwargs.get("memory_format") is not None:
        return False
    return target in _FOLLOWING or torch.Tag.pointwise in getattr(target, "tags", ())


# ---- the graph with their images so ------------------------------------------------------------


@dataclass
class _Rewriter:
    """Copies images before the chosen convolutions, and describes anew what follows them."""

    gm: fx.GraphModule
    chosen: set[fx.Node]
    traced: dict[fx.Node, torch.Tensor] = field(
        default_factory=dict
    )  # of values that lie otherwise
    changed: set[fx.Node] = field(default_factory=set)  # these, and calls with such among results
    copies: dict[tuple[fx.Node, bool], fx.Node] = field(default_factory=dict)

    def run(self) -> None:
        """Go through the graph in order."""
        mode = fake_mode_of(value_of(n) for n in self.gm.graph.nodes if "val" in n.meta)
        with mode:
            for node in calls(self.gm):
                self._visit(node)

    def _visit(self, node: fx.Node) -> None:
        if node in self.chosen:
            for image in _images_of(node):
                node.replace_input_with(image, self._copied(image, last=True))
        elif not (_follows(node) or node.target in _READING or node.target is operator.getitem):
            for given in self.changed.intersection(node.all_input_nodes):
                node.replace_input_with(given, self._copied(given, last=False))
        if node in self.chosen or not self.changed.isdisjoint(node.all_input_nodes):
            self._describe(node)

    def _describe(self, node: fx.Node) -> None:
        """Note what a call returns now."""
        before, value = value_of(node), compute(self.gm, node)
        if describe(value) != describe(before):
            node.meta["val"] = value
            self.changed.add(node)
            self.traced[node] = before

    def _copied(self, node: fx.Node, *, last: bool) -> fx.Node:
        """A value channels-last, or as it was traced; one copy serves all."""
        value = value_of(node)
        strides = _channels_last_strides(value) if last else self.traced[node].stride()
        if value.stride() == strides:
            return node
        if (node, last) not in self.copies:
            made = copy_with_strides(self.gm, _behind(node), node, tuple(value.shape), strides)
            fill_metadata(self.gm)
            self.copies[node, last] = made
        return self.copies[node, last]


def _channels_last_strides(value: torch.Tensor) -> tuple[int, ...]:
    """Those by which PyTorch takes an image of one channel, too, for channels-last."""
    image = torch.empty(value.shape, memory_format=torch.channels_last, device="meta")
    return tuple(image.stride())


def _behind(node: fx.Node) -> fx.Node:
    """The call before which a copy of a value is made."""
    found = node.next
    while found.op in ("placeholder", "get_attr"):
        found = found.next
    return found


CHANNELS_LAST = Pass("channels_last", lay_out_images)
