"""``dovetail bench``: kernels and models against eager, Inductor and other engines.

Every measurement is a process of its own and rivals take turns. A cold first call starts from
empty caches; a warm one is that of a second process that finds the first one's caches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import click

from dovetail.cli.command import Command, starting_with
from dovetail.cli.files import write_text
from dovetail.cli.numbers import POSITIVE, Above
from dovetail.cli.progress import progress
from dovetail.errors import InvalidOption

GROUPS = ("kernels", "models", "all")


class BenchSettings(NamedTuple):
    """How each case is measured."""

    threads: int
    rounds: int
    seconds: float  # of steady state, a process
    warm: bool  # whether a second process finds the first one's caches
    device: str = "cpu"


def _names(which: str, device: str) -> list[str]:
    """The cases of a group on a device."""
    from dovetail.bench import cases, gpu_cases

    return gpu_cases.names(which) if device == "cuda" else cases.names(which)


def _case_names() -> list[str]:
    return [*GROUPS, *_names("all", "cpu")]


@click.command(
    cls=Command,
    examples={
        "dovetail bench models": "Each model on eager, Inductor and dovetail.",
        "dovetail bench softmax --backends eager,dovetail --rounds 1": "One case, quickly.",
        "dovetail bench all --json figures.json --plot figures.svg": "Keep every figure.",
        "dovetail bench models --device cuda": "Models at a GPU's sizes, in two types.",
    },
)
@click.argument("cases", nargs=-1, shell_complete=starting_with(_case_names))
@click.option(
    "--backends",
    default="eager,inductor,dovetail",
    show_default=True,
    metavar="A,B",
    help="In this order: eager, what torch.compile takes, onnxruntime, openvino.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="On cuda: other cases, at a GPU's sizes, each in bfloat16 and float32.",
)
@click.option("--threads", type=POSITIVE, default=2, show_default=True)
@click.option(
    "--rounds", type=POSITIVE, default=2, show_default=True, help="Processes per case and rival."
)
@click.option(
    "--seconds",
    type=Above("seconds", 3600),
    default=1.0,
    show_default=True,
    help="Steady state, per process.",
)
@click.option("--no-warm", is_flag=True, help="Leave out the warm first calls.")
@click.option("--json", "json_file", metavar="FILE", help="Write every figure there.")
@click.option("--plot", metavar="FILE", help="Write a bar chart there, as SVG.")
def command(
    cases: Sequence[str],
    backends: str,
    device: str,
    threads: int,
    rounds: int,
    seconds: float,
    no_warm: bool,
    json_file: str | None,
    plot: str | None,
) -> int:
    """Time kernels and models against eager, Inductor and other engines.

    CASES are names, or kernels, models, all (the default). Exit status 1 when something could not
    be measured.
    """
    from dovetail.bench.results import Results, header, keep_best, row_text, summary

    chosen, rivals = _chosen(cases or ["all"], device), _present(backends.split(","))
    settings = BenchSettings(threads, rounds, seconds, not no_warm, device)
    results: Results = {case: {} for case in chosen}
    failed = []
    print(*header(rivals), sep="\n", flush=True)
    for number, case in enumerate(chosen):
        for turn in range(rounds):
            for rival in rivals:
                with progress(f"{number + 1}/{len(chosen)} {case}: {rival}, round {turn + 1}"):
                    found = _measure(case, rival, settings)
                if found is None:
                    failed.append(f"{case} on {rival}")
                else:
                    keep_best(results[case], rival, found)
        print(row_text(case, results[case], rivals), flush=True)
    print(*summary(results, rivals, _groups(chosen, device)), sep="\n")
    if json_file:
        write_text(json_file, _figures(settings, results))
    if plot:
        from dovetail.bench.plot import plot as draw

        write_text(plot, draw(results, rivals))
    for name in dict.fromkeys(failed):
        print(f"could not be measured: {name}", file=sys.stderr)
    return 1 if failed else 0


def _chosen(given: Sequence[str], device: str) -> list[str]:
    known = _names("all", device)
    found: list[str] = []
    for name in given:
        if name in GROUPS:
            found += _names(name, device)
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


def _groups(cases: Sequence[str], device: str) -> dict[str, list[str]]:
    found = {g: [c for c in cases if c in _names(g, device)] for g in ("kernels", "models")}
    found = {group: members for group, members in found.items() if members}
    return {**found, "all": list(cases)} if len(found) > 1 else found


def _measure(case: str, rival: str, settings: BenchSettings) -> dict[str, float] | None:
    """A process with empty caches, then one that finds them filled; None when one fails."""
    with tempfile.TemporaryDirectory() as cache:
        found = _worker(case, rival, settings, settings.seconds, cache)
        if found is None or not settings.warm or rival == "eager":
            return found
        again = _worker(case, rival, settings, 0, cache)
        return None if again is None else {**found, "warm": again["first"]}


def _worker(
    case: str, rival: str, settings: BenchSettings, seconds: float, cache: str
) -> dict[str, float] | None:
    threads = settings.threads
    env = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    env |= {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
    env["DOVETAIL_CACHE_DIR"] = f"{cache}/dovetail"
    env["TRITON_CACHE_DIR"] = f"{cache}/triton"
    worker, given = "worker", [str(threads), str(seconds)]
    if settings.device == "cuda":
        worker, given = "gpu_worker", [str(seconds)]
    command = [sys.executable, "-m", f"dovetail.bench.{worker}", case, rival, *given]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _figures(settings: BenchSettings, results: object) -> str:
    from dovetail.bench.rivals import versions

    told = {"threads": settings.threads, "rounds": settings.rounds, "device": settings.device}
    return json.dumps({"settings": told, "versions": versions(), "results": results}, indent=2)
