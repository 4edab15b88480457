"""Which calls the runtime's built-in portable kernels serve.

``match(call)`` gives the kernel, its operands and attributes, or the reason why there is none.
The rules read descriptors only, so they hold for placement and for lowering alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.ir.call import Arg, Attr, OpCall, Ref
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.ir.program import Attribute
from dovetail.ir.size import Size
from dovetail.ir.strides import is_row_major
from dovetail.ir.tensor import TensorDesc

INTS = ("int64", "int32")
CONVERTIBLE = tuple(COMPUTE)
MAX_RANK = 8

_UNARY = (
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
)
_UNARY_INT = ("abs", "neg", "relu", "sign")
_BINARY = {"add": True, "sub": True, "mul": True, "div": False, "pow": False}
_BINARY |= {"maximum": True, "minimum": True}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True)
class Operand:
    """A value a kernel reads, and the dtype it reads it as."""

    value: Arg  # Ref, or a number
    dtype: str


@dataclass(frozen=True, slots=True)
class Match:
    """A kernel that serves a call."""

    kernel: str
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...] = ()


Rule = Callable[[OpCall], "Match | str"]
RULES: dict[str, Rule] = {}


def match(call: OpCall) -> Match | str:
    """The kernel for a call, or why there is none."""
    rule = RULES.get(call.op)
    if rule is None:
        return f"no built-in kernel for {call.op}"
    for desc in (*call.inputs, *call.outputs):
        if desc.device != "cpu":
            return f"a tensor on {desc.device}"
        if desc.rank > MAX_RANK:
            return f"more than {MAX_RANK} dimensions"
    found = rule(call)
    if isinstance(found, str):
        return found
    return next(filter(None, (_refusal(o) for o in found.operands)), found)


def is_elementwise(kernel: str) -> bool:
    """Whether a kernel writes each element of its result from the same element of its operands."""
    return kernel.split("@")[0] in _ELEMENTWISE


def _refusal(operand: Operand) -> str:
    if isinstance(operand.value, Ref):
        desc = operand.value.desc
        if not isinstance(desc, TensorDesc):
            return "an operand that is no tensor"
        if desc.dtype != operand.dtype and not {desc.dtype, operand.dtype} <= set(CONVERTIBLE):
            return f"no conversion from {desc.dtype} to {operand.dtype}"
        return ""
    if isinstance(operand.value, bool | int | float | Size):
        return ""
    return f"an operand of type {type(operand.value).__name__}"


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return add


def _out(call: OpCall) -> TensorDesc:
    return call.outputs[0]


def _arg(call: OpCall, position: int, name: str, default: Arg = None) -> Arg:
    if len(call.args) > position:
        return call.args[position]
    return call.kwargs.get(name, default)


def _only(call: OpCall, **allowed: Arg) -> bool:
    """Whether every keyword has a value that means nothing special."""
    return all(key in allowed and allowed[key] == value for key, value in call.kwargs.items())


# ---- elementwise ---------------------------------------------------------------------------


def _unary(name: str) -> Rule:
    def rule(call: OpCall) -> Match | str:
        dtype = _out(call).dtype
        if dtype not in FLOATS and not (dtype in INTS and name in _UNARY_INT):
            return f"{name} of {dtype}"
        if call.kwargs or len(call.args) != 1:
            return "unusual arguments"
        return Match(f"{name}@1", (Operand(call.args[0], dtype),))

    return rule


def _binary(name: str, ints: bool) -> Rule:
    def rule(call: OpCall) -> Match | str:
        dtype = _out(call).dtype
        if dtype not in FLOATS and not (ints and dtype in INTS):
            return f"{name} of {dtype}"
        if not _only(call, alpha=1) or len(call.args) != 2:
            return "unusual arguments"
        return Match(f"{name}@1", tuple(Operand(a, dtype) for a in call.args))

    return rule


def _compare(name: str) -> Rule:
    def rule(call: OpCall) -> Match | str:
        dtype = _common_dtype(call.args)
        if dtype not in (*FLOATS, *INTS, "bool"):
            return f"{name} of {dtype or 'mixed dtypes'}"
        return Match(f"{name}@1", tuple(Operand(a, dtype) for a in call.args))

    return rule


def _common_dtype(args: tuple[Arg, ...]) -> str:
    """The dtype that operands are compared in, where it is plain; else nothing."""
    dtypes = {a.desc.dtype for a in args if isinstance(a, Ref) and isinstance(a.desc, TensorDesc)}
    if len(dtypes) != 1:
        return ""
    (dtype,) = dtypes
    numbers = [a for a in args if not isinstance(a, Ref)]
    if any(isinstance(n, float) for n in numbers) and dtype not in FLOATS:
        return ""
    whole = any(isinstance(n, int | Size) and not isinstance(n, bool) for n in numbers)
    return "" if dtype == "bool" and whole else dtype


def _logical(name: str) -> Rule:
    def rule(call: OpCall) -> Match | str:
        refs = [a for a in call.args if isinstance(a, Ref)]
        if len(refs) != len(call.args) or any(r.desc.dtype != "bool" for r in refs):  # type: ignore[union-attr]
            return f"{name} of other than bool tensors"
        return Match(f"{name}@1", tuple(Operand(a, "bool") for a in call.args))

    return rule


@_rule("aten.gelu.default")
def _gelu(call: OpCall) -> Match | str:
    dtype = _out(call).dtype
    if dtype not in FLOATS:
        return f"gelu of {dtype}"
    form = _arg(call, 1, "approximate", "none")
    kernel = "gelu_tanh@1" if form == "tanh" else "gelu@1"
    return Match(kernel, (Operand(call.args[0], dtype),))


@_rule("aten.clamp.default", "aten.hardtanh.default", "aten.clamp_min.default")
def _clamp(call: OpCall) -> Match | str:
    dtype = _out(call).dtype
    if dtype not in FLOATS:
        return f"clamp of {dtype}"
    ends = (-1.0, 1.0) if call.op == "aten.hardtanh.default" else (None, None)
    low = _arg(call, 1, "min", ends[0])
    high = _arg(call, 2, "max", ends[1])
    low = float("-inf") if low is None else low
    high = float("inf") if high is None else high
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return "limits that are no numbers"
    return Match("clamp@1", (Operand(call.args[0], dtype),), (float(low), float(high)))


@_rule("aten.leaky_relu.default")
def _leaky_relu(call: OpCall) -> Match | str:
    dtype = _out(call).dtype
    slope = _arg(call, 1, "negative_slope", 0.01)
    if dtype not in FLOATS or not isinstance(slope, int | float):
        return f"leaky_relu of {dtype}"
    return Match("leaky_relu@1", (Operand(call.args[0], dtype),), (float(slope),))


@_rule("aten.isnan.default")
def _isnan(call: OpCall) -> Match | str:
    dtype = call.inputs[0].dtype
    if dtype not in FLOATS:
        return f"isnan of {dtype}"
    return Match("ne@1", (Operand(call.args[0], dtype),) * 2)


@_rule("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def _arange(call: OpCall) -> Match | str:
    numbers = call.args if len(call.args) > 1 else (0, *call.args)
    start, step = numbers[0], numbers[2] if len(numbers) > 2 else 1
    if _out(call).dtype != "int64" or not all(isinstance(n, int | Size) for n in (start, step)):
        return "arange of other than integers"
    return Match("arange@1", (), (start, step))


@_rule("aten.where.self")
def _where(call: OpCall) -> Match | str:
    dtype = _out(call).dtype
    condition, chosen, other = call.args
    if dtype not in CONVERTIBLE or not isinstance(condition, Ref):
        return f"where of {dtype}"
    operands = (Operand(condition, "bool"), Operand(chosen, dtype), Operand(other, dtype))
    if condition.desc.dtype != "bool":  # type: ignore[union-attr]
        return "a condition that is not bool"
    return Match("where@1", operands)


@_rule(
    "aten.clone.default", "aten.contiguous.default", "aten._to_copy.default", "aten.copy.default"
)
def _copy(call: OpCall) -> Match | str:
    source = call.args[-1] if call.op == "aten.copy.default" else call.args[0]
    dtype = _out(call).dtype
    known = {"dtype", "memory_format", "device", "layout", "pin_memory", "non_blocking"}
    plain = call.kwargs.get("device") in (None, Attr("device", "cpu"))
    if not plain or not set(call.kwargs) <= known:
        return "unusual arguments"
    if not isinstance(source, Ref) or dtype not in CONVERTIBLE:
        return f"a copy of {dtype}"
    return Match("copy@1", (Operand(source, dtype),))


@_rule("aten.full.default", "aten.zeros.default", "aten.ones.default", "aten.scalar_tensor.default")
def _full(call: OpCall) -> Match | str:
    dtype = _out(call).dtype
    value = {"aten.zeros.default": 0, "aten.ones.default": 1}.get(call.op)
    if value is None:
        value = call.args[1] if call.op == "aten.full.default" else call.args[0]
    if dtype not in CONVERTIBLE or not isinstance(value, bool | int | float | Size):
        return f"full of {dtype}"
    return Match("copy@1", (Operand(value, dtype),))


# ---- products ------------------------------------------------------------------------------


@_rule("aten.mm.default", "aten.bmm.default")
def _mm(call: OpCall) -> Match | str:
    dtype = _out(call).dtype
    if dtype not in FLOATS:
        return f"a product of {dtype}"
    return Match("matmul@1", tuple(Operand(a, dtype) for a in call.args[:2]))


@_rule("aten.addmm.default", "aten.baddbmm.default")
def _addmm(call: OpCall) -> Match | str:
    dtype = _out(call).dtype
    if dtype not in FLOATS:
        return f"a product of {dtype}"
    if not _only(call, alpha=1, beta=1) or len(call.args) != 3:
        return "a product with factors"
    bias, left, right = call.args
    return Match("matmul@1", tuple(Operand(a, dtype) for a in (left, right, bias)))


# ---- along dimensions ----------------------------------------------------------------------


def _softmax(name: str) -> Rule:
    def rule(call: OpCall) -> Match | str:
        source = call.args[0]
        dtype = _out(call).dtype
        if dtype not in FLOATS or source.desc.dtype != dtype or source.desc.rank == 0:
            return f"{name} of {dtype}"
        return Match(f"{name}@1", (Operand(source, dtype),), (call.args[1] % source.desc.rank,))

    return rule


@_rule("aten.native_layer_norm.default")
def _layer_norm(call: OpCall) -> Match | str:
    source, shape, weight, bias, eps = call.args
    dtype = source.desc.dtype
    if dtype not in FLOATS or any(d.dtype != dtype for d in (*call.inputs, *call.outputs)):
        return f"layer norm of {dtype}"
    given = tuple(Operand(v, dtype) for v in (source, weight, bias) if v is not None)
    has_weight, has_bias = int(weight is not None), int(bias is not None)
    return Match("layer_norm@1", given, (len(shape), float(eps), has_weight, has_bias))


def _reduction(name: str) -> Rule:
    def rule(call: OpCall) -> Match | str:
        source = call.args[0].desc
        dtype = _out(call).dtype
        allowed = (*FLOATS, *(INTS if name in ("sum", "amax", "amin") else ()))
        if dtype not in allowed or source.rank == 0:
            return f"{name} of {dtype}"
        dims = _arg(call, 1, "dim", ()) or range(source.rank)
        dims = (dims,) if isinstance(dims, int) else dims
        mask = sum(1 << d for d in {d % source.rank for d in dims})
        keep = int(bool(_arg(call, 2, "keepdim", False)))
        return Match(f"{name}@1", (Operand(call.args[0], dtype),), (mask, keep))

    return rule


@_rule("aten.var.correction")
def _variance(call: OpCall) -> Match | str:
    source = call.args[0].desc
    dtype = _out(call).dtype
    if dtype not in FLOATS or source.rank == 0:
        return f"var of {dtype}"
    dims = _arg(call, 1, "dim") or range(source.rank)
    correction = call.kwargs.get("correction", 1)
    correction = 1 if correction is None else correction
    mask = sum(1 << (d % source.rank) for d in dims)
    keep = int(bool(call.kwargs.get("keepdim", False)))
    return Match("var@1", (Operand(call.args[0], dtype),), (mask, keep, float(correction)))


# ---- moving elements -----------------------------------------------------------------------


@_rule("aten.embedding.default")
def _embedding(call: OpCall) -> Match | str:
    table, index = call.args[:2]
    if index.desc.dtype not in INTS or _out(call).dtype not in CONVERTIBLE or table.desc.rank != 2:
        return "embedding of these dtypes"
    return Match("take@1", (Operand(table, table.desc.dtype), Operand(index, "int64")), (0,))


@_rule("aten.index_select.default")
def _index_select(call: OpCall) -> Match | str:
    table, axis, index = call.args
    if _out(call).dtype not in CONVERTIBLE or index.desc.rank != 1 or table.desc.rank == 0:
        return "index_select of these dtypes"
    if index.desc.dtype not in INTS:
        return "an index that is not int"
    operands = (Operand(table, table.desc.dtype), Operand(index, "int64"))
    return Match("take@1", operands, (axis % table.desc.rank,))


@_rule("aten.reshape.default", "aten.flatten.using_ints")
def _reshape(call: OpCall) -> Match | str:
    """A copy, where a view would not do: see ``Lowering``, which gives it the operand's shape."""
    out = _out(call)
    if out.dtype not in CONVERTIBLE or not is_row_major(out):
        return f"a reshape of {out.dtype}"
    return Match("copy@1", (Operand(call.args[0], out.dtype),))


