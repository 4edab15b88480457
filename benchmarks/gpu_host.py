"""Host time of a call on a GPU: a small perceptron, whose kernels take next to nothing.

``python benchmarks/gpu_host.py [--rounds 5] [BACKEND …]``. ``nothing`` is a backend that returns
tensors made beforehand: what Dynamo takes by itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dovetail import registry

CALLS = 2000
BACKENDS = ("nothing", "eager", "aot_eager", "aten", "cuda", "inductor")


def perceptron() -> nn.Module:
    """Three layers of width 32."""
    layers = [nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)]
    return nn.Sequential(*layers).cuda().eval()


def returns_the_same(graph: Any, _: list[Any]) -> Callable[..., Any]:
    """A backend that does nothing."""
    made = [
        torch.empty(out.meta["example_value"].shape, device="cuda")
        for out in graph.graph.find_nodes(op="output")[0].args[0]
    ]
    return lambda *_: tuple(made)


def microseconds(run: Callable[..., Any], x: torch.Tensor) -> float:
    """The time of a call, while the GPU waits for it."""
    for _ in range(50):
        run(x)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        run(x)
    taken = time.perf_counter() - began
    torch.cuda.synchronize()
    return taken / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backends", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    registry.list_backends()
    x = torch.randn(64, 32, device="cuda")
    found = {}
    with torch.no_grad():
        for name in ("plain", *(given.backends or BACKENDS)):
            torch.compiler.reset()
            run: Any = perceptron()
            if name != "plain":
                backend, _, mode = name.partition(":")
                how: Any = returns_the_same if backend == "nothing" else backend
                run = torch.compile(run, backend=how, mode=mode or None)
            found[name] = min(microseconds(run, x) for _ in range(given.rounds))
    print("us a call: " + ", ".join(f"{name} {t:.1f}" for name, t in found.items()))


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("no CUDA device: nothing to measure")
