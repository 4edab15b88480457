"""Convolutions in channels-last layout, where that costs less than it saves.

PyTorch's CPU convolutions take channels-last tensors as they are, and copy others to a layout of
their own and back. So a convolution gets its input and its weights in channels-last; what follows
it element by element keeps that layout, and everything else sees the strides it was traced with.
Constant weights are laid out once. Those that vary are copied at each call, which takes a generated
kernel a fifth of PyTorch's time. Where weights are heavy, the tensors must outweigh them: for small
images with many channels PyTorch's other kernels are faster.

What takes rows and columns of such a tensor by number (upsampling, taken apart) is laid out alike,
though eager's result would not be: it is copied, which is fused with it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.symbols import fake_mode_of
from dovetail.capture.metadata import compute
from dovetail.capture.ops import OpOverload
from dovetail.passes.base import Pass
from dovetail.passes.constants import constant_nodes
from dovetail.passes.graphs import calls, insert_call, is_view, value_of
from dovetail.passes.strides import copy_with_strides

aten = torch.ops.aten
_LAST = torch.channels_last
LIGHT = 1 << 18  # elements of weights whose copy is less than what a convolution saves
HEAVY = 1 << 20  # elements of constant weights that are too many for small images
# Operators beside the elementwise ones that give channels-last results for such operands.
_FOLLOWING = {
    aten._native_batch_norm_legit_no_training.default,
    aten._adaptive_avg_pool2d.default,  # noqa: SLF001
    aten.avg_pool2d.default,
    aten.cat.default,
    aten.constant_pad_nd.default,
    aten.max_pool2d_with_indices.default,
    aten.mean.dim,
    aten.native_group_norm.default,
    aten.slice.Tensor,
    aten.split_with_sizes.default,
    aten.upsample_bilinear2d.vec,
    aten.upsample_nearest2d.vec,
}


def use_channels_last(gm: fx.GraphModule) -> fx.GraphModule:
    """Lay out convolutions' tensors channels-last in an inference graph of known sizes."""
    convolutions = [n for n in calls(gm, aten.convolution.default) if _is_known(n)]
    if gm.meta.get("kind") != "inference" or not convolutions or _has_symbols(gm):
        return gm
    constant = constant_nodes(gm)
    mode = fake_mode_of(value_of(n) for n in convolutions)
    if mode is None:
        return gm
    with mode:
        return _Layouts(gm, set(convolutions), constant).apply()


def _is_known(node: fx.Node) -> bool:
    value = value_of(node)
    on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 4
    return on_cpu and value.dtype in (torch.float32, torch.bfloat16)


def _has_symbols(gm: fx.GraphModule) -> bool:
    values = [value_of(n) for n in gm.graph.nodes]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    return any(not isinstance(size, int) for t in tensors for size in t.shape)


def _pays(node: fx.Node, constant: set[fx.Node]) -> bool:
    """Whether a convolution gains more than the copies of its weights and its input take."""
    source, weight = node.args[0], node.args[1]
    if value_of(weight).is_contiguous(memory_format=_LAST):
        return True
    weights = value_of(weight).numel()
    tensors = value_of(source).numel() + value_of(node).numel()
    copied = 1 if value_of(source).is_contiguous(memory_format=_LAST) else 2
    few = HEAVY if weight in constant else LIGHT
    return weights <= few or tensors > copied * weights  # type: ignore[no-any-return]


class _Layouts:
    """Walks over a graph once, in order, and keeps track of whose strides have changed."""

    def __init__(
        self, gm: fx.GraphModule, convolutions: set[fx.Node], constant: set[fx.Node]
    ) -> None:
        self.gm, self.convolutions, self.constant = gm, convolutions, constant
        self.before = {n: value_of(n) for n in gm.graph.nodes}
        self.moved: set[fx.Node] = set()
        self.copies: dict[tuple[fx.Node, bool], fx.Node] = {}  # (node, channels-last?) → copy

    def apply(self) -> fx.GraphModule:
        """Rewrite the graph."""
        for node in list(self.gm.graph.nodes):
            if node.op == "call_function":
                self._visit(node)
        return self.gm

    def _visit(self, node: fx.Node) -> None:
        if node in self.convolutions and _pays(node, self.constant):
            self._lay_out(node)
        elif any(n in self.moved for n in node.all_input_nodes):
            if _takes_points(node) and node.args[0] in self.moved:
                self._lay_out_result(node)
                return
            if not _follows(node):
                self._restore_inputs(node)
                return
        else:
            return
        self._recompute(node)

    def _lay_out(self, node: fx.Node) -> None:
        source, weight, bias, *rest = node.args
        source, weight = (self._copy(n, node, last=True) for n in (source, weight))
        node.args = (source, weight, bias, *rest)

    def _lay_out_result(self, node: fx.Node) -> None:
        """Put a copy in the place of a result that is not channels-last, though its source is."""
        self._recompute(node)
        made = self._copied(node, node.next, last=True)
        node.replace_all_uses_with(made, lambda user: user not in (made, user.graph.output_node()))
        self.before[made] = self.before[node]
        self.moved.add(made)
        if node not in self.moved:
            self.copies[made, False] = node

    def _restore_inputs(self, node: fx.Node) -> None:
        given = {
            n: self._copy(n, node, last=False) for n in node.all_input_nodes if n in self.moved
        }
        for old, new in given.items():
            node.replace_input_with(old, new)

    def _copy(self, source: Any, user: fx.Node, *, last: bool) -> Any:
        """The node itself where its layout fits, else a copy of it, made once."""
        if last and value_of(source).is_contiguous(memory_format=_LAST):
            return source
        if (source, last) not in self.copies:
            made = self._copied(source, user, last=last)
            self.copies[source, last] = made
        return self.copies[source, last]

    def _copied(self, source: fx.Node, user: fx.Node, *, last: bool) -> fx.Node:
        if last:
            made = insert_call(self.gm, user, aten.clone.default, source, memory_format=_LAST)
        else:
            value = self.before[source]
            layout = tuple(value.shape), tuple(value.stride())
            made = copy_with_strides(self.gm, user, source, *layout)
        for node in (*made.all_input_nodes, made):
            if "val" not in node.meta:
                node.meta["val"] = compute(self.gm, node)
        return made

    def _recompute(self, node: fx.Node) -> None:
        node.meta["val"] = compute(self.gm, node)
        if _strides(value_of(node)) != _strides(self.before[node]):
            self.moved.add(node)


def _follows(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem or target in _FOLLOWING:
        return True
    pointwise = isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags
    return pointwise and not is_view(node)


def _takes_points(node: fx.Node) -> bool:
    """Whether a node takes points of an image by numbers, the same of every channel."""
    if node.target is not aten.index.Tensor or value_of(node).dim() != 4:
        return False
    places: Any = node.args[1]
    return len(places) > 2 and places[0] is None and places[1] is None


def _strides(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_strides(item) for item in value]
    return tuple(value.stride()) if isinstance(value, torch.Tensor) else None


CHANNELS_LAST = Pass("channels_last", use_channels_last, subgraphs=False)
