"""What calls return, where PyTorch's fake tensors say something else than its kernels give.

Everything after capture relies on these descriptions: memory is planned by them, and a saved file
promises them. The corrections here are those that the differential suite found missing; PyTorch
2.11 to 2.13 need the same ones. ``correct`` puts a captured graph right, ``compute`` describes a
call that a pass made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.symbols import fake_mode_of
from dovetail.capture.from_fx import describe
from dovetail.capture.ops import HigherOrderOperator, OpOverload, op_name

_ABSENT = object()
_REDUCED = (torch.bfloat16, torch.float16)
_Correction = Callable[[Any, tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


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
    if not changed and not any(_correction(n.target) for n in nodes):
        return
    mode = fake_mode_of(n.meta["val"] for n in nodes)
    with mode:
        for node in nodes:
            if not _correction(node.target) and changed.isdisjoint(node.all_input_nodes):
                continue
            if isinstance(node.target, HigherOrderOperator) or not _inputs_are_known(node):
                continue
            value = compute(gm, node)
            if describe(value) != describe(node.meta["val"]):
                node.meta["val"] = value
                changed.add(node)


def _inputs_are_known(node: fx.Node) -> bool:
    return all("val" in n.meta or n.op == "get_attr" for n in node.all_input_nodes)


def _correction(target: Any) -> _Correction | None:
    return _CORRECTIONS.get(op_name(target)) if isinstance(target, OpOverload) else None


def _corrected(target: Any, args: tuple[Any, ...], results: Any) -> Any:
    """The results of a call on fake tensors, described as the processor's kernels give them."""
    correction = _correction(target)
    if correction is None or results[0].device.type != "cpu":
        return results
    return correction(target, args, results)


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


_CORRECTIONS: dict[str, _Correction] = {
    "aten.native_batch_norm.default": _saved_statistics,
    "aten._native_batch_norm_legit.no_stats": _saved_statistics,
    "aten._native_batch_norm_legit_functional.default": _running_statistics,
    "aten._batch_norm_with_update_functional.default": _running_statistics,
    "aten._embedding_bag.default": _bags,
    "aten._embedding_bag_forward_only.default": _bags_without_gradient,
}
