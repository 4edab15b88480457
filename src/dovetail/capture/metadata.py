"""What calls return, where PyTorch's fake tensors say something else than its kernels give.

Everything after capture relies on these descriptions: memory is planned by them, and a saved file
promises them. The corrections here are those that the differential suite found missing; PyTorch
2.11 to 2.13 need the same ones. ``correct`` puts a captured graph right, ``compute`` describes a
call that a pass made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.symbols import fake_mode_of
from dovetail.capture.from_fx import describe
from dovetail.capture.ops import HigherOrderOperator, OpOverload, op_name

_ABSENT = object()
_REDUCED = (torch.bfloat16, torch.float16)
_Correction = Callable[[Any, tuple[Any, ...], Any], Any]


def compute(gm: fx.GraphModule, node: fx.Node) -> Any:
    """A call's fake value from its arguments'; to be called within their fake mode."""

    def value(arg: fx.Node) -> Any:
        found = arg.meta.get("val", _ABSENT)
        return getattr(gm, str(arg.target)) if found is _ABSENT else found

    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), value)
    return _corrected(node.target, args, node.target(*args, **kwargs))


def correct(gm: fx.GraphModule, changed: Iterable[fx.Node] = ()) -> None:
    """Put right what a captured graph says of calls that PyTorch describes wrongly.

    ``changed`` are inputs that were given another description: calls that read them follow.
    """
    changed = set(changed)
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and "val" in n.meta]
    if not changed and not any(map(_may_be_wrong, nodes)):
        return
    mode = fake_mode_of(n.meta["val"] for n in nodes)
    with mode:
        for node in nodes:
            if not _may_be_wrong(node) and changed.isdisjoint(node.all_input_nodes):
                continue
            if not _can_be_computed(node):
                continue
            value = compute(gm, node)
            if describe(value) != describe(node.meta["val"]):
                node.meta["val"] = value
                changed.add(node)


def _may_be_wrong(node: fx.Node) -> bool:
    """Whether a correction may change what is said of a call; of most views none can."""
    correction = _correction(node.target)
    return correction is not None and (
        correction is not _view or _has_loose_strides(node.meta["val"])
    )


def _has_loose_strides(value: torch.Tensor) -> bool:
    """Whether a value is not contiguous and has dimensions of one, which have any stride."""
    fixed = all(isinstance(n, int) for n in (*value.shape, *value.stride()))
    return fixed and 1 in value.shape and not value.is_contiguous()


def _can_be_computed(node: fx.Node) -> bool:
    """Whether a call can be made on fake tensors again; new sizes of its own would be others."""
    if isinstance(node.target, HigherOrderOperator) or "unbacked_bindings" in node.meta:
        return False
    return all("val" in n.meta or n.op == "get_attr" for n in node.all_input_nodes)


def _correction(target: Any) -> _Correction | None:
    return _CORRECTIONS.get(op_name(target)) if isinstance(target, OpOverload) else None


def _corrected(target: Any, args: tuple[Any, ...], results: Any) -> Any:
    """The results of a call on fake tensors, described as the processor's kernels give them."""
    correction = _correction(target)
    if correction is None:
        return results
    first = results if isinstance(results, torch.Tensor) else results[0]
    return correction(target, args, results) if first.device.type == "cpu" else results


# ---- batch norm --------------------------------------------------------------------------------


def _saved_statistics(_: Any, args: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The statistics kept for backward: in the parameters' type, where inputs are narrower."""
    x, *parameters = (a for a in args[:5] if isinstance(a, torch.Tensor))
    kept = torch.float32 if x.dtype in _REDUCED and _has_float32(parameters) else x.dtype
    return (results[0], *(r.to(kept) for r in results[1:3]), *results[3:])


def _running_statistics(
    target: Any, args: tuple[Any, ...], results: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Running statistics, the last two results, keep their type."""
    results = _saved_statistics(target, args, results)
    mean, var = args[3:5]
    return (*results[:-2], results[-2].to(mean.dtype), results[-1].to(var.dtype))


def _has_float32(tensors: list[torch.Tensor]) -> bool:
    return bool(tensors) and tensors[0].dtype == torch.float32


# ---- embedding bags ----------------------------------------------------------------------------


def _bags(target: Any, args: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The short cut for sums, which keeps no offsets, is taken for bfloat16 as for float32."""
    if args[0].dtype != torch.bfloat16:
        return results
    wide = (a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
    return (results[0], *target(*wide)[1:])


def _bags_without_gradient(
    target: Any, args: tuple[Any, ...], results: tuple[Any, ...]
) -> tuple[Any, ...]:
    """With a last offset, sums count it among the bags in what they return beside the sums."""
    out, offsets, sizes, largest = _bags(target, args, results)
    includes_last = len(args) > 7 and args[7]
    if includes_last and len(args) > 4 and args[4] != 0:
        sizes = sizes.new_empty(out.shape[:1])
    elif includes_last:
        largest = torch.empty_like(sizes)
    return out, offsets, sizes, largest


# ---- layouts -----------------------------------------------------------------------------------


def _view(_: Any, args: tuple[Any, ...], result: Any) -> Any:
    """A view, with the strides that PyTorch gives dimensions of one.

    By those it takes one image for channels-last or for contiguous, and lays out what convolutions
    return by the answer. A reshape that is not contiguous is a view.
    """
    x = args[0]
    fixed = all(isinstance(n, int) for n in (*x.shape, *x.stride()))
    if not fixed or not _has_loose_strides(result):
        return result
    return result.as_strided(result.shape, _view_strides(x, result.shape))


def _view_strides(x: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """From the last dimension on, a dimension of one belongs to the block before it."""
    found: list[int] = []
    left = list(shape)
    for stride, count in _blocks(x):
        taken = 1
        while left and (taken < count or left[-1] == 1):
            found.append(taken * stride)
            taken *= left.pop()
    return found[::-1]


def _blocks(x: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The stride and the size of each run of dimensions that lie like one, the last run first."""
    block, count = x.stride(-1), 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if size != 1 and stride != count * block:
            yield block, count
            block, count = stride, 1
        count *= size
    yield block, count


def _angle(_: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Angles of complex numbers are contiguous, whatever the numbers are."""
    return result.contiguous() if args[0].is_complex() else result


_CORRECTIONS: dict[str, _Correction] = {
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.reshape.default": _view,
    "aten.angle.default": _angle,
    "aten.native_batch_norm.default": _saved_statistics,
    "aten._native_batch_norm_legit.no_stats": _saved_statistics,
    "aten._native_batch_norm_legit_functional.default": _running_statistics,
    "aten._batch_norm_with_update_functional.default": _running_statistics,
    "aten._embedding_bag.default": _bags,
    "aten._embedding_bag_forward_only.default": _bags_without_gradient,
}
