"""Images as they lie in memory: row-major or channels-last; calls that take and give them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.ir.call import Arg, OpCall, Ref
from dovetail.ir.segment import ValueKey
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc

_ORDER = (0, 2, 3, 1)  # of the axes of a channels-last image, the outermost first


def channels_last(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The strides of an image whose channels lie together."""
    dense = contiguous_strides([shape[axis] for axis in _ORDER])
    return tuple(int(dense[_ORDER.index(axis)]) for axis in range(4))  # type: ignore[arg-type]


def is_channels_last(desc: object) -> bool:
    """Whether a tensor's elements lie so; strides of dimensions of one element do not matter."""
    if not isinstance(desc, TensorDesc) or desc.rank != 4 or not desc.is_static:
        return False
    triples = zip(desc.shape, desc.strides, channels_last(desc.shape), strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in triples)


def is_movable(desc: object) -> bool:
    """Whether a tensor is an image in row-major order, which is another order than the other."""
    if not isinstance(desc, TensorDesc) or desc.rank != 4 or 0 in desc.shape:
        return False
    return desc.is_contiguous is True and not is_channels_last(desc)


def moved(desc: TensorDesc) -> TensorDesc:
    """The same tensor, channels-last."""
    return replace(desc, strides=channels_last(desc.shape), layout=None)


def moved_output(output: Any) -> Any:
    """A call's results, with those that are images channels-last."""
    if isinstance(output, tuple):
        return tuple(map(moved_output, output))
    return moved(output) if is_movable(output) else output


def with_descs(call: OpCall, descs: dict[ValueKey, TensorDesc]) -> OpCall:
    """A call of the same operands, otherwise laid out."""
    kwargs = {name: _with_descs(arg, descs) for name, arg in call.kwargs.items()}
    return replace(call, args=_with_descs(call.args, descs), kwargs=kwargs)


def _with_descs(arg: Arg, descs: dict[ValueKey, TensorDesc]) -> Arg:
    if isinstance(arg, Ref):
        return replace(arg, desc=descs.get((arg.name, arg.path), arg.desc))
    return tuple(_with_descs(a, descs) for a in arg) if isinstance(arg, tuple) else arg
