"""Operators that move elements: views, joins, slices, gathers."""

from __future__ import annotations

from typing import Any

from dovetail.backends.onnx.ops import result
from dovetail.backends.onnx.writer import ModelWriter, NotInOnnx, Rules, tensor
from dovetail.ir import Arg, OpCall, Ref, Size
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.rules import argument

RULES = Rules()
_LAST = 2**63 - 1
_INDICES = ("int64", "int32")


def constant(value: Arg, what: str) -> int:
    """An argument that must be a known number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotInOnnx(f"{what} is not a constant")
    return value


@RULES.add("view.default", "reshape.default", "_unsafe_view.default")
def _view(w: ModelWriter, call: OpCall) -> str:
    return str(w.node("Reshape", w.value(call.args[0]), w.shape(result(call).shape), allowzero=1))


RULES.add("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims")(_view)


@RULES.add("permute.default")
def _permute(w: ModelWriter, call: OpCall) -> str:
    rank = tensor(call.args[0]).rank
    return _transposed(w, call, [constant(d, "a dimension") % rank for d in call.args[1]])


@RULES.add("t.default", "transpose.int")
def _transpose(w: ModelWriter, call: OpCall) -> str:
    rank = tensor(call.args[0]).rank
    first, second = call.args[1:3] if "transpose" in call.op else (0, -1)
    order = list(range(rank))
    if rank > 1:
        order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
    return _transposed(w, call, order)


def _transposed(w: ModelWriter, call: OpCall, order: list[int]) -> str:
    return str(w.node("Transpose", w.value(call.args[0]), perm=order))


@RULES.add("expand.default")
def _expand(w: ModelWriter, call: OpCall) -> str:
    return str(w.node("Expand", w.value(call.args[0]), w.shape(result(call).shape)))


@RULES.add("slice.Tensor")
def _slice(w: ModelWriter, call: OpCall) -> str:
    desc = tensor(call.args[0])
    axis = constant(argument(call, 1, "dim", 0), "a dimension") % desc.rank
    start, end = argument(call, 2, "start"), argument(call, 3, "end")
    step = constant(argument(call, 4, "step", 1), "a step")
    return cut(w, call.args[0], axis, 0 if start is None else start, end, step)


def cut(w: ModelWriter, x: Ref, axis: int, start: Any, end: Any, step: int = 1) -> str:
    """``x[start:end:step]`` along an axis; ONNX clamps and counts from the end as Python does."""
    last = _LAST if end is None else end
    bounds = [w.size(d) if isinstance(d, Size) else w.integers([d]) for d in (start, last)]
    return str(w.node("Slice", w.value(x), *bounds, w.integers([axis]), w.integers([step])))


@RULES.add("select.int")
def _select(w: ModelWriter, call: OpCall) -> str:
    axis = constant(call.args[1], "a dimension") % tensor(call.args[0]).rank
    place = call.args[2]
    index = w.operand(place, "int64") if isinstance(place, Size) else w.constant(place, "int64")
    return str(w.node("Gather", w.value(call.args[0]), index, axis=axis))


@RULES.add("cat.default")
def _cat(w: ModelWriter, call: OpCall) -> str:
    dtype, rank = result(call).dtype, result(call).rank
    axis = constant(argument(call, 1, "dim", 0), "a dimension") % max(rank, 1)
    parts = [ref for ref in call.args[0] if tensor(ref).shape != (0,) or rank == 1]
    names = [w.operand(ref, dtype) for ref in parts]
    return str(w.node("Concat", *names, axis=axis))


@RULES.add("split_with_sizes.default")
def _split(w: ModelWriter, call: OpCall) -> tuple[str, ...]:
    axis = constant(argument(call, 2, "dim", 0), "a dimension") % tensor(call.args[0]).rank
    pieces = call.args[1]
    made = w.node("Split", w.value(call.args[0]), w.shape(pieces), axis=axis, outputs=len(pieces))
    return (made,) if isinstance(made, str) else tuple(made)


@RULES.add("split.Tensor")
def _split_evenly(w: ModelWriter, call: OpCall) -> tuple[str, ...]:
    axis = constant(argument(call, 2, "dim", 0), "a dimension") % tensor(call.args[0]).rank
    if not isinstance(call.output, tuple):
        raise NotInOnnx("its results are not known")
    sizes = w.shape([d.shape[axis] for d in call.output if isinstance(d, TensorDesc)])
    made = w.node("Split", w.value(call.args[0]), sizes, axis=axis, outputs=len(call.output))
    return (made,) if isinstance(made, str) else tuple(made)


@RULES.add("unbind.int")
def _unbind(w: ModelWriter, call: OpCall) -> tuple[str, ...]:
    desc = tensor(call.args[0])
    axis = constant(argument(call, 1, "dim", 0), "a dimension") % desc.rank
    count = constant(desc.shape[axis], "the number of results")
    x = w.value(call.args[0])
    return tuple(str(w.node("Gather", x, w.constant(n, "int64"), axis=axis)) for n in range(count))


@RULES.add("repeat.default")
def _repeat(w: ModelWriter, call: OpCall) -> str:
    desc, repeats = tensor(call.args[0]), call.args[1]
    x = w.value(call.args[0])
    if len(repeats) > desc.rank:
        shape = (*([1] * (len(repeats) - desc.rank)), *desc.shape)
        x = w.node("Reshape", x, w.shape(shape), allowzero=1)
    return str(w.node("Tile", x, w.shape(repeats)))


@RULES.add("constant_pad_nd.default")
def _pad(w: ModelWriter, call: OpCall) -> str:
    desc = tensor(call.args[0])
    given = call.args[1]
    pairs = [(given[n], given[n + 1]) for n in range(0, len(given), 2)]
    pairs += [(0, 0)] * (desc.rank - len(pairs))
    pads = [low for low, _ in reversed(pairs)] + [high for _, high in reversed(pairs)]
    value = w.operand(argument(call, 2, "value", 0), desc.dtype)
    return str(w.node("Pad", w.value(call.args[0]), w.shape(pads), value))


# ---- gathers -----------------------------------------------------------------------------------


def _index(w: ModelWriter, ref: Ref) -> str:
    if tensor(ref).dtype not in _INDICES:
        raise NotInOnnx(f"an index of {tensor(ref).dtype}")
    return w.value(ref)


@RULES.add("embedding.default")
def _embedding(w: ModelWriter, call: OpCall) -> str:
    return _gathered(w, call.args[0], call.args[1], 0)


@RULES.add("index_select.default")
def _index_select(w: ModelWriter, call: OpCall) -> str:
    desc = tensor(call.args[0])
    if not desc.rank or not tensor(call.args[2]).rank:
        raise NotInOnnx("an index without dimensions")
    return _gathered(w, call.args[0], call.args[2], constant(call.args[1], "a dimension"))


def _gathered(w: ModelWriter, x: Ref, index: Ref, axis: int) -> str:
    """Rows by number; a negative one is out of range in these operators, and no row in ONNX."""
    found = _index(w, index)
    beyond = w.constant(2**31 - 1, tensor(index).dtype)
    zero = w.constant(0, tensor(index).dtype)
    checked = w.node("Where", w.node("Less", found, zero), beyond, found)
    return str(w.node("Gather", w.value(x), checked, axis=axis % tensor(x).rank))


@RULES.add("index.Tensor")
def _index_tensor(w: ModelWriter, call: OpCall) -> str:
    given = [(axis, ref) for axis, ref in enumerate(call.args[1]) if ref is not None]
    if len(given) != 1:
        raise NotInOnnx("several indices at once")
    ((axis, ref),) = given
    return str(w.node("Gather", w.value(call.args[0]), _index(w, ref), axis=axis))


@RULES.add("gather.default")
def _gather(w: ModelWriter, call: OpCall) -> str:
    x, index = tensor(call.args[0]), tensor(call.args[2])
    axis = constant(call.args[1], "a dimension") % max(x.rank, 1)
    if not x.rank or x.rank != index.rank:
        raise NotInOnnx("a tensor without dimensions")
    if any(n != axis and a != b for n, (a, b) in enumerate(zip(x.shape, index.shape, strict=True))):
        raise NotInOnnx("an index smaller than what it looks into")
    found, zero = _index(w, call.args[2]), w.constant(0, index.dtype)
    beyond = w.constant(2**31 - 1, index.dtype)
    checked = w.node("Where", w.node("Less", found, zero), beyond, found)
    return str(w.node("GatherElements", w.value(call.args[0]), checked, axis=axis))
