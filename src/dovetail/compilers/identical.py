"""Which segments are the same but for names, such as those of a model's repeated blocks."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.backend import Backend
from dovetail.ir.canonical import canonical_bytes
from dovetail.ir.segment import Segment

Job = tuple[Backend, Segment]


def first_of_its_kind(jobs: Sequence[Job]) -> list[int]:
    """For each job the position of the first that asks the same of the same backend.

    A blob takes its inputs and gives its outputs by position, so the first one's serves all.
    """
    rough = [_rough(*job) for job in jobs]
    alike: dict[object, int] = {}
    for key in rough:
        alike[key] = alike.get(key, 0) + 1
    first: dict[object, int] = {}
    found = []
    for n, (backend, segment) in enumerate(jobs):
        key = rough[n] if alike[rough[n]] == 1 else (id(backend), canonical_bytes(segment))
        found.append(first.setdefault(key, n))
    return found


def _rough(backend: Backend, segment: Segment) -> object:
    """What is cheap to compare and equal for all of a kind."""
    return id(backend), len(segment.inputs), tuple(call.op for call in segment.calls)
