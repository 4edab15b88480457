"""Lifetimes to offsets in one arena of a device: first fit, largest first, 64-byte aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Interval:
    """A block of memory in use from one step to another, both included."""

    name: str
    size: int
    first: int
    last: int


def plan_arena(blocks: Sequence[Interval]) -> tuple[dict[str, int], int]:
    """An offset for each block such that none overlaps another in use, and the arena's size."""
    placed: list[tuple[int, Interval]] = []
    offsets: dict[str, int] = {}
    for block in sorted(blocks, key=lambda b: (-b.size, b.first, b.name)):
        size = _aligned(block.size)
        taken = sorted(
            (at, at + _aligned(b.size))
            for at, b in placed
            if b.first <= block.last and block.first <= b.last
        )
        offset = 0
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, end)
        placed.append((offset, block))
        offsets[block.name] = offset
    total = max((at + _aligned(b.size) for at, b in placed), default=0)
    return offsets, total


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
