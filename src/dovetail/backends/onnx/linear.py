"""Products, convolutions, pooling and attention as ONNX."""

from __future__ import annotations

import math
from typing import Any

from dovetail.backends.onnx.ops import FLOATS, allow, result, select
from dovetail.backends.onnx.shapes import constant
from dovetail.backends.onnx.writer import ModelWriter, NotInOnnx, Rules, tensor
from dovetail.ir import Arg, OpCall, Ref
from dovetail.lower.rules import argument

RULES = Rules()


@RULES.add("mm.default", "bmm.default", "mv.default", "dot.default")
def _matmul(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, FLOATS)
    return str(w.node("MatMul", *(w.operand(arg, dtype) for arg in call.args[:2])))


@RULES.add("addmm.default")
def _addmm(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, FLOATS)
    added, left, right = (w.operand(arg, dtype) for arg in call.args[:3])
    alpha, beta = _factors(call)
    if beta == 0:  # what it would be added to is not looked at, NaN or not
        return str(w.node("Gemm", left, right, alpha=alpha))
    return str(w.node("Gemm", left, right, added, alpha=alpha, beta=beta))


@RULES.add("baddbmm.default")
def _baddbmm(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, FLOATS)
    added, left, right = (w.operand(arg, dtype) for arg in call.args[:3])
    alpha, beta = _factors(call)
    found = w.node("MatMul", left, right)
    if alpha != 1:
        found = w.node("Mul", found, w.constant(alpha, dtype))
    if beta == 0:
        return str(found)
    if beta != 1:
        added = w.node("Mul", added, w.constant(beta, dtype))
    return str(w.node("Add", found, added))


def _factors(call: OpCall) -> tuple[float, float]:
    alpha, beta = (argument(call, 99, name, 1) for name in ("alpha", "beta"))
    if not all(isinstance(f, int | float) for f in (alpha, beta)):
        raise NotInOnnx("a factor that is not a constant")
    return float(alpha), float(beta)


# ---- convolutions and pooling ------------------------------------------------------------------


def numbers(given: Arg, count: int) -> list[int]:
    """As many numbers as there are dimensions in space; one given stands for all."""
    listed = given if isinstance(given, tuple) else (given,)
    found = [constant(n, "a size of the window") for n in listed]
    return found * count if len(found) == 1 else found


@RULES.add("convolution.default")
def _convolution(w: ModelWriter, call: OpCall) -> str:
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = call.args
    allow(result(call).dtype, ("float32",))
    count = tensor(x).rank - 2
    if count < 1 or tensor(x).rank != tensor(weight).rank:
        raise NotInOnnx("a convolution without a batch")
    pads = numbers(padding, count)
    window: dict[str, Any] = {
        "strides": numbers(stride, count),
        "pads": pads + pads,
        "dilations": numbers(dilation, count),
        "group": constant(groups, "the number of groups"),
    }
    inputs = [w.value(x), w.value(weight)]
    if isinstance(bias, Ref):
        inputs.append(w.value(bias))
    if transposed:
        window["output_padding"] = numbers(extra, count)
        return str(w.node("ConvTranspose", *inputs, **window))
    return str(w.node("Conv", *inputs, **window))


