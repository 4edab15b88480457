"""What one call of a compiled three-layer MLP at batch 1 costs, in microseconds.

``python benchmarks/cpu_call.py [--inductor]`` prints a Dynamo backend that does nothing (it hands
out a tensor made before), eager, ``cpu``, and the kernels alone: the runtime's time for a layer is
taken from the difference between a deep MLP and this one, both run by the runtime without Dynamo,
so that what a call costs once is in neither. All variants take turns, so that all see the same
disturbances; the figure is the median over rounds of the fastest batch of calls.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.backends import executable

ROUNDS, BATCHES, CALLS = 15, 20, 50
WIDTH, LAYERS, DEEP = 64, 3, 33


def mlp(layers: int) -> nn.Module:
    found: list[nn.Module] = []
    for _ in range(layers):
        found += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*found[:-1]).eval()


def compiled(model: nn.Module, backend: Any) -> Callable[[torch.Tensor], Any]:
    torch._dynamo.reset()  # noqa: SLF001
    run: Callable[[torch.Tensor], Any] = torch.compile(model, backend=backend, fullgraph=True)
    return run


def does_nothing(result: torch.Tensor) -> Callable[..., Any]:
    def backend(_gm: Any, _inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *_: (result,)

    return backend


def native_call(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """The runtime's program for a model, with the arguments that Dynamo would pass."""
    seen: list[tuple[Any, list[Any]]] = []
    call = executable.Executable.__call__

    def watched(self: executable.Executable, inputs: list[Any]) -> list[Any]:
        seen.append((self.native, [inputs[n] for n in self.given]))
        return call(self, inputs)

    executable.Executable.__call__ = watched  # type: ignore[method-assign]
    try:
        compiled(model, "cpu")(x)
    finally:
        executable.Executable.__call__ = call  # type: ignore[method-assign]
    ((native, given),) = seen
    return lambda: native(*given)


def fastest(call: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def measure(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        fastest(call)
    for _ in range(ROUNDS):
        for name, call in variants.items():
            times[name].append(fastest(call))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, deep, x = mlp(LAYERS), mlp(DEEP), torch.randn(1, WIDTH)
    with torch.no_grad():
        runs = {"no-op": compiled(model, does_nothing(model(x))), "eager": model}
        runs["cpu"] = compiled(model, "cpu")
        if "--inductor" in sys.argv:
            runs["inductor"] = compiled(model, "inductor")
        torch.testing.assert_close(runs["cpu"](x), model(x))
        variants = {name: (lambda run=run: run(x)) for name, run in runs.items()}
        variants["runtime"] = native_call(model, x)
        variants["deep"] = native_call(deep, x)
        found = measure(variants)
    kernels = (found["deep"] - found["runtime"]) / (DEEP - LAYERS) * LAYERS
    print(f"{LAYERS} x Linear({WIDTH}) with ReLU between, batch 1, one thread, µs a call")
    for name in runs:
        print(f"  {name:<40}{found[name]:8.2f}")
    print(f"  {'its program, called without Dynamo':<40}{found['runtime']:8.2f}")
    print(f"  {'its kernels alone':<40}{kernels:8.2f}")
    print(f"  {'cpu above no-op and kernels':<40}{found['cpu'] - found['no-op'] - kernels:8.2f}")


if __name__ == "__main__":
    main()
