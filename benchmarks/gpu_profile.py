"""Where the time of a model goes on a GPU: its kernels by name, beside Inductor's.

``python benchmarks/gpu_profile.py [--dtype bfloat16] [--rivals cuda,inductor] [NAME …]``.
A table a rival: device time in µs a call, launches a call, kernel; then what the device did in all
and what a call took by the clock, which is more where the device waits for the host.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from dovetail import registry
from dovetail.bench import gpu_cases, gpu_worker, rivals
from dovetail.bench.worker import step_of

CALLS = 5  # under the profiler


def kernels(case: str, rival: str) -> tuple[dict[str, tuple[float, float]], float]:
    """Microseconds and launches a call by kernel, and milliseconds a call by the clock."""
    torch.compiler.reset()
    fn, inputs = gpu_cases.make(case)
    trains = gpu_cases.TRAINING in case
    with torch.set_grad_enabled(trains):
        run = rivals.prepare(rival, fn, inputs, 0)
        call = step_of(run, fn) if trains else run
        clock = min(gpu_worker.call_times(call, inputs, 0.5)) * 1e3
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(CALLS):
                call(*inputs)
            torch.cuda.synchronize()
    sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            time, count = sums[event.name]
            sums[event.name] = time + event.device_time / CALLS, count + 1 / CALLS
    return dict(sums), clock


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=["gpt", "bert"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rivals", default="cuda,inductor")
    parser.add_argument("--rows", type=int, default=25)
    given = parser.parse_args()
    registry.list_backends()
    for name in given.names:
        for rival in given.rivals.split(","):
            found, clock = kernels(f"{name}-{given.dtype}", rival)
            print(f"\n{name} on {rival}")
            rows = sorted(found.items(), key=lambda item: -item[1][0])
            for kernel, (time, count) in rows[: given.rows]:
                print(f"{time:10.1f} {count:7.1f}  {kernel[:110]}")
            device = sum(time for time, _ in found.values())
            launches = sum(count for _, count in found.values())
            print(
                f"{device:10.1f} {launches:7.1f}  in all; {clock * 1e3:.1f} µs by the clock",
                flush=True,
            )


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("no CUDA device: nothing to measure")