@RULES.add("convolution_backward.default")
def _convolution_backward(w: ModelWriter, call: OpCall) -> tuple[str | None, ...]:
    """Gradients as convolutions: transposed for the input, of the transposed for the weight."""
    upper, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = call.args
    allow(tensor(upper).dtype, ("float32",))
    count = tensor(x).rank - 2
    if transposed or groups != 1 or count < 1:
        raise NotInOnnx("only the gradient of a plain convolution without groups")
    steps, pads, gaps = (numbers(given, count) for given in (stride, padding, dilation))
    before, after, window = (
        [constant(d, "the size of an image") for d in tensor(ref).shape[2:]]
        for ref in (x, upper, weight)
    )
    made: list[str | None] = [None, None, None]
    if wanted[0]:
        reach = [(a - 1) * s - 2 * p + g * (k - 1) + 1 for a, s, p, g, k in
                 zip(after, steps, pads, gaps, window, strict=True)]  # fmt: skip
        made[0] = w.node(
            "ConvTranspose",
            w.value(upper),
            w.value(weight),
            strides=steps,
            pads=pads + pads,
            dilations=gaps,
            output_padding=[b - r for b, r in zip(before, reach, strict=True)],
        )
    if wanted[1]:
        transposed = [1, 0, *range(2, count + 2)]
        images, errors = (w.node("Transpose", w.value(r), perm=transposed) for r in (x, upper))
        found = w.node("Conv", images, errors, strides=gaps, dilations=steps, pads=pads + pads)
        axes = list(range(2, count + 2))
        bounds = w.integers([0] * count), w.integers(window), w.integers(axes)
        made[1] = w.node("Transpose", w.node("Slice", found, *bounds), perm=transposed)
    if wanted[2]:
        axes = [0, *range(2, count + 2)]
        made[2] = w.node("ReduceSum", w.value(upper), w.integers(axes), keepdims=0)
    return tuple(made)


@RULES.add("max_pool2d_with_indices.default")
def _max_pool(w: ModelWriter, call: OpCall) -> tuple[str, str]:
    desc = tensor(call.args[0])
    allow(desc.dtype, ("float32",))
    if desc.rank != 4:
        raise NotInOnnx("pooling without a batch")
    kernel = numbers(call.args[1], 2)
    pads = numbers(argument(call, 3, "padding", 0), 2)
    window = {
        "kernel_shape": kernel,
        "strides": numbers(argument(call, 2, "stride", ()) or tuple(kernel), 2),
        "pads": pads + pads,
        "dilations": numbers(argument(call, 4, "dilation", 1), 2),
        "ceil_mode": int(argument(call, 5, "ceil_mode", False)),
    }
    if window["ceil_mode"]:
        raise NotInOnnx("a window that may begin outside")
    x = w.value(call.args[0])
    best, place = w.node("MaxPool", x, outputs=2, **window)
    # ONNX Runtime skips a NaN, ATen keeps it.
    broken = w.cast(w.node("IsNaN", x), "bool", "float32")
    some, first = w.node("MaxPool", broken, outputs=2, **window)
    is_broken = w.cast(some, "float32", "bool")
    values = select(w, "float32", is_broken, w.constant(math.nan, "float32"), best)
    plane = w.shape(desc.shape[2:])
    pixels = w.node("ReduceProd", plane, keepdims=1)
    return values, str(w.node("Mod", w.node("Where", is_broken, first, place), pixels))


@RULES.add("avg_pool2d.default")
def _avg_pool(w: ModelWriter, call: OpCall) -> str:
    desc = tensor(call.args[0])
    allow(desc.dtype, ("float32",))
    if desc.rank != 4 or argument(call, 4, "ceil_mode", False):
        raise NotInOnnx("pooling without a batch, or with a window that may begin outside")
    if argument(call, 6, "divisor_override") is not None:
        raise NotInOnnx("a divisor of its own")
    kernel = numbers(call.args[1], 2)
    pads = numbers(argument(call, 3, "padding", 0), 2)
    return str(
        w.node(
            "AveragePool",
            w.value(call.args[0]),
            kernel_shape=kernel,
            strides=numbers(argument(call, 2, "stride", ()) or tuple(kernel), 2),
            pads=pads + pads,
            count_include_pad=int(argument(call, 5, "count_include_pad", True)),
        )
    )


@RULES.add("_adaptive_avg_pool2d.default")
def _adaptive_pool(w: ModelWriter, call: OpCall) -> str:
    desc = tensor(call.args[0])
    allow(desc.dtype, ("float32",))
    if desc.rank != 4 or call.args[1] != (1, 1):
        raise NotInOnnx("only pooling of a batch to one pixel")
    return str(w.node("GlobalAveragePool", w.value(call.args[0])))


# ---- attention ---------------------------------------------------------------------------------


