"""What being observable costs those who did not ask: records of stages, the look for a profiler.

Calls and compilations with it and with it taken out take turns in one process, in processor time.

    python benchmarks/observing.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from dovetail import _native, dynamo, history, linking
from dovetail.capture._torch import logs, profiler

CALLS = 2000  # a round; each takes some 10 microseconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with torch.no_grad():
        print(f"calls of x + 1 on 16 elements: {shown(*call_times(rounds), 1e6, 'µs')}")
        print(f"compiling an MLP of 4 layers:  {shown(*compile_times(rounds), 1e3, 'ms')}")


def shown(plain: list[float], observed: list[float], scale: float, unit: str) -> str:
    ratios = [b / a for a, b in zip(plain, observed, strict=True)]
    least = min(observed) / min(plain)
    told = f"{min(plain) * scale:.3f} {unit} without, {min(observed) * scale:.3f} with"
    return f"{told} ({least:.4f}; median of ratios {statistics.median(ratios):.4f})"


def call_times(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a call without the look for a profiler, and with it."""
    compiled, x = torch.compile(lambda x: x + 1, backend="cpu"), torch.randn(16)
    compiled(x)
    plain, observed = [], []
    for _ in range(rounds):
        _native.watch_profiler(None, "", None)
        plain.append(seconds(lambda: compiled(x), CALLS))
        profiler.name_kernels_in_profiles.cache_clear()
        profiler.name_kernels_in_profiles()
        observed.append(seconds(lambda: compiled(x), CALLS))
    return plain, observed


def compile_times(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a compilation without records, and with them."""
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(8, 32)

    def compile_() -> None:
        torch.compiler.reset()
        torch.compile(model, backend="cpu", options={"cache": False})(x)

    compile_()
    plain, observed = [], []
    for _ in range(rounds):
        with unobserved():
            plain.append(seconds(compile_, 1))
        observed.append(seconds(compile_, 1))
    return plain, observed


def seconds(work: Callable[[], Any], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """The compiler without what it writes down for others."""

    @contextlib.contextmanager
    def stage(_self: Any, name: str, graph: str) -> Iterator[history.Stage]:
        yield history.Stage(name, graph)

    @contextlib.contextmanager
    def nothing(*_: Any) -> Iterator[None]:
        yield

    with (
        mock.patch.object(history.Compilation, "stage", stage),
        mock.patch.object(history.Compilation, "stages_within", nothing),
        mock.patch.object(history, "step", nothing),
        mock.patch.object(linking, "record_part", return_value=None),
        mock.patch.object(logs, "trace_artifact", return_value=None),
        mock.patch.object(dynamo, "_logs", contextlib.nullcontext),
    ):
        yield


if __name__ == "__main__":
    main()
