"""Which calls the runtime's built-in portable kernels serve.

``match(call)`` gives the kernel, its operands and attributes, or the reason why there is none.
The rules read descriptors only, so they hold for placement and for lowering alike.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial

from dovetail.ir.call import Arg, Attr, OpCall, Ref
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.ir.program import Attribute
from dovetail.ir.size import Size
from dovetail.ir.strides import is_row_major
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.rules import argument

INTS = ("int64", "int32")
CONVERTIBLE = tuple(COMPUTE)
MAX_RANK = 8

_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1", "floor"),
    *("log", "log10", "log1p", "log2", "neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid"),
    *("sign", "silu", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_UNARY_INT = ("abs", "neg", "relu", "sign")
_BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
_BINARY_INT = ("add", "sub", "mul", "maximum", "minimum")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_NUMBERS = (*FLOATS, *INTS)


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """A value a kernel reads, and the dtype it reads it as."""

    value: Arg  # Ref, or a number
    dtype: str


@dataclass(frozen=True, slots=True)
class Match:
    """A kernel that serves a call."""

    kernel: str
    operands: tuple[KernelOperand, ...]
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


def _refusal(operand: KernelOperand) -> str:
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
        RULES.update(dict.fromkeys((f"aten.{op}" for op in ops), rule))
        return rule

    return add


def _of(
    kernel: str, dtype: str, allowed: Container[str], given: Iterable[Arg], *attributes: Attribute
) -> Match | str:
    """A kernel of operands that are all of one type, if it takes that type."""
    if dtype not in allowed:
        return f"{kernel} of {dtype}"
    return Match(f"{kernel}@1", tuple(KernelOperand(value, dtype) for value in given), attributes)


def _out(call: OpCall) -> TensorDesc:
    return call.outputs[0]


def _only(call: OpCall, count: int, **allowed: Arg) -> bool:
    """Whether a call has so many arguments, and keywords that mean nothing special."""
    plain = all(key in allowed and allowed[key] == value for key, value in call.kwargs.items())
    return plain and len(call.args) == count


# ---- elementwise ---------------------------------------------------------------------------


def _unary(name: str, call: OpCall) -> Match | str:
    if not _only(call, 1):
        return "unusual arguments"
    return _of(name, _out(call).dtype, _NUMBERS if name in _UNARY_INT else FLOATS, call.args)


def _binary(name: str, call: OpCall) -> Match | str:
    if not _only(call, 2, alpha=1):
        return "unusual arguments"
    return _of(name, _out(call).dtype, _NUMBERS if name in _BINARY_INT else FLOATS, call.args)


def _compare(name: str, call: OpCall) -> Match | str:
    return _of(name, _common_dtype(call.args) or "mixed dtypes", (*_NUMBERS, "bool"), call.args)


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


def _logical(name: str, call: OpCall) -> Match | str:
    if any(not isinstance(a, Ref) or a.desc.dtype != "bool" for a in call.args):  # type: ignore[union-attr]
        return f"{name} of other than bool tensors"
    return _of(name, "bool", ("bool",), call.args)


@_rule("gelu.default")
def _gelu(call: OpCall) -> Match | str:
    form = argument(call, 1, "approximate", "none")
    kernel = "gelu_tanh" if form == "tanh" else "gelu"
    return _of(kernel, _out(call).dtype, FLOATS, call.args[:1])


@_rule("clamp.default", "hardtanh.default", "clamp_min.default")
def _clamp(call: OpCall) -> Match | str:
    ends = (-1.0, 1.0) if call.op == "aten.hardtanh.default" else (None, None)
    low, high = argument(call, 1, "min", ends[0]), argument(call, 2, "max", ends[1])
    low = float("-inf") if low is None else low
    high = float("inf") if high is None else high
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return "limits that are no numbers"
    return _of("clamp", _out(call).dtype, FLOATS, call.args[:1], float(low), float(high))


@_rule("leaky_relu.default")
def _leaky_relu(call: OpCall) -> Match | str:
    slope = argument(call, 1, "negative_slope", 0.01)
    if not isinstance(slope, int | float):
        return "a slope that is no number"
    return _of("leaky_relu", _out(call).dtype, FLOATS, call.args[:1], float(slope))


@_rule("isnan.default")
def _isnan(call: OpCall) -> Match | str:
    return _of("ne", call.inputs[0].dtype, FLOATS, (call.args[0], call.args[0]))


@_rule("arange.start_step", "arange.start", "arange.default")
def _arange(call: OpCall) -> Match | str:
    numbers = call.args if len(call.args) > 1 else (0, *call.args)
    start, step = numbers[0], numbers[2] if len(numbers) > 2 else 1
    if _out(call).dtype != "int64" or not all(isinstance(n, int | Size) for n in (start, step)):
        return "arange of other than integers"
    return Match("arange@1", (), (start, step))


@_rule("where.self")
def _where(call: OpCall) -> Match | str:
    condition, *chosen = call.args
    if not isinstance(condition, Ref) or condition.desc.dtype != "bool":  # type: ignore[union-attr]
        return "a condition that is not bool"
    found = _of("where", _out(call).dtype, CONVERTIBLE, chosen)
    if isinstance(found, str):
        return found
    return Match(found.kernel, (KernelOperand(condition, "bool"), *found.operands))


@_rule("clone.default", "contiguous.default", "_to_copy.default", "copy.default")
def _copy(call: OpCall) -> Match | str:
    source = call.args[-1] if call.op == "aten.copy.default" else call.args[0]
    known = {"dtype", "memory_format", "device", "layout", "pin_memory", "non_blocking"}
    plain = call.kwargs.get("device") in (None, Attr("device", "cpu"))
    if not plain or not set(call.kwargs) <= known or not isinstance(source, Ref):
        return "unusual arguments"
    return _of("copy", _out(call).dtype, CONVERTIBLE, (source,))


@_rule("full.default", "zeros.default", "ones.default", "scalar_tensor.default")
def _full(call: OpCall) -> Match | str:
    value = {"aten.zeros.default": 0, "aten.ones.default": 1}.get(call.op)
    if value is None:
        value = call.args[1] if call.op == "aten.full.default" else call.args[0]
    if not isinstance(value, bool | int | float | Size):
        return "a fill value that is no number"
    return _of("copy", _out(call).dtype, CONVERTIBLE, (value,))


# ---- products ------------------------------------------------------------------------------


@_rule("mm.default", "bmm.default")
def _mm(call: OpCall) -> Match | str:
    return _of("matmul", _out(call).dtype, FLOATS, call.args[:2])


@_rule("addmm.default", "baddbmm.default")
def _addmm(call: OpCall) -> Match | str:
    if not _only(call, 3, alpha=1, beta=1):
        return "a product with factors"
    return _of("matmul", _out(call).dtype, FLOATS, (*call.args[1:], call.args[0]))


# ---- along dimensions ----------------------------------------------------------------------


def _softmax(name: str, call: OpCall) -> Match | str:
    source, dtype = call.args[0].desc, _out(call).dtype
    if source.dtype != dtype or source.rank == 0:
        return f"{name} of {source.dtype}"
    return _of(name, dtype, FLOATS, call.args[:1], call.args[1] % source.rank)


@_rule("native_layer_norm.default")
def _layer_norm(call: OpCall) -> Match | str:
    source, shape, weight, bias, eps = call.args
    dtype = source.desc.dtype
    if any(d.dtype != dtype for d in (*call.inputs, *call.outputs)):
        return "layer norm of mixed dtypes"
    given = [v for v in (source, weight, bias) if v is not None]
    has_weight, has_bias = int(weight is not None), int(bias is not None)
    return _of("layer_norm", dtype, FLOATS, given, len(shape), float(eps), has_weight, has_bias)


def _reduction(name: str, call: OpCall) -> Match | str:
    source, allowed = call.args[0].desc, FLOATS if name in ("mean", "var") else _NUMBERS
    if source.rank == 0:
        return f"{name} of a number"
    dims = argument(call, 1, "dim") or range(source.rank)
    dims = (dims,) if isinstance(dims, int) else dims
    mask = sum(1 << d for d in {d % source.rank for d in dims})
    keep = int(bool(argument(call, 3 if name == "var" else 2, "keepdim", False)))
    correction = call.kwargs.get("correction")
    more = (1.0 if correction is None else float(correction),) if name == "var" else ()
    return _of(name, _out(call).dtype, allowed, call.args[:1], mask, keep, *more)


# ---- moving elements -----------------------------------------------------------------------


@_rule("embedding.default", "index_select.default")
def _take(call: OpCall) -> Match | str:
    whole = "embedding" in call.op
    table, index = call.args[0], call.args[1 if whole else 2]
    shaped = table.desc.rank == 2 if whole else index.desc.rank == 1 and table.desc.rank > 0
    if index.desc.dtype not in INTS or _out(call).dtype not in CONVERTIBLE or not shaped:
        return "a table or an index of another shape or dtype"
    operands = (KernelOperand(table, table.desc.dtype), KernelOperand(index, "int64"))
    return Match("take@1", operands, (0 if whole else call.args[1] % table.desc.rank,))


@_rule(*(f"{name}.default" for name in ("index_add", "scatter_add")))
@_rule("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
@_rule("scatter_reduce.two", "index_reduce.default")
def _scatter(call: OpCall) -> Match | str:
    """Places of a tensor that meet elements of another; see native/src/scatter.c."""
    whole = call.op in ("aten.index_add.default", "aten.index_reduce.default")
    base, axis, index, source = call.args[:4]
    mode = _scatter_mode(call)
    dtype, rank = _out(call).dtype, base.desc.rank
    if mode is None or rank == 0 or index.desc.dtype not in INTS:
        return "a way to meet or a number that has no places"
    if dtype not in CONVERTIBLE or (dtype == "bool" and mode != _SCATTER_MODES["set"]):
        return f"a scatter of {dtype}"
    if whole and not _is_whole_slices(base.desc, index.desc, source, axis % rank):
        return "slices of another shape"
    operands = (
        KernelOperand(base, dtype),
        KernelOperand(index, "int64"),
        KernelOperand(source, dtype),
    )
    apart = int(not argument(call, 5, "include_self", True))
    return Match("scatter@1", operands, (axis % rank, mode, int(whole), apart, 0))


_SCATTER_MODES = {"set": 0, "sum": 1, "prod": 2, "amax": 3, "amin": 4}
_OTHER_NAMES = {"add": "sum", "multiply": "prod"}


def _scatter_mode(call: OpCall) -> int | None:
    """The number of what happens where elements meet; None for what the kernel has not."""
    if call.op == "aten.index_add.default":
        return _SCATTER_MODES["sum"] if argument(call, 4, "alpha", 1) == 1 else None
    if call.op == "aten.scatter_add.default":
        return _SCATTER_MODES["sum"]
    way = "set" if call.op in ("aten.scatter.src", "aten.scatter.value") else None
    way = argument(call, 4, "reduce", way)
    return _SCATTER_MODES.get(_OTHER_NAMES.get(way, way))


@_rule("index_put.default", "_unsafe_index_put.default")
def _index_put(call: OpCall) -> Match | str:
    """Places that one index for each of some dimensions names; see native/src/put.c."""
    base, places, source = call.args[:3]
    if not any(isinstance(place, Ref) for place in places):
        return "no index"
    if any(isinstance(p, Ref) and _is_mask(p) for p in places):
        return _put_under_mask(call)
    used = [d for d, place in enumerate(places) if place is not None]
    adjacent = used == list(range(used[0], used[-1] + 1))
    first = used[0] if adjacent else 0
    adds = int(bool(argument(call, 3, "accumulate", False)))
    given = {d: places[d] for d in used}
    return _put(call, base, given, source, adds=adds, first=first, from_end=1)


def _is_mask(place: Ref) -> bool:
    return isinstance(place.desc, TensorDesc) and place.desc.dtype in ("bool", "uint8")


def _put_under_mask(call: OpCall) -> Match | str:
    """One number put where a mask of the tensor's own shape holds: a choice."""
    base, places, source = call.args[:3]
    mask = places[0]
    alone = len(places) == 1 and mask.desc.dtype == "bool" and mask.desc.shape == base.desc.shape
    if not alone or argument(call, 3, "accumulate", False) or source.desc.shape not in ((), (1,)):
        return "a mask, whose places depend on data"
    found = _of("where", _out(call).dtype, CONVERTIBLE, (source, base))
    if isinstance(found, str):
        return found
    return Match(found.kernel, (KernelOperand(mask, "bool"), *found.operands))


