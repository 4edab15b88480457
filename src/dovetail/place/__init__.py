"""Each call to a backend, with reasons."""

from dovetail.place.placement import (
    PlacedSegment,
    Placement,
    Verdict,
    place,
    without_collection,
)

__all__ = ["PlacedSegment", "Placement", "Verdict", "place", "without_collection"]
