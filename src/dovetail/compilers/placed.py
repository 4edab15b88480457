"""A graph after passes and placement, before there is code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from dovetail.place.placement import Placement


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A part of a graph, placed; or why our IR cannot express it."""

    gm: fx.GraphModule
    placement: Placement | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A functional graph after passes and placement, before there is code."""

    kind: str
    every: PlacedPart
    once: PlacedPart | None
    frozen: tuple[int, ...]
    labels: Mapping[int, str]
