"""Scatters of few elements along a dimension, as choices made where an element is computed.

Cross-entropy's gradient is one: a number at each row's class. Where an index names many places,
PyTorch's own kernels write them one after another.
"""

from __future__ import annotations

from functools import partial

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.size import Dim
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.indexing import checked, index_value
from dovetail.lower.masks import all_of, between
from dovetail.lower.pointwise import check_number, element
from dovetail.lower.rules import Lower, Refused, compute, number, rule, static, tensor
from dovetail.lower.values import Pointwise, Value

_MOST = 4  # places along the dimension, for each element to be compared with all of them


@rule("scatter.value", "scatter.src", "scatter_add.default")
def lower_scatter(lower: Lower, call: OpCall) -> Pointwise:
    """A value with some elements replaced, or added to."""
    source, places = lower.value(call.args[0]), index_value(lower, call.args[2])
    desc, rank = tensor(call.output), len(source.shape)
    dtype = compute(desc.dtype)
    if not rank or len(places.shape) != rank or (dtype == "bool" and "add" in call.op):
        raise Refused("ranks that differ")
    dim = static(call.args[1], "a dimension") % rank
    count = places.shape[dim]
    if not isinstance(count, int) or count > _MOST:
        raise Refused("more places than are worth comparing with")
    given = call.args[3]
    piece = given if number(given) else lower.value(given)
    check_number(piece, desc.dtype)

    def body(b: Builder, index: Indices) -> str:
        here = b.position(index[dim])
        covered = _covered(b, index, places, source, dim)
        total = b.cast(b.read(source, index), dtype)
        for n in range(count):
            at = tuple(Affine(n) if d == dim else i for d, i in enumerate(index))
            named = _named(b, places, at, source.shape[dim], covered)
            hits = [b.apply("eq", "bool", here, named), *([covered] if covered else [])]
            hit = all_of(b, hits)
            assert hit is not None
            new = b.masked(hit, partial(element, b, piece, at, dtype, desc.dtype))
            new = b.apply("add", dtype, total, new) if "add" in call.op else new
            total = b.apply("where", dtype, hit, new, total)
        return total

    reads = (source, places, *((piece,) if isinstance(piece, Value) else ()))
    return lower.pointwise(call, body, reads, 4.0 * max(count, 1))


def _covered(b: Builder, index: Indices, places: Value, source: Value, dim: int) -> str | None:
    """Whether the index has a place for an element, as it may be smaller than the value."""
    short = [d for d, size in enumerate(places.shape) if d != dim and size != source.shape[d]]
    return all_of(b, [between(b, index[d], None, places.shape[d]) for d in short])


def _named(b: Builder, places: Value, at: Indices, extent: Dim, mask: str | None) -> str:
    """The place that an index names, in range."""

    def named() -> str:
        ((name, _),) = checked(b, b.read(places, at), extent, "check_bounds").values
        return name

    return named() if mask is None else b.masked(mask, named)
