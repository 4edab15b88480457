"""Elementwise operators, casts and new tensors as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.backends.onnx.writer import ModelWriter, NotInOnnx, Rules, tensor
from dovetail.ir import Arg, OpCall, Ref, Size
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.rules import argument

RULES = Rules()
FLOATS = ("float32", "float64")
# ATen's name → ONNX's, and the types that ONNX Runtime has it for.
_UNARY = {
    "neg": ("Neg", (*FLOATS, "int64", "int32")),
    "abs": ("Abs", (*FLOATS, "int64", "int32")),
    "exp": ("Exp", FLOATS),
    "log": ("Log", FLOATS),
    "sqrt": ("Sqrt", FLOATS),
    "reciprocal": ("Reciprocal", FLOATS),
    "sin": ("Sin", FLOATS),
    "cos": ("Cos", FLOATS),
    "tan": ("Tan", ("float32",)),
    "tanh": ("Tanh", FLOATS),
    "sigmoid": ("Sigmoid", FLOATS),
    "erf": ("Erf", ("float32",)),
    "floor": ("Floor", FLOATS),
    "ceil": ("Ceil", FLOATS),
    "round": ("Round", FLOATS),
    "relu": ("Relu", FLOATS),
    "asin": ("Asin", ("float32",)),
    "acos": ("Acos", ("float32",)),
    "atan": ("Atan", ("float32",)),
}
_ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "maximum": "Max", "minimum": "Min"}
_NUMBERS = (*FLOATS, "int64", "int32")
_COMPARISONS = {"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}


def result(call: OpCall) -> TensorDesc:
    """The descriptor of a call's one result."""
    if not isinstance(call.output, TensorDesc):
        raise NotInOnnx("its result is no tensor")
    return call.output


def allow(dtype: str, allowed: tuple[str, ...]) -> str:
    """The type, when it is one of those."""
    if dtype not in allowed:
        raise NotInOnnx(f"no {dtype} for it in ONNX Runtime")
    return dtype


def _unary(onnx: str, dtypes: tuple[str, ...]) -> Callable[[ModelWriter, OpCall], str]:
    def write(w: ModelWriter, call: OpCall) -> str:
        dtype = allow(result(call).dtype, dtypes)
        return str(w.node(onnx, w.operand(call.args[0], dtype)))

    return write


def _binary(onnx: str, *, scaled: bool) -> Callable[[ModelWriter, OpCall], str]:
    def write(w: ModelWriter, call: OpCall) -> str:
        dtype = allow(result(call).dtype, _NUMBERS)
        left, right = (w.operand(arg, dtype) for arg in call.args[:2])
        factor = argument(call, 2, "alpha", 1) if scaled else 1
        if factor != 1:
            right = w.node("Mul", right, w.operand(factor, dtype))
        return str(w.node(onnx, left, right))

    return write


def compared_in(call: OpCall) -> str:
    """The type that a comparison happens in."""
    tensors = [tensor(a).dtype for a in call.args[:2] if isinstance(a, Ref)]
    numbers = [a for a in call.args[:2] if not isinstance(a, Ref)]
    if len(set(tensors)) != 1:
        raise NotInOnnx(f"a comparison of {' and '.join(tensors)}")
    whole = all(isinstance(n, int | Size) for n in numbers)
    if not whole and tensors[0] not in FLOATS:
        raise NotInOnnx("a comparison of whole numbers with a fraction")
    return tensors[0]


def _comparison(onnx: str) -> Callable[[ModelWriter, OpCall], str]:
    def write(w: ModelWriter, call: OpCall) -> str:
        dtype = compared_in(call)
        if dtype == "bool" and onnx != "Equal":
            raise NotInOnnx("an order of true and false")
        return str(w.node(onnx, *(w.operand(arg, dtype) for arg in call.args[:2])))

    return write


def _logic(onnx: str) -> Callable[[ModelWriter, OpCall], str]:
    def write(w: ModelWriter, call: OpCall) -> str:
        allow(result(call).dtype, ("bool",))
        return str(w.node(onnx, *(w.operand(arg, "bool") for arg in call.args[:2])))

    return write


for _name, (_onnx, _dtypes) in _UNARY.items():
    RULES.add(f"{_name}.default")(_unary(_onnx, _dtypes))
for _name, _onnx in _ARITHMETIC.items():
    _forms = ("default",) if _name.endswith("imum") else ("Tensor", "Scalar")
    RULES.add(*(f"{_name}.{form}" for form in _forms))(
        _binary(_onnx, scaled=_name in ("add", "sub"))
    )
for _name, _onnx in _COMPARISONS.items():
    RULES.add(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_onnx))
for _name, _onnx in _LOGIC.items():
    RULES.add(f"logical_{_name}.default")(_logic(_onnx))
    RULES.add(f"bitwise_{_name}.Tensor")(_logic(_onnx))
RULES.add("eq.Tensor", "eq.Scalar")(_comparison("Equal"))


@RULES.add("ne.Tensor", "ne.Scalar")
def _ne(w: ModelWriter, call: OpCall) -> str:
    return str(w.node("Not", _comparison("Equal")(w, call)))


@RULES.add("div.Tensor", "div.Scalar")
def _div(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, FLOATS)  # of whole numbers too: the result is a fraction
    return str(w.node("Div", *(w.operand(arg, dtype) for arg in call.args[:2])))


