"""Descriptors: what is known of a value before it exists."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dovetail.ir.dtypes import DTYPES
from dovetail.ir.size import Dim, symbols_of
from dovetail.ir.strides import is_row_major

if TYPE_CHECKING:
    from dovetail.ir.layout import Layout
    from dovetail.ir.quantization import Quantization

_SHORT = {name: row.short for name, row in DTYPES.items() if row.short}


@dataclass(frozen=True, slots=True)
class TensorDesc:
    """A tensor's dtype, shape, strides (in elements) and device; dimensions may be symbolic.

    Where it is the memory of another tensor, packed or with a halo, ``layout`` says of which: its
    parts are the dimensions here. Who changes the dimensions drops it. What the numbers of a
    quantised tensor stand for, ``quantization`` says.
    """

    dtype: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    device: str = "cpu"
    layout: Layout | None = None
    quantization: Quantization | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def numel(self) -> int | None:
        """The number of elements, or None when a dimension is symbolic."""
        sizes = [d for d in self.shape if isinstance(d, int)]
        return math.prod(sizes) if len(sizes) == self.rank else None

    @property
    def is_contiguous(self) -> bool | None:
        """Whether the elements lie in row-major order; None when symbols leave it open."""
        if not self.is_static or not all(isinstance(s, int) for s in self.strides):
            return None
        return is_row_major(self)

    def with_sizes(self, change: Callable[[Dim], Dim]) -> TensorDesc:
        """The same tensor with every size changed."""
        shape, strides = (tuple(map(change, dims)) for dims in (self.shape, self.strides))
        made = replace(self, shape=shape, strides=strides, layout=None)
        if self.layout is None:
            return made
        held = tuple(map(change, self.layout.shape))
        return replace(made, layout=self.layout.elsewhere(held, made))

    def symbols(self) -> frozenset[str]:
        """The symbols in the shape and strides, and in the shape of what it is the memory of."""
        held = () if self.layout is None else self.layout.shape
        return frozenset().union(*map(symbols_of, (*self.shape, *self.strides, *held)))

    def __str__(self) -> str:
        device = "" if self.device == "cpu" else f"@{self.device}"
        held = self.layout or f"[{', '.join(map(str, self.shape))}]"
        return f"{_SHORT.get(self.dtype, self.dtype)}{held}{device}{self.quantization or ''}"


@dataclass(frozen=True, slots=True)
class ScalarDesc:
    """A Python number that is computed at run time: its type, and its expression if it has one."""

    kind: str  # "int", "float" or "bool"
    size: Dim | None = None

    def symbols(self) -> frozenset[str]:
        """The symbols in the expression."""
        return frozenset() if self.size is None else symbols_of(self.size)

    def __str__(self) -> str:
        return self.kind if self.size is None else f"{self.kind}({self.size})"


# An op's result: one value, nothing, or a (nested) tuple of them.
Desc = TensorDesc | ScalarDesc | None | tuple["Desc", ...]
