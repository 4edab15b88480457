"""What a compilation's record says of graphs that run, and what users are warned of."""

from __future__ import annotations

import functools
import warnings

from dovetail.errors import FallbackWarning
from dovetail.history import Compilation, GraphRecord
from dovetail.place.summary import Ran, record_graph
from dovetail.runtime.link import LinkedPart


def record_part(record: Compilation, part: LinkedPart) -> None:
    """Say in the report what runs where; where segments fell back, one warning a reason."""
    kind, compiled = part.kind, part.compiled
    if record.observer is not None:
        record.observer.saw_part(record.number, part)
    if compiled.captured is not None:
        record.graphs.append(GraphRecord(kind))
        why = compiled.why_captured
        warn(record, f"the {kind} graph runs in PyTorch as captured: {why}")
        return
    ran = [
        Ran(
            functools.partial(getattr, each.compiled.calls, "segment"),
            each.compiled.sources,
            each.backend,
            each.compiled.failures,
            each.executable.transfers() if each.backend.transfer is not None else None,
            each.executable.kept(),
            each.executable.measured,
        )
        for each in part.segments
    ]
    verdicts = compiled.verdicts
    told = verdicts if callable(verdicts) else lambda: verdicts  # not the part, with its code
    record.graphs.append(record_graph(kind, told, compiled.hints, ran))
    _warn_of_failures(record, part)


def _warn_of_failures(record: Compilation, part: LinkedPart) -> None:
    reasons: dict[str, list[str]] = {}
    for each in part.segments:
        for backend, reason in each.compiled.failures:
            note = f"from {backend} to {each.backend.name}: {reason}"
            reasons.setdefault(note, []).append(each.compiled.name)
    for note, names in reasons.items():
        which = names[0] if len(names) == 1 else f"{len(names)} segments"
        warn(record, f"{which} {'falls' if len(names) == 1 else 'fall'} back {note}")


def warn(record: Compilation, text: str) -> None:
    """Say that something runs otherwise than it was placed: a warning, a line in the report."""
    record.notes.append(text)
    warnings.warn(text, FallbackWarning, stacklevel=3)
