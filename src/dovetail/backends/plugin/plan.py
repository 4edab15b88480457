"""From a segment with known sizes to one native program: layouts, lifetimes, kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dovetail.backends.plugin.call import (
    DYNAMIC,
    PLUGIN_DTYPES,
    Description,
    Tensor,
    describe,
    is_view,
    results,
    view_offset,
)
from dovetail.errors import PluginFailed
from dovetail.ir import Arg, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.dtypes import bytes_of
from dovetail.ir.memory import Lifetime, aligned, plan_lifetimes
from dovetail.ir.size import Dim, Size
from dovetail.ir.size_range import multiple_of, size_range
from dovetail.ir.tensor import Desc
from dovetail.runtime.sized import Number, TensorLayout, layout_of

if TYPE_CHECKING:
    from dovetail import _native
    from dovetail.runtime.plugins import Library

Key = tuple[str, tuple[int, ...]]  # a value: its name, and a path into its call's result


class SizedInputs(Protocol):
    """What is known once sizes are."""

    @property
    def number(self) -> Number:
        """How to read a size."""

    @property
    def inputs(self) -> Mapping[int, TensorLayout]:
        """The layout of each input that is sent, by position."""


@dataclass(slots=True)
class _Block:
    """Memory of one tensor: on loan in a slot, or in the arena while it is needed."""

    owner: Key
    bytes: int
    first: int
    last: int
    slot: int = -1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Value:
    layout: TensorLayout
    block: _Block
    start: int = 0  # bytes into the block

    def tensor(self) -> Tensor:
        """As ``_native`` reads it."""
        layout, block = self.layout, self.block
        place = (block.slot, block.offset + self.start)
        return (*PLUGIN_DTYPES[layout.dtype], layout.shape, layout.strides, *place)


class Flow:
    """Every value of a segment whose sizes are known: its layout, its memory, how long it lives."""

    def __init__(
        self, segment: Segment, sized: SizedInputs, stay: Mapping[int, int] | None = None
    ) -> None:
        self.segment, self.number = segment, sized.number
        self.kernels = [call for call in segment.calls if not is_view(call)]
        self.values: dict[Key, _Value] = {}
        slots = {n: slot for slot, n in enumerate(sorted(stay or {}))}
        for n, layout in sized.inputs.items():
            key = (segment.inputs[n].name, ())
            start = (stay or {}).get(n, 0)  # bytes into the buffer in its slot
            block = _Block(key, layout.bytes, -1, -1, slots.get(n, -1), start)
            self.values[key] = _Value(layout, block)
        for time, call in enumerate(segment.calls):
            self._follow(time, call)

    def value(self, ref: Ref) -> _Value:
        """What a reference names."""
        return self.values[ref.name, ref.path]

    def describe(self, call: OpCall) -> Description:
        """A kernel call with its tensors."""
        made = tuple(
            self.values[call.name, path].tensor() if desc is not None else None
            for path, desc in results(call.output)
        )
        return describe(call, lambda ref: self.value(ref).tensor(), self.number, made)

    def _follow(self, time: int, call: OpCall) -> None:
        """Note what a call reads, and what memory its results have."""
        if is_view(call) and (call.args[0].name, call.args[0].path) not in self.values:
            return  # of an input that no kernel reads
        for ref in call.refs():
            self.value(ref).block.last = time
        if is_view(call):
            self.values[call.name, ()] = self._view(call)
            return
        for path, desc in results(call.output):
            if isinstance(desc, TensorDesc):
                layout, key = layout_of(desc, self.number), (call.name, path)
                self.values[key] = _Value(layout, _Block(key, layout.bytes, time, time))

    def _view(self, call: OpCall) -> _Value:
        base = self.value(call.args[0])
        assert isinstance(call.output, TensorDesc)
        layout = layout_of(call.output, self.number)
        offset = view_offset(call, base.layout.shape, base.layout.strides, self.number)
        return _Value(layout, base.block, base.start + bytes_of(layout.dtype, offset))


class PluginPlan:
    """One native program, with the order in which it takes and gives tensors."""

    def __init__(
        self,
        library: Library,
        segment: Segment,
        outputs: Sequence[Arg],
        sized: SizedInputs,
        stay: Mapping[int, int],
        kept: Collection[int],
        blob: bytes | None = None,
    ) -> None:
        self.slots = sorted(stay)
        self.uploads = [n for n in sized.inputs if n not in stay]
        flow = Flow(segment, sized, stay)
        sent = [flow.values[segment.inputs[n].name, ()] for n in self.uploads]
        fetched = [flow.value(out) for out in outputs]
        self.kept = _keep([fetched[n] for n in sorted(kept)], len(self.slots))
        self.results = [
            Result(v.layout, v.block.slot - len(self.slots) if n in kept else -1, v.start)
            for n, v in enumerate(fetched)
        ]
        back = [value for n, value in enumerate(fetched) if n not in kept]
        used = [value.block for value in flow.values.values()]
        for value in fetched:
            value.block.last = len(segment.calls)
        if blob is not None:  # it keeps what lies between to itself, and may use the rest at will
            used = [*_input_blocks(flow, sized), *(value.block for value in fetched)]
            for block in used:
                block.first, block.last = -1, len(segment.calls)
        arena = _allocate([block for block in used if block.slot < 0])
        steps = (
            tuple(_step(library, flow, call) for call in flow.kernels)
            if blob is None
            else (_whole(flow, sized, fetched),)
        )
        self._native = library.native
        self._given = (
            steps,
            tuple((v.block.offset, v.layout.bytes) for v in sent),
            tuple((v.block.offset + v.start, v.layout.bytes, v.block.slot) for v in back),
            arena,
            len(self.slots),
            blob,
            len(self.kept),
        )
        self._idle = [self._program()]

    def run(
        self,
        slots: Sequence[_native.DeviceBuffer],
        uploads: Sequence[int],
        downloads: Sequence[int],
    ) -> list[_native.DeviceBuffer]:
        """Run on the inputs' buffers and addresses; the buffers of results that stay come back.

        Threads that run it at once have a program each, with memory of its own.
        """
        kept = [self._native.alloc(size) for size in self.kept]
        try:
            program = self._idle.pop()
        except IndexError:
            program = self._program()
        program.run((*slots, *kept), tuple(uploads), tuple(downloads))
        self._idle.append(program)
        return kept

    def _program(self) -> _native.PluginProgram:
        from dovetail import _native

        return _native.PluginProgram(self._native, *self._given)


class Result(NamedTuple):
    """Where an output is: -1 in ``kept`` for the host, else a buffer, ``start`` bytes into it."""

    layout: TensorLayout
    kept: int
    start: int


def _keep(values: Sequence[_Value], first: int) -> list[int]:
    """Give the memory of values that stay slots from ``first`` on; the bytes of each."""
    blocks = list({id(value.block): value.block for value in values}.values())
    for number, block in enumerate(blocks, first):
        block.slot = number
    return [block.bytes for block in blocks]


def _step(library: Library, flow: Flow, call: OpCall) -> tuple[Any, ...]:
    """A kernel call, and the kernel that the plug-in chooses for it."""
    description = flow.describe(call)
    supported, _, kernel, least, most, reason = library.native.query(*description)
    if not supported or kernel is None:
        raise PluginFailed(
            f"the plug-in {library.name!r} took {call.op} and now refuses it: {reason}"
        )
    return description, kernel, least, most


# ---- whole segments ----------------------------------------------------------------------------


class OpenSizes:
    """A segment whose sizes are open: those that are no number are ``DYNAMIC``."""

    def __init__(self, segment: Segment, sent: Collection[int]) -> None:
        self.inputs = {
            n: layout_of(given.desc, self.number)
            for n, given in enumerate(segment.inputs)
            if n in sent and isinstance(given.desc, TensorDesc)
        }

    @staticmethod
    def number(dim: Dim) -> int:
        """A size as a plug-in is told of it."""
        return dim if isinstance(dim, int) else DYNAMIC


# How a constant's bytes are found, by its position among a segment's inputs; None: not known.
Contents = Callable[[int], bytes | None]


class CompiledWhole(NamedTuple):
    """A plug-in's own code for a segment, and the inputs whose contents are part of it."""

    code: bytes
    absorbed: frozenset[int] = frozenset()


