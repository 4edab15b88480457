"""Placing 40,000 nodes whose support alternates. Target: under 1 second.

``read`` is FX to operator calls, ``place`` the choice of backends and the cutting into segments.

    python benchmarks/placement.py [--nodes N]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from dovetail.backend import Support
from dovetail.backends.aten import AtenBackend
from dovetail.ir import OpCall
from dovetail.place.placement import place

aten = torch.ops.aten


class Half(AtenBackend):
    """Takes every other kind of operator."""

    name = "half"

    def supports(self, call: OpCall) -> Support:
        """Only the sines."""
        return Support.yes() if call.op == "aten.sin.default" else Support.no("only sin")


def graph_of(nodes: int) -> Any:
    graph = fx.Graph()
    value = graph.placeholder("x")
    fake = FakeTensorMode().from_tensor(torch.randn(4, 4))
    value.meta["val"] = fake
    older = value
    for number in range(nodes):
        if number % 2:
            older, value = value, graph.call_function(aten.sin.default, (value,))
        else:
            older, value = value, graph.call_function(aten.add.Tensor, (value, older))
        value.meta["val"] = fake
    graph.output((value,))
    return fx.GraphModule(torch.nn.Module(), graph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=40_000)
    nodes = parser.parse_args().nodes
    for count in (nodes // 10, nodes):
        gm = graph_of(count)
        start = time.perf_counter()
        placement = place(gm, [Half(), AtenBackend()])
        seconds = time.perf_counter() - start
        print(f"{count:>7} nodes  {len(placement.segments):>6} segments  {seconds:.3f} s")


if __name__ == "__main__":
    main()