@RULES.add("_scaled_dot_product_flash_attention_for_cpu.default")
def _attention(w: ModelWriter, call: OpCall) -> tuple[str, str]:
    query, key, value = call.args[:3]
    scores, dtype = _scores(w, call, query, key, 3)
    masked = _wholly_masked(w, scores, dtype)
    total = w.node("ReduceLogSumExp", scores, w.integers([-1]), keepdims=1)
    total = w.node("Where", masked, w.constant(0.0, dtype), total)
    weights = w.node("Softmax", scores, axis=-1)
    weights = w.node("Where", masked, w.constant(0.0, dtype), weights)
    made = w.node("MatMul", weights, w.value(value))
    return str(made), str(w.node("Squeeze", total, w.integers([-1])))


@RULES.add("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _attention_backward(w: ModelWriter, call: OpCall) -> tuple[str, str, str]:
    given, query, key, value, out, total = call.args[:6]
    scores, dtype = _scores(w, call, query, key, 6)
    total = w.node("Unsqueeze", w.operand(total, dtype), w.integers([-1]))
    masked = _wholly_masked(w, scores, dtype)
    weights = w.node("Exp", w.node("Sub", scores, total))
    weights = w.node("Where", masked, w.constant(0.0, dtype), weights)
    upper = w.value(given)
    d_value = w.node("MatMul", _turned(w, weights), upper)
    d_weights = w.node("MatMul", upper, _turned(w, w.value(value)))
    each = w.node("Mul", upper, w.value(out))
    row = w.node("ReduceSum", each, w.integers([-1]), keepdims=1)
    d_scores = w.node("Mul", weights, w.node("Sub", d_weights, row))
    d_scores = w.node("Mul", d_scores, w.constant(_scale(call, query), dtype))
    d_query = w.node("MatMul", d_scores, w.value(key))
    d_key = w.node("MatMul", _turned(w, d_scores), w.value(query))
    return str(d_query), str(d_key), str(d_value)


def _wholly_masked(w: ModelWriter, scores: str, dtype: str) -> str:
    """Whether a row has no score but -inf: ATen's attention gives zeros for it, a softmax NaN."""
    seen = w.node("Not", w.node("Equal", scores, w.constant(-math.inf, dtype)))
    some = w.node("ReduceMax", w.cast(seen, "bool", "int32"), w.integers([-1]), keepdims=1)
    return str(w.node("Not", w.cast(some, "int32", "bool")))


def _turned(w: ModelWriter, name: str) -> str:
    return str(w.node("Transpose", name, perm=[0, 1, 3, 2]))


def _scale(call: OpCall, query: Ref) -> float:
    scale = argument(call, 99, "scale")
    width = constant(tensor(query).shape[-1], "the width of a head")
    return width**-0.5 if scale is None else float(scale)


def _scores(w: ModelWriter, call: OpCall, query: Ref, key: Ref, at: int) -> tuple[str, str]:
    """Products of queries and keys, scaled and masked."""
    dtype = allow(tensor(query).dtype, FLOATS)
    dropout, causal = argument(call, at, "dropout_p", 0.0), argument(call, at + 1, "is_causal")
    if dropout:
        raise NotInOnnx("attention with dropout")
    if tensor(query).shape[:-2] != tensor(key).shape[:-2]:
        raise NotInOnnx("attention whose queries share keys")
    scaled = w.node("Mul", w.value(query), w.constant(_scale(call, query), dtype))
    scores = w.node("MatMul", scaled, _turned(w, w.value(key)))
    mask = argument(call, 99, "attn_mask")
    if isinstance(mask, Ref):
        scores = w.node("Add", scores, w.operand(mask, dtype))
    if causal:
        rows, columns = (w.size(tensor(t).shape[-2]) for t in (query, key))
        zero, one = w.constant(0, "int64"), w.constant(1, "int64")
        flat = w.integers([])
        i = w.node("Range", zero, w.node("Reshape", rows, flat), one)
        j = w.node("Range", zero, w.node("Reshape", columns, flat), one)
        seen = w.node("LessOrEqual", j, w.node("Unsqueeze", i, w.integers([1])))
        scores = w.node("Where", seen, scores, w.constant(-math.inf, dtype))
    return str(scores), dtype
