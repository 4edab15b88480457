"""Where an instruction stands under the machine's limits: Williams' roofline.

No program is faster than the larger of the time its bytes take at the machine's bandwidth and the
time its operations take at its peak. The share of that limit that an instruction reaches is above
one where its data came from a cache rather than from memory, which is what the limit is of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def roofline(row: Mapping[str, Any], limits: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What bounds a measured instruction and how near it comes; None where something is unknown."""
    seconds, moved, done = (row[key] for key in ("measured_seconds", "bytes", "operations"))
    if limits is None or not seconds or moved is None or done is None:
        return None
    by_memory = moved / limits["bytes_per_second"]
    by_units = done / limits["operations_per_second"]
    return {
        "bound": "memory" if by_memory >= by_units else "compute",
        "share": max(by_memory, by_units) / seconds,
        "bytes_per_second": moved / seconds,
        "operations_per_second": done / seconds,
    }