@RULES.add("rsub.Scalar")
def _rsub(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, _NUMBERS)
    left, right = w.operand(call.args[0], dtype), w.operand(call.args[1], dtype)
    factor = argument(call, 2, "alpha", 1)
    if factor != 1:
        left = w.node("Mul", left, w.operand(factor, dtype))
    return str(w.node("Sub", right, left))


@RULES.add("rsqrt.default")
def _rsqrt(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, FLOATS)
    return str(w.node("Reciprocal", w.node("Sqrt", w.operand(call.args[0], dtype))))


@RULES.add("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, FLOATS)
    base, exponent = call.args[:2]
    x = w.operand(base, dtype)
    if exponent == 2 and not isinstance(exponent, Ref):
        return str(w.node("Mul", x, x))
    return str(w.node("Pow", x, w.operand(exponent, dtype)))


@RULES.add("silu.default")
def _silu(w: ModelWriter, call: OpCall) -> str:
    x = w.operand(call.args[0], allow(result(call).dtype, FLOATS))
    return str(w.node("Mul", x, w.node("Sigmoid", x)))


@RULES.add("gelu.default")
def _gelu(w: ModelWriter, call: OpCall) -> str:
    x = w.operand(call.args[0], allow(result(call).dtype, ("float32",)))
    return str(w.node("Gelu", x, approximate=argument(call, 1, "approximate", "none")))


@RULES.add("isnan.default")
def _isnan(w: ModelWriter, call: OpCall) -> str:
    allow(tensor(call.args[0]).dtype, FLOATS)
    return str(w.node("IsNaN", w.value(call.args[0])))


@RULES.add("logical_not.default", "bitwise_not.default")
def _not(w: ModelWriter, call: OpCall) -> str:
    if "bitwise" in call.op:
        allow(result(call).dtype, ("bool",))
    return str(w.node("Not", w.operand(call.args[0], "bool")))


def select(w: ModelWriter, dtype: str, mask: str, yes: str, no: str) -> str:
    """``mask ? yes : no``, for true and false too, which ONNX Runtime has no kernel for."""
    if dtype != "bool":
        return str(w.node("Where", mask, yes, no))
    chosen = w.node("And", mask, yes), w.node("And", w.node("Not", mask), no)
    return str(w.node("Or", *chosen))


@RULES.add("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(w: ModelWriter, call: OpCall) -> str:
    dtype = result(call).dtype
    mask, yes, no = call.args
    return select(w, dtype, w.operand(mask, "bool"), w.operand(yes, dtype), w.operand(no, dtype))


@RULES.add("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(w: ModelWriter, call: OpCall) -> str:
    x, mask, value = call.args
    dtype = result(call).dtype
    if result(call).shape != tensor(x).shape:
        raise NotInOnnx("a mask larger than what it masks")
    filled = w.operand(value, dtype)
    return select(w, dtype, w.operand(mask, "bool"), filled, w.operand(x, dtype))


@RULES.add("clamp.default", "clamp_min.default", "clamp_max.default", "hardtanh.default")
def _clamp(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, _NUMBERS)
    name = call.op.split(".")[1]
    low: Any = None
    high: Any = None
    if name == "hardtanh":
        low, high = argument(call, 1, "min_val", -1), argument(call, 2, "max_val", 1)
    elif name == "clamp":
        low, high = argument(call, 1, "min"), argument(call, 2, "max")
    elif name == "clamp_min":
        low = call.args[1]
    else:
        high = call.args[1]
    x = w.operand(call.args[0], dtype)
    if low is not None:
        x = w.node("Max", x, w.operand(low, dtype))
    return x if high is None else str(w.node("Min", x, w.operand(high, dtype)))


@RULES.add("_to_copy.default", "clone.default", "detach.default", "alias.default")
def _copy(w: ModelWriter, call: OpCall) -> str:
    have, want = tensor(call.args[0]).dtype, result(call).dtype
    if have in FLOATS and want in ("int8", "uint8"):
        raise NotInOnnx(f"{have} out of the range of {want}")
    return w.cast(w.value(call.args[0]), have, want)


RULES.add("lift_fresh_copy.default")(_copy)


@RULES.add("full.default", "full_like.default", "scalar_tensor.default")
def _full(w: ModelWriter, call: OpCall) -> str:
    desc = result(call)
    value: Arg = call.args[0] if "scalar_tensor" in call.op else call.args[1]
    return filled(w, desc, value)


@RULES.add("zeros_like.default", "zeros.default", "new_zeros.default")
def _zeros(w: ModelWriter, call: OpCall) -> str:
    return filled(w, result(call), 0)


@RULES.add("ones_like.default", "ones.default", "new_ones.default")
def _ones(w: ModelWriter, call: OpCall) -> str:
    return filled(w, result(call), 1)


def filled(w: ModelWriter, desc: TensorDesc, value: Arg) -> str:
    """A tensor of one number."""
    scalar = w.operand(value, desc.dtype)
    return str(w.node("Expand", scalar, w.shape(desc.shape))) if desc.shape else scalar


@RULES.add("arange.start_step", "arange.default", "arange.start")
def _arange(w: ModelWriter, call: OpCall) -> str:
    dtype = allow(result(call).dtype, ("int64", "int32", "float32"))
    if dtype == "float32" and not all(isinstance(a, int | Size) for a in call.args):
        raise NotInOnnx("a range of fractions")
    numbers: tuple[Arg, ...] = call.args
    start, end = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) > 2 else 1
    made = w.node("Range", *(w.operand(n, "int64") for n in (start, end, step)))
    return w.cast(made, "int64", dtype)
