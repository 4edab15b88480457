"""Attention as PyTorch's CPU kernel computes it: two contractions and a softmax between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dovetail.ir.affine import mul
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.real import Real
from dovetail.ir.size import Dim, Size
from dovetail.lower.expression import Body, Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.norms import optional
from dovetail.lower.pointwise import element
from dovetail.lower.products import contraction
from dovetail.lower.reductions import reduction
from dovetail.lower.reindex import reshape
from dovetail.lower.rules import Lower, Refused, argument, compute, result, rule, scalar, static
from dovetail.lower.values import Pointwise, Value


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def lower_attention(lower: Lower, call: OpCall) -> Any:
    """softmax(scale * query keyᵀ + mask) value, and the logarithm of each row's sum."""
    query, key, value = (lower.value(a) for a in call.args[:3])
    dropout, causal = argument(call, 3, "dropout_p", 0.0), argument(call, 4, "is_causal", False)
    mask = optional(lower, argument(call, 5, "attn_mask"))
    scale = argument(call, 6, "scale")
    if dropout != 0 or compute(query.dtype) not in FLOATS:
        raise Refused("attention with dropout, or of integers")
    scale = 1 / math.sqrt(static(query.shape[-1], "a head's size")) if scale is None else scale
    if not scalar(scale):
        raise Refused("a scale that is no number")
    heads = _Heads.of(query, key, value)
    query, mask = heads.apart(lower, query), mask and heads.apart(lower, mask)
    scores = _scores(lower, query, key, mask, scale, bool(causal))
    dtype, rank = scores.dtype, len(scores.shape)
    highest = reduction(lower, scores, "max", (rank - 1,), dtype, dtype)

    # A query that may look at no key gets nothing, and its logarithm is 0: PyTorch's choice.
    def is_blind(b: Builder, index: Indices) -> str:
        return b.apply("eq", "bool", b.read(highest, index), b.const(-math.inf, dtype))

    def power(b: Builder, index: Indices) -> str:
        start, zero = b.read(highest, index[:-1]), b.const(0.0, dtype)
        start = b.apply("where", dtype, is_blind(b, index[:-1]), zero, start)
        off = b.apply("sub", dtype, b.read(scores, index), start)
        return b.apply("exp_normal", dtype, off)

    powers = lower.inner("powers", dtype, scores.shape, power, (scores, highest), 12)
    total = reduction(lower, powers, "sum", (rank - 1,), dtype, dtype)
    shape = (*query.shape[:-1], value.shape[-1], value.shape[-2])
    mixed = contraction(
        lower,
        powers,
        value,
        shape,
        lambda i: ((*i[:-2], i[-1]), (*i[:2], i[-1], i[-2])),
        up_to=rank - 2 if causal else None,
    )

    def mean(b: Builder, index: Indices) -> str:
        found = b.apply("div", dtype, b.read(mixed, index), b.read(total, index[:-1]))
        return b.apply("where", dtype, is_blind(b, index[:-1]), b.const(0.0, dtype), found)

    def logarithm(b: Builder, index: Indices) -> str:
        found = b.apply("log", dtype, b.read(total, index))
        found = b.apply("add", dtype, b.read(highest, index), found)
        return b.apply("where", dtype, is_blind(b, index), b.const(0.0, dtype), found)

    return (
        heads.result(lower, call, mean, (mixed, total, highest), 0),
        heads.result(lower, call, logarithm, (total, highest), 1),
    )


@dataclass(frozen=True)
class _Heads:
    """Where several heads of queries share keys and values, they are groups of heads.

    So keys and values are read at the first two dimensions of a query, whichever it is.
    """

    groups: Dim
    each: int  # heads of a group

    @staticmethod
    def of(query: Value, key: Value, value: Value) -> _Heads:
        """The heads of a call."""
        if not all(len(v.shape) == 4 for v in (query, key, value)):
            raise Refused("attention that has no batch of heads")
        if query.shape[1] == key.shape[1] == value.shape[1]:
            return _Heads(query.shape[1], 1)
        count, groups, others = (static(v.shape[1], "a head count") for v in (query, key, value))
        if groups != others or not groups or count % groups:
            raise Refused("heads that share keys and values unequally")
        return _Heads(groups, count // groups)

    def apart(self, lower: Lower, value: Value) -> Value:
        """A value of all heads, or of one that stands for all, with its groups apart."""
        if self.each == 1 or len(value.shape) < 3:
            return value
        shape, strides = self._split(value.shape, value.strides)
        return reshape(lower, lower.fresh("groups"), value, shape, strides)

    def result(
        self, lower: Lower, call: OpCall, body: Body, reads: tuple[Value, ...], nth: int
    ) -> Value:
        """A result of the call, in which groups are together again."""
        if self.each == 1:
            return lower.pointwise(call, body, reads, nth=nth)
        desc = result(call, nth)
        shape, strides = self._split(desc.shape, desc.strides)
        found = Pointwise(lower.fresh("groups"), desc.dtype, shape, strides, body, reads)
        return reshape(lower, f"{call.name}.{nth}", found, desc.shape, desc.strides)

    def _split(
        self, shape: tuple[Dim, ...], strides: tuple[Dim, ...]
    ) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        (batch, heads, *sizes), (far, step, *steps) = shape, strides
        groups, each = (1, 1) if heads == 1 else (self.groups, self.each)
        return (batch, groups, each, *sizes), (far, mul(step, each), step, *steps)


def _scores(
    lower: Lower,
    query: Value,
    key: Value,
    mask: Value | None,
    scale: float | Size | Real,
    causal: bool,
) -> Pointwise:
    """How much each query looks at each key, before the softmax."""
    shape = (*query.shape[:-1], key.shape[-2], query.shape[-1])
    total = contraction(
        lower, query, key, shape, lambda i: ((*i[:-2], i[-1]), (*i[:2], i[-2], i[-1]))
    )
    dtype = total.dtype

    def body(b: Builder, index: Indices) -> str:
        x = b.apply("mul", dtype, b.read(total, index), element(b, scale, (), dtype))
        if mask is not None and mask.dtype == "bool":
            seen = element(b, mask, index, "bool")
            x = b.apply("where", dtype, seen, x, b.const(-math.inf, dtype))
        elif mask is not None:
            x = b.apply("add", dtype, x, element(b, mask, index, dtype))
        if causal:
            seen = b.apply("ge", "bool", b.position(index[-2]), b.position(index[-1]))
            x = b.apply("where", dtype, seen, x, b.const(-math.inf, dtype))
        return x

    return lower.inner("scores", dtype, total.shape, body, (total, mask), 4.0)
