"""From a segment with known sizes to one native program: layouts, lifetimes, kernel calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dovetail.backends.plugin_call import (
    DTYPES,
    Tensor,
    describe,
    is_view,
    results,
    view_offset,
)
from dovetail.errors import PluginFailed, SizeError, UnsupportedGraph
from dovetail.ir import Arg, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.size import Dim, evaluate

if TYPE_CHECKING:
    from dovetail.backends.plugin import Library

ALIGNMENT = 64
Key = tuple[str, tuple[int, ...]]  # a value: its name, and a path into its call's result
Number = Callable[[Dim], int]


@dataclass(frozen=True, slots=True)
class Layout:
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
        return DTYPES[self.dtype][1] // 8

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.item


class Sized(Protocol):
    """What is known once sizes are."""

    @property
    def number(self) -> Number:
        """How to read a size."""

    @property
    def inputs(self) -> Mapping[int, Layout]:
        """The layout of each input that is sent, by position."""


def layout_of(desc: TensorDesc, number: Number) -> Layout:
    """A description with its sizes filled in."""
    return Layout(desc.dtype, tuple(map(number, desc.shape)), tuple(map(number, desc.strides)))


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


@dataclass(slots=True)
class _Block:
    """Memory of one tensor: on loan in a slot, or in the arena while it is needed."""

    bytes: int
    first: int
    last: int
    slot: int = -1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Value:
    layout: Layout
    block: _Block
    start: int = 0  # bytes into the block

    def tensor(self) -> Tensor:
        """As ``_native`` reads it."""
        layout, block = self.layout, self.block
        return (
            *DTYPES[layout.dtype],
            layout.shape,
            layout.strides,
            block.slot,
            block.offset + self.start,
        )


class Plan:
    """One native program, with the order in which it takes and gives tensors."""

    def __init__(
        self,
        library: Library,
        segment: Segment,
        outputs: Sequence[Arg],
        sized: Sized,
        stay: frozenset[int],
    ) -> None:
        from dovetail import _native

        self.library, self.number = library, sized.number
        inputs, calls = segment.inputs, segment.calls
        self.slots = sorted(stay)
        self.uploads = [n for n in sized.inputs if n not in stay]
        self.values: dict[Key, _Value] = {}
        for n, layout in sized.inputs.items():
            slot = self.slots.index(n) if n in stay else -1
            self.values[inputs[n].name, ()] = _Value(layout, _Block(layout.bytes, -1, -1, slot))
        sent = [self.values[inputs[n].name, ()] for n in self.uploads]
        for time, call in enumerate(calls):
            self._follow(time, call)
        fetched = [self._value(out) for out in outputs]
        for value in fetched:
            value.block.last = len(calls)
        arena = _allocate([v.block for v in self.values.values() if v.block.slot < 0])
        self.outputs = [value.layout for value in fetched]
        self.program = _native.PluginProgram(
            library.native,
            tuple(self._step(call) for call in calls if not is_view(call)),
            tuple((v.block.offset, v.layout.bytes) for v in sent),
            tuple((v.block.offset + v.start, v.layout.bytes) for v in fetched),
            arena,
            len(self.slots),
        )

    def _value(self, ref: Ref) -> _Value:
        return self.values[ref.name, ref.path]

    def _follow(self, time: int, call: OpCall) -> None:
        """Note what a call reads, and what memory its results have."""
        if is_view(call) and (call.args[0].name, call.args[0].path) not in self.values:
            return  # of an input that no kernel reads
        for ref in call.refs():
            self._value(ref).block.last = time
        if is_view(call):
            self.values[call.name, ()] = self._view(call)
            return
        for path, desc in results(call.output):
            if isinstance(desc, TensorDesc):
                layout = layout_of(desc, self.number)
                self.values[call.name, path] = _Value(layout, _Block(layout.bytes, time, time))

    def _view(self, call: OpCall) -> _Value:
        base = self._value(call.args[0])
        assert isinstance(call.output, TensorDesc)
        layout = layout_of(call.output, self.number)
        offset = view_offset(call, base.layout.shape, base.layout.strides, self.number)
        return _Value(layout, base.block, base.start + offset * layout.item)

    def _step(self, call: OpCall) -> tuple[Any, ...]:
        """A kernel call with its tensors, and the kernel that the plug-in chooses for them."""
        made = tuple(
            self.values[call.name, path].tensor() if desc is not None else None
            for path, desc in results(call.output)
        )
        description = describe(call, lambda ref: self._value(ref).tensor(), self.number, made)
        supported, _, kernel, least, most, reason = self.library.native.query(*description)
        if not supported or kernel is None:
            raise PluginFailed(
                f"the plug-in {self.library.name!r} took {call.op} and now refuses it: {reason}"
            )
        return description, kernel, least, most


def _allocate(blocks: Sequence[_Block]) -> int:
    """Give each block the lowest place that is free while it lives; the size of the arena."""
    unique = list({id(block): block for block in blocks}.values())
    placed: list[_Block] = []
    for block in sorted(unique, key=lambda b: -b.bytes):
        alive = [b for b in placed if b.first <= block.last and block.first <= b.last]
        ends = (_aligned(b.offset + b.bytes) for b in alive)
        places = sorted({0, *ends})
        block.offset = next(p for p in places if _is_free(p, block.bytes, alive))
        placed.append(block)
    return max(itertools.chain([0], (_aligned(b.offset + b.bytes) for b in placed)))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _is_free(place: int, size: int, alive: Sequence[_Block]) -> bool:
    return all(place + size <= b.offset or b.offset + b.bytes <= place for b in alive)
