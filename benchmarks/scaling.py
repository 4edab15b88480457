"""How compile time grows with the graph: 1,000 against 10,000 nodes. Target: at most 12 x.

``capture`` is everything from Dynamo's graph to the compiled function (AOTAutograd, passes,
placement, code); ``ours`` is the part of it that dovetail's own stages take.

    python benchmarks/scaling.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from common import here, interleaved, spread

SIZES = (1_000, 10_000)


def graph_of(nodes: int) -> Any:
    """A Dynamo-like graph: pointwise chains with products, norms, views and shared values."""
    import torch
    from torch import fx

    graph = fx.Graph()
    x = graph.placeholder("x")
    w = graph.placeholder("w")
    value, older = x, x
    functions = (torch.sin, torch.add, torch.relu, torch.mul, torch.matmul, torch.tanh)
    for number in range(nodes):
        fn = functions[number % len(functions)]
        operand = {torch.add: older, torch.mul: older, torch.matmul: w}.get(fn)
        arguments = (value,) if operand is None else (value, operand)
        older, value = value, graph.call_function(fn, arguments)
    graph.output((value,))
    return fx.GraphModule(torch.nn.Module(), graph)


def measure(nodes: int) -> dict[str, float]:
    import torch
    from torch._subclasses import FakeTensorMode

    from dovetail import history, lookup_backend

    compiler = lookup_backend("aten")
    with torch.no_grad():
        compiler(graph_of(10), [torch.randn(4, 4), torch.randn(4, 4)])  # imports and caches
        history.clear()
        mode = FakeTensorMode()
        inputs = [mode.from_tensor(torch.randn(16, 16)) for _ in range(2)]
        graph = graph_of(nodes)
        start = time.perf_counter()
        compiler(graph, inputs)
        total = time.perf_counter() - start
    (compilation,) = history.recent()
    return {"capture": total, "ours": compilation.ms / 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("size", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.size:
        print(json.dumps(measure(int(arguments.size))))
        return
    results = interleaved(here(__file__), [str(s) for s in SIZES], arguments.rounds)
    small, large = (results[str(s)] for s in SIZES)
    for what in ("capture", "ours"):
        for size, rows in zip(SIZES, (small, large), strict=True):
            print(f"{what:<10}{size:>7} nodes  s {spread([r[what] for r in rows])}")
        ratios = [b[what] / a[what] for a, b in zip(small, large, strict=True)]
        print(f"{what:<10}  ratio           {spread(ratios)}  target 12")


if __name__ == "__main__":
    main()
