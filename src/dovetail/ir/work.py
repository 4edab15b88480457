"""How much work an instruction is: the bytes it must move and the operations it does.

Bytes count each element once, however often it is read: what a kernel moves when its caches hold
what it reads again. Operations of kernel IR are the instructions that its table gives for one
element (``ops.py``), a fused multiply-add as two; of products, convolutions and attention the
multiplications and additions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Apply, Index, Kernel, Load, Loop, Reduce, Scan, Store
from dovetail.ir.ops import OPERATIONS
from dovetail.ir.size import Dim, evaluate
from dovetail.ir.tensor import TensorDesc

_FREE = frozenset({"cast"})  # part of a load or a store, mostly
_TWO = frozenset({"fma"})
_PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "matmul", "linear", "dot", "_addmm_activation"}
)
Sizes = Mapping[str, int]


class InstructionWork(NamedTuple):
    """What an instruction moves and does."""

    bytes: int
    operations: int


def kernel_work(kernel: Kernel, sizes: Sizes) -> InstructionWork:
    """The work of a generated kernel at these sizes."""
    points = _product([axis.extent for axis in kernel.axes], sizes)
    extents = {axis.name: axis.extent for axis in kernel.all_axes()}
    items = {buffer.name: item_bytes(buffer.dtype) for buffer in kernel.buffers}
    moved: dict[tuple[str, Index], int] = {}
    operations = 0
    for loop in kernel.loops:
        times = points * _product([axis.extent for axis in loop.axes], sizes)
        operations += times * _operations(loop)
        for each in loop.body:
            if isinstance(each, Load | Store):
                place = each.buffer, _unnamed(each.index)
                count = _distinct(each.index, extents, sizes, times) * items[each.buffer]
                moved[place] = max(moved.get(place, 0), count)
    return InstructionWork(sum(moved.values()), operations)


def tensor_bytes(desc: TensorDesc, sizes: Sizes) -> int:
    """The bytes of a tensor, each element counted once."""
    strides = desc.strides or (1,) * desc.rank
    stored = [n for n, stride in zip(desc.shape, strides, strict=True) if stride != 0]
    return _product(stored, sizes) * item_bytes(desc.dtype)


def call_operations(
    op: str, inputs: Sequence[TensorDesc], outputs: Sequence[TensorDesc], sizes: Sizes
) -> int:
    """Operations of a library's or PyTorch's kernel; one for each element where none is known."""
    name = op.removeprefix("aten.").partition(".")[0].partition("@")[0]
    made = _product(outputs[0].shape, sizes) if outputs else 0
    if name in _PRODUCTS and len(inputs) > 1:
        matrix = inputs[0] if name in ("linear", "matmul") else inputs[-2]
        return 2 * made * (evaluate(matrix.shape[-1], sizes) if matrix.shape else 1)
    if name == "convolution" and len(inputs) > 1 and inputs[1].shape:
        weight = inputs[1].shape
        return 2 * made * _product(weight[1:], sizes)
    if "scaled_dot_product" in name and len(inputs) > 1 and inputs[1].rank > 1:
        return 4 * made * evaluate(inputs[1].shape[-2], sizes)
    return made


def _operations(loop: Loop) -> int:
    """Of one point of a loop."""
    total = 0
    for each in loop.body:
        if isinstance(each, Apply) and each.op not in _FREE:
            total += 2 if each.op in _TWO else OPERATIONS[each.op].instructions
        elif isinstance(each, Reduce | Scan):
            total += 1
    return total


def _distinct(index: Index, extents: Mapping[str, Dim], sizes: Sizes, times: int) -> int:
    """How many elements an access touches; one that gathers, as many as it is done times."""
    if index.values:
        return times
    moving = [extents[name] for name, stride in index.axes if stride != 0]
    return min(_product(moving, sizes), times)


def _unnamed(index: Index) -> Index:
    """The index without the names of its axes: loops over one row name it each in its own way."""
    strides = sorted((stride for _, stride in index.axes), key=str)
    gathered = tuple(("", stride) for _, stride in index.values)
    return Index(index.offset, tuple(("", stride) for stride in strides), gathered)


def _product(dims: Sequence[Dim], sizes: Sizes) -> int:
    return math.prod(max(evaluate(dim, sizes), 0) for dim in dims)
