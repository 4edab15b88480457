"""What one call costs beside its kernels: a tiny MLP, Python to Python, in microseconds.

Prints eager, a no-op Dynamo backend, the artifact with torch tensors and NumPy arrays, and the
artifact's kernels alone (the same program run in a loop inside C would need no Python at all; here
they are timed as the difference between a program of many such layers and one of few).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dovetail
from dovetail.backends.portable import PortableBackend

ROUNDS, CALLS = 9, 5000


def mlp(blocks: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers += [nn.Linear(8, 8), nn.ReLU()]
    return nn.Sequential(*layers).eval()


def microseconds(call: Callable[[], Any]) -> float:
    for _ in range(300):
        call()
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time() - start) / CALLS)
    return statistics.median(times) * 1e6


def load(model: nn.Module, x: torch.Tensor, folder: Path, name: str) -> Any:
    dovetail.export(model, (x,), backend=PortableBackend).save(folder / name)
    return dovetail.load(folder / name)


def main() -> None:
    torch.set_num_threads(1)
    model, x = mlp(2), torch.randn(1, 8)
    array = x.numpy()
    noop = torch.compile(model, backend=lambda gm, _: gm.forward)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        run = load(model, x, Path(folder), "two.dvt")
        deep = load(mlp(42), x, Path(folder), "many.dvt")
        torch.testing.assert_close(run(x), model(x))
        whole = microseconds(lambda: run(x))
        kernels = (microseconds(lambda: deep(x)) - whole) / 20  # forty more blocks
        rows = {
            "eager": microseconds(lambda: model(x)),
            "no-op Dynamo backend": microseconds(lambda: noop(x)),
            "artifact, torch tensors": whole,
            "artifact, NumPy arrays": microseconds(lambda: run(array)),
            "its kernels alone": kernels,
            "overhead (torch tensors)": whole - kernels,
        }
    print("tiny MLP (2 x Linear 8-8 and ReLU), µs a call, median")
    for name, value in rows.items():
        print(f"  {name:<26}{value:8.2f}")


if __name__ == "__main__":
    main()
