"""What can be computed once: calls that depend on constants alone.

Constants are tensors the graph holds, and inputs marked as constant (parameters of an exported
or frozen model). ``split_constants`` cuts a graph in two: one to run once, and again when a
constant changes, and one to run at every call. ``fold_constants`` does the same for values that
depend on nothing at all (masks, position indices) when they are small.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.aot_autograd import input_label
from dovetail.capture._torch.state import no_dispatch_modes
from dovetail.capture.from_fx import KEPT
from dovetail.capture.ops import OpOverload, is_view_op, op_name
from dovetail.passes.graphs import escaping, is_pure, is_repeatable, value_of, written

FOLD_LIMIT = 1 << 20  # bytes; larger values cost more to keep than to make
CONSTANT = "dovetail_constant"  # mark in an input's metadata

# A backend that keeps these calls whole computes with the quantised constants.
_WHOLE = "quantized_decomposed.dequantize_"

aten = torch.ops.aten


def mark_constants(gm: fx.GraphModule, positions: Iterable[int]) -> None:
    """Mark inputs, by position, as the same at every call; one that is written to is not."""
    wanted = set(positions)
    changing = written(gm) if wanted else set()
    for position, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if position in wanted and node not in changing:
            node.meta[CONSTANT] = True


def mark_kept(gm: fx.GraphModule, positions: Iterable[int]) -> set[str]:
    """Mark inputs, by position, as the same tensor from call to call, whatever it holds.

    A backend may keep a copy of it until its version or address changes. What the graph writes to
    is not marked: it changes at every call. The names of those that are marked come back, and of
    views of them.
    """
    wanted = set(positions)
    changing = written(gm) if wanted else set()
    marked: set[str] = set()
    for position, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if position in wanted and node not in changing:
            node.meta[KEPT] = True
            marked.add(node.name)
    for node in gm.graph.nodes if marked else ():
        if isinstance(node.target, OpOverload) and is_view_op(op_name(node.target)):
            if node.all_input_nodes and node.all_input_nodes[0].name in marked:
                marked.add(node.name)
    return marked


def constant_inputs(gm: fx.GraphModule) -> list[int]:
    """The positions of inputs marked as constant."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return [i for i, node in enumerate(inputs) if node.meta.get(CONSTANT)]


