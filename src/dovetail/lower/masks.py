"""Conditions on places: whether one lies within bounds, and several of them as one."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.affine import Affine
from dovetail.ir.size import Dim
from dovetail.lower.expression import Builder


def between(b: Builder, place: Affine, low: Dim | None, high: Dim | None) -> str:
    """Low <= place < high."""
    position = b.position(place)
    mask = ""
    if low is not None:
        mask = b.apply("ge", "bool", position, b.position(Affine(low)))
    if high is not None:
        below = b.apply("lt", "bool", position, b.position(Affine(high)))
        mask = b.apply("and", "bool", mask, below) if mask else below
    return mask or b.const(True, "bool")


def all_of(b: Builder, masks: Sequence[str]) -> str | None:
    """Whether all of these hold; None where there are none."""
    return b.joined("and", "bool", masks) if masks else None
