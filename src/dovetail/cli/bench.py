"""``dovetail bench``: kernels and models against eager and Inductor.

Every measurement is a process of its own, backends take turns, caches of compilers are off.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import InvalidOption

Results = dict[str, dict[str, dict[str, float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("cases", nargs="*", default=["all"], help="kernels, models, all, or names")
    parser.add_argument("--backends", default="eager,inductor,dovetail", help="in this order")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="processes per case and backend")
    parser.add_argument("--seconds", type=float, default=1.0, help="steady state, per process")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; exit status 1 when something could not be measured."""
    cases = _chosen(arguments.cases)
    backends = arguments.backends.split(",")
    results: Results = {}
    failed = []
    for number, case in enumerate(cases):
        results[case] = {}
        for turn in range(arguments.rounds):
            for backend in backends:
                _progress(f"{number + 1}/{len(cases)} {case}: {backend}, round {turn + 1}")
                found = _measure(case, backend, arguments)
                if found is None:
                    failed.append(f"{case} on {backend}")
                else:
                    _keep_best(results[case], backend, found)
        _progress("")
        print(_row(case, results[case], backends), flush=True)
    print(*_summary(results, backends), sep="\n")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2))
    for name in failed:
        print(f"could not be measured: {name}", file=sys.stderr)
    return 1 if failed else 0


def _chosen(given: Sequence[str]) -> list[str]:
    from dovetail.bench import cases

    known = cases.names("all")
    found: list[str] = []
    for name in given:
        if name in ("kernels", "models", "all"):
            found += cases.names(name)
        elif name in known:
            found.append(name)
        else:
            raise InvalidOption("case", name, f"one of kernels, models, all, {', '.join(known)}")
    return found


def _measure(case: str, backend: str, arguments: argparse.Namespace) -> dict[str, float] | None:
    """One process; None when it fails."""
    with tempfile.TemporaryDirectory() as cache:
        env = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        env |= {"OMP_NUM_THREADS": str(arguments.threads), "TORCHINDUCTOR_CACHE_DIR": cache}
        env |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        command = [sys.executable, "-m", "dovetail.bench.worker", case, backend]
        command += [str(arguments.threads), str(arguments.seconds)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _keep_best(row: dict[str, dict[str, float]], backend: str, found: dict[str, float]) -> None:
    before = row.get(backend, found)
    row[backend] = {key: min(before[key], found[key]) for key in found}


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="" if text else "\r", file=sys.stderr, flush=True)


def _row(case: str, row: dict[str, dict[str, float]], backends: Sequence[str]) -> str:
    cells = [f"{case:<30}"]
    for backend in backends:
        found: dict[str, Any] | None = row.get(backend)
        if found is None:
            cells.append(f"{backend} -")
            continue
        cells.append(
            f"{backend} {found['best'] * 1e6:9.1f} us, first {found['first']:6.2f} s, "
            f"{found['peak_mb']:5.0f} MB, error {found['error']:.0e}"
        )
    return " | ".join(cells)


def _summary(results: Results, backends: Sequence[str]) -> list[str]:
    """Geometric means of the last backend's time over every other's."""
    last, lines = backends[-1], []
    for other in backends[:-1]:
        for key, what in (("best", "steady state"), ("first", "first call")):
            rows = [r for r in results.values() if last in r and other in r]
            if key == "first" and other == "eager":
                continue
            ratios = [r[last][key] / r[other][key] for r in rows]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                figures = f"geometric mean {mean:.2f}, worst {max(ratios):.2f}"
                lines.append(f"{what}, {last} over {other}: {figures}")
    return lines
