"""Measures one case on one backend in a process of its own; prints JSON.

``python -m dovetail.bench.worker CASE BACKEND THREADS SECONDS``
"""

from __future__ import annotations

import copy
import json
import resource
import statistics
import sys
import time
from typing import Any


def main(case: str, backend: str, threads: str, seconds: str) -> None:
    """Compile, call, measure, print."""
    import torch

    from dovetail import registry
    from dovetail.bench import cases

    torch.set_num_threads(int(threads))
    registry.list_backends()
    fn, inputs = cases.make(case)
    with torch.no_grad():
        exact = _double(fn)(*(_double(x) for x in inputs))
        run = fn if backend == "eager" else torch.compile(fn, backend=backend)
        started = time.perf_counter()
        result = run(*inputs)
        first = time.perf_counter() - started
        times = _steady(run, inputs, float(seconds))
    error = (result.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30)
    found = {
        "first": first,
        "best": min(times),
        "median": statistics.median(times),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "error": error.item(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _double(value: Any) -> Any:
    import torch

    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value


def _steady(run: Any, inputs: tuple[Any, ...], seconds: float) -> list[float]:
    """Seconds per call, many times."""
    for _ in range(5):
        run(*inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        started = time.perf_counter()
        run(*inputs)
        times.append(time.perf_counter() - started)
    return times


if __name__ == "__main__":
    main(*sys.argv[1:5])
