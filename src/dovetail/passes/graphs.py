"""What passes ask of a graph: purity, views, what escapes, what may be computed once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.operators import schema_of
from dovetail.capture.ops import (
    HigherOrderOperator,
    OpOverload,
    is_random,
    is_write,
    keeps_its_word,
)

aten = torch.ops.aten


def value_of(node: fx.Node) -> Any:
    """The fake value of a node, if it has one."""
    return node.meta.get("val")


def calls(gm: fx.GraphModule, *targets: Any) -> Iterator[fx.Node]:
    """Nodes that call one of ``targets`` (any function when none is given), in graph order."""
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and (not targets or node.target in targets):
            yield node


def subgraphs(gm: fx.GraphModule) -> dict[str, fx.GraphModule]:
    """The nested graphs that nodes of this graph refer to, by attribute name."""
    found = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        value = getattr(gm, str(node.target), None)
        if isinstance(value, fx.GraphModule):
            found[str(node.target)] = value
    return found


def is_pure(node: fx.Node) -> bool:
    """Whether a node may be dropped when nothing uses it."""
    target = node.target
    if node.op != "call_function" or is_random(target) or isinstance(target, HigherOrderOperator):
        return False
    return not is_write(target) and not node.is_impure()


def is_repeatable(node: fx.Node) -> bool:
    """Whether two calls on the same values surely give the same result and do nothing else."""
    return is_pure(node) and keeps_its_word(node.target)


# ---- memory: who shares it with whom, and who writes to it -----------------------------------

# Operators that return a view or a copy, as the strides will have it, or a view their schema
# does not declare.
_MAYBE_VIEWS = {
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.contiguous.default,
    aten._reshape_alias.default,
    aten.to.dtype,
    aten.lift_fresh.default,
}


def is_view(node: fx.Node) -> bool:
    """Whether a node's result may share memory with one of its arguments."""
    target = node.target
    if isinstance(target, OpOverload):
        returns = schema_of(target).returns
        return target in _MAYBE_VIEWS or any(r.alias_info is not None for r in returns)
    return node.op == "call_function" and target is operator.getitem


def escaping(gm: fx.GraphModule) -> set[fx.Node]:
    """Nodes whose memory a caller may come to hold, or that a write in the graph may reach.

    A node in this set may not start (or cease) to share memory with another. What a higher-order
    operator takes belongs to it: it may write to it (a functionalised custom operator) or return
    it from a branch.
    """
    roots = [*gm.graph.output_node().all_input_nodes]
    for node in calls(gm):
        if is_write(node.target) or isinstance(node.target, HigherOrderOperator):
            roots += node.all_input_nodes
    found: set[fx.Node] = set()
    while roots:
        node = roots.pop()
        if node not in found:
            found.add(node)
            if is_view(node) or isinstance(node.target, HigherOrderOperator):
                roots += node.all_input_nodes
    return found


def returned(gm: fx.GraphModule) -> set[fx.Node]:
    """Nodes that the graph returns: each is an object of the caller's, even if memory is shared."""
    return set(gm.graph.output_node().all_input_nodes)


def written(gm: fx.GraphModule) -> set[fx.Node]:
    """Nodes that some call writes to."""
    found: set[fx.Node] = set()
    for node in calls(gm):
        if is_write(node.target):
            found |= {a for a in _written_args(node) if isinstance(a, fx.Node)}
    return found


def _written_args(node: fx.Node) -> Iterable[Any]:
    for position, argument in enumerate(schema_of(node.target).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else None
            yield from _flat(node.kwargs.get(argument.name, value))


def occurrences(node: fx.Node, value: fx.Node) -> int:
    """How often ``value`` stands among a node's arguments."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: found.append(n))
    return found.count(value)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def replace(node: fx.Node, other: fx.Node) -> None:
    """Use ``other`` wherever ``node`` was used, and drop ``node``."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def insert_call(
    gm: fx.GraphModule, before: fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any
) -> fx.Node:
    """A new call just before a node; its metadata is filled in after the pass."""
    with gm.graph.inserting_before(before):
        return gm.graph.call_function(target, args, kwargs)
