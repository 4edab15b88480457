"""Products of matrices and convolutions: what is done with their sums joins their kernels."""

from __future__ import annotations

from dovetail.lower.contraction import Contraction, Factor
from dovetail.lower.index_map import numbered
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


def is_convolution(value: Value) -> bool:
    """Whether a value is a sum of products of pixels and weights, dense along their channels.

    Channels of the image are summed and those of the result are columns: kernels of such values
    are done in tiles of registers.
    """
    if not isinstance(value, Contraction):
        return False
    image, weight = value.factors
    if image.is_plain or any(r.uses for r in value.expression.reads if r.operand == weight.operand):
        return False
    return has_dense(value, weight, "columns") and has_dense(value, image, "sum")


def has_dense(value: Contraction, factor: Factor, role: str) -> bool:
    """Whether elements of an operand lie together along a dimension of a role."""
    operand = value.reads[factor.operand]
    for place, size, stride in zip(
        factor.index.results, operand.shape, operand.strides, strict=True
    ):
        if stride == 1 and size != 1 and not place.values:
            return any(value.roles[d] == role for d, factor in numbered(place) if factor == 1)
    return False


def is_depthwise(value: Value) -> bool:
    """Whether a value is a convolution of each channel by itself, dense along the channels."""
    if not isinstance(value, Contraction):
        return False
    image, weight = value.factors
    if image.is_plain or any(r.uses for r in value.expression.reads if r.operand == weight.operand):
        return False
    alone = value.extent("columns") == 1 and value.extent("rows") != 1
    return alone and has_dense(value, weight, "batch") and has_dense(value, image, "batch")


def is_tiled(value: Value) -> bool:
    """Whether a value's kernel is done in tiles of registers."""
    return is_matrix_product(value) or is_convolution(value) or is_depthwise(value)
