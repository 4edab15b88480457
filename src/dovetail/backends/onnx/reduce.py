"""Reductions, softmax and normalisations as ONNX; a NaN wins wherever it wins in ATen."""

from __future__ import annotations

from typing import Any

from dovetail.backends.onnx.ops import FLOATS, allow, result, select
from dovetail.backends.onnx.shapes import constant
from dovetail.backends.onnx.writer import ModelWriter, NotInOnnx, Rules, tensor
from dovetail.ir import Arg, OpCall, Ref
from dovetail.ir.affine import product
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.rules import argument

RULES = Rules()
_NUMBERS = (*FLOATS, "int64", "int32")


def axes_of(call: OpCall, given: Arg) -> list[int]:
    """Dimensions counted from the front; none given means all."""
    rank = tensor(call.args[0]).rank
    if given is None or given == () or not rank:
        return list(range(rank))
    listed = given if isinstance(given, tuple) else (given,)
    return sorted(constant(d, "a dimension") % rank for d in listed)


def reduction(w: ModelWriter, op: str, x: str, axes: list[int], keep: Any) -> str:
    """A reduction over dimensions."""
    if not axes:  # of a tensor without dimensions
        return x
    return str(w.node(op, x, w.integers(axes), keepdims=int(bool(keep))))


@RULES.add("sum.dim_IntList", "sum.default", "mean.dim", "mean.default")
def _sum(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, _NUMBERS if "sum" in call.op else FLOATS)
    x = w.operand(call.args[0], dtype)
    whole = call.op.endswith(".default")
    axes = axes_of(call, None if whole else argument(call, 1, "dim"))
    keep = False if whole else argument(call, 2, "keepdim", False)
    if "sum" in call.op:
        return reduction(w, "ReduceSum", x, axes, keep)
    return mean(w, x, tensor(call.args[0]), dtype, axes, keep)


def mean(w: ModelWriter, x: str, desc: TensorDesc, dtype: str, axes: list[int], keep: Any) -> str:
    """A mean; NaN of nothing, where ONNX Runtime's own gives zero."""
    sizes = [desc.shape[a] for a in axes]
    if all(isinstance(size, int) and size for size in sizes):
        return reduction(w, "ReduceMean", x, axes, keep)
    total = reduction(w, "ReduceSum", x, axes, keep)
    return str(w.node("Div", total, w.operand(product(sizes), dtype)))


def extreme(w: ModelWriter, op: str, x: str, dtype: str, axes: list[int], keep: Any) -> str:
    """The largest or smallest; where there is a NaN, that."""
    best = reduction(w, op, x, axes, keep)
    if dtype not in FLOATS or not axes:
        return best
    broken = w.cast(w.node("IsNaN", x), "bool", "int32")
    some = w.cast(reduction(w, "ReduceMax", broken, axes, keep), "int32", "bool")
    return select(w, dtype, some, w.constant(float("nan"), dtype), best)


@RULES.add("amax.default", "amin.default")
def _amax(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, _NUMBERS)
    _no_empty(tensor(call.args[0]))
    axes = axes_of(call, argument(call, 1, "dim", ()))
    keep = argument(call, 2, "keepdim", False)
    op = "ReduceMax" if "amax" in call.op else "ReduceMin"
    return extreme(w, op, w.value(call.args[0]), dtype, axes, keep)


@RULES.add("max.default", "min.default")
def _max(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, _NUMBERS)
    _no_empty(tensor(call.args[0]))
    op = "ReduceMax" if ".max." in call.op else "ReduceMin"
    return extreme(w, op, w.value(call.args[0]), dtype, axes_of(call, None), False)


def _no_empty(desc: TensorDesc) -> None:
    if not all(isinstance(d, int) and d for d in desc.shape):
        raise NotInOnnx("a reduction of what might be nothing")


def position(w: ModelWriter, op: str, x: str, dtype: str, axis: int, keep: Any) -> str:
    """Where the largest or smallest is; the first NaN where there is one."""
    best = w.node(op, x, axis=axis, keepdims=int(bool(keep)))
    if dtype not in FLOATS:
        return str(best)
    broken = w.cast(w.node("IsNaN", x), "bool", "int32")
    some = w.cast(reduction(w, "ReduceMax", broken, [axis], keep), "int32", "bool")
    first = w.node("ArgMax", broken, axis=axis, keepdims=int(bool(keep)))
    return str(w.node("Where", some, first, best))


@RULES.add("argmax.default", "argmin.default")
def _argmax(w: ModelWriter, call: OpCall) -> str:
    desc = tensor(call.args[0])
    dtype = allow(desc.dtype, _NUMBERS)
    _no_empty(desc)
    x, keep = w.value(call.args[0]), argument(call, 2, "keepdim", False)
    dim = argument(call, 1, "dim")
    if dim is None:
        if keep:
            raise NotInOnnx("all dimensions kept")
        x, axis = w.node("Reshape", x, w.integers([-1])), 0
    else:
        axis = constant(dim, "a dimension") % max(desc.rank, 1)
        if not desc.rank:
            raise NotInOnnx("a tensor without dimensions")
    return position(w, "ArgMax" if "argmax" in call.op else "ArgMin", x, dtype, axis, keep)


