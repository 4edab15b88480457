"""A graph as text: one line a node, quick enough to keep for every stage."""

from __future__ import annotations

from typing import Any

from torch import fx

from dovetail.capture.from_fx import describe
from dovetail.capture.ops import OpOverload
from dovetail.ir.call import format_desc


def graph_text(gm: fx.GraphModule, name: str = "graph") -> str:
    """The graph and its nested graphs, readable and comparable."""
    lines = [f"{name}({', '.join(map(_typed, gm.graph.find_nodes(op='placeholder')))}):"]
    nested: dict[str, fx.GraphModule] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = getattr(gm, str(node.target), None)
            if isinstance(value, fx.GraphModule):
                nested[str(node.target)] = value
            lines.append(f"  %{node.name} = @{node.target}")
        elif node.op == "output":
            lines.append(f"  return {_arg(node.args[0])}")
        elif node.op != "placeholder":
            lines.append(f"  {_typed(node)} = {_target(node)}({_args(node)})")
    texts = [graph_text(sub, f"@{target}") for target, sub in nested.items()]
    return "\n".join([*lines, *texts])


def _typed(node: fx.Node) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    return f"%{node.name}" + (f": {format_desc(describe(value))}" if value is not None else "")


def _target(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, str | OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    return f"{module.lstrip('_')}.{getattr(target, '__name__', target)}".lstrip(".")


def _args(node: fx.Node) -> str:
    keywords = (f"{k}={_arg(v)}" for k, v in node.kwargs.items())
    return ", ".join([*map(_arg, node.args), *keywords])


def _arg(value: Any) -> str:
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_arg, value))}]"
    return str(value).removeprefix("torch.")
