"""Measures one case on a GPU in a process of its own, when it is told to.

``python -m dovetail.bench.gpu_worker CASE RIVAL`` prints and reads lines as ``worker.py`` does.
Kernels are timed on the device alone (a CUDA graph's replays), models with all that a call takes.
Memory is the device's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS = 10  # between two looks at the clock


def main(case: str, rival: str) -> None:
    """Compile, call, then measure when told to."""
    import torch

    from dovetail import registry
    from dovetail.bench import gpu_cases, rivals
    from dovetail.bench.worker import answers, serve, step_of

    answer = answers()

    registry.list_backends()
    fn, inputs = gpu_cases.make(case)
    trains = gpu_cases.TRAINING in case
    torch.compiler.reset()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with torch.set_grad_enabled(trains):
        started = time.perf_counter()
        run = rivals.prepare(rival, fn, inputs, 0)
        call = step_of(run, fn) if trains else run
        result = call(*inputs)
        torch.cuda.synchronize()
        found = {"first": time.perf_counter() - started}
        found["peak_mb"] = torch.cuda.max_memory_allocated() / 2**20
        found["error"] = error_of(result, fn, inputs, trains)
        timed = device_times if gpu_cases.is_kernel(case) else call_times

        def measure(seconds: float) -> dict[str, float]:
            times = timed(call, inputs, seconds)
            figures = {"best": min(times), "median": statistics.median(times)}
            return {**figures, "peak_mb": found["peak_mb"]}

        serve(answer, found, measure)


def device_times(call: Callable[..., Any], inputs: tuple[Any, ...], seconds: float) -> list[float]:
    """Seconds that the device takes for a call, many times."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(*inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return times


def call_times(call: Callable[..., Any], inputs: tuple[Any, ...], seconds: float) -> list[float]:
    """Seconds for a call, host and device, many times."""
    import torch

    for _ in range(3):
        call(*inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            call(*inputs)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / CALLS)
    return times


def error_of(result: Any, fn: Any, inputs: tuple[Any, ...], trains: bool) -> float:
    """The difference from float64, relative, by norms; NaN where there is no float64."""
    import torch

    from dovetail.bench.worker import _double, leaves

    if trains:
        return float("nan")
    try:
        exact = leaves(_double(fn)(*(_double(x) for x in inputs)))
    except (RuntimeError, torch.OutOfMemoryError):
        return float("nan")
    found = leaves(result)
    pairs = zip(found, exact, strict=True)
    return max(float((a.double() - b).norm() / b.double().norm()) for a, b in pairs)


if __name__ == "__main__":
    main(*sys.argv[1:3])
