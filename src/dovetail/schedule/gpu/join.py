"""Kernels of a plan for a GPU, joined so that less goes through memory."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.target import Target
from dovetail.lower.values import Value, root_of
from dovetail.schedule.gpu.columns import sum_columns
from dovetail.schedule.gpu.pieces import place_pieces
from dovetail.schedule.gpu.rows import finish_rows
from dovetail.schedule.gpu.steps import Step


def join(steps: Sequence[Step], outputs: Sequence[Value], target: Target) -> list[Step]:
    """The steps, with fewer kernels among them."""
    wanted = {root_of(value) for value in outputs}
    joined = finish_rows(place_pieces(list(steps), wanted), wanted, target)
    return sum_columns(joined, wanted, target)
