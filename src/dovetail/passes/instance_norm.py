"""Instance normalisation as a group norm with a channel in each group.

PyTorch makes one image of a batch for it, with a channel for each channel of each image, and
normalises that as a batch. Its layout then cannot be channels-last, whatever stands around it.
Where gradients are wanted layouts stay as they are, and a batch's gradient is the cheaper one.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.state import autocast_is_on
from dovetail.passes.base import Pass

F = torch.nn.functional
_SIGNATURE = inspect.signature(F.instance_norm)


def use_group_norm(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace each instance norm that keeps no statistics, in a graph as Dynamo captured it."""
    found = gm.graph.find_nodes(op="call_function", target=F.instance_norm)
    if not found or autocast_is_on() or _changes_autocast(gm):
        return gm
    for node in found:
        given = _SIGNATURE.bind(*node.args, **node.kwargs)
        given.apply_defaults()
        if _is_plain(node, given.arguments):
            _replace(gm, node, given.arguments)
    return gm


def _changes_autocast(gm: fx.GraphModule) -> bool:
    return any(n.op == "call_function" and "autocast" in str(n.target) for n in gm.graph.nodes)


def _is_plain(node: fx.Node, given: dict[str, Any]) -> bool:
    """Whether a group norm gives the same, in the same type and layout."""
    if given["running_mean"] is not None or given["running_var"] is not None:
        return False
    tensors = [_value(given[name]) for name in ("input", "weight", "bias")]
    source, result = tensors[0], _value(node)
    if not isinstance(source, torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    if result.requires_grad:
        return False
    same = all(t.dtype == source.dtype for t in (*tensors, result) if isinstance(t, torch.Tensor))
    batch, *sizes = source.shape
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    some = known and any(size > 1 for size in sizes[1:]) and not _is_zero(batch)
    plain = given["use_input_stats"] is True and same and source.device.type == "cpu"
    divides = given["eps"] != 0  # without it, an instance norm makes a constant zero, not NaN
    return plain and some and divides and not _only_as_good_as_contiguous(source)


def _only_as_good_as_contiguous(source: torch.Tensor) -> bool:
    """Whether dimensions of one element have strides that an instance norm does not keep."""
    expected = [math.prod(source.shape[n + 1 :]) for n in range(source.dim())]
    return source.is_contiguous() and list(source.stride()) != expected


def _is_zero(size: Any) -> bool:
    """Of a size that varies nothing is asked: it would be fixed."""
    return isinstance(size, int) and size == 0


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def _replace(gm: fx.GraphModule, node: fx.Node, given: dict[str, Any]) -> None:
    """An instance norm is contiguous, whatever its input is."""
    channels = _value(given["input"]).shape[1]
    args = (given["input"], channels, given["weight"], given["bias"], given["eps"])
    with gm.graph.inserting_before(node):
        norm = gm.graph.call_function(F.group_norm, args)
        made = gm.graph.call_method("contiguous", (norm,))
    norm.meta, made.meta = dict(node.meta), dict(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)


INSTANCE_NORM = Pass("instance_norm", use_group_norm)
