"""Layouts that a backend chose for a segment, written into the FX graph that it was read from.

A training graph is laid out so before it is cut in two: what the forward pass saves lies as the
backward pass reads it, and both halves are described as they run.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.symbols import fake_mode_of
from dovetail.capture.from_fx import outputs_of
from dovetail.capture.metadata import compute
from dovetail.capture.ops import resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.ir import Arg, Attr, OpCall, Ref, Segment
from dovetail.ir.call import leaves
from dovetail.ir.segment import ValueKey
from dovetail.ir.tensor import Desc, TensorDesc
from dovetail.passes.graphs import value_of
from dovetail.passes.strides import copy_with_strides
from dovetail.passes.verify import fill_metadata

aten = torch.ops.aten
# Their results lie as their operands do, which PyTorch's fake tensors know only where there is a
# library to ask: not in a build without it.
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


def write_layouts(gm: fx.GraphModule, before: Segment, after: Segment) -> fx.GraphModule:
    """The graph, read as ``before``, with the strides and the changes of layout of ``after``."""
    with fake_mode_of(value_of(node) for node in gm.graph.nodes if "val" in node.meta):
        _LayoutWriter(gm, before).write(after)
    fill_metadata(gm)
    return gm


class _LayoutWriter:
    """Goes through the calls in order, with the node that each value is found at by then."""

    def __init__(self, gm: fx.GraphModule, before: Segment) -> None:
        self.gm, self.before = gm, before
        self.old = {call.name: call for call in before.calls}
        self.nodes = {node.name: node for node in gm.graph.nodes}
        self.expected = [node and value_of(node) for node in _outputs(gm)]
        self.keys: dict[fx.Node, ValueKey] = {}  # of the nodes that the segment was read from
        self.now: dict[ValueKey, fx.Node] = {}
        for node in gm.graph.nodes:
            self._name(node)
        self.changed = set[fx.Node]()  # nodes that are described otherwise than they were

    def _name(self, node: fx.Node) -> None:
        key: ValueKey = (node.name, ())
        if node.target is operator.getitem:
            name, path = self.keys[node.args[0]]
            key = name, (*path, node.args[1])
        self.keys[node] = key
        self.now.setdefault(key, node)

    def write(self, after: Segment) -> None:
        """Write all of it; what is added comes right before what was there next."""
        added: list[OpCall] = []
        for call in after.calls:
            added.append(call)
            if call.name in self.old:
                self._insert(added[:-1], self.nodes[call.name])
                self._change(self.nodes[call.name], call)
                added.clear()
        output = self.gm.graph.output_node()
        self._insert(added, output)
        self._redirect(output, _renamed(self.before.outputs, after.outputs))
        self._keep_strides(output)

    def _keep_strides(self, output: fx.Node) -> None:
        """Give results the strides they had also along dimensions of one element."""
        results = list(output.args[0])
        for n, (node, value) in enumerate(zip(_outputs(self.gm), self.expected, strict=True)):
            if isinstance(value, torch.Tensor) and value_of(node).stride() != value.stride():
                with self.gm.graph.inserting_before(output):
                    given = (node, [*value.shape], [*value.stride()])
                    results[n] = self.gm.graph.call_function(aten.as_strided.default, given)
        output.args = (tuple(results),)

    def _insert(self, added: list[OpCall], before: fx.Node) -> None:
        for call in added:
            args = tuple(map(self._argument, call.args))
            kwargs = {name: self._argument(arg) for name, arg in call.kwargs.items()}
            with self.gm.graph.inserting_before(before):
                node = self.gm.graph.call_function(resolve_op(call.op), args, kwargs)
            node.meta["val"] = compute(self.gm, node)
            self.now[call.name, ()] = node

    def _argument(self, arg: Arg) -> Any:
        if isinstance(arg, tuple):
            return list(map(self._argument, arg))
        if isinstance(arg, Ref):
            return self.now[arg.name, arg.path]
        return to_torch(arg) if isinstance(arg, Attr) else arg

    def _redirect(self, node: fx.Node, renamed: Mapping[ValueKey, ValueKey]) -> None:
        """Have a node use what its operands are now."""

        def now(used: fx.Node) -> fx.Node:
            key = self.keys.get(used)
            return used if key is None or key not in renamed else self.now[renamed[key]]

        node.args = fx.node.map_arg(node.args, now)
        node.kwargs = fx.node.map_arg(node.kwargs, now)

    def _change(self, node: fx.Node, call: OpCall) -> None:
        """Let a call read what it is to read, and its results lie as they are to lie."""
        old, given = self.old[call.name], node.all_input_nodes
        self._redirect(node, _renamed(old.args, call.args) | _renamed(old.kwargs, call.kwargs))
        same = given == node.all_input_nodes and self.changed.isdisjoint(given)
        if same and old.output == call.output:
            return
        value = compute(self.gm, node)
        if node.target in _CONVOLUTIONS:
            value = _as_described(value, call.output)
        self._describe(node, value, call.output)

    def _describe(self, node: fx.Node, value: Any, desc: Desc) -> None:
        """Say what a node returns, and lay it out as it is to lie where it does not."""
        node.meta["val"] = value
        self.changed.add(node)
        if isinstance(desc, tuple):
            for item in [user for user in node.users if user.target is operator.getitem]:
                place = item.args[1]
                self._describe(item, value[place], desc[place])
        elif isinstance(desc, TensorDesc) and not _lies_as(value, desc):
            shape, strides = tuple(map(int, desc.shape)), tuple(map(int, desc.strides))  # type: ignore[arg-type]
            copy = copy_with_strides(self.gm, node.next, node, shape, strides)
            fill_metadata(self.gm)
            if self.now[self.keys[node]] is node:
                self.now[self.keys[node]] = copy


def _outputs(gm: fx.GraphModule) -> list[fx.Node | None]:
    """The nodes that a graph returns; None for what is no node."""
    return [o if isinstance(o, fx.Node) else None for o in outputs_of(gm)]


def _renamed(before: Arg, after: Arg) -> dict[ValueKey, ValueKey]:
    """What the values that are used have become."""
    if isinstance(before, dict):
        before, after = tuple(before.values()), tuple(after.values())
    pairs = zip(leaves(before), leaves(after), strict=True)
    return {(a.name, a.path): (b.name, b.path) for a, b in pairs if isinstance(a, Ref)}


def _lies_as(value: torch.Tensor, desc: TensorDesc) -> bool:
    """Whether elements lie so; strides of dimensions of one element do not matter."""
    triples = zip(value.shape, value.stride(), desc.strides, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in triples)


def _as_described(value: Any, desc: Desc) -> Any:
    """Results of a library with the strides that are promised of them."""
    if isinstance(desc, tuple):
        return tuple(_as_described(v, d) for v, d in zip(value, desc, strict=True))
    if not isinstance(desc, TensorDesc):
        return value
    return value.new_empty_strided(value.shape, tuple(map(int, desc.strides)))  # type: ignore[arg-type]