@RULES.add("max.dim", "min.dim")
def _max_dim(w: ModelWriter, call: OpCall) -> tuple[str, str]:
    desc = tensor(call.args[0])
    dtype = allow(desc.dtype, _NUMBERS)
    _no_empty(desc)
    if not desc.rank:
        raise NotInOnnx("a tensor without dimensions")
    axis, keep = axes_of(call, call.args[1])[0], argument(call, 2, "keepdim", False)
    x, name = w.value(call.args[0]), "Max" if ".max." in call.op else "Min"
    best = extreme(w, f"Reduce{name}", x, dtype, [axis], keep)
    return best, position(w, f"Arg{name}", x, dtype, axis, keep)


@RULES.add("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _any(w: ModelWriter, call: OpCall) -> str:
    whole = w.cast(w.operand(call.args[0], "bool"), "bool", "int32")
    if not all(isinstance(d, int) and d for d in tensor(call.args[0]).shape):
        raise NotInOnnx("a reduction of what might be nothing")
    dims = None if call.op.endswith("default") else argument(call, 1, "dim")
    keep = argument(call, 2, "keepdim", False)
    op = "ReduceMax" if ".any." in call.op else "ReduceMin"
    return w.cast(reduction(w, op, whole, axes_of(call, dims), keep), "int32", "bool")


@RULES.add("cumsum.default")
def _cumsum(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, _NUMBERS)
    desc = tensor(call.args[0])
    if not desc.rank:
        raise NotInOnnx("a tensor without dimensions")
    axis = constant(call.args[1], "a dimension") % desc.rank
    return str(w.node("CumSum", w.operand(call.args[0], dtype), w.constant(axis, "int64")))


@RULES.add("_softmax.default", "_log_softmax.default")
def _softmax(w: ModelWriter, call: OpCall) -> str:
    desc = tensor(call.args[0])
    dtype = allow(desc.dtype, FLOATS)
    if not desc.rank or call.args[2]:
        raise NotInOnnx("a tensor without dimensions, or another type of result")
    op = "LogSoftmax" if "log" in call.op else "Softmax"
    axis = constant(call.args[1], "a dimension") % desc.rank
    return str(w.node(op, w.operand(call.args[0], dtype), axis=axis))


@RULES.add("var_mean.correction", "var.correction")
def _variance(w: ModelWriter, call: OpCall) -> str | tuple[str, str]:
    desc = tensor(call.args[0])
    dtype = allow(desc.dtype, FLOATS)
    axes = axes_of(call, argument(call, 1, "dim"))
    if not axes:
        raise NotInOnnx("a tensor without dimensions")
    keep = argument(call, 99, "keepdim", False)
    correction = argument(call, 99, "correction")
    x = w.value(call.args[0])
    center = mean(w, x, desc, dtype, axes, True)
    away = w.node("Sub", x, center)
    total = reduction(w, "ReduceSum", w.node("Mul", away, away), axes, keep)
    count = w.operand(product(desc.shape[a] for a in axes), dtype)
    less = w.operand(1 if correction is None else correction, dtype)
    zero = w.constant(0.0, dtype)
    variance = str(w.node("Div", total, w.node("Max", w.node("Sub", count, less), zero)))
    if "var_mean" not in call.op:
        return variance
    return variance, center if keep else mean(w, x, desc, dtype, axes, False)


@RULES.add("native_layer_norm.default")
def _layer_norm(w: ModelWriter, call: OpCall) -> tuple[str, str, str]:
    x, shape, weight, bias, eps = call.args
    desc = tensor(x)
    dtype = allow(desc.dtype, FLOATS)
    axis = desc.rank - len(shape)
    scale = w.operand(weight, dtype) if isinstance(weight, Ref) else _ones(w, dtype, shape)
    inputs = [w.value(x), scale]
    if isinstance(bias, Ref):
        inputs.append(w.operand(bias, dtype))
    made = w.node("LayerNormalization", *inputs, axis=axis, epsilon=float(eps), outputs=3)
    return made[0], made[1], made[2]


def _ones(w: ModelWriter, dtype: str, shape: Any) -> str:
    return str(w.node("Expand", w.constant(1.0, dtype), w.shape(shape)))


@RULES.add("_native_batch_norm_legit_no_training.default")
def _batch_norm(w: ModelWriter, call: OpCall) -> tuple[str, str, str]:
    x, weight, bias, mean, variance, _, eps = call.args
    desc = tensor(x)
    allow(desc.dtype, ("float32",))
    channels = (desc.shape[1],) if desc.rank > 1 else ()
    if not channels:
        raise NotInOnnx("a batch norm without channels")
    scale = w.value(weight) if isinstance(weight, Ref) else _ones(w, desc.dtype, channels)
    if isinstance(bias, Ref):
        shift = w.value(bias)
    else:
        shift = w.node("Expand", w.constant(0.0, desc.dtype), w.shape(channels))
    given = [w.value(x), scale, shift, w.value(mean), w.value(variance)]
    made = str(w.node("BatchNormalization", *given, epsilon=float(eps)))
    nothing = w.constant([], "float32", [0])
    return made, nothing, nothing
