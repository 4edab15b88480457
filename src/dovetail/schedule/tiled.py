"""Products of matrices: a kernel of their own, in which only what is done with the sums joins."""

from __future__ import annotations

from dovetail.lower.contraction import Contraction
from dovetail.lower.values import Value


def is_matrix_product(value: Value) -> bool:
    """Whether a value is a sum of products of more than one row and more than one column.

    A kernel of one is done in tiles of registers, as long as there is nothing else in its sum.
    """
    if not isinstance(value, Contraction) or len(value.dims) != 1:
        return False
    if not all(factor.is_plain for factor in value.factors):
        return False
    return all(value.extent(role) != 1 for role in ("rows", "columns"))
