"""Weights at the points of Winograd's algorithm, by calls of ATen on constants: made once.

They are [panels, points, channels of the image, channels of a panel]: a kernel reads those that it
sums from one end to the other, as fast as memory gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from dovetail.ir.call import Arg, Attr, OpCall, Ref
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.schedule.winograd import points

_ORDER = (2, 3, 1, 0)  # of the axes: rows, columns, channels of the image, of the result
_PANELS = (2, 0, 1, 3)
# Columns of a panel, the best first: vectors of every processor that fill its registers with
# accumulators (two of AVX-512 by twelve pixels).
_WIDTHS = (32, 48, 16)
Name = Callable[[str, str, tuple[Arg, ...], TensorDesc], OpCall]


class WeightTransform:
    """Writes the calls; sums are of float64, so that weights are rounded once."""

    def __init__(self, weight: Ref, size: int, name: Name) -> None:
        """``name`` makes a call of a stem, an operator, arguments and a result."""
        self.size, self.name, self.stem = size, name, f"{weight.name}_winograd"
        self.calls: list[OpCall] = []
        desc = _tensor(weight)
        turned = replace(
            desc,
            shape=tuple(desc.shape[d] for d in _ORDER),
            strides=tuple(desc.strides[d] for d in _ORDER),
        )
        first = self._call("aten.permute.default", (weight, _ORDER), turned)
        wide = self._cast(first, "float64")
        both = self._along(self._along(wide, 0), 1)
        self.result = self._in_panels(self._cast(both, "float32"))

    def _along(self, w: Ref, axis: int) -> Ref:
        """Three weights along an axis as their polynomial's values at the points."""
        low, middle, high = (self._part(w, axis, n) for n in range(3))
        found = []
        for point in points(self.size):
            others = [point - q for q in points(self.size) if q != point]
            value = low
            if point:
                value = self._like(value, "aten.add.Tensor", (value, middle), alpha=point)
                value = self._like(value, "aten.add.Tensor", (value, high), alpha=point * point)
            found.append(self._like(value, "aten.mul.Tensor", (value, 1 / math.prod(others))))
        found.append(high)
        shape = list(_tensor(w).shape)
        shape[axis] = len(found)
        return self._call("aten.cat.default", (tuple(found), axis), self._dense(w, tuple(shape)))

    def _part(self, w: Ref, axis: int, n: int) -> Ref:
        desc = _tensor(w)
        shape = tuple(1 if d == axis else size for d, size in enumerate(desc.shape))
        part = replace(desc, shape=shape)
        return self._call("aten.slice.Tensor", (w, axis, n, n + 1), part)

    def _like(self, w: Ref, op: str, args: tuple[Arg, ...], **kwargs: Arg) -> Ref:
        return self._call(op, args, self._dense(w, _tensor(w).shape), **kwargs)

    def _cast(self, w: Ref, dtype: str) -> Ref:
        desc = replace(self._dense(w, _tensor(w).shape), dtype=dtype)
        kinds = {
            "dtype": Attr("dtype", dtype),
            "memory_format": Attr("memory_format", "contiguous_format"),
        }
        return self._call("aten._to_copy.default", (w,), desc, **kinds)

    def _in_panels(self, w: Ref) -> Ref:
        """[points, points, I, O] as [O / W, points², I, W]."""
        *sides, channels, columns = map(int, _tensor(w).shape)  # type: ignore[arg-type]
        width = next((n for n in _WIDTHS if columns % n == 0), columns)
        shape = (math.prod(sides), channels, columns // width, width)
        split = self._dense(w, shape)
        view = self._call("aten.view.default", (w, shape), split)
        turned = replace(
            split,
            shape=tuple(shape[d] for d in _PANELS),
            strides=tuple(split.strides[d] for d in _PANELS),
        )
        panels = self._call("aten.permute.default", (view, _PANELS), turned)
        if columns == width:
            return panels
        kinds = {"memory_format": Attr("memory_format", "contiguous_format")}
        dense = self._dense(w, turned.shape)
        return self._call("aten.clone.default", (panels,), dense, **kinds)

    @staticmethod
    def _dense(like: Ref, shape: tuple[Dim, ...]) -> TensorDesc:
        return replace(_tensor(like), shape=shape, strides=contiguous_strides(shape))

    def _call(self, op: str, args: tuple[Arg, ...], output: TensorDesc, **kwargs: Arg) -> Ref:
        made = replace(self.name(self.stem, op, args, output), kwargs=kwargs)
        self.calls.append(made)
        return Ref(made.name, output)


def _tensor(ref: Ref) -> TensorDesc:
    assert isinstance(ref.desc, TensorDesc)
    return ref.desc
