"""Compile basics: the default backend, a backend that shows what it is given, a kernel."""

from __future__ import annotations

import torch

import dovetail


def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * y).sum(-1)


@dovetail.register_backend
def show(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
    """A backend as Dynamo has it: it gets a graph and returns something to call."""
    print(gm.graph)
    print(f"\n{'op':<14}{'name':<10}{'target'}")
    for node in gm.graph.nodes:
        print(f"{node.op:<14}{node.name:<10}{getattr(node.target, '__name__', node.target)}")
    print(gm.code)
    return gm


def main() -> None:
    x, y = torch.arange(-3.0, 3.0).reshape(2, 3), torch.ones(3)
    print("1. the default backend:", torch.compile(fn, backend="dovetail")(x, y))
    print("2. a backend that prints the graph, its table and its code, and returns it:")
    print("result:", torch.compile(fn, backend="show")(x, y))
    print("3. what the default backend makes of it, three operations in one kernel:")
    (compilation,) = dovetail.explain(fn, x, y).to_dict()["compilations"]
    for kernel in compilation["kernels"]:
        print(kernel["ir"])


if __name__ == "__main__":
    main()