@_rule("index_copy.default", "index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_copy(call: OpCall) -> Match | str:
    """Slices of one dimension replaced."""
    base, axis, index, source = call.args[:4]
    if base.desc.rank == 0 or index.desc.rank > 1:
        return "an index of another shape"
    fills = "index_fill" in call.op
    dim = axis % base.desc.rank
    if not fills and (source.desc.rank != base.desc.rank or index.desc.rank != 1):
        return "slices of another shape"
    return _put(call, base, {dim: index}, source, adds=0, first=dim, from_end=int(fills))


def _put(
    call: OpCall,
    base: Arg,
    given: dict[int, Arg],
    source: Arg,
    *,
    adds: int,
    first: int,
    from_end: int,
) -> Match | str:
    dtype = _out(call).dtype
    if dtype not in CONVERTIBLE:
        return f"put of {dtype}"
    if any(not isinstance(p, Ref) or p.desc.dtype not in INTS for p in given.values()):  # type: ignore[union-attr]
        return "an index that is not of integers"
    places = tuple(KernelOperand(place, "int64") for place in given.values())
    mask = sum(1 << d for d in given)
    operands = (KernelOperand(base, dtype), KernelOperand(source, dtype), *places)
    return Match("put@1", operands, (adds, first, mask, from_end))


SCATTERS = frozenset(op for op, rule in RULES.items() if rule in (_scatter, _index_put))


PUTS = frozenset(op for op, rule in RULES.items() if rule in (_index_copy, _index_put))


def _is_whole_slices(base: TensorDesc, index: TensorDesc, source: Arg, axis: int) -> bool:
    """Whether a source has a slice for each element of an index, and nothing is repeated."""
    if not isinstance(source, Ref) or not isinstance(source.desc, TensorDesc) or not index.rank:
        return False
    expected = (*base.shape[:axis], *index.shape, *base.shape[axis + 1 :])
    return source.desc.shape == expected


# ---- in order ------------------------------------------------------------------------------


@_rule("sort.default", "sort.stable", "topk.default")
def _sort(call: OpCall) -> Match | str:
    """Elements in order, or the first of them; see native/src/sort.c."""
    source, stable = call.args[0], call.op == "aten.sort.stable"
    if call.op == "aten.topk.default":
        dim, descending = argument(call, 2, "dim", -1), argument(call, 3, "largest", True)
    else:
        dim = argument(call, 2 if stable else 1, "dim", -1)
        descending = argument(call, 3 if stable else 2, "descending", False)
    if source.desc.rank == 0 or not isinstance(dim, int):
        return "an order of a number"
    order = (dim % source.desc.rank, int(bool(descending)))
    return _of("sort", source.desc.dtype, CONVERTIBLE, (source,), *order)


@_rule("kthvalue.default", "median.dim", "nanmedian.dim")
def _select(call: OpCall) -> Match | str:
    """One element by its place in the order."""
    source, which = call.args[0], {"aten.median.dim": -1, "aten.nanmedian.dim": -2}.get(call.op)
    if which is None:
        k = call.args[1]
        if not isinstance(k, int):
            return "a place in the order that is no number"
        dim, which = argument(call, 2, "dim", -1), k - 1
    else:
        dim = argument(call, 1, "dim")
    if source.desc.rank == 0 or not isinstance(dim, int):
        return "an order of a number"
    return _of("select", source.desc.dtype, CONVERTIBLE, (source,), dim % source.desc.rank, which)


@_rule("reshape.default", "flatten.using_ints")
def _reshape(call: OpCall) -> Match | str:
    """A copy, where a view would not do: see ``Lowering``, which gives it the operand's shape."""
    if not is_row_major(_out(call)):
        return "a reshape to another order"
    return _of("copy", _out(call).dtype, CONVERTIBLE, call.args[:1])


@_rule("cat.default")
def _cat(call: OpCall) -> Match | str:
    parts, out = call.args[0], _out(call)
    if not parts or any((p.desc.rank, p.desc.dtype) != (out.rank, out.dtype) for p in parts):
        return "cat of unlike tensors"
    return _of("cat", out.dtype, CONVERTIBLE, parts, argument(call, 1, "dim", 0) % out.rank)


def _kernels_of(
    rule: Callable[[str, OpCall], Match | str], names: Iterable[str], *forms: str
) -> None:
    """Give operators the kernels of their names; a form has {} for the name."""
    for name in names:
        RULES.update({f"aten.{form.format(name)}": partial(rule, name) for form in forms})


_kernels_of(_unary, _UNARY, "{}.default")
_kernels_of(_binary, _BINARY[:4], "{}.Tensor", "{}.Scalar")
_kernels_of(_binary, ("pow",), "pow.Tensor_Tensor", "pow.Tensor_Scalar")
_kernels_of(_binary, ("maximum", "minimum"), "{}.default")
_kernels_of(_compare, _COMPARE, "{}.Tensor", "{}.Scalar")
_kernels_of(_logical, ("logical_and",), "{}.default", "bitwise_and.Tensor")
_kernels_of(_logical, ("logical_or",), "{}.default", "bitwise_or.Tensor")
_kernels_of(_logical, ("logical_not",), "{}.default", "bitwise_not.default")
_kernels_of(_softmax, ("softmax", "log_softmax", "safe_softmax"), "_{}.default")
_kernels_of(_reduction, ("sum", "mean", "amax", "amin"), "{}.default")
_kernels_of(_reduction, ("sum",), "sum.dim_IntList")
_kernels_of(_reduction, ("mean",), "mean.dim")
_kernels_of(_reduction, ("var",), "var.correction")
# Calls that check what the guards of a program check already.
ASSERTIONS = frozenset({"aten._assert_tensor_metadata.default"})
# Copies whose result has another shape than their operand, element by element in row-major order.
RESHAPES = frozenset({"aten.reshape.default", "aten.flatten.using_ints"})
_LOGICAL = ("logical_and", "logical_or", "logical_not")
_OTHERS = ("gelu", "gelu_tanh", "clamp", "leaky_relu", "where")
_ELEMENTWISE = frozenset({*_UNARY, *_BINARY, *_COMPARE, *_LOGICAL, *_OTHERS})
