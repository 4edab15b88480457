"""Views: calls whose result is a window on an operand's memory, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.ir.affine import add, mul
from dovetail.ir.call import Arg, OpCall, Ref
from dovetail.ir.size import Dim, Size
from dovetail.ir.strides import is_row_major
from dovetail.ir.tensor import ScalarDesc, TensorDesc

# Results start where the operand starts: only shape and strides differ.
_SAME_START = (
    *("_reshape_alias.default", "_unsafe_view.default", "alias.default", "detach.default"),
    *("expand.default", "expand_as.default", "lift_fresh.default", "movedim.int"),
    *("movedim.intlist", "permute.default", "squeeze.default", "squeeze.dim", "squeeze.dims"),
    *("swapaxes.default", "t.default", "transpose.int", "unsqueeze.default", "view.default"),
    *("view_as.default",),
)
# The same for a row-major operand; for another one PyTorch may copy.
_SAME_START_IF_CONTIGUOUS = ("reshape.default", "flatten.using_ints", "contiguous.default")


def view_offsets(call: OpCall) -> list[Dim] | None:
    """Where each result starts, in elements from its operand's start; None: not a view."""
    if not call.args or not isinstance(call.args[0], Ref):
        return None
    base = call.args[0].desc
    if not isinstance(base, TensorDesc) or not _keeps_elements(call, base):
        return None
    op = call.op.removeprefix("aten.")
    if op in _SAME_START:
        return [0]
    if op in _SAME_START_IF_CONTIGUOUS:
        # What PyTorch copies is row-major, so a result that is not must be a view.
        return [0] if is_row_major(base) or not is_row_major(call.outputs[0]) else None
    if op == "as_strided.default":
        return [0] if keeps_places(call, base) else None
    rule = _RULES.get(op)
    args = [known_dim(arg) for arg in call.args[1:]]
    if rule is None or any(isinstance(arg, Ref) for arg in args):
        return None
    return rule(base, args)


def known_dim(arg: Arg) -> Arg:
    """The expression behind a number that another call computes, where there is one."""
    if isinstance(arg, Ref) and isinstance(arg.desc, ScalarDesc) and arg.desc.size is not None:
        return arg.desc.size
    return arg


def _keeps_elements(call: OpCall, base: TensorDesc) -> bool:
    same = (base.dtype, base.device)
    return bool(call.outputs) and all((o.dtype, o.device) == same for o in call.outputs)


def keeps_places(call: OpCall, base: TensorDesc) -> bool:
    """Whether only dimensions of one element get other strides, as pooling to one place gives."""
    made = call.outputs[0]
    axes = zip(made.shape, made.strides, base.strides, strict=False)
    start = call.args[3] if len(call.args) > 3 else call.kwargs.get("storage_offset")
    return made.shape == base.shape and start is None and all(s == 1 or a == b for s, a, b in axes)


def _axis(args: Sequence[Arg], base: TensorDesc, position: int = 0) -> int:
    axis = args[position] if len(args) > position else 0
    return int(axis) % max(base.rank, 1)


def _select(base: TensorDesc, args: Sequence[Arg]) -> list[Dim] | None:
    axis, index = _axis(args, base), args[1]
    return [mul(_from_front(index, base.shape[axis], base.shape), base.strides[axis])]


def _slice(base: TensorDesc, args: Sequence[Arg]) -> list[Dim] | None:
    axis = _axis(args, base)
    start = args[1] if len(args) > 1 and args[1] is not None else 0
    return [mul(slice_start(start, base.shape[axis], base.shape), base.strides[axis])]


def _unbind(base: TensorDesc, args: Sequence[Arg]) -> list[Dim] | None:
    axis = _axis(args, base)
    count = base.shape[axis]
    if not isinstance(count, int):
        return None
    return [mul(i, base.strides[axis]) for i in range(count)]


def _split(base: TensorDesc, args: Sequence[Arg]) -> list[Dim] | None:
    axis = _axis(args, base, 1)
    size, step = base.shape[axis], args[0]
    if not isinstance(size, int) or not isinstance(step, int) or step <= 0:
        return None
    starts = range(0, size, step) if size else range(1)
    return [mul(start, base.strides[axis]) for start in starts]


def _split_with_sizes(base: TensorDesc, args: Sequence[Arg]) -> list[Dim] | None:
    axis = _axis(args, base, 1)
    starts: list[Dim] = [0]
    for size in args[0][:-1]:
        starts.append(add(starts[-1], size))
    return [mul(start, base.strides[axis]) for start in starts]


_RULES: dict[str, Callable[[TensorDesc, Sequence[Arg]], list[Dim] | None]] = {
    "select.int": _select,
    "slice.Tensor": _slice,
    "narrow.default": _select,
    "unbind.int": _unbind,
    "split.Tensor": _split,
    "split_with_sizes.default": _split_with_sizes,
}


def slice_start(start: Dim, size: Dim, sizes: Sequence[Dim]) -> Dim:
    """Where a slice of ``size`` elements starts: counted from the front, within them.

    ``sizes`` are dimensions, which are never below zero.
    """
    if start == 0:
        return 0
    begin = _from_front(start, size, sizes)
    if not _is_not_negative(start, sizes):
        begin = Size.binary("max", begin, 0)
    return begin if isinstance(start, int) and start < 0 else Size.binary("min", begin, size)


def _from_front(index: Dim, size: Dim, sizes: Sequence[Dim]) -> Dim:
    """A position that may count from the end, counted from the front."""
    if _is_not_negative(index, sizes):
        return index
    if isinstance(index, int):
        return add(size, index)
    below = Size.binary("max", Size.binary("min", index, 0), -1)  # -1 where it is below zero, or 0
    return Size.binary("sub", index, mul(below, size))


def _is_not_negative(dim: Dim, sizes: Sequence[Dim]) -> bool:
    """Whether an expression cannot be below zero, as ``sizes`` are not."""
    if isinstance(dim, int):
        return dim >= 0
    if dim.is_symbol:
        return dim in sizes
    signs = [_is_not_negative(arg, sizes) for arg in dim.args]
    if dim.op == "max":
        return any(signs)
    return dim.op in ("add", "mul", "floordiv", "mod", "min") and all(signs)
