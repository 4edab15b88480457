"""Inputs that a training graph writes to, saved for its backward graph as they were."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.aot_autograd import inputs_written_later
from dovetail.capture._torch.tensors import storage_id
from dovetail.capture.metadata import correct


def save_before_writes(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> None:
    """Save copies of inputs that are written to at the end of the forward pass.

    PyTorch saves the inputs themselves, and the backward graph would start from what was written.
    It gets each copy under a name of its own: it is no input of the forward graph. The forward
    graph returns what is saved after its ``outputs``.
    """
    written = {storage_id(n.meta["val"]) for n in _written_inputs(forward)}
    output = forward.graph.output_node()
    returned = list(output.args[0])
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    copies: dict[fx.Node, fx.Node] = {}
    for n, node in enumerate(returned[outputs:], outputs):
        if not _lies_in(node, written):
            continue
        if node not in copies:
            copies[node] = _copied(forward, node)
            _give_copy(backward, given[node.name], copies[node])
        returned[n] = copies[node]
    if copies:
        output.args = (type(output.args[0])(returned), *output.args[1:])


def _written_inputs(forward: fx.GraphModule) -> list[fx.Node]:
    """Inputs that the forward graph, or AOTAutograd after it, writes to."""
    calls = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return [*(call.args[0] for call in calls), *inputs_written_later(forward)]


def _lies_in(node: Any, memory: set[int]) -> bool:
    """Whether a value is a tensor in one of these storages."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return plain and storage_id(value) in memory


def _copied(gm: fx.GraphModule, node: fx.Node) -> fx.Node:
    """A copy of a value, made as soon as it is there."""
    inputs = gm.graph.find_nodes(op="placeholder")
    with gm.graph.inserting_after(inputs[-1] if node in inputs else node):
        copy = gm.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {**node.meta, "val": node.meta["val"].clone()}
    return copy


def _give_copy(gm: fx.GraphModule, given: fx.Node, copy: fx.Node) -> None:
    """Make an input of the backward graph a copy; one without gaps where there were some."""
    with gm.graph.inserting_before(given):
        renamed = gm.graph.placeholder(copy.name)
    renamed.meta = {**given.meta, "val": copy.meta["val"]}
    given.replace_all_uses_with(renamed)
    gm.graph.erase_node(given)
    if copy.meta["val"].stride() != given.meta["val"].stride():
        correct(gm, [renamed])
