"""From calls to code: a segment as a Program, or as values that compute their elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.lower.rules import Rule


def all_rules() -> Mapping[str, Rule]:
    """The rule of each operator that has one, by its name without the namespace."""
    from dovetail.lower import families

    return families.collected()
