"""Is this graph still a graph, and does its metadata tell the truth?"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.symbols import fake_mode_of
from dovetail.capture.from_fx import describe, is_unknown
from dovetail.capture.metadata import compute
from dovetail.capture.ops import HigherOrderOperator
from dovetail.errors import PassFailed
from dovetail.ir.strides import same_dims
from dovetail.ir.tensor import Desc, TensorDesc
from dovetail.passes.graphs import subgraphs


def check_structure(gm: Any, inputs: int | None = None) -> str:
    """What is wrong with a graph's structure, or an empty string. Quick: runs after every pass."""
    if not isinstance(gm, fx.GraphModule):
        given = "nothing" if gm is None else f"a {type(gm).__name__}"
        return f"returned {given}; a pass must return the GraphModule to go on with"
    seen: set[fx.Node] = set()
    placeholders = outputs = 0
    for node in gm.graph.nodes:
        for used in node.all_input_nodes:
            if used not in seen:
                return f"left {node.name} using {used.name}, which is not defined before it"
        seen.add(node)
        placeholders += node.op == "placeholder"
        outputs += node.op == "output"
    if outputs != 1:
        return f"left a graph with {outputs} outputs nodes"
    if inputs is not None and placeholders != inputs:
        return f"left {placeholders} inputs where the graph had {inputs}"
    return ""


def count_inputs(gm: fx.GraphModule) -> int:
    """The number of placeholders."""
    return len(gm.graph.find_nodes(op="placeholder"))


def fill_metadata(gm: fx.GraphModule) -> None:
    """Give nodes that a pass added their fake value, computed from their arguments'."""
    missing = [n for n in gm.graph.nodes if n.op == "call_function" and "val" not in n.meta]
    if not missing:
        return
    mode = fake_mode_of(n.meta["val"] for n in gm.graph.nodes if "val" in n.meta)
    if mode is None:
        return
    for node in gm.graph.find_nodes(op="get_attr"):
        value = getattr(gm, str(node.target), None)
        if "val" not in node.meta and isinstance(value, torch.Tensor):
            node.meta["val"] = mode.from_tensor(value, static_shapes=True)
    with mode:
        for node in missing:
            inputs_known = all("val" in n.meta for n in node.all_input_nodes)
            if inputs_known and not isinstance(node.target, HigherOrderOperator):
                node.meta["val"] = compute(gm, node)


class Watch:
    """Notices whether a pass changed a graph or what it says of values, without printing it."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.seen = _parts(gm)

    def sees_change(self, gm: fx.GraphModule) -> bool:
        """Whether this graph is another than it was, or is made of other objects."""
        now = _parts(gm)
        return len(now) != len(self.seen) or any(map(operator.is_not, now, self.seen))


def _parts(gm: fx.GraphModule) -> list[Any]:
    """The objects that make up a graph. FX replaces a node's arguments, never edits them."""
    parts: list[Any] = []
    for node in gm.graph.nodes:
        parts += (node, node.target, node.args, node.kwargs, node.meta.get("val"))
    for sub in subgraphs(gm).values():
        parts += _parts(sub)
    return parts


def problems(gm: fx.GraphModule, where: str = "") -> dict[str, str]:
    """Everything wrong with a graph and its nested graphs, by place.

    Every value is computed anew on fake tensors and compared with what is recorded.
    """
    try:
        gm.graph.lint()
    except Exception as error:  # FX raises several kinds
        return {where: f"broke the graph: {error}"}
    found = {}
    mode = fake_mode_of([n.meta["val"] for n in gm.graph.nodes if "val" in n.meta])
    if mode is not None:
        with mode:
            for node in gm.graph.nodes:
                if problem := _check_node(gm, node):
                    found[f"{where}%{node.name}"] = problem
    for name, sub in subgraphs(gm).items():
        found |= problems(sub, f"{where}@{name} ")
    return found


class Verifier:
    """Debug mode: what is wrong after a pass and was not before is that pass's doing."""

    def __init__(self, gm: fx.GraphModule) -> None:
        # PyTorch's own metadata is not always right; that is no pass's fault.
        self.known = set(problems(gm))

    def check(self, name: str, stage: str, gm: fx.GraphModule) -> None:
        """Raise PassFailed, naming the pass, for the first new problem."""
        for place, problem in problems(gm).items():
            if place not in self.known:
                raise PassFailed(name, stage, problem)


def _check_node(gm: fx.GraphModule, node: fx.Node) -> str:
    if node.op != "call_function" or not _is_checkable(node):
        return ""
    try:
        value = compute(gm, node)
    except Exception as error:  # whatever the operator's meta function raises
        return f"left {node.format_node()} which cannot be computed: {error}"
    recorded, real = describe(node.meta.get("val")), describe(value)
    if _are_alike(recorded, real) or is_unknown(recorded) or is_unknown(real):
        return ""
    return f"left {node.name} described as {recorded!r} where it is {real!r}"


def _are_alike(one: Desc, other: Desc) -> bool:
    """Whether two descriptors say the same, however their sizes are spelled."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_are_alike, one, other))
    if not isinstance(one, TensorDesc) or not isinstance(other, TensorDesc):
        return one == other
    alike = replace(one, shape=other.shape, strides=other.strides) == other
    same = same_dims(one.shape, other.shape) and same_dims(one.strides, other.strides)
    return alike and same


def _is_checkable(node: fx.Node) -> bool:
    """Not control flow (checked by itself), nor what defines a new data-dependent size."""
    if isinstance(node.target, HigherOrderOperator):
        return False
    inputs_known = all("val" in n.meta or n.op == "get_attr" for n in node.all_input_nodes)
    return inputs_known and not node.meta.get("unbacked_bindings")
