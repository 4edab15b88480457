"""Attention as PyTorch's CPU kernel computes it: two contractions and a softmax between them."""

from __future__ import annotations

import math
from typing import Any

from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.norms import optional
from dovetail.lower.pointwise import element
from dovetail.lower.products import contraction
from dovetail.lower.reductions import reduction
from dovetail.lower.rules import Lower, Refused, argument, compute, number, rule, static
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
    if not number(scale):
        raise Refused("a scale that is no constant")
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
        lower, powers, value, shape, lambda i: ((*i[:-2], i[-1]), (*i[:-3], i[-1], i[-2]))
    )

    def result(b: Builder, index: Indices) -> str:
        found = b.apply("div", dtype, b.read(mixed, index), b.read(total, index[:-1]))
        return b.apply("where", dtype, is_blind(b, index[:-1]), b.const(0.0, dtype), found)

    def logarithm(b: Builder, index: Indices) -> str:
        found = b.apply("log", dtype, b.read(total, index))
        found = b.apply("add", dtype, b.read(highest, index), found)
        return b.apply("where", dtype, is_blind(b, index), b.const(0.0, dtype), found)

    return (
        lower.pointwise(call, result, (mixed, total, highest), nth=0),
        lower.pointwise(call, logarithm, (total, highest), nth=1),
    )


def _scores(
    lower: Lower, query: Value, key: Value, mask: Value | None, scale: float, causal: bool
) -> Pointwise:
    """How much each query looks at each key, before the softmax."""
    shape = (*query.shape[:-1], key.shape[-2], query.shape[-1])
    total = contraction(
        lower, query, key, shape, lambda i: ((*i[:-2], i[-1]), (*i[:-3], i[-2], i[-1]))
    )
    dtype = total.dtype

    def body(b: Builder, index: Indices) -> str:
        x = b.apply("mul", dtype, b.read(total, index), b.const(scale, dtype))
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
