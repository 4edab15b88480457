"""Scans against eager: cumulative sums, products and extremes, last and first dimension.

Both run in one process, alternately: the best time of each, and the median of the ratios, eager's
time over ours.

    python benchmarks/scans.py [--rounds N] [NAME …]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from common import in_turns_parser

SHAPES = (
    *(((1_000_000,), 0), ((64, 16384), 1), ((4096, 256), 1), ((65536, 16), 1)),
    *(((16, 1000), 1), ((16384, 64), 0), ((256, 4096), 0), ((32, 128, 256), 1)),
)
DTYPES = ("float32", "int64", "float64", "bfloat16")
KINDS: dict[str, Callable[[int], Callable[[Any], Any]]] = {
    "cumsum": lambda dim: lambda x: x.cumsum(dim),
    "cumprod": lambda dim: lambda x: x.cumprod(dim),
    "cummax": lambda dim: lambda x: x.cummax(dim),
    "counted": lambda dim: lambda x: (x > 0).cumsum(dim) - 1,
    "backward": lambda dim: lambda x: x.flip(dim).cumsum(dim).flip(dim) * 2,
}


def once(fn: Callable[[Any], Any], x: Any, repeats: int) -> float:
    """Microseconds a call; of this thread's own where there is but one."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(repeats):
        fn(x)
    return (clock() - start) / repeats * 1e6


def compare(fn: Callable[[Any], Any], x: Any, rounds: int) -> tuple[float, float, float]:
    """Eager's and our best microseconds, and the median ratio."""
    torch.compiler.reset()
    ours = torch.compile(fn, backend="cpu", dynamic=False)
    ours(x), fn(x)
    repeats = max(1, int(5000 / max(once(fn, x, 2), 1)))
    pairs = [(once(fn, x, repeats), once(ours, x, repeats)) for _ in range(rounds)]
    eager, mine = (min(times) for times in zip(*pairs, strict=True))
    return eager, mine, statistics.median(a / b for a, b in pairs)


def cases(names: list[str]) -> Iterator[tuple[str, tuple[int, ...], int, str]]:
    """Every kind, shape and dtype that is asked for."""
    for name in names or KINDS:
        for shape, dim in SHAPES:
            for dtype in DTYPES:
                yield name, shape, dim, dtype


def main() -> None:
    """Print a table."""
    parser = in_turns_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name, shape, dim, dtype in cases(options.names):
        x = (torch.randn(shape) * 3).to(getattr(torch, dtype))
        with torch.no_grad():
            eager, mine, ratio = compare(KINDS[name](dim), x, options.rounds)
        print(
            f"{name:9} {'x'.join(map(str, shape)):>12} dim {dim} {dtype:9}"
            f"{eager:9.1f} us {mine:9.1f} us  {ratio:5.2f} x"
        )


if __name__ == "__main__":
    main()
