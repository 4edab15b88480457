"""What benchmarks share: fresh processes, interleaved runs, ratios."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

THREADS = 2


def in_fresh_process(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
    """Run ``script arguments`` in a new Python; what it prints last is JSON.

    ``env`` adds to the environment, which has nothing of dovetail's otherwise: the cache is off.
    """
    added = {"DOVETAIL_CACHE": "0"} if env is None else env
    env = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    # Bytecode is kept, as where dovetail is installed: else each process compiles our sources.
    env = {k: v for k, v in env.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env = {k: v for k, v in env.items() if not k.startswith("DOVETAIL_")} | {**added}
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def interleaved(script: str, variants: Sequence[str], rounds: int) -> dict[str, list[Any]]:
    """Every variant once a round, so that all see the same disturbances."""
    results: dict[str, list[Any]] = {v: [] for v in variants}
    for number in range(rounds):
        for variant in variants:
            print(f"\rround {number + 1}/{rounds}: {variant:<16}", end="", file=sys.stderr)
            results[variant].append(in_fresh_process(script, variant))
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return results


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):8.3f}  ({min(values):.3f}-{max(values):.3f})"


def here(file: str) -> str:
    """A script's own path, to start it again."""
    return str(Path(file).resolve())


def in_turns_parser(description: str, threads: int = THREADS) -> argparse.ArgumentParser:
    """The options of a benchmark whose rivals take turns in one process."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=threads)
    return parser


def in_turns(fn: Any, args: Sequence[Any], rivals: Sequence[str], rounds: int) -> list[list[float]]:
    """Microseconds a call of eager and compiled forms, in one process: one list a round."""
    import torch

    torch.compiler.reset()
    ready = []
    for rival in rivals:
        plain = rival == "eager"
        ready.append(fn if plain else torch.compile(fn, backend=rival, dynamic=False))
        for _ in range(3):
            ready[-1](*args)
    repeats = max(1, int(2000 / _once(ready[0], args, 3)))
    return [[_once(each, args, repeats) for each in ready] for _ in range(rounds)]


def _once(fn: Any, args: Sequence[Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        fn(*args)
    return (time.perf_counter() - start) / repeats * 1e6


def row(name: str, rivals: Sequence[str], times: Sequence[Sequence[float]]) -> str:
    """Median times, and the median of the last rival's over each other's."""
    shown = [statistics.median(column) for column in zip(*times, strict=True)]
    over = [statistics.median(t[-1] / t[n] for t in times) for n in range(len(rivals) - 1)]
    text = "".join(f"{r} {t:9.1f} us  " for r, t in zip(rivals, shown, strict=True))
    return name + text + "".join(f" {x:5.2f} x {r}" for x, r in zip(over, rivals, strict=False))
