"""Softmax of rows from a thousand to two million elements, against eager and Inductor.

All run in one process, in turns: the median time of each, and the median of the ratios, ours over
theirs.

    python benchmarks/softmax.py [--rounds N] [--log]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from common import THREADS

LENGTHS = [1 << n for n in range(10, 22)]
ELEMENTS = 1 << 22  # in all rows together
RIVALS = ("eager", "inductor", "cpu")


def once(fn: Callable[[Any], Any], x: Any, repeats: int) -> float:
    """Microseconds a call."""
    start = time.perf_counter()
    for _ in range(repeats):
        fn(x)
    return (time.perf_counter() - start) / repeats * 1e6


def compare(fn: Callable[[Any], Any], x: Any, rounds: int) -> list[tuple[float, ...]]:
    """Every rival's microseconds, round by round."""
    torch.compiler.reset()
    ready = [fn if r == "eager" else torch.compile(fn, backend=r, dynamic=False) for r in RIVALS]
    for each in ready:
        each(x), each(x)
    return [tuple(once(each, x, 3) for each in ready) for _ in range(rounds)]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--log", action="store_true", help="the logarithm of it")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    function = torch.log_softmax if options.log else torch.softmax
    for length in LENGTHS:
        x = torch.randn(ELEMENTS // length, length)
        with torch.no_grad():
            times = compare(lambda x: function(x, -1), x, options.rounds)
        shown = [statistics.median(column) for column in zip(*times, strict=True)]
        over = [statistics.median(t[-1] / t[n] for t in times) for n in range(len(RIVALS) - 1)]
        print(
            f"{x.shape[0]:5} x {length:<8}"
            + "".join(f"{r} {t:9.1f} us  " for r, t in zip(RIVALS, shown, strict=True))
            + "".join(f" {ratio:5.2f} x {r}" for r, ratio in zip(RIVALS, over, strict=False))
        )


if __name__ == "__main__":
    main()
