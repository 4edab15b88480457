"""``dovetail bench``: kernels and models against eager, Inductor and other engines.

Every rival is a process of its own, and they take turns. A cold first call starts from empty
caches; a warm one is that of a second process that finds the first one's caches.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

import click

from dovetail.bench.contest import PROCESSORS, BenchSettings, measure_round
from dovetail.cli.command import Command, starting_with
from dovetail.cli.files import write_text
from dovetail.cli.numbers import POSITIVE, Above
from dovetail.cli.progress import progress
from dovetail.errors import InvalidOption

GROUPS = ("kernels", "models", "all")
BACKENDS = "eager,inductor,dovetail"
FROZEN = "inductor,onnxruntime,openvino,dovetail"


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
        "dovetail bench softmax --backends eager,dovetail --rounds 1": "One kernel, quickly.",
        "dovetail bench all --json figures.json --plot figures.svg": "Keep every figure.",
        "dovetail bench models --frozen": "Frozen, beside engines that always freeze.",
        "dovetail bench models --train": "Training steps of each model.",
        "dovetail bench models --device cuda": "Models at a GPU's sizes, in two types.",
    },
)
@click.argument("cases", nargs=-1, shell_complete=starting_with(_case_names))
@click.option(
    "--backends",
    metavar="A,B",
    help="Any of eager, what torch.compile takes, onnxruntime and openvino; the last is set beside "
    f"the others. By default {BACKENDS}, with --frozen {FROZEN}.",
)
@click.option(
    "--frozen", is_flag=True, help="Weights are constants: freeze here, freezing in Inductor."
)
@click.option(
    "--train", is_flag=True, help="Steps of training, without an optimiser, of models alone."
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="On cuda: other cases, at a GPU's sizes, each in bfloat16 and float32.",
)
@click.option(
    "--processor",
    type=click.Choice([*PROCESSORS]),
    help="As on this smaller processor; those that cannot be held to it are left out.",
)
@click.option("--threads", type=POSITIVE, default=2, show_default=True)
@click.option(
    "--clock",
    type=click.Choice(["elapsed", "processor"]),
    default="elapsed",
    show_default=True,
    help="Of the steady state. Processor time, with one thread, is for a machine with other work.",
)
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
    backends: str | None,
    frozen: bool,
    train: bool,
    device: str,
    processor: str | None,
    threads: int,
    clock: str,
    rounds: int,
    seconds: float,
    no_warm: bool,
    json_file: str | None,
    plot: str | None,
) -> int:
    """Time kernels and models against eager, Inductor and other engines.

    CASES are names (softmax-64x256, or softmax for every size), or kernels, models, all (the
    default). Exit status 1 when something could not be measured.
    """
    from dovetail.bench.results import Results, header, keep_best, row_text, summary

    if device == "cuda" and (frozen or train or processor or clock != "elapsed"):
        raise InvalidOption("device", device, "cpu with --frozen, --train, --processor and --clock")
    chosen = _trainable(cases, frozen) if train else _chosen(cases or ["all"], device)
    rivals = _present((backends or (FROZEN if frozen else BACKENDS)).split(","), processor)
    settings = BenchSettings(
        threads, rounds, seconds, not no_warm, device, frozen, clock, train, processor or ""
    )
    results: Results = {case: {} for case in chosen}
    failed = []
    print(*header(rivals), sep="\n", flush=True)
    for number, case in enumerate(chosen):
        for turn in range(rounds):
            with progress(f"{number + 1}/{len(chosen)} {case}, round {turn + 1}"):
                for rival, found in measure_round(case, rivals, settings):
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


def _trainable(given: Sequence[str], frozen: bool) -> list[str]:
    """Models; frozen ones are not trained, and kernels have nothing to train."""
    if frozen:
        raise InvalidOption("train", True, "given without --frozen: frozen weights are not trained")
    chosen, models = _chosen(given or ["models"], "cpu"), _names("models", "cpu")
    kernels = [case for case in chosen if case not in models]
    if kernels:
        raise InvalidOption("case", kernels[0], "a model with --train")
    return chosen


def _chosen(given: Sequence[str], device: str) -> list[str]:
    known = _names("all", device)
    found: list[str] = []
    for name in given:
        if name in GROUPS:
            found += _names(name, device)
            continue
        these = [case for case in known if case == name or case.startswith(f"{name}-")]
        if not these:
            raise InvalidOption("case", name, f"one of {', '.join((*GROUPS, *known))}")
        found += these
    return list(dict.fromkeys(found))


def _present(rivals: Sequence[str], processor: str | None) -> list[str]:
    """Those that can be measured here; the others are left out, and why is said."""
    from dovetail.bench.rivals import is_held, known, missing

    found, names = [], known()
    for rival in dict.fromkeys(name.strip() for name in rivals):
        package = missing(rival)
        if package:
            print(f"{rival} is left out: {package} is not installed", file=sys.stderr)
        elif processor and not is_held(rival, processor):
            why = f"it cannot be held to {processor}, but by benchmarks/hold_rivals.py"
            print(f"{rival} is left out: {why}", file=sys.stderr)
        elif rival in names:
            found.append(rival)
        else:
            raise InvalidOption("backend", rival, f"one of {', '.join(sorted(names))}")
    return found


def _groups(cases: Sequence[str], device: str) -> dict[str, list[str]]:
    found = {g: [c for c in cases if c in _names(g, device)] for g in ("kernels", "models")}
    found = {group: members for group, members in found.items() if members}
    return {**found, "all": list(cases)} if len(found) > 1 else found


def _figures(settings: BenchSettings, results: object) -> str:
    from dovetail.bench.rivals import versions

    told = dataclasses.asdict(settings)
    return json.dumps({"settings": told, "versions": versions(), "results": results}, indent=2)