@_rule("aten.cat.default")
def _cat(call: OpCall) -> Match | str:
    parts, out = call.args[0], _out(call)
    if out.dtype not in CONVERTIBLE or not parts or any(p.desc.rank != out.rank for p in parts):
        return "cat of unlike tensors"
    axis = _arg(call, 1, "dim", 0)
    if any(p.desc.dtype != out.dtype for p in parts):
        return "cat of mixed dtypes"
    return Match("cat@1", tuple(Operand(p, out.dtype) for p in parts), (axis % out.rank,))


def _fill_rules() -> Mapping[str, Rule]:
    found: dict[str, Rule] = {f"aten.{n}.default": _unary(n) for n in _UNARY}
    for name, ints in _BINARY.items():
        overload = "default" if name in ("maximum", "minimum") else "Tensor"
        overload = "Tensor_Tensor" if name == "pow" else overload
        found[f"aten.{name}.{overload}"] = _binary(name, ints)
        if overload.startswith("Tensor"):
            scalar = "Tensor_Scalar" if name == "pow" else "Scalar"
            found[f"aten.{name}.{scalar}"] = _binary(name, ints)
    for name in _COMPARE:
        found |= {f"aten.{name}.{o}": _compare(name) for o in ("Tensor", "Scalar")}
    for name in ("and", "or"):
        found[f"aten.logical_{name}.default"] = _logical(f"logical_{name}")
        found[f"aten.bitwise_{name}.Tensor"] = _logical(f"logical_{name}")
    for op in ("logical_not", "bitwise_not"):
        found[f"aten.{op}.default"] = _logical("logical_not")
    softmaxes = ("softmax", "log_softmax", "safe_softmax")
    found |= {f"aten._{n}.default": _softmax(n) for n in softmaxes}
    found |= {f"aten.sum.{o}": _reduction("sum") for o in ("dim_IntList", "default")}
    found["aten.mean.default"] = _reduction("mean")
    found |= {"aten.mean.dim": _reduction("mean"), "aten.amax.default": _reduction("amax")}
    found |= {"aten.amin.default": _reduction("amin")}
    return found


RULES.update(_fill_rules())
# Calls that check what the guards of a program check already.
ASSERTIONS = frozenset({"aten._assert_tensor_metadata.default"})
# Copies whose result has another shape than their operand, element by element in row-major order.
RESHAPES = frozenset({"aten.reshape.default", "aten.flatten.using_ints"})
_LOGICAL = ("logical_and", "logical_or", "logical_not")
_OTHERS = ("gelu", "gelu_tanh", "clamp", "leaky_relu", "where")
_ELEMENTWISE = frozenset({*_UNARY, *_BINARY, *_COMPARE, *_LOGICAL, *_OTHERS})
