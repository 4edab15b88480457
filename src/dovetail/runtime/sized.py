"""Tensors of one call, once their sizes are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.errors import MisdescribedNumbers, SizeError, UnsupportedGraph, WrongOutputs
from dovetail.ir import Segment, TensorDesc
from dovetail.ir.dtypes import bytes_of, item_bytes
from dovetail.ir.size import Dim, evaluate
from dovetail.runtime.layouts import with_strides

Number = Callable[[Dim], int]
# The least and the greatest number of types whose elements lie two in a byte.
PACKED = {"int4": (-8, 7), "uint4": (0, 15)}


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A tensor's dtype, and its sizes as numbers."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def torch(self) -> torch.dtype:
        """The dtype as PyTorch's."""
        return getattr(torch, self.dtype)

    @property
    def item(self) -> int:
        """Bytes of one element."""
        return item_bytes(self.dtype)

    @property
    def is_packed(self) -> bool:
        """Whether elements lie two in a byte, where PyTorch has them in one each."""
        return self.dtype in PACKED

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return bytes_of(self.dtype, last + 1)


def layout_of(desc: TensorDesc, number: Number) -> TensorLayout:
    """A description with its sizes filled in."""
    return TensorLayout(
        desc.dtype, tuple(map(number, desc.shape)), tuple(map(number, desc.strides))
    )


def fitted(tensor: Any, layout: TensorLayout) -> Any:
    """The tensor in the layout its description promises; itself where it has it already."""
    if tensor.shape != layout.shape:
        raise WrongOutputs("host", f"a tensor of shape {list(tensor.shape)} for {layout.shape}")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return with_strides(tensor, layout.strides)


def packed_numbers(tensor: Any, dtype: str) -> Any:
    """The numbers of a tensor two in a byte, the first in its low half."""
    least, greatest = PACKED[dtype]
    flat = tensor.reshape(-1)
    if flat.numel() and not least <= int(flat.min()) <= int(flat.max()) <= greatest:
        raise MisdescribedNumbers(dtype, int(flat.min()), int(flat.max()))
    numbers = torch.nn.functional.pad(flat, (0, flat.numel() % 2)).to(torch.uint8) & 0xF
    return numbers[::2] | numbers[1::2] << 4


def bind_sizes(segment: Segment, values: Sequence[Any]) -> Number:
    """How to read a size, given one call's inputs: by its symbols, or by where it occurs."""
    symbols: dict[str, int] = {}
    seen: dict[Dim, int] = {}
    for given, value in zip(segment.inputs, values, strict=True):
        if given.kind == "size":
            symbols[given.name] = int(value)
        elif isinstance(given.desc, TensorDesc) and value is not None:
            seen.update(zip(given.desc.strides, value.stride(), strict=True))
            seen.update(zip(given.desc.shape, value.shape, strict=True))
    for dim, value in seen.items():
        if not isinstance(dim, int) and dim.is_symbol:
            symbols.setdefault(dim.args[0], int(value))

    def number(dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        try:
            return evaluate(dim, symbols)
        except SizeError:
            if dim in seen:
                return int(seen[dim])
            raise UnsupportedGraph(f"nothing tells the size {dim} in {segment.name}") from None

    return number
