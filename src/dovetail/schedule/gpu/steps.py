"""What the steps of a plan read and write."""

from __future__ import annotations

from dovetail.lower.values import LibraryCall, Value, root_of
from dovetail.schedule.build import Built

Step = Built | LibraryCall


def reads(step: Step) -> set[Value]:
    """The memory that a step reads."""
    if isinstance(step, LibraryCall):
        return set(map(root_of, step.reads))
    return {root_of(step.buffers[b.name]) for b in step.kernel.buffers if b.role == "in"}


def writes(step: Step) -> set[Value]:
    """The memory that a step makes."""
    if isinstance(step, LibraryCall):
        return set(step.results)
    return {root_of(step.buffers[b.name]) for b in step.kernel.buffers if b.role != "in"}
