"""Layouts: where the elements of a tensor lie in memory.

Memory is a box of parts, the outermost first. A part counts steps along one axis of the tensor, so
that one form says all there is::

    [64, 100] as [d0: 64, d1: 100]                               row-major
    [1, 64, 56, 56] as [d0: 1, d2: 56, d3: 56, d1: 64]           channels-last
    [64, 100] as [d0: 64, d1: 100] strides [128, 1]              strided, with gaps
    [1, 8, 56, 56] as [d0: 1, d2 + 1: 58, d3 + 1: 58, d1: 8]     a halo of one zero on each side
    [64, 100] as [d1 / 16: 7, d0: 64, d1: 16]                    packed: columns in blocks of 16

An axis in several parts is split: the first counts blocks, the last single elements. What belongs
to no element, a halo or the rest of a last block, holds zeros. For whoever allocates, copies or
maps it, memory is a strided tensor of the parts' extents: a ``TensorDesc`` whose ``layout`` says
what it is the memory of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dovetail.errors import InvalidLayout, SizeError
from dovetail.ir.affine import add, mul, product
from dovetail.ir.size import Dim, Size, parse_size, split_top
from dovetail.ir.strides import Strided, contiguous_strides, same_dims

_TEXT = re.compile(r"\[(.*?)\] as \[(.*?)\](?: strides \[(.*?)\])?$")
_PART = re.compile(r"\(?d(\d+)(?: \+ (\d+)\)?)?(?: / (\d+))?$")


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """``extent`` positions, ``stride`` elements of memory apart, ``step`` along an axis."""

    axis: int
    extent: Dim
    stride: Dim
    step: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor of ``shape`` in memory; ``before``: the zeros ahead of each axis's first element.

    >>> layout = Layout.of((64, 100), [(1, 16), (0, 1), (1, 1)])
    >>> layout.extents, layout.offset((3, 17)), layout.size, layout.padding
    ((7, 64, 16), 1073, 7168, 768)
    """

    shape: tuple[Dim, ...]
    parts: tuple[LayoutPart, ...]
    before: tuple[int, ...]

    @staticmethod
    def of(
        shape: Sequence[Dim],
        order: Sequence[tuple[int, int]],
        halo: Mapping[int, tuple[int, int]] | None = None,
    ) -> Layout:
        """Dense parts in an order of (axis, step), with zeros (before, after) around some axes."""
        zeros = [(halo or {}).get(axis, (0, 0)) for axis in range(len(shape))]
        held = [add(size, sum(z)) for size, z in zip(shape, zeros, strict=True)]
        extents: list[Dim] = []
        steps: dict[int, int] = {}  # of the part around this one
        for axis, step in order:
            if not 0 <= axis < len(shape) or step < 1:
                raise InvalidLayout(f"no part of {list(shape)} goes along d{axis} by {step}")
            outer = steps.get(axis)
            extents.append(_blocks(held[axis], step) if outer is None else outer // step)
            steps[axis] = step
        strides = contiguous_strides(extents)
        parts = tuple(
            LayoutPart(axis, extent, stride, step)
            for (axis, step), extent, stride in zip(order, extents, strides, strict=True)
        )
        return verified(Layout(tuple(shape), parts, tuple(before for before, _ in zeros)))

    @staticmethod
    def in_memory(
        shape: Sequence[Dim],
        before: Sequence[int],
        order: Sequence[tuple[int, int]],
        memory: Strided,
    ) -> Layout:
        """A tensor in memory that is described already: a part a dimension, by (axis, step)."""
        rows = zip(order, memory.shape, memory.strides, strict=True)
        parts = tuple(LayoutPart(axis, size, stride, step) for (axis, step), size, stride in rows)
        return verified(Layout(tuple(shape), parts, tuple(before)))

    @staticmethod
    def strided(shape: Sequence[Dim], strides: Sequence[Dim]) -> Layout:
        """What PyTorch's tensors are; the parts by their strides, where all are known."""
        parts = [LayoutPart(a, *each) for a, each in enumerate(zip(shape, strides, strict=True))]
        if all(isinstance(stride, int) for stride in strides):
            parts.sort(key=lambda part: part.stride, reverse=True)  # type: ignore[arg-type,return-value]
        return verified(Layout(tuple(shape), tuple(parts), (0,) * len(parts)))

    def elsewhere(self, shape: Sequence[Dim], memory: Strided) -> Layout:
        """The same parts for a tensor of other sizes, in other memory."""
        return Layout.in_memory(shape, self.before, self.order, memory)

    @property
    def order(self) -> tuple[tuple[int, int], ...]:
        """The axis and the step of each part."""
        return tuple((part.axis, part.step) for part in self.parts)

    @property
    def extents(self) -> tuple[Dim, ...]:
        """The shape of the memory."""
        return tuple(part.extent for part in self.parts)

    @property
    def strides(self) -> tuple[Dim, ...]:
        """The strides of the memory, in elements; of a strided layout not in the axes' order."""
        return tuple(part.stride for part in self.parts)

    @property
    def size(self) -> Dim:
        """Elements of memory, from the first to the last."""
        if 0 in self.extents:
            return 0
        steps = (mul(add(part.extent, -1), part.stride) for part in self.parts)
        total: Dim = 1
        for step in steps:
            total = add(total, step)
        return total

    @property
    def padding(self) -> Dim:
        """How many elements of the memory are zeros that belong to no element of the tensor."""
        return Size.binary("sub", product(self.extents), product(self.shape))

    @property
    def is_strided(self) -> bool:
        """Whether each axis is one part and nothing is padded: what a plain tensor can be."""
        alone = len(self.parts) == len({part.axis for part in self.parts})
        whole = all(part.extent == self.shape[part.axis] for part in self.parts)
        return alone and whole and not any(self.before)

    def along(self, axis: int) -> tuple[LayoutPart, ...]:
        """The parts of an axis, blocks before single elements."""
        return tuple(part for part in self.parts if part.axis == axis)

    def offset(self, index: Sequence[int]) -> int:
        """Where an element lies; sizes must be known. Arrays of indices do too."""
        return sum(
            (index[p.axis] + self.before[p.axis]) // p.step % p.extent * p.stride  # type: ignore[operator,misc]
            for p in self.parts
        )

    def element(self, position: Sequence[int]) -> tuple[int, ...] | None:
        """The index of the element at a position of the memory; None where there is padding."""
        index = [-zeros for zeros in self.before]
        for place, part in zip(position, self.parts, strict=True):
            index[part.axis] += place * part.step
        inside = all(0 <= i < size for i, size in zip(index, self.shape, strict=True))  # type: ignore[operator]
        return tuple(index) if inside else None

    def __str__(self) -> str:
        text = f"{_list(self.shape)} as {_list(map(self._part, self.parts))}"
        dense = self.strides == contiguous_strides(self.extents)
        return text if dense else f"{text} strides {_list(self.strides)}"

    def _part(self, part: LayoutPart) -> str:
        before = self.before[part.axis]
        axis = f"d{part.axis} + {before}" if before else f"d{part.axis}"
        if part.step > 1:
            axis = f"({axis}) / {part.step}" if before else f"{axis} / {part.step}"
        return f"{axis}: {part.extent}"


def verified(layout: Layout) -> Layout:
    """The layout, if each element of the tensor has a place of its own; else InvalidLayout.

    A plain strided one may put several elements in one place, as PyTorch's expanded tensors do.
    """
    if len(layout.before) != len(layout.shape):
        raise InvalidLayout(f"{list(layout.shape)} with a halo of {len(layout.before)} axes")
    if not all(0 <= part.axis < len(layout.shape) and part.step > 0 for part in layout.parts):
        raise InvalidLayout(f"{list(layout.shape)} with parts of other axes: {layout.parts}")
    dims = (*layout.shape, *layout.extents, *layout.strides, *layout.before)
    _require(all(not isinstance(d, int) or d >= 0 for d in dims), layout, "a negative number")
    for axis in range(len(layout.shape)):
        _verify_axis(layout, axis)
    if not layout.is_strided:
        _verify_apart(layout)
    return layout


def _verify_axis(layout: Layout, axis: int) -> None:
    parts = layout.along(axis)
    _require(bool(parts) and parts[-1].step == 1, layout, f"no place for elements of d{axis}")
    for outer, inner in pairwise(parts):
        whole = isinstance(inner.extent, int) and inner.extent * inner.step == outer.step
        _require(whole and outer.step > inner.step, layout, f"blocks of d{axis} that do not fit")
    held, needed = mul(parts[0].extent, parts[0].step), add(layout.shape[axis], layout.before[axis])
    if isinstance(held, int) and isinstance(needed, int):
        _require(held >= needed, layout, f"too few places for d{axis}")


def _verify_apart(layout: Layout) -> None:
    """No two positions of the memory are the same one."""
    known = [(p.stride, p.extent) for p in layout.parts if p.extent != 1]
    if not all(isinstance(d, int) for pair in known for d in pair):
        dense = same_dims(layout.strides, contiguous_strides(layout.extents))
        _require(dense, layout, "gaps between parts of unknown extent")
        return
    reach = 1
    for stride, extent in sorted(known):
        _require(stride >= reach, layout, "two positions at one place")  # type: ignore[operator]
        reach = stride * extent  # type: ignore[operator]


def verify_memory(memory: Strided, layout: Layout) -> None:
    """Raise InvalidLayout unless a tensor is the memory that a layout speaks of."""
    verified(layout)
    same = same_dims(memory.shape, layout.extents) and same_dims(memory.strides, layout.strides)
    _require(same, layout, f"not the memory {list(memory.shape)} strides {list(memory.strides)}")


def parse_layout(text: str) -> Layout:
    """The layout that ``str`` wrote; InvalidLayout for anything else."""
    found = _TEXT.match(text)
    if found is None:
        raise InvalidLayout(f"this text is no layout: {text!r}")
    shape, parts, strides = (split_top(group or "") for group in found.groups())
    try:
        layout = _parsed(tuple(map(parse_size, shape)), parts, strides)
    except (SizeError, ValueError) as error:
        raise InvalidLayout(f"this text is no layout: {text!r}: {error}") from None
    if str(layout) != text:
        raise InvalidLayout(f"{text!r} is written {layout}")
    return layout


def _parsed(shape: tuple[Dim, ...], texts: list[str], given: list[str]) -> Layout:
    extents = [parse_size(text.rpartition(":")[2]) for text in texts]
    strides = [*map(parse_size, given)] if given else contiguous_strides(extents)
    before, parts = [0] * len(shape), []
    for text, extent, stride in zip(texts, extents, strides, strict=True):
        found = _PART.match(text.rpartition(":")[0])
        if found is None or int(found[1]) >= len(shape):
            raise ValueError(f"{text!r} is no part")
        axis, zeros, step = (int(group or 0) for group in found.groups())
        if before[axis] and before[axis] != zeros:
            raise ValueError(f"two halos of d{axis}")
        before[axis] = zeros
        parts.append(LayoutPart(axis, extent, stride, step or 1))
    return verified(Layout(shape, tuple(parts), tuple(before)))


def _blocks(size: Dim, step: int) -> Dim:
    return size if step == 1 else Size.binary("floordiv", add(size, step - 1), step)


def _list(items: object) -> str:
    return f"[{', '.join(map(str, items))}]"  # type: ignore[call-overload]


def _require(condition: bool, layout: Layout, problem: str) -> None:
    if not condition:
        raise InvalidLayout(f"{layout}: {problem}")
