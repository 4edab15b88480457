"""From a model that fails to a script of the calls that make it fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dovetail.capture.lines import source_of
from dovetail.reproduce.check import Failure, Trial
from dovetail.reproduce.graphs import Call, SeenGraph, graphs_of
from dovetail.reproduce.script import long_values, random_like, render
from dovetail.reproduce.shrink import shrink


@dataclass(frozen=True)
class Reproduction:
    """A failure, where it comes from, and the script that shows it."""

    failure: Failure
    source: Mapping[str, Any] | None  # the line of the model
    calls: tuple[str, ...]  # the operators that are left
    before: int  # how many there were
    script: str
    data: Mapping[str, Any]  # arrays that the script reads from a file beside it

    def write(self, path: str | Path) -> list[Path]:
        """Write the script and what it reads; the files written."""
        script = Path(path)
        script.write_text(self.script, encoding="utf-8")
        if not self.data:
            return [script]
        import numpy

        numpy.savez(script.with_suffix(".npz"), **self.data)
        return [script, script.with_suffix(".npz")]


def reproduce(
    model: Any,
    *args: Any,
    backend: str = "dovetail",
    options: Mapping[str, Any] | None = None,
    seconds: float = 60.0,
    path: str | Path = "reproduction.py",
    train: bool = False,
    **kwargs: Any,
) -> Reproduction | None:
    """The smallest part of a model that fails, found in so many seconds; None: none does.

    It is compiled in inference; with ``train`` in training, and gradients are results too.
    ``path`` is where the script will lie: it names the file of inputs that goes with it.
    """
    trial = Trial(backend, dict(options or {}), train)
    for seen in graphs_of(model, args, kwargs, train=train):
        calls = seen.calls()
        found = trial.check(*seen.part(calls)) if calls else None
        if found is not None:
            return _reproduction(seen, calls, found, trial, seconds, Path(path))
    return None


def _reproduction(
    seen: SeenGraph,
    calls: Sequence[Call],
    found: Failure,
    trial: Trial,
    seconds: float,
    path: Path,
) -> Reproduction:
    kept = shrink(calls, lambda part: found.is_alike(trial.check(*seen.part(part))), seconds)
    gm, inputs = seen.part(kept)
    failure = trial.check(gm, inputs) or found
    random = _random_fails(gm, inputs, failure, trial)
    names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    data = {} if random else long_values(names, inputs)
    sources = [source_of(call[0]) for call in kept]
    source = next((s for s in reversed(sources) if s), None)
    script = render(
        gm, inputs, failure, trial, source=source, random=random, data=path.with_suffix(".npz")
    )
    operators = tuple(str(call[0].target) for call in kept)
    return Reproduction(failure, source, operators, len(calls), script, data)


def _random_fails(
    gm: fx.GraphModule, inputs: Sequence[Any], failure: Failure, trial: Trial
) -> bool:
    """Whether the values that the script would draw make it fail too."""
    generator = torch.Generator().manual_seed(0)
    drawn = [random_like(value, generator) for value in inputs]
    return failure.is_alike(trial.check(gm, drawn))
