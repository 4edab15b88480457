"""The graphs of a model as calls of ATen on real tensors, and parts of them.

Dynamo's graphs are traced once more, call by call, with the values that the model was given, so
that any part can be run by itself: what it reads are values that were seen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.tracing import trace_calls

Call = tuple[fx.Node, ...]  # a call and the nodes that take its tuple apart


def graphs_of(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, train: bool
) -> list[SeenGraph]:
    """Each graph that Dynamo makes of a model for these inputs, in inference or in training."""
    found: list[SeenGraph] = []

    def keep(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(SeenGraph.trace(gm, inputs, train=train))
        return lambda *given: gm.forward(*given)

    torch.compiler.reset()
    with torch.set_grad_enabled(train):
        torch.compile(model, backend=keep)(*args, **kwargs)
    return found


class SeenGraph:
    """A graph of ATen calls and every value of it, by its node."""

    def __init__(self, gm: fx.GraphModule, values: Mapping[fx.Node, Any]) -> None:
        self.gm, self.values = gm, values

    @staticmethod
    def trace(gm: fx.GraphModule, inputs: Sequence[Any], *, train: bool) -> SeenGraph:
        """The graph behind a Dynamo graph, run once; in training, the forward part of it."""
        given = leaves(inputs, train=train)
        recorder = _Recorder(trace_calls(gm, given, train=train))
        with torch.set_grad_enabled(train):
            recorder.run(*given)
        return SeenGraph(recorder.module, recorder.seen)

    def calls(self) -> list[Call]:
        """Its calls, in order."""
        groups: dict[fx.Node, list[fx.Node]] = {}
        for node in self.gm.graph.nodes:
            if node.op == "call_function":
                owner = node.args[0] if node.target is operator.getitem else node
                groups.setdefault(owner if owner in groups else node, []).append(node)
        return [tuple(group) for group in groups.values()]

    def part(self, calls: Sequence[Call]) -> tuple[fx.GraphModule, list[Any]]:
        """The graph of these calls alone, and its inputs: values that others computed.

        It returns each tensor that none of these calls reads. Inputs want gradients where they
        did in the model.
        """
        nodes = [node for call in calls for node in call]
        chosen = set(nodes)
        outside = dict.fromkeys(r for n in nodes for r in n.all_input_nodes if r not in chosen)
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {n: graph.placeholder(n.name) for n in outside}
        for node in nodes:
            made[node] = graph.node_copy(node, lambda n: made[n])
        graph.output(
            tuple(
                made[n]
                for n in nodes
                if isinstance(self.values[n], torch.Tensor) and not chosen & n.users.keys()
            )
        )
        return fx.GraphModule({}, graph), [self.values[n] for n in outside]


def leaves(values: Sequence[Any], *, train: bool) -> list[Any]:
    """Copies of tensors, which nothing computed; in training they want gradients as those do."""
    return [
        t.detach().clone().requires_grad_(train and t.requires_grad)
        if isinstance(t, torch.Tensor)
        else t
        for t in values
    ]


class _Recorder(fx.Interpreter):  # type: ignore[misc]  # torch's classes are Any here
    """Keeps what each node computes."""

    module: fx.GraphModule

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run it and keep the result."""
        self.seen[n] = super().run_node(n)
        return self.seen[n]
