"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Whole(click.ParamType):  # type: ignore[type-arg]  # not one before click 8.3
    """A whole number from ``least`` on."""

    name = "number"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; a mistake where it is none or too small."""
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if number < self.least:
            self.fail(f"{value!r} is not a whole number from {self.least} on", param, ctx)
        return number


class Above(click.ParamType):  # type: ignore[type-arg]  # not one before click 8.3
    """A number above zero and below ``limit``; ``what`` it is a number of."""

    name = "number"

    def __init__(self, what: str, limit: float = math.inf) -> None:
        self.what, self.limit = what, limit

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; a mistake where it is none or out of range."""
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < self.limit and not (number == self.limit == math.inf):
            self.fail(f"{value!r} is not a number of {self.what} above zero", param, ctx)
        return number


POSITIVE = Whole(1)
NATURAL = Whole(0)
