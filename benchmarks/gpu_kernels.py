"""Kernels on a GPU: device time of ours beside eager and Inductor, and the share of a copy's speed.

``python benchmarks/gpu_kernels.py [--dtypes bfloat16,float32] [--rivals eager,inductor] [NAME …]``.
Times are of CUDA graph replays, the least of several; bytes are those that must be moved, each
input read once and each output written once.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from dovetail import registry
from dovetail.bench.gpu_cases import KERNELS as CASES


def device_ms(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> float:
    """The least time of several replays of a captured call."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        fn(*args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(*args)
    found = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return min(found)


def copy_speed() -> float:
    """Bytes per second that a copy reads and writes."""
    x = torch.randn(1 << 30, device="cuda")
    y = torch.empty_like(x)
    return 8 * x.numel() / min(device_ms(y.copy_, (x,)), device_ms(copy_by_kernel(y), (x,))) * 1e3


def copy_by_kernel(y: torch.Tensor) -> Callable[..., Any]:
    return lambda x: torch.mul(x, 1, out=y)


def error(found: Any, fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> float:
    """The norm of the error against float64, over the reference's, of the worst result."""
    part = [a.double() if a.is_floating_point() else a for a in args]
    results = found if isinstance(found, tuple) else (found,)
    wanted = fn(*part)
    pairs = zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
    return max(float((a.double() - b).norm() / b.norm()) for a, b in pairs)


def measure(name: str, dtype: torch.dtype, rivals: list[str], speed: float) -> list[float]:
    """One row of the table; the times of ours and of the rivals."""
    fn, args = CASES[name](dtype)
    times = []
    notes = ""
    for rival in ("dovetail", *rivals):
        torch.compiler.reset()
        run = fn if rival == "eager" else torch.compile(fn, backend=rival, dynamic=False)
        began = time.perf_counter()
        with torch.no_grad():
            found = run(*args)
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            if rival == "dovetail":
                results = found if isinstance(found, tuple) else (found,)
                moved = sum(t.numel() * t.element_size() for t in (*args, *results))
                try:
                    notes = f"error {error(found, fn, args):.1e}"
                except RuntimeError as problem:
                    notes = f"no reference: {str(problem)[:40]}"
                notes += f"  first call {first:.2f} s"
            del found
            times.append(device_ms(run, args))
    share = moved / (times[0] * 1e-3) / speed
    ratios = " ".join(f"{times[0] / t:5.2f}" for t in times[1:])
    texts = " ".join(f"{t:7.3f}" for t in times)
    kind = str(dtype).removeprefix("torch.")
    print(f"{name:24}{kind:9}{texts}   {ratios}  {share:4.0%} of copy  {notes}", flush=True)
    torch.cuda.empty_cache()
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--rivals", default="eager,inductor")
    given = parser.parse_args()
    rivals = [r for r in given.rivals.split(",") if r]
    registry.list_backends()  # tells Dynamo their names, where dovetail is not installed
    speed = copy_speed()
    print(f"copy {speed / 1e12:.2f} TB/s; ms of dovetail {' '.join(rivals)}, and ratios")
    all_times = []
    for kind in given.dtypes.split(","):
        for name in given.names or CASES:
            try:
                all_times.append(measure(name, getattr(torch, kind), rivals, speed))
            except Exception as problem:  # one kernel says nothing of the others
                print(
                    f"{name:24}{kind:9}{type(problem).__name__}: {str(problem)[:200]}", flush=True
                )
    for n, rival in enumerate(rivals, 1):
        ratios = [t[0] / t[n] for t in all_times]
        mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
        print(f"geometric mean against {rival}: {mean:.3f} over {len(ratios)}")


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("no CUDA device: nothing to measure")
