"""Common subexpressions: the same pure call on the same values is made once."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dovetail.capture.ops import OpOverload
from dovetail.passes.graphs import escaping, is_repeatable, is_view, replace, returned


def eliminate_common_subexpressions(gm: fx.GraphModule) -> fx.GraphModule:
    """Merge equal calls. Two results that a caller would hold stay two tensors."""
    held, results = escaping(gm), returned(gm)
    seen: dict[Any, fx.Node] = {}
    for node in list(gm.graph.nodes):
        if not is_repeatable(node) or _is_uninitialised(node):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        if node in results and first in results:
            continue  # two objects of the caller's
        if is_view(node) or not (node in held and first in held):
            if node in held:
                held.add(first)
            if node in results:
                results.add(first)
            replace(node, first)
    return gm


def _is_uninitialised(node: fx.Node) -> bool:
    """Fresh memory that someone is going to write to."""
    return isinstance(node.target, OpOverload) and "empty" in node.target.__name__


def _key(value: Any) -> Any:
    """A hashable stand-in in which 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return type(value), str(value)
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
