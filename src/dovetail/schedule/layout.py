"""The layout of each value of a segment, chosen over the segment as a whole by what it costs.

Row-major images are moved to channels-last where library convolutions gain more than changes of
layout cost (``cpu/layout.py``, ``gpu/layout.py``). Each call is on one of two sides; a minimum cut
finds the cheapest way to divide them:

- a library convolution takes its operands on its own side, and what it costs there is known;
- a generated kernel reads and writes any strides, and only pays where it mixes the two;
- a part of a tensor lies as the tensor does;
- all others, and whoever takes the segment's outputs, get the strides that they were traced with.

A change of layout is a call, ``aten.clone``: the report counts it, a generated producer is fused
with it, and of a frozen constant it runs once (``place/prepare.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dovetail.ir.call import OpCall, Ref, leaves, tensors
from dovetail.ir.segment import Segment, ValueKey, is_write
from dovetail.ir.strides import is_row_major
from dovetail.ir.target import Target
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.calls import Adapt, lowered_alone
from dovetail.lower.values import Source, Value, View, root_of
from dovetail.lower.views import view_offsets
from dovetail.min_cut import FOREVER, MinCut
from dovetail.schedule.adapt import adapter
from dovetail.schedule.cpu import layout as cpu_layout
from dovetail.schedule.cpu.pack_convolution import convolution_of_call, own_choice
from dovetail.schedule.gpu import layout as gpu_layout
from dovetail.schedule.images import (
    is_channels_last,
    is_movable,
    moved,
    moved_output,
    with_descs,
)
from dovetail.schedule.reformat import Reformatter

_PARTS = frozenset({"aten.slice.Tensor", "aten.split.Tensor", "aten.split_with_sizes.default"})


def assign_layouts(segment: Segment, target: Target, once: frozenset[str] = frozenset()) -> Segment:
    """The segment with the layouts that cost least; ``once``: inputs that are laid out once."""
    chosen = _Choice.of(segment, target, once)
    if chosen is None:
        return segment
    found = chosen.channels_last()
    if not found:
        return segment
    return Reformatter(segment, chosen.roles, found, chosen.keeps_strides).rewritten()


# How a call deals with layouts: "library" and "own" take operands on their side alone, "free" any,
# "part" lies as its operand, "any" reads whatever there is, "traced" wants what it was traced with.
@dataclass
class _Choice:
    """What each call may do, and what it costs."""

    segment: Segment
    target: Target
    adapt: Adapt
    once: frozenset[str]
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)  # of convolutions
    roles: dict[str, str] = field(default_factory=dict)
    shifting: set[ValueKey] = field(default_factory=set)  # results that may lie otherwise
    # Results of kernels that write images well channels-last alone: of transposed convolutions
    # whose taps are apart, and what joins them.
    spread: set[ValueKey] = field(default_factory=set)

    @staticmethod
    def of(segment: Segment, target: Target, once: frozenset[str]) -> _Choice | None:
        """None where there is nothing to choose: no convolution, or sizes that vary."""
        chosen = _Choice(segment, target, adapter(target), once)
        for call in segment.calls:
            seconds = chosen._convolution(call)
            if seconds is not None:
                chosen.seconds[call.name] = seconds
        given = [i.desc for i in segment.inputs if isinstance(i.desc, TensorDesc)]
        if not chosen.seconds or any(d.symbols() for d in given):
            return None
        for call in segment.calls:
            role = chosen.roles[call.name] = chosen._role(call)
            if role not in ("traced", "any"):
                made = [(call.name, path) for path, d in tensors(call.output) if d.rank == 4]
                chosen.shifting.update(made)
            if role == "free" and chosen._joins_spread(call):
                chosen.spread.add((call.name, ()))
        return chosen

    def _convolution(self, call: OpCall) -> tuple[float, float] | None:
        """What a convolution costs that has the choice and is a library's."""
        if self.target.kind == "gpu" and call.op == gpu_layout.BACKWARD:
            return self._gradients(call)
        if not is_movable(call.output):
            return None
        operands = [arg for arg in call.args[:2] if isinstance(arg, Ref)]
        if len(operands) < 2 or all(is_channels_last(ref.desc) for ref in operands):
            return None
        constant = operands[1].name in self.once
        found = self._library_seconds(call, constant=constant)
        if found is None or not self.adapt(lowered_alone(call), call.candidate).refusal:
            return None
        if self.target.kind != "cpu":
            return found
        own = own_choice(call, self.target, constant=constant)
        if own is None or own > found[1]:
            return found
        image = convolution_of_call(call, self.target)
        if image is not None and image.is_spread:
            self.spread.add((call.name, ()))
        return found[0], own

    def _gradients(self, call: OpCall) -> tuple[float, float] | None:
        """What a library's gradients of a convolution cost, where one is an image."""
        if not any(is_movable(desc) for _, desc in tensors(call.output)):
            return None
        return gpu_layout.library_seconds(call, self.target, constant=False)

    def _joins_spread(self, call: OpCall) -> bool:
        """Whether a kernel that writes a spread image writes this call's result instead."""
        shapes = [desc.shape for _, desc in tensors(call.output)]
        return len(shapes) == 1 and any(
            isinstance(ref.desc, TensorDesc) and ref.desc.shape == shapes[0]
            for ref in call.refs()
            if (ref.name, ref.path) in self.spread
        )

    def _library_seconds(self, call: OpCall, *, constant: bool) -> tuple[float, float] | None:
        if self.target.kind == "gpu":
            return gpu_layout.library_seconds(call, self.target, constant=constant)
        return cpu_layout.library_seconds(call, self.target, constant=constant)

    def _role(self, call: OpCall) -> str:
        if call.name in self.seconds:
            return "library"
        takes = [ref for ref in call.refs() if self.shifts(ref)]
        gives = any(is_movable(desc) for _, desc in tensors(call.output))
        if is_write(call) or any(True for _ in call.subgraphs()) or not (takes or gives):
            return "traced"
        if view_offsets(call) is not None:
            follows = call.op in _PARTS and (takes[0].name, takes[0].path) in self.shifting
            return "part" if follows else "traced"
        if self._computed(call) is None:
            return "traced"
        if not gives:
            return "any"
        descs = {(r.name, r.path): moved(r.desc) for r in takes if is_movable(r.desc)}  # type: ignore[arg-type]
        there = replace(with_descs(call, descs), output=moved_output(call.output))
        if not self.keeps_strides(there):
            return "traced"
        return "free" if self.keeps_strides(replace(call, output=there.output)) else "own"

    def shifts(self, ref: Ref) -> bool:
        """Whether a value may lie otherwise than it was traced, or may be copied to lie so."""
        return is_movable(ref.desc) or (ref.name, ref.path) in self.shifting

    def _computed(self, call: OpCall) -> tuple[Value, ...] | None:
        """The results of a generated kernel; None where a library or a window makes them."""
        found = self.adapt(lowered_alone(call), call.candidate)
        if found.refusal or any(isinstance(root_of(r), Source) for r in found.results):
            return None
        return found.results

    def keeps_strides(self, call: OpCall) -> bool:
        """Whether a kernel is generated that writes results with the strides that they have."""
        found = self._computed(call)
        descs = [desc for _, desc in tensors(call.output)]
        return found is not None and all(
            not isinstance(value, View) and value.strides == desc.strides
            for value, desc in zip(found, descs, strict=True)
            if desc.rank == 4 and not is_row_major(desc)
        )

    def channels_last(self) -> set[str]:
        """The calls whose results are to be channels-last."""
        cut = MinCut()
        makers: dict[ValueKey, object] = {(i.name, ()): cut.right for i in self.segment.inputs}
        users: dict[Ref, list[object]] = {}  # those that want a value on their own side
        for call in self.segment.calls:
            role = self.roles[call.name]
            side = cut.right if role in ("traced", "any") else call.name
            if role == "library":
                row_major, last = self.seconds[call.name]
                cut.add(call.name, cut.right, picoseconds(max(last - row_major, 0.0)))
                cut.add(cut.left, call.name, picoseconds(max(row_major - last, 0.0)))
            for ref in filter(self.shifts, dict.fromkeys(call.refs())):
                maker = makers.get((ref.name, ref.path), cut.right)
                if role in ("free", "part"):
                    cost = FOREVER if role == "part" else self._reformat(ref)
                    cut.add(maker, side, cost)
                    cut.add(side, maker, cost)
                elif role != "any":
                    users.setdefault(ref, []).append(side)
            makers |= {(call.name, path): side for path, _ in tensors(call.output)}
        for out in leaves(self.segment.outputs):
            if isinstance(out, Ref) and self.shifts(out):
                users.setdefault(out, []).append(cut.right)
        for ref, wanting in users.items():
            maker = makers.get((ref.name, ref.path), cut.right)
            _add_copies(cut, ref, maker, wanting, self._reformat(ref))
        return {node for node in cut.lefts() if isinstance(node, str)}

    def _reformat(self, ref: Ref) -> int:
        """What another layout of a value takes; of a constant it is made once."""
        assert isinstance(ref.desc, TensorDesc)
        if ref.name in self.once:
            return 0
        if self.target.kind == "gpu":
            return picoseconds(gpu_layout.reformat_seconds(ref.desc, self.target))
        spread = (ref.name, ref.path) in self.spread
        each = cpu_layout.SCATTER if spread else cpu_layout.REFORMAT
        return picoseconds(each * (ref.desc.numel or 0))


def _add_copies(cut: MinCut, ref: Ref, maker: object, users: list[object], cost: int) -> None:
    """One copy serves all that want a value on the side where it is not made."""
    copied, restored = ("copied", ref), ("restored", ref)
    cut.add(copied, maker, cost)
    cut.add(maker, restored, cost)
    for user in users:
        cut.add(user, copied, FOREVER)
        cut.add(restored, user, FOREVER)


def picoseconds(seconds: float) -> int:
    """Whole numbers, as a cut needs them."""
    return round(seconds * 1e12)
