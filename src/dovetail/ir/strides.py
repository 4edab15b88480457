"""Strides: those of row-major order, and whether a tensor has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from dovetail.ir.affine import mul
from dovetail.ir.size import Dim, Size


class Strided(Protocol):
    """What has a shape, and strides in elements."""

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes, the first dimension first."""

    @property
    def strides(self) -> tuple[Dim, ...]:
        """Elements from one index of a dimension to the next."""


def contiguous_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Row-major strides, as PyTorch gives them: an empty dimension counts as one."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step if size == 0 else mul(step, size)
    return tuple(reversed(strides))


def is_row_major(tensor: Strided) -> bool:
    """Whether elements lie in row-major order for every value of the symbols.

    As PyTorch's ``is_contiguous`` has it: the stride of a dimension of one element does not
    matter, and none does where there are no elements.
    """
    if 0 in tensor.shape:
        return True
    expected = contiguous_strides(tensor.shape)
    return all(
        size == 1 or same_dims((stride,), (step,))
        for size, stride, step in zip(tensor.shape, tensor.strides, expected, strict=True)
    )


def same_dims(left: Iterable[Dim], right: Iterable[Dim]) -> bool:
    """Whether two lists of sizes are equal for every value of their symbols."""
    first, second = tuple(left), tuple(right)
    if first == second:
        return True
    return len(first) == len(second) and all(
        polynomial(a) == polynomial(b) for a, b in zip(first, second, strict=True)
    )


def polynomial(dim: Dim) -> dict[tuple[Dim, ...], int]:
    """A size as products of symbols (or of what is no sum or product) with their factors."""
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    if dim.op in ("add", "sub"):
        sign = 1 if dim.op == "add" else -1
        total = polynomial(dim.args[0])
        for term, factor in polynomial(dim.args[1]).items():
            total[term] = total.get(term, 0) + sign * factor
        return {term: factor for term, factor in total.items() if factor}
    if dim.op == "mul":
        product: dict[tuple[Dim, ...], int] = {}
        for left, one in polynomial(dim.args[0]).items():
            for right, two in polynomial(dim.args[1]).items():
                term = tuple(sorted((*left, *right), key=str))
                product[term] = product.get(term, 0) + one * two
        return {term: factor for term, factor in product.items() if factor}
    quotient = _quotient(dim) if dim.op == "floordiv" else None
    return {(dim,): 1} if quotient is None else quotient


def _quotient(dim: Size) -> dict[tuple[Dim, ...], int] | None:
    """A division that leaves no remainder, whatever the sizes; None for any other.

    PyTorch splits dimensions with divisions such as ``(s0 * s1 * s1) // s1``.
    """
    total, divisor = (polynomial(arg) for arg in dim.args)
    if len(divisor) != 1:
        return None
    ((by, count),) = divisor.items()
    found: dict[tuple[Dim, ...], int] = {}
    for term, factor in total.items():
        left = list(term)
        for symbol in by:
            if symbol not in left:
                return None
            left.remove(symbol)
        if factor % count:
            return None
        found[tuple(left)] = factor // count
    return found
