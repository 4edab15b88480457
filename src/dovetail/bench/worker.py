"""Measures one case on one rival in a process of its own; prints JSON.

``python -m dovetail.bench.worker CASE RIVAL THREADS SECONDS``; with no seconds the first call is
all that is measured.
"""

from __future__ import annotations

import copy
import json
import resource
import statistics
import sys
import time
from typing import Any


def main(case: str, rival: str, threads: str, seconds: str) -> None:
    """Compile, call, measure, print."""
    import torch

    from dovetail import registry
    from dovetail.bench import cases, rivals

    torch.set_num_threads(int(threads))
    registry.list_backends()
    fn, inputs = cases.make(case)
    with torch.no_grad():
        exact = leaves(_double(fn)(*(_double(x) for x in inputs)))
        torch.compiler.reset()  # imports Dynamo, which is no part of anybody's first call
        before = _peak_mb()
        started = time.perf_counter()
        run = rivals.prepare(rival, fn, inputs, int(threads))
        result = leaves(run(*inputs))
        found = {"first": time.perf_counter() - started}
        if float(seconds):
            times = steady(run, inputs, float(seconds))
            found |= {"best": min(times), "median": statistics.median(times)}
    found |= {"peak_mb": _peak_mb(), "before_mb": before, "error": error(result, exact)}
    sys.stdout.write(json.dumps(found) + "\n")


def leaves(value: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value] if hasattr(value, "dtype") else []


def error(result: list[Any], exact: list[Any]) -> float:
    """The largest difference from float64, relative to the largest value."""
    if len(result) != len(exact):
        raise ValueError(f"{len(result)} results where eager has {len(exact)}")
    worst = 0.0
    for r, e in zip(result, exact, strict=True):
        off, largest = (r.double() - e.double()).abs().max(), e.double().abs().max()
        worst = max(worst, float(off / largest.clamp_min(1e-30)))
    return worst


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _double(value: Any) -> Any:
    import torch

    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value


def steady(run: Any, inputs: tuple[Any, ...], seconds: float) -> list[float]:
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