def compile_whole(
    library: Library,
    segment: Segment,
    outputs: Sequence[Arg],
    sized: SizedInputs,
    contents: Contents | None = None,
) -> CompiledWhole | None:
    """The segment as the plug-in's own bytes, or None where it runs kernel by kernel."""
    if any(_starts_anywhere(call) for call in segment.calls):
        return None
    flow = Flow(segment, sized)
    index = {key: n for n, key in enumerate(flow.values)}
    bases = [index[v.block.owner] for v in flow.values.values()]
    sizes, dims = _sizes_of(segment, flow)
    taken = {index[segment.inputs[n].name, ()]: n for n in sized.inputs}
    data = tuple(
        contents(taken[n]) if contents is not None and n in taken else None
        for n in range(len(flow.values))
    )
    made = library.native.compile(
        tuple(value.tensor() for value in flow.values.values()),
        tuple(-1 if base == n else base for n, base in enumerate(bases)),
        tuple(_indexed(flow, call, index) for call in flow.kernels),
        tuple(index[block.owner] for block in _input_blocks(flow, sized)),
        tuple(index[key] for key in _owners([flow.value(out) for out in outputs])),
        sizes,
        dims,
        data,
    )
    if made is None:
        return None
    code, absorbed = made
    return CompiledWhole(code, frozenset(taken[n] for n in absorbed if data[n] is not None))


