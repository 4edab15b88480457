"""Each call to a backend, with reasons."""

from dovetail.place.cut import PlacedSegment
from dovetail.place.placement import Placement, place
from dovetail.place.verdicts import Verdict

__all__ = ["PlacedSegment", "Placement", "Verdict", "place"]
