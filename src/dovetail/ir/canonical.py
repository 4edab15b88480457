"""Segments with their names taken out: two that differ in names alone have the same form.

One-to-one renaming is all that happens, so equal forms mean that one's names can be replaced by the
other's. The reverse is not promised: where names decide an order (of the terms of a size), two such
segments may have different forms.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from dovetail.ir.encode import SegmentWriter
from dovetail.ir.segment import Segment
from dovetail.ir.size import UNKNOWN, Dim

# Of a symbol, not of a function, nor the exponent of a number.
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*\b(?!\()")


def canonical_bytes(segment: Segment) -> bytes:
    """The bytes of a segment whose values and symbols are numbered in order of appearance."""
    return json.dumps(_Renaming().segment(segment), separators=(",", ":")).encode()


class _Renaming(SegmentWriter):
    """One numbering for a segment and its subgraphs, so that scopes stay what they are."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}

    def name(self, name: str) -> str:
        return (
            name if name == str(UNKNOWN) else self.numbers.setdefault(name, f"n{len(self.numbers)}")
        )

    def segment(self, segment: Segment) -> dict[str, Any]:
        return super().segment(replace(segment, name=""))

    def dim(self, dim: Dim) -> int | str:
        if isinstance(dim, int):
            return dim
        return _NAME.sub(lambda found: self.name(found[0]), str(dim))
