"""AOTAutograd's partitioner, with a minimum cut of our own in place of networkx's."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import fx

from dovetail.min_cut import FOREVER, MinCut


def min_cut_partition(joint: Any, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Forward and backward graph from a joint graph, saving as little as possible between."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    # Joint passes have merged common subexpressions; PyTorch's own step, which they would go
    # through again, imports half of Inductor.
    with config.patch(cse=False):
        try:
            return with_our_cut()(joint, inputs, **kwargs)  # type: ignore[no-any-return]
        except _NoCut:  # PyTorch tells what is wrong
            return min_cut_rematerialization_partition(joint, inputs, **kwargs)  # type: ignore[no-any-return]


def with_our_cut() -> Callable[..., Any]:
    """PyTorch's function, for which alone ``import networkx`` finds the stand-in below.

    The functions between the one that is called and the one that imports it look each other up
    among copies of the names of their module.
    """
    from torch._functorch import partitioners

    names = dict(vars(partitioners))
    names["__builtins__"] = vars(builtins) | {"__import__": _import}
    names["get_default_op_list"] = lambda: _op_types(partitioners.get_default_op_list())
    names["reordering_to_mimic_autograd_engine"] = ordered_as_needed
    for name in ("solve_min_cut", "choose_saved_values_set", "min_cut_rematerialization_partition"):
        names[name] = _among(names, getattr(partitioners, name))
    return names["min_cut_rematerialization_partition"]  # type: ignore[no-any-return]


# Gradients that generated code computes along with what they read, and PyTorch's takes apart.
_FUSIBLE = ("gelu_backward", "native_layer_norm_backward", "select_backward")


def _op_types(types: Any) -> Any:
    """Kinds of operators, those of ours among the ones that need not have operands in memory."""
    ours = [getattr(torch.ops.aten, name) for name in _FUSIBLE]
    return replace(types, fusible_ops=types.fusible_ops | ours)


def ordered_as_needed(backward: fx.GraphModule) -> fx.GraphModule:
    """The backward graph with each call of the forward pass right before what first needs it.

    So what is computed again is not held for longer than need be. PyTorch does the same to a new
    graph module, with code that nobody runs.
    """
    nodes = list(backward.graph.nodes)
    order = {node: n for n, node in enumerate(nodes)}
    tangents = [n for n in nodes if n.op == "placeholder" and "tangents" in str(n.target)]
    start = min((order[user] for node in tangents for user in node.users), default=None)
    if start is None:
        return backward
    waiting = {node for node in nodes[:start] if node.op != "placeholder"}
    for node in nodes[:start]:
        if node.target is torch.ops.aten.copy_.default:
            waiting -= {node, *_take_needed(node, waiting)}
    for node in nodes[start:]:
        for needed in sorted(_take_needed(node, waiting), key=order.__getitem__):
            node.prepend(needed)
    for node in reversed(nodes[:start]):
        if node in waiting:
            backward.graph.erase_node(node)
    return backward


def _take_needed(node: fx.Node, waiting: set[fx.Node]) -> list[fx.Node]:
    """Take what a node needs, by way of others too, out of those waiting."""
    found: list[fx.Node] = []
    todo = list(node.all_input_nodes)
    while todo:
        needed = todo.pop()
        if needed in waiting:
            waiting.remove(needed)
            found.append(needed)
            todo += needed.all_input_nodes
    return found


def _among(names: dict[str, Any], fn: Any) -> Any:
    """A function that looks up global names here."""
    made = FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    return _NETWORKX if name == "networkx" else __import__(name, *args, **kwargs)


class _NoCut(BaseException):
    """No cut has a finite cost; not for PyTorch's handlers, which know networkx alone."""


class _Network:
    """What the partitioner asks of a ``networkx.DiGraph``."""

    def __init__(self) -> None:
        self.edges: dict[str, dict[str, float]] = {}

    def add_edge(self, start: str, end: str, *, capacity: float, **_: Any) -> None:
        self.edges.setdefault(start, {})[end] = capacity
        self.edges.setdefault(end, {})

    def __getitem__(self, start: str) -> Mapping[str, float]:
        return self.edges[start]


def _minimum_cut(graph: _Network, source: str, sink: str) -> tuple[int, tuple[set[str], set[str]]]:
    """The cost of the cut and its two sides; no more on the sink's than need be, as networkx's."""
    cut = MinCut()
    things: dict[str, Hashable] = {name: name for name in graph.edges}
    things |= {source: cut.left, sink: cut.right}
    for start, ends in graph.edges.items():
        for end, capacity in ends.items():
            cost = FOREVER if capacity == math.inf else int(capacity)
            if cost != capacity and cost != FOREVER:
                raise _NoCut
            cut.add(things[start], things[end], cost)
    if cut.cost() >= FOREVER:
        raise _NoCut
    right = {sink, *map(str, cut.rights())}
    return cut.cost(), (graph.edges.keys() - right, right)


# ``except ()`` handles nothing.
_NETWORKX = SimpleNamespace(DiGraph=_Network, minimum_cut=_minimum_cut, NetworkXUnbounded=())
