"""Models on a GPU beside Inductor, all in one process: what ``dovetail bench`` measures, sooner.

``python benchmarks/gpu_models.py [--dtype bfloat16] [--rivals cuda,inductor] [NAME …]``.
First calls begin with empty caches, but find what the process has loaded before.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import tempfile
import time

CACHES = tempfile.mkdtemp()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{CACHES}/inductor"
os.environ["TRITON_CACHE_DIR"] = f"{CACHES}/triton"
os.environ["DOVETAIL_CACHE_DIR"] = f"{CACHES}/dovetail"

import torch  # noqa: E402

from dovetail import registry  # noqa: E402
from dovetail.bench import gpu_cases, gpu_worker, rivals  # noqa: E402
from dovetail.bench.worker import step_of  # noqa: E402


def measure(case: str, rival: str, seconds: float) -> dict[str, float]:
    """The figures of one case on one rival."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    fn, inputs = gpu_cases.make(case)
    trains = gpu_cases.TRAINING in case
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with torch.set_grad_enabled(trains):
        began = time.perf_counter()
        run = rivals.prepare(rival, fn, inputs, 0)
        call = step_of(run, fn) if trains else run
        result = call(*inputs)
        torch.cuda.synchronize()
        first = time.perf_counter() - began
        best = min(gpu_worker.call_times(call, inputs, seconds))
        peak = torch.cuda.max_memory_allocated() / 2**20
        error = gpu_worker.error_of(result, fn, inputs, trains)
    return {"ms": best * 1e3, "first": first, "MB": peak, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rivals", default="cuda,inductor")
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    registry.list_backends()
    names = [name.rpartition("-")[0] for name in gpu_cases.names("models")]
    ratios: list[float] = []
    for name in given.names or dict.fromkeys(names):
        found = {}
        for rival in given.rivals.split(","):
            try:
                found[rival] = measure(f"{name}-{given.dtype}", rival, given.seconds)
            except Exception as problem:  # one says nothing of the others
                print(f"{name} on {rival}: {type(problem).__name__}: {str(problem)[:300]}")
        texts = [
            f"{rival} {f['ms']:.3f} ms, first {f['first']:.1f} s, {f['MB']:.0f} MB, "
            f"error {f['error']:.1e}"
            for rival, f in found.items()
        ]
        times = [f["ms"] for f in found.values()]
        if len(times) > 1:
            ratios.append(times[0] / times[-1])
            texts.append(f"ratio {ratios[-1]:.2f}")
        print(f"{name:20}" + "; ".join(texts), flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean {mean:.3f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("no CUDA device: nothing to measure")
