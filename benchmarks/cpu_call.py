"""What one call of a compiled three-layer MLP at batch 1 costs, in microseconds.

``python benchmarks/cpu_call.py [--inductor]`` prints a Dynamo backend that does nothing (it hands
out a tensor made before), eager, ``cpu``, and the kernels alone: the runtime's time for a layer is
taken from the difference between a deep MLP and this one, both run by the runtime without Dynamo,
so that what a call costs once is in neither. Kernels are slower right behind Dynamo's code, which
has taken the caches, so the program is also timed in turn with no-op calls. All variants take
turns, so that all see the same disturbances; the figure is that of the fastest batch of calls.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import nn

from dovetail.runtime import executable

ROUNDS, BATCHES, CALLS = 40, 10, 50
WIDTH, LAYERS, DEEP = 64, 3, 33


def mlp(layers: int) -> nn.Module:
    found: list[nn.Module] = []
    for _ in range(layers):
        found += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*found[:-1]).eval()


def compiled(model: nn.Module, backend: Any) -> Callable[[torch.Tensor], Any]:
    """A model compiled as a function with code of its own: Dynamo keeps its results by code."""

    def call(x: torch.Tensor) -> Any:
        return model(x)

    name = backend if isinstance(backend, str) else "nothing"
    code = call.__code__.replace(co_name=f"{name}_{len(list(model.children()))}")
    own = types.FunctionType(code, globals(), code.co_name, None, call.__closure__)
    run: Callable[[torch.Tensor], Any] = torch.compile(own, backend=backend, fullgraph=True)
    return run


def does_nothing(result: torch.Tensor) -> Callable[..., Any]:
    def backend(_gm: Any, _inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *_: (result,)

    return backend


def native_call(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """The runtime's program for a model, with the arguments that Dynamo would pass."""
    seen: list[tuple[Any, list[Any]]] = []
    call = executable.NativeExecutable.__call__

    def watched(self: executable.NativeExecutable, inputs: list[Any]) -> list[Any]:
        seen.append((self.native, [inputs[n] for n in self.given]))
        return call(self, inputs)

    watching = mock.patch.object(executable.NativeExecutable, "__call__", watched)
    with watching, mock.patch.object(executable.NativeExecutable, "picking", return_value=None):
        compiled(model, "cpu")(x)
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
    times = {name: fastest(call) for name, call in variants.items()}
    for _ in range(ROUNDS):
        for name, call in variants.items():
            times[name] = min(times[name], fastest(call))
    return times


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
        variants["behind"] = lambda: (runs["no-op"](x), variants["runtime"]())
        found = measure(variants)
    kernels = (found["deep"] - found["runtime"]) / (DEEP - LAYERS) * LAYERS
    print(f"{LAYERS} x Linear({WIDTH}) with ReLU between, batch 1, one thread, µs a call")
    for name in runs:
        print(f"  {name:<40}{found[name]:8.2f}")
    print(f"  {'its program, called without Dynamo':<40}{found['runtime']:8.2f}")
    print(f"  {'its kernels alone':<40}{kernels:8.2f}")
    print(f"  {'no-op, then its program':<40}{found['behind']:8.2f}")
    above = found["cpu"] - found["no-op"] - kernels
    print(f"  {'cpu above no-op and kernels':<40}{above:8.2f}")
    once = found["runtime"] - kernels + found["cpu"] - found["behind"]
    print(f"  {'the same, kernels behind a no-op call':<40}{once:8.2f}")


if __name__ == "__main__":
    main()
