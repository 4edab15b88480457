"""Compile a small transformer, show what ran where, and compare it with eager."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import dovetail


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def seconds(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def compare(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float, int]:
    """Median milliseconds of each, called in turn for about two seconds, and how often."""
    times, end = [], time.perf_counter() + 2
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        times.append((seconds(one), seconds(other)))
    ones, others = zip(*times, strict=True)
    return statistics.median(ones) * 1e3, statistics.median(others) * 1e3, len(times)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # on a machine that does other things, more threads measure those
    model = nn.Sequential(*[Block(128, 4) for _ in range(4)]).eval()
    x = torch.randn(4, 64, 128)
    compiled = torch.compile(model, backend="dovetail")
    print("compiling a transformer of 4 blocks with torch.compile(backend='dovetail')", flush=True)
    with torch.no_grad():
        first = seconds(lambda: compiled(x))
        print(dovetail.Report(tuple(dovetail.history.recent())))
        error = (compiled(x) - model(x)).abs().max().item()
        eager, ours, calls = compare(lambda: model(x), lambda: compiled(x))
    print(f"\nfirst call {first:.2f} s, largest difference from eager {error:.1e}")
    print(f"median of {calls} calls each, in turn, on one thread:", end=" ")
    print(f"eager {eager:.2f} ms, dovetail {ours:.2f} ms ({ours / eager:.2f} x eager)")


if __name__ == "__main__":
    main()
