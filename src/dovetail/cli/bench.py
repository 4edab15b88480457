"""``dovetail bench``: kernels and models against eager, Inductor and other engines.

Every measurement is a process of its own and rivals take turns. A cold first call starts from
empty caches; a warm one is that of a second process that finds the first one's caches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dovetail.cli.numbers import positive
from dovetail.errors import InvalidOption

GROUPS = ("kernels", "models", "all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("cases", nargs="*", default=["all"], help="kernels, models, all, or names")
    parser.add_argument(
        "--backends",
        default="eager,inductor,dovetail",
        help="in this order: eager, what torch.compile takes, onnxruntime, openvino (%(default)s)",
    )
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=2, help="processes per case and rival")
    parser.add_argument("--seconds", type=_seconds, default=1.0, help="steady state, per process")
    parser.add_argument("--no-warm", action="store_true", help="leave out the warm first calls")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument("--plot", metavar="FILE", help="write a bar chart there, as SVG")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; exit status 1 when something could not be measured."""
    from dovetail.bench.results import Results, header, keep_best, row_text, summary

    cases, rivals = _chosen(arguments.cases), _present(arguments.backends.split(","))
    results: Results = {case: {} for case in cases}
    failed = []
    print(*header(rivals), sep="\n", flush=True)
    for number, case in enumerate(cases):
        for turn in range(arguments.rounds):
            for rival in rivals:
                _progress(f"{number + 1}/{len(cases)} {case}: {rival}, round {turn + 1}")
                found = _measure(case, rival, arguments)
                if found is None:
                    failed.append(f"{case} on {rival}")
                else:
                    keep_best(results[case], rival, found)
        _progress("")
        print(row_text(case, results[case], rivals), flush=True)
    print(*summary(results, rivals, _groups(cases)), sep="\n")
    _write(arguments, results, rivals)
    for name in dict.fromkeys(failed):
        print(f"could not be measured: {name}", file=sys.stderr)
    return 1 if failed else 0


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return value


def _chosen(given: Sequence[str]) -> list[str]:
    from dovetail.bench import cases

    known = cases.names("all")
    found: list[str] = []
    for name in given:
        if name in GROUPS:
            found += cases.names(name)
        elif name in known:
            found.append(name)
        else:
            raise InvalidOption("case", name, f"one of {', '.join((*GROUPS, *known))}")
    return list(dict.fromkeys(found))


def _present(rivals: Sequence[str]) -> list[str]:
    """Those that can be measured here; other engines are left out where they are not installed."""
    from dovetail.bench.rivals import known, missing

    found, names = [], known()
    for rival in dict.fromkeys(name.strip() for name in rivals):
        package = missing(rival)
        if package:
            print(f"{rival} is left out: {package} is not installed", file=sys.stderr)
        elif rival in names:
            found.append(rival)
        else:
            raise InvalidOption("backend", rival, f"one of {', '.join(sorted(names))}")
    return found


def _groups(cases: Sequence[str]) -> dict[str, list[str]]:
    from dovetail.bench.cases import names

    found = {g: [c for c in cases if c in names(g)] for g in ("kernels", "models")}
    found = {group: members for group, members in found.items() if members}
    return {**found, "all": list(cases)} if len(found) > 1 else found


def _measure(case: str, rival: str, arguments: argparse.Namespace) -> dict[str, float] | None:
    """A process with empty caches, then one that finds them filled; None when one fails."""
    with tempfile.TemporaryDirectory() as cache:
        found = _worker(case, rival, arguments.threads, arguments.seconds, cache)
        if found is None or arguments.no_warm or rival == "eager":
            return found
        again = _worker(case, rival, arguments.threads, 0, cache)
        return None if again is None else {**found, "warm": again["first"]}


def _worker(
    case: str, rival: str, threads: int, seconds: float, cache: str
) -> dict[str, float] | None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    env |= {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
    env["DOVETAIL_CACHE_DIR"] = f"{cache}/dovetail"
    command = [sys.executable, "-m", "dovetail.bench.worker", case, rival]
    command += [str(threads), str(seconds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _write(arguments: argparse.Namespace, results: object, rivals: Sequence[str]) -> None:
    if arguments.json:
        from dovetail.bench.rivals import versions

        settings = {"threads": arguments.threads, "rounds": arguments.rounds}
        held = {"settings": settings, "versions": versions(), "results": results}
        Path(arguments.json).write_text(json.dumps(held, indent=2))
    if arguments.plot:
        from dovetail.bench.plot import plot

        Path(arguments.plot).write_text(plot(results, rivals))  # type: ignore[arg-type]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="" if text else "\r", file=sys.stderr, flush=True)