def _starts_anywhere(call: OpCall) -> bool:
    """Whether a view begins at a place that differs from call to call."""
    if not is_view(call) or call.op not in ("aten.select.int", "aten.slice.Tensor"):
        return False
    given, *where = call.args
    open_sizes = any(isinstance(d, Size) for d in (*given.desc.shape, *given.desc.strides))
    return any(isinstance(arg, Size) for arg in where[:2]) or (
        open_sizes and len(where) > 1 and where[1] not in (None, 0)
    )


def _sizes_of(
    segment: Segment, flow: Flow
) -> tuple[tuple[tuple[str, int, int, int], ...], tuple[tuple[int, ...], ...]]:
    """The open sizes, each once with its range, and which of them each dimension is."""
    ranges = {name: (low, high) for name, low, high in segment.ranges}
    descs: dict[Key, Desc] = {(i.name, ()): i.desc for i in segment.inputs}
    for call in segment.calls:
        descs |= {(call.name, path): desc for path, desc in results(call.output)}
    places: dict[Dim, int] = {}
    dims = []
    for key in flow.values:
        desc = descs[key]
        assert isinstance(desc, TensorDesc)
        row = (*desc.shape, *desc.strides)
        dims.append(
            tuple(-1 if isinstance(d, int) else places.setdefault(d, len(places)) for d in row)
        )
    table = tuple((str(d), *size_range(d, ranges), max(multiple_of(d), 1)) for d in places)
    return table, tuple(dims)


def _indexed(flow: Flow, call: OpCall, index: Mapping[Key, int]) -> tuple[Any, ...]:
    """An operation, and where it takes and leaves tensors."""
    _, taken, *_ = describe(call, lambda ref: index[ref.name, ref.path], flow.number, ())
    given = (index.get((call.name, path), -1) for path, _ in results(call.output))
    return flow.describe(call), tuple(-1 if n is None else n for n in taken), tuple(given)


def _whole(flow: Flow, sized: SizedInputs, fetched: Sequence[_Value]) -> tuple[Any, ...]:
    """The one step of a compiled segment: its inputs and outputs, as compile_whole orders them."""
    inputs = tuple(flow.values[block.owner].tensor() for block in _input_blocks(flow, sized))
    outputs = tuple(flow.values[key].tensor() for key in _owners(fetched))
    return (flow.segment.name, inputs, outputs, (), 0, ()), "compiled segment", 0, 0


def _input_blocks(flow: Flow, sized: SizedInputs) -> list[_Block]:
    return [flow.values[flow.segment.inputs[n].name, ()].block for n in sized.inputs]


def _owners(values: Sequence[_Value]) -> list[Key]:
    return list(dict.fromkeys(value.block.owner for value in values))


# ---- memory ------------------------------------------------------------------------------------


def _allocate(blocks: Sequence[_Block]) -> int:
    """Give each block its place in one arena; the size of the arena."""
    unique = list({id(block): block for block in blocks}.values())
    lives = [Lifetime(str(n), aligned(b.bytes), b.first, b.last) for n, b in enumerate(unique)]
    plan = plan_lifetimes(lives)
    for n, block in enumerate(unique):
        block.offset = plan.offsets[str(n)]
    return plan.peak
