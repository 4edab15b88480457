"""Numbers of floating point that are computed from sizes: ``1 / batch``, ``sqrt(length)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.ir.size import Dim, Size, bits_of, real_of


@dataclass(frozen=True, slots=True)
class Real:
    """A float64 by the expression of its bits, which is computed as sizes are.

    It stands where a Python float may: Python's own arithmetic gives it, so that it is rounded to
    another type only where it meets a tensor.
    """

    bits: Size

    def symbols(self) -> frozenset[str]:
        """The symbols that it depends on."""
        return self.bits.symbols()

    def evaluate(self, values: Mapping[str, int]) -> float:
        """The number it stands for, given each symbol's value."""
        return real_of(self.bits.evaluate(values))

    def __str__(self) -> str:
        return f"{self.bits}"

    __repr__ = __str__


Number = int | float | Size | Real


def real(op: str, *args: Number) -> float | Real:
    """An operation whose operands and result are of floating point."""
    return as_real(Size.of(f"real_{op}", *map(bits, args)))


def whole(op: str, value: Number) -> Dim:
    """A number of floating point as an integer, rounded."""
    return Size.of(op, bits(value))


def bits(value: Number) -> Dim:
    """The bits of a number as a float64."""
    if isinstance(value, Real):
        return value.bits
    return bits_of(value) if isinstance(value, float) else Size.of("real", value)


def as_real(found: Dim) -> float | Real:
    """The number of these bits."""
    return Real(found) if isinstance(found, Size) else real_of(found)
