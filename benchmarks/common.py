"""What benchmarks share: fresh processes, interleaved runs, ratios."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

THREADS = 2


def in_fresh_process(script: str, *arguments: str) -> Any:
    """Run ``script arguments`` in a new Python; what it prints last is JSON."""
    env = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    env = {k: v for k, v in env.items() if not k.startswith("DOVETAIL_")}
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
