"""Affine index expressions, and sums and products of sizes, computed where they are known."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dovetail.ir.size import Dim, Size


class NotAffine(Exception):
    """An index cannot be written as an affine expression."""


def add(left: Dim, right: Dim) -> Dim:
    """``left + right``."""
    if isinstance(left, int) and not left:
        return right
    if isinstance(right, int) and not right:
        return left
    return Size.binary("add", left, right)


def mul(left: Dim, right: Dim) -> Dim:
    """``left * right``."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, int) and one in (0, 1):
            return other if one else 0
    if isinstance(left, Size) and isinstance(right, int):
        left, right = right, left  # one spelling for equal products
    if isinstance(left, int) and isinstance(right, Size) and right.op == "mul":
        factor, rest = right.args
        if isinstance(factor, int):
            return mul(left * factor, rest)
    return Size.binary("mul", left, right)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of sizes."""
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def count_points(extents: Iterable[Dim]) -> Dim:
    """The product of sizes, computed from each as it is: ``product`` may merge their factors.

    A kernel is told the sizes that it names (``16 * s0``) and none that these are made of.
    """
    known, sizes = 1, list[Size]()
    for extent in extents:
        if isinstance(extent, int):
            known *= extent
        else:
            sizes.append(extent)
    if known == 0 or not sizes:
        return known
    total: Dim = sizes.pop() if known == 1 else known
    for size in sizes:
        total = Size.binary("mul", total, size)
    return total


def divide(left: Dim, right: Dim) -> Dim | None:
    """``left / right`` where it is known to be exact, else None."""
    if left == right:
        return 1
    if isinstance(right, int) and right == 1:
        return left
    if isinstance(left, int):
        exact = isinstance(right, int) and right != 0 and left % right == 0
        return left // right if exact else None  # type: ignore[operator]
    if left.op == "mul":
        for position in (0, 1):
            part = divide(left.args[position], right)
            if part is not None:
                return mul(part, left.args[1 - position])
    return None


@dataclass(frozen=True, slots=True)
class Affine:
    """offset + Σ axis * stride + Σ value * stride (values are int64 by name).

    It is a place along a dimension, or one in a buffer, in elements.
    """

    offset: Dim = 0
    axes: tuple[tuple[str, Dim], ...] = ()
    values: tuple[tuple[str, Dim], ...] = ()

    @staticmethod
    def axis(name: str) -> Affine:
        """The axis itself."""
        return Affine(0, ((name, 1),))

    @staticmethod
    def value(name: str) -> Affine:
        """A computed integer."""
        return Affine(0, (), ((name, 1),))

    def __add__(self, other: Affine) -> Affine:
        return Affine(
            add(self.offset, other.offset),
            _merge(self.axes, other.axes),
            _merge(self.values, other.values),
        )

    def stride(self, axis: str) -> Dim:
        """How far a step along ``axis`` moves."""
        return next((stride for name, stride in self.axes if name == axis), 0)

    def without(self, names: Container[str]) -> Affine:
        """This with some axes left out."""
        axes = tuple((name, stride) for name, stride in self.axes if name not in names)
        return self if len(axes) == len(self.axes) else Affine(self.offset, axes, self.values)

    def dims(self) -> Iterator[Dim]:
        """Every size in this expression."""
        yield self.offset
        yield from (stride for _, stride in (*self.axes, *self.values))

    def __str__(self) -> str:
        terms = [n if c == 1 else f"{_text(c)}*{n}" for n, c in (*self.axes, *self.values)]
        if self.offset != 0 or not terms:
            terms.append(str(self.offset))
        return " + ".join(terms)

    def shift(self, amount: Dim) -> Affine:
        """This plus a size."""
        return Affine(add(self.offset, amount), self.axes, self.values)

    def scale(self, factor: Dim) -> Affine:
        """This times a size."""
        if factor == 0:
            return Affine()
        return Affine(
            mul(self.offset, factor),
            tuple((n, mul(c, factor)) for n, c in self.axes),
            tuple((n, mul(c, factor)) for n, c in self.values),
        )

    def reverse(self, axis: str, extent: Dim) -> Affine:
        """This with an axis walked from its end."""
        back = Affine(add(extent, -1), ((axis, -1),))
        kept = tuple((n, c) for n, c in self.axes if n != axis)
        total = Affine(self.offset, kept, self.values)
        for name, coefficient in self.axes:
            total = total + back.scale(coefficient) if name == axis else total
        return total

    def divmod(self, by: Dim, extents: Mapping[str, Dim]) -> tuple[Affine, Affine]:
        """Quotient and remainder by ``by``; NotAffine where they are no affine expressions."""
        if by == 1:
            return self, Affine()
        high: list[tuple[str, Dim]] = []
        low: list[tuple[str, Dim]] = []
        for name, coefficient in self.axes:
            quotient = divide(coefficient, by)
            if quotient is not None:
                high.append((name, quotient))
            else:
                low.append((name, coefficient))
        constant = divide(self.offset, by) if self.offset != 0 else 0
        if self.values or constant is None or not _fits(low, by, extents):
            raise NotAffine(f"{self} // {by}")
        return Affine(constant, tuple(high)), Affine(0, tuple(low))


def _fits(terms: list[tuple[str, Dim]], by: Dim, extents: Mapping[str, Dim]) -> bool:
    """Whether Σ axis * coefficient stays below ``by``."""
    if not terms:
        return True
    if len(terms) == 1 and mul(terms[0][1], extents[terms[0][0]]) == by:
        return True
    total = 0
    for name, coefficient in terms:
        extent = extents[name]
        if not isinstance(coefficient, int) or not isinstance(extent, int) or coefficient < 0:
            return False
        total += coefficient * max(extent - 1, 0)
    return isinstance(by, int) and total < by


def _merge(
    left: tuple[tuple[str, Dim], ...], right: tuple[tuple[str, Dim], ...]
) -> tuple[tuple[str, Dim], ...]:
    merged = dict(left)
    for name, coefficient in right:
        merged[name] = add(merged.get(name, 0), coefficient)
    return tuple(sorted(((n, c) for n, c in merged.items() if c != 0), key=_first))


def _text(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) or dim.is_symbol else f"({dim})"


def _first(term: tuple[str, Dim]) -> str:
    return term[0]
