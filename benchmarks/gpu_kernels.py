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
from torch import nn

from dovetail import registry

F = nn.functional
COUNT = 128 << 20  # elements of a matrix of rows
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def rows(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(COUNT // length, length, device="cuda", dtype=dtype)


def softmax(length: int) -> Callable[[torch.dtype], Case]:
    return lambda dtype: (lambda x: x.softmax(-1), (rows(length, dtype),))


def chain(dtype: torch.dtype) -> Case:
    x = torch.randn(64 << 20, device="cuda", dtype=dtype)
    return lambda x, y: F.gelu(x * 2 + y) * torch.sigmoid(x) + y.tanh(), (x, x.flip(0))


def gelu(dtype: torch.dtype) -> Case:
    return F.gelu, (rows(4096, dtype),)


def layer_norm(dtype: torch.dtype) -> Case:
    x, w = torch.randn(16384, 4096, device="cuda", dtype=dtype), torch.randn(4096, device="cuda")
    w = w.to(dtype)

    def fn(x: Any, r: Any, w: Any, b: Any) -> Any:
        h = x + r
        return F.layer_norm(h, (4096,), w, b), h

    return fn, (x, x.flip(0), w, w.flip(0))


def rms_rope(dtype: torch.dtype) -> Case:
    x = torch.randn(32768, 2048, device="cuda", dtype=dtype)
    angles = torch.randn(32768, 1024, device="cuda", dtype=dtype)

    def fn(x: Any, w: Any, a: Any) -> Any:
        h = x.float()
        h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
        one, two = h.chunk(2, -1)
        c, s = a.cos(), a.sin()
        return torch.cat((one * c - two * s, two * c + one * s), -1)

    return fn, (x, torch.randn(2048, device="cuda", dtype=dtype), angles)


def cross_entropy(dtype: torch.dtype) -> Case:
    x = torch.randn(8192, 32768, device="cuda", dtype=dtype)
    return F.cross_entropy, (x, torch.randint(32768, (8192,), device="cuda"))


def group_norm(dtype: torch.dtype) -> Case:
    x = torch.randn(64, 320, 64, 64, device="cuda", dtype=dtype)
    w = torch.randn(320, device="cuda", dtype=dtype)
    return lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (x, w, w.flip(0))


def softmax_backward(dtype: torch.dtype) -> Case:
    y = rows(4096, dtype).softmax(-1)
    backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001
    return lambda g, y: backward(g, y, -1, y.dtype), (rows(4096, dtype), y)


def layer_norm_backward(dtype: torch.dtype) -> Case:
    x, w = torch.randn(16384, 4096, device="cuda", dtype=dtype), torch.randn(4096, device="cuda")
    w = w.to(dtype)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [4096], w, w, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward

    def fn(g: Any, x: Any, mean: Any, rstd: Any, w: Any) -> Any:
        return backward(g, x, [4096], mean, rstd, w, w, [True, True, True])

    return fn, (x.flip(0), x, mean, rstd, w)


def column_sum(dtype: torch.dtype) -> Case:
    return lambda x: x.sum(0), (rows(4096, dtype),)


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    "chain": chain,
    "gelu": gelu,
    **{f"softmax {n}": softmax(n) for n in (257, 1000, 4096, 8192, 32768, 131072)},
    "layer norm + residual": layer_norm,
    "rms norm + rotary": rms_rope,
    "cross-entropy": cross_entropy,
    "group norm + silu": group_norm,
    "softmax backward": softmax_backward,
    "layer norm backward": layer_norm_backward,
    "column sum": column_sum,
}


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
