"""Matrix products: each a contraction, and what the call does with it."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.ir.call import OpCall
from dovetail.lower.contraction import Contraction
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pointwise import element
from dovetail.lower.reductions import finish
from dovetail.lower.rules import Lower, Refused, argument, compute, rule, scalar, tensor
from dovetail.lower.values import Value


def contraction(
    lower: Lower,
    left: Value,
    right: Value,
    shape: tuple[object, ...],
    at: Callable[[Indices], tuple[Indices, Indices]],
    up_to: int | None = None,
) -> Contraction:
    """The sum over the last dimension of ``shape``; ``at``: where each operand is read.

    ``up_to`` is a dimension: terms behind the one of its number are left out.
    """
    dtype = compute(left.dtype)

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        places = zip((left, right), at(index), strict=True)
        term = b.apply("mul", dtype, *[b.cast(b.read(v, place), dtype) for v, place in places])
        if up_to is not None:
            near = b.apply("ge", "bool", b.position(index[up_to]), b.position(index[-1]))
            term = b.apply("where", dtype, near, term, b.const(0.0, dtype))
        return (term,)

    dims = (len(shape) - 1,)
    return Contraction(lower.fresh("product"), shape, dims, body, (left, right), dtype)  # type: ignore[arg-type]


def matrices(lower: Lower, left: Value, right: Value) -> Contraction:
    """Σ_k left[…, m, k] right[…, k, n]."""

    def at(index: Indices) -> tuple[Indices, Indices]:
        *batch, m, n, k = index
        return (*batch, m, k), (*batch, k, n)

    shape = (*left.shape[:-1], right.shape[-1], left.shape[-1])
    return contraction(lower, left, right, shape, at)


def _shared(lower: Lower, call: OpCall, left: Value, right: Value) -> Value:
    """One left matrix by each right one: rows come first, as where right ones are parts of one."""

    def at(index: Indices) -> tuple[Indices, Indices]:
        m, batch, n, k = index
        return (batch, m, k), (batch, k, n)

    shape = (left.shape[1], left.shape[0], right.shape[2], left.shape[2])
    total, result = contraction(lower, left, right, shape, at), compute(tensor(call.output).dtype)

    def body(b: Builder, index: Indices) -> str:
        batch, m, n = index
        return b.cast(b.read(total, (m, batch, n)), result)

    return lower.pointwise(call, body, (total,))


@rule("mm.default", "bmm.default")
def lower_mm(lower: Lower, call: OpCall) -> Value:
    """A product, or one for each matrix of a batch."""
    left, right = (lower.value(a) for a in call.args[:2])
    if len(left.shape) == 3 and left.strides[0] == 0:
        return _shared(lower, call, left, right)
    return finish(lower, call, matrices(lower, left, right))


@rule("mv.default", "dot.default")
def lower_mv(lower: Lower, call: OpCall) -> Value:
    """A matrix, or a vector, times a vector."""
    left, right = (lower.value(a) for a in call.args[:2])
    total = contraction(lower, left, right, left.shape, lambda index: (index, index[-1:]))
    return finish(lower, call, total)


@rule("addmm.default", "baddbmm.default")
def lower_addmm(lower: Lower, call: OpCall) -> Value:
    """A scaled bias and a scaled product."""
    bias, left, right = (lower.value(a) for a in call.args[:3])
    beta, alpha = argument(call, 3, "beta", 1), argument(call, 4, "alpha", 1)
    if not scalar(beta) or not scalar(alpha):
        raise Refused("a factor that is no number")
    if alpha == 0:  # by type, PyTorch multiplies infinities by it or leaves the product out
        raise Refused("a product times 0")
    total = matrices(lower, left, right)
    dtype, result = compute(left.dtype), compute(tensor(call.output).dtype)

    def body(b: Builder, index: Indices) -> str:
        value = b.read(total, index)
        if alpha != 1:
            value = b.apply("mul", dtype, value, element(b, alpha, (), dtype))
        if beta != 0:
            extra = element(b, bias, index, dtype)
            if beta != 1:
                extra = b.apply("mul", dtype, extra, element(b, beta, (), dtype))
            value = b.apply("add", dtype, value, extra)
        return b.cast(value, result)

    return lower.pointwise(call, body, (total, bias), 1.0)
