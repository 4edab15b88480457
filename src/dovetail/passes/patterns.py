"""Pattern rewriting: say what to look for and what to put there, as two Python functions.

>>> @dovetail.passes.rewrite
... class FuseScaleShift:
...     def pattern(x, scale, shift):
...         return aten.add.Tensor(aten.mul.Tensor(x, scale), shift)
...     def replacement(x, scale, shift):
...         return mylib.scale_shift.default(x, scale, shift)
...     def where(match):                    # optional: look closer before replacing
...         return match["x"].meta["val"].dim() == 2

The result is a pass named after the class. A parameter matches anything, a tensor or a number,
and the same thing wherever it occurs. Numbers in the pattern match only themselves. What the
pattern computes on the way to its result must not be used elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import fx

from dovetail.capture.ops import OpOverload, OpOverloadPacket
from dovetail.errors import PassFailed
from dovetail.passes.base import Pass
from dovetail.passes.graphs import is_pure
from dovetail.sources import identity

Match = dict[str, Any]


class Rewrite:
    """A pattern, its replacement, and a condition; callable on a graph module."""

    def __init__(
        self,
        name: str,
        pattern: Callable[..., Any],
        replacement: Callable[..., Any],
        where: Callable[[Match], bool] | None = None,
    ) -> None:
        self.name, self.replacement, self.where = name, replacement, where
        self.parameters = list(inspect.signature(pattern).parameters)
        if self.parameters != list(inspect.signature(replacement).parameters):
            problem = "has a pattern and a replacement with different parameters"
            raise PassFailed(name, "rewrite", problem)
        self.functions = (pattern, replacement, where)
        self.root = _root(fx.symbolic_trace(pattern).graph, name)

    @property
    def identity_source(self) -> str:
        """The functions that make up the rewrite, for its pass's identity."""
        return identity(self.functions)

    def __call__(self, gm: fx.GraphModule) -> fx.GraphModule:
        """Replace every occurrence, from the inputs on; what was put in is not matched again."""
        for node in list(gm.graph.nodes):
            found = self.match(node)
            if found is not None and (self.where is None or self.where(found)):
                self._replace(gm, node, found)
        return gm

    def match(self, node: fx.Node) -> Match | None:
        """What each parameter stands for when ``node`` is the pattern's result, or None."""
        captured: Match = {}
        inside: dict[fx.Node, fx.Node] = {}
        if not _matches(self.root, node, captured, inside):
            return None
        within = set(inside.values())
        for matched in within - {node}:
            if any(user not in within for user in matched.users):
                return None
        return captured

    def _replace(self, gm: fx.GraphModule, node: fx.Node, found: Match) -> None:
        tracer = fx.proxy.GraphAppendingTracer(gm.graph)
        values = [_proxy(found[p], tracer) if p in found else None for p in self.parameters]
        with gm.graph.inserting_before(node):
            result = self.replacement(*values)
        if not isinstance(result, fx.Proxy):
            given = type(result).__name__
            raise PassFailed(self.name, "rewrite", f"has a replacement that returns a {given}")
        node.replace_all_uses_with(result.node)
        _erase_unused(node)


def rewrite(cls: type) -> Pass:
    """Make a pass of a class that holds ``pattern``, ``replacement`` and perhaps ``where``."""
    body = vars(cls)
    for needed in ("pattern", "replacement"):
        if needed not in body:
            raise PassFailed(cls.__name__, "rewrite", f"has no function {needed!r}")
    return Pass(
        cls.__name__,
        Rewrite(cls.__name__, body["pattern"], body["replacement"], body.get("where")),
    )


def _root(graph: fx.Graph, name: str) -> fx.Node:
    result = graph.output_node().args[0]
    if not isinstance(result, fx.Node) or result.op != "call_function":
        raise PassFailed(name, "rewrite", "has a pattern that does not return one call's result")
    return result


def _matches(pattern: Any, value: Any, captured: Match, inside: dict[fx.Node, fx.Node]) -> bool:
    if not isinstance(pattern, fx.Node):
        return _equal(pattern, value, captured, inside)
    if pattern.op == "placeholder":
        name = str(pattern.target)
        if name not in captured:
            captured[name] = value
        return _same(captured[name], value)
    if not isinstance(value, fx.Node) or not _same_target(pattern.target, value.target):
        return False
    if pattern in inside:
        return inside[pattern] is value
    inside[pattern] = value
    if pattern.kwargs.keys() != value.kwargs.keys() or len(pattern.args) != len(value.args):
        return False
    pairs = [*zip(pattern.args, value.args, strict=True)]
    pairs += [(pattern.kwargs[key], value.kwargs[key]) for key in pattern.kwargs]
    return all(_matches(p, v, captured, inside) for p, v in pairs)


def _equal(pattern: Any, value: Any, captured: Match, inside: dict[fx.Node, fx.Node]) -> bool:
    if isinstance(pattern, tuple | list):
        if not isinstance(value, tuple | list) or len(value) != len(pattern):
            return False
        pairs = zip(pattern, value, strict=True)
        return all(_matches(p, v, captured, inside) for p, v in pairs)
    return type(pattern) is type(value) and bool(pattern == value)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, fx.Node) or isinstance(second, fx.Node):
        return first is second
    return type(first) is type(second) and bool(first == second)


def _same_target(pattern: Any, target: Any) -> bool:
    if isinstance(pattern, OpOverloadPacket):
        return isinstance(target, OpOverload) and target.overloadpacket is pattern
    return pattern is target


def _proxy(value: Any, tracer: Any) -> Any:
    if isinstance(value, fx.Node):
        return fx.Proxy(value, tracer)
    if isinstance(value, tuple | list):
        return type(value)(_proxy(v, tracer) for v in value)
    return value


def _erase_unused(node: fx.Node) -> None:
    todo = [node]
    while todo:
        dead = todo.pop()
        if not dead.users and is_pure(dead):
            used = dead.all_input_nodes
            dead.graph.erase_node(dead)
            todo += used
