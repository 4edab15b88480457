"""A way to compute a call on a processor: what a candidate of ``mode="max-autotune"`` says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_TEXT = re.compile(
    r"kernel(?:, Winograd ([24]) x [24])?(?:, (no panels|panels of (\d{1,4})))?"
    r"(?:, tiles of (\d{1,2}) x (\d{1,2}))?"
)


@dataclass(frozen=True, slots=True)
class Way:
    """A library, or a kernel with some of what the rules decide decided otherwise."""

    library: bool = False
    winograd: int = 0  # the side of its tiles; 0: sums of products as they are
    panels: int | None = None  # columns of a panel; 0: no panels; None: as the rules say
    tile: tuple[int, ...] = ()  # rows and vectors of tiles of registers; empty: by the rules

    def __str__(self) -> str:
        if self.library:
            return "library"
        parts = ["kernel"]
        if self.winograd:
            parts.append(f"Winograd {self.winograd} x {self.winograd}")
        if self.panels is not None:
            parts.append(f"panels of {self.panels}" if self.panels else "no panels")
        if self.tile:
            parts.append(f"tiles of {self.tile[0]} x {self.tile[1]}")
        return ", ".join(parts)

    @staticmethod
    @cache
    def parse(candidate: str) -> Way | None:
        """The way that a call's candidate names; None where the rules are to decide."""
        if candidate == "library":
            return LIBRARY
        found = _TEXT.fullmatch(candidate)
        if found is None:
            return None
        winograd, panels, width, *tile = found.groups()
        columns = None if panels is None else int(width or 0)
        sides = tuple(map(int, tile)) if tile[0] else ()
        return Way(False, int(winograd or 0), columns, sides)


LIBRARY, KERNEL = Way(library=True), Way()