def kept_labels(gm: fx.GraphModule, names: Sequence[str]) -> dict[int, str]:
    """What users call each input that is marked as constant or kept, by its position."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return {
        position: input_label(node, names)
        for position, node in enumerate(inputs)
        if node.meta.get(CONSTANT) or node.meta.get(KEPT)
    }


def constant_nodes(gm: fx.GraphModule) -> set[fx.Node]:
    """Every node whose value is the same at every call as long as the constants are."""
    changing = written(gm)
    found: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node in changing:
            continue
        if node.op == "get_attr":
            if isinstance(getattr(gm, str(node.target), None), torch.Tensor):
                found.add(node)
        elif node.op == "placeholder":
            if node.meta.get(CONSTANT):
                found.add(node)
        elif _is_foldable(node) and all(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def split_constants(gm: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
    """``(once, every)``: ``once`` maps the constant inputs to values, ``every`` takes those.

    ``once`` has the constant inputs of ``gm`` as its inputs, in order. ``every`` has the other
    inputs, then one input for each output of ``once``.
    """
    constant = constant_nodes(gm)
    # What a caller comes to hold is made anew at every call: it may be written to.
    constant -= {n for n in escaping(gm) if n.op == "call_function"}
    needs_inputs = _depends_on_inputs(constant)
    crossing = {n for n in needs_inputs if any(u not in constant for u in n.users)}
    border = [n for n in gm.graph.nodes if n in crossing]
    return _once_graph(gm, border), _every_graph(gm, border)


def fold_constants(gm: fx.GraphModule) -> fx.GraphModule:
    """Compute now, once, what depends on nothing but constants the graph itself holds."""
    constant = constant_nodes(gm)
    foldable = constant - _depends_on_inputs(constant)
    kept = escaping(gm) | written(gm)
    values: dict[fx.Node, Any] = {}
    for node in [n for n in gm.graph.nodes if n in foldable]:
        outside = any(user not in foldable for user in node.users)
        if outside and node not in kept and _is_worth_folding(node):
            _fold(gm, node, values)
    return gm


def _is_foldable(node: fx.Node) -> bool:
    if not is_repeatable(node) or node.meta.get("unbacked_bindings"):
        return False
    if node.target is not operator.getitem and not isinstance(node.target, OpOverload):
        return False
    if str(node.target).startswith(_WHOLE):
        return False
    value = value_of(node)
    if isinstance(value, torch.Tensor):
        return all(type(d) is int for d in value.shape) and not _is_symbolic_call(node)
    return isinstance(value, tuple | list)


def _is_symbolic_call(node: fx.Node) -> bool:
    symbolic = torch.SymInt | torch.SymFloat | torch.SymBool
    return any(isinstance(value_of(n), symbolic) for n in node.all_input_nodes)


def _depends_on_inputs(constant: set[fx.Node]) -> set[fx.Node]:
    """Those constant nodes that come from inputs, not from the graph alone."""
    found: set[fx.Node] = set()
    for node in sorted(constant):
        if node.op == "placeholder" or any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _is_worth_folding(node: fx.Node) -> bool:
    """Small, and more than a fill, which is as quick to make as to read."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor) or not node.all_input_nodes:
        return False
    return bool(value.numel() * value.element_size() <= FOLD_LIMIT)


def _fold(gm: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> None:
    with no_dispatch_modes(), torch.no_grad():
        value = _evaluate(gm, node, values).detach()
    name = f"_folded_{node.name}"
    gm.register_buffer(name, value, persistent=False)
    with gm.graph.inserting_before(node):
        constant = gm.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)


def _evaluate(gm: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """The value of a node; those of the nodes it needs are kept for the next one."""
    for each in sorted(_ancestors([node], stop=values.keys())):
        if each in values:
            continue
        if each.op == "get_attr":
            values[each] = getattr(gm, str(each.target))
        else:
            args, kwargs = fx.node.map_arg((each.args, dict(each.kwargs)), values.__getitem__)
            values[each] = each.target(*args, **kwargs)
    return values[node]


def _once_graph(gm: fx.GraphModule, border: list[fx.Node]) -> fx.GraphModule:
    graph, copies = fx.Graph(), {}
    needed = _ancestors(border)
    for node in gm.graph.nodes:
        if node.op == "placeholder" and node.meta.get(CONSTANT):
            copies[node] = graph.node_copy(node)
        elif node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in border))
    return fx.GraphModule(gm, graph)


def _every_graph(gm: fx.GraphModule, border: list[fx.Node]) -> fx.GraphModule:
    graph, copies = fx.Graph(), {}
    taken = set(border)
    for node in gm.graph.find_nodes(op="placeholder"):
        if not node.meta.get(CONSTANT):
            copies[node] = graph.node_copy(node)
    for node in border:
        copies[node] = graph.placeholder(f"once_{node.name}")
        copies[node].meta = {k: v for k, v in node.meta.items() if k != CONSTANT}
        copies[node].meta[KEPT] = True
    effects = [n for n in gm.graph.nodes if n.op == "call_function" and not is_pure(n)]
    needed = _ancestors([gm.graph.output_node(), *effects], stop=taken)
    for node in gm.graph.nodes:
        if node in needed and node not in copies and node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(gm, graph)


def _ancestors(nodes: Iterable[fx.Node], stop: Container[fx.Node] = ()) -> set[fx.Node]:
    """The nodes and all they depend on, not going past ``stop``."""
    found: set[fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                todo += node.all_input_nodes
    return found
