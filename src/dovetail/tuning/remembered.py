"""What was chosen, in the cache: another process, or another model, measures nothing again.

An entry holds names and seconds. A name counts only where it is among the candidates that this
process has worked out itself, so that nothing an entry says can be more than a choice among them.
"""

from __future__ import annotations

import json
import math
from typing import Any

from dovetail import cache
from dovetail.backend import Backend, Candidates
from dovetail.cache.own_sources import own_digest
from dovetail.cache.settings import current
from dovetail.file.processors import processor_identity
from dovetail.place.verdicts import Selection
from dovetail.sources import identity
from dovetail.tuning.problem import Problem

REMEMBERED = "measured before"


def choice_key(
    problem: Problem, backend: Backend, candidates: Candidates, threads: int
) -> cache.Key:
    """All that the fastest of the candidates depends on; sources.Unidentified where it has none."""
    import torch

    args, options = backend.given
    parts = {
        "choice": problem.text,
        "candidates": "\n".join((candidates.taken, *candidates.others)),
        "backend": f"{backend.name}\n{identity(type(backend))}\n{backend.fingerprint()}",
        "options": identity((args, dict(sorted(options.items())))),
        "processor": processor_identity(),
        "threads": str(threads),
        "dovetail": f"sources {own_digest()}",
        "torch": f"{torch.__version__} ({torch.version.git_version})",
    }
    return cache.Key.of(parts, {"choice": str(problem.call)})


def recall(key: cache.Key, candidates: Candidates) -> Selection | None:
    """What was chosen before; None where that is not known, or the entry makes no sense."""
    if not current().enabled:
        return None
    found = cache.lookup(key, told=False)
    if not isinstance(found, cache.Hit):
        return None
    try:
        return _read(json.loads(found.payload), candidates)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _read(data: Any, candidates: Candidates) -> Selection:
    known = (candidates.taken, *candidates.others)
    chosen = known[known.index(data["chosen"])]
    seconds = {known[known.index(name)]: float(each) for name, each in data["seconds"]}
    if not all(math.isfinite(each) and each >= 0 for each in seconds.values()):
        raise ValueError("no time")
    if chosen not in seconds:
        raise ValueError("a winner that was not measured")
    return Selection(chosen, REMEMBERED, tuple(seconds.items()))


def remember(key: cache.Key, selection: Selection) -> None:
    """Keep what was chosen."""
    data = {"chosen": selection.chosen, "seconds": [list(each) for each in selection.seconds]}
    payload = json.dumps(data, allow_nan=False).encode()
    cache.store(key, payload, seconds=0.0, label=f"choice: {selection.chosen}")
