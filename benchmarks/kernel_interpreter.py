"""What interpreting kernel IR costs: against eager and against generated code, on one thread.

A file whose native code is not trusted, or is for another processor, is run so. Ratios of medians
over interleaved rounds; times in microseconds.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
F = torch.nn.functional
ROUNDS = 25
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), (256, 1024)),
    "softmax, short rows": (lambda x: torch.softmax(x, -1), (16384, 16)),
    "gelu": (F.gelu, (256, 1024)),
    "gelu of tanh": (lambda x: F.gelu(x, approximate="tanh"), (256, 1024)),
    "layer norm": (lambda x: F.layer_norm(x, (1024,)), (256, 1024)),
    "column sum": (lambda x: (x * x).sum(0), (1024, 256)),
    "transposed add": (lambda x: x.t() + 1, (512, 512)),
    "argmax": (lambda x: x.argmax(-1), (256, 1024)),
}


def interpreted(fn: Callable[..., Any], x: torch.Tensor) -> Callable[[], Any]:
    from tests.codegen.kernels import plan_of
    from tests.native.interpret import plan_file

    from dovetail.runtime.loaded import open_native

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is interpreted
        native = open_native(plan_file(plan_of(fn, x)))
    return lambda: native(x)[0]


def median_times(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        call()
    for _ in range(ROUNDS):
        for name, call in variants.items():
            start = time.perf_counter()
            for _ in range(4):
                call()
            times[name].append((time.perf_counter() - start) / 4)
    return {name: statistics.median(found) * 1e6 for name, found in times.items()}


def main() -> None:
    from dovetail import _native

    torch.set_num_threads(1)
    head = f"{'':22}{'eager':>10}{'cpu':>10}{'interpreted':>13}{'of eager':>11}{'of cpu':>9}"
    print(head)
    for name, (fn, shape) in CASES.items():
        x = torch.randn(shape)
        run, compiled = interpreted(fn, x), torch.compile(fn, backend="cpu", fullgraph=True)
        _native.set_threads(1)
        with torch.no_grad():
            torch.testing.assert_close(torch.from_dlpack(run()), fn(x))
            variants = {"eager": partial(fn, x), "cpu": partial(compiled, x), "ir": run}
            found = median_times(variants)
        eager, cpu, ir = found["eager"], found["cpu"], found["ir"]
        print(f"{name:22}{eager:10.1f}{cpu:10.1f}{ir:13.1f}{ir / eager:10.2f}x{ir / cpu:8.2f}x")


if __name__ == "__main__":
    main()
