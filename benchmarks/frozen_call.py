"""What it costs a frozen model to notice that a weight was written to, in microseconds a call.

``python benchmarks/frozen_call.py`` prints, for models of 12 and 144 parameters, a call of the
unfrozen and of the frozen model at batch 1, and the comparison of the weights alone; then what the
hook on optimisers adds to a step. Target: a frozen call takes at most 2 µs more. All take turns;
the figure is that of the fastest batch of calls.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dovetail.runtime import writes

ROUNDS, CALLS = 1000, 10  # short batches: some of them nothing disturbs
WIDTH = 16


def mlp(layers: int) -> nn.Module:
    found: list[nn.Module] = []
    for _ in range(layers):
        found += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*found).eval()


def compiled(model: nn.Module, x: torch.Tensor, freeze: bool) -> Callable[[], Any]:
    """A call of a model compiled as a function of its own: Dynamo keeps its results by code."""

    def call(x: torch.Tensor) -> Any:
        return model(x)

    code = call.__code__.replace(co_name=f"call_{freeze}_{len(list(model.children()))}")
    own = types.FunctionType(code, globals(), code.co_name, None, call.__closure__)
    run = torch.compile(own, backend="cpu", options={"freeze": freeze}, fullgraph=True)
    run(x)
    return lambda: run(x)


def fastest(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds a call of each, in turns."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(ROUNDS):
        for name, call in variants.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - begin) / CALLS * 1e6)
    return best


def measure(layers: int) -> None:
    model, x = mlp(layers), torch.randn(1, WIDTH)
    weights = tuple(model.parameters())
    how = writes.how_to_read(weights)
    state = writes.state(weights, how)
    variants = {
        "unfrozen": compiled(mlp(layers), x, freeze=False),
        "frozen": compiled(mlp(layers), x, freeze=True),
        "comparison": lambda: writes.is_unchanged(weights, how, state),
        "after a step": lambda: writes.changed(weights),
    }
    figures = "  ".join(f"{name} {value:8.2f}" for name, value in fastest(variants).items())
    print(f"{len(weights):4} parameters  {figures}")


def main() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        for layers in (6, 72):
            measure(layers)


if __name__ == "__main__":
    main()
