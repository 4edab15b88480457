"""A segment on a plug-in's device: what is sent, what runs, what comes back.

Kernels become one native program for each set of sizes. Views of what the segment was given are
made on the host; a value that only the host looks at never crosses. Results that segments of the
same device read, and state, stay there (``keep``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dovetail.backend import Executable
from dovetail.backends.plugin.call import is_view
from dovetail.backends.plugin.plan import (
    CompiledWhole,
    Contents,
    OpenSizes,
    PluginPlan,
    SizedInputs,
    compile_whole,
)
from dovetail.ir import Arg, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.size import symbols_of
from dovetail.runtime.device_weights import weights_of
from dovetail.runtime.interpreter import Interpreter
from dovetail.runtime.resident import Resident, on_host
from dovetail.runtime.sized import bind_sizes, fitted, layout_of, packed_numbers

if TYPE_CHECKING:
    from dovetail.runtime.plugins import Library

_DYNAMIC_SEGMENTS = 2  # DVP_DYNAMIC_SEGMENTS
MAX_PLANS = 16  # sets of sizes whose programs are kept


class PluginSegment(Executable):
    """A segment ready to run; call it with the segment's inputs as one list."""

    def __init__(self, library: Library, segment: Segment, blob: bytes | None = None) -> None:
        self.library, self.segment, self.blob = library, segment, blob
        on_host = _host_values(segment)
        self.kernels = [call for call in segment.calls if not is_view(call)]
        self._back = [_is_from(out, on_host) for out in segment.outputs]
        self._views = _views_of_inputs(segment, on_host)
        self._kept: frozenset[int] = frozenset()  # outputs that stay, among those of kernels
        self._fetched: frozenset[int] = frozenset()  # and that the host reads too
        self.sent = _inputs_used(segment, on_host, self.kernels)
        kept = ("constant", "shared")
        self._constant = {n for n, i in enumerate(segment.inputs) if i.kind in kept}
        self._dynamic = _symbolic_inputs(segment)
        self._sizes = [n for n, i in enumerate(segment.inputs) if i.kind == "size"]
        self._layouts: dict[Any, _Sized] = {}
        self.is_static = not self._dynamic and not self._sizes
        if self.kernels and self.is_static:
            self._layouts[()] = _Sized(self, [None] * len(segment.inputs))

    def prepare(self) -> PluginSegment:
        """Plan now where sizes are known, so that what cannot be planned fails while compiling."""
        for sized in self._layouts.values():
            sized.plan({}, self._kept)
        return self

    def compile(self, contents: Contents | None = None) -> CompiledWhole | None:
        """The plug-in's own code for the whole segment; None: it has none, or takes no open sizes.

        ``contents`` gives the bytes of constants, where they are known for good.
        """
        found: list[SizedInputs] = list(self._layouts.values())
        if not found and self.kernels and self.library.flags & _DYNAMIC_SEGMENTS:
            found.append(OpenSizes(self.segment, self.sent))
        for sized in found:
            return compile_whole(self.library, self.segment, self.fetched(), sized, contents)
        return None

    def fetched(self) -> list[Arg]:
        """The outputs that come from the device."""
        pairs = zip(self.segment.outputs, self._back, strict=True)
        return [out for out, host in pairs if not host]

    def transfers(self) -> tuple[list[int], list[int]]:
        """Positions of the inputs that are sent and of the outputs that are fetched."""
        stay = self.kept() - self._fetched
        return list(self.sent), [
            n for n, host in enumerate(self._back) if not host and n not in stay
        ]

    @property
    def memory(self) -> Library:  # type: ignore[override]
        """The device's."""
        return self.library

    def keep(self, outputs: frozenset[int], fetched: frozenset[int] = frozenset()) -> None:
        """Leave these on the device; what is a view of an input is where that is."""
        self._fetched |= fetched
        made = [n for n, host in enumerate(self._back) if not host]
        self._kept |= {made.index(n) for n in outputs if n in made}

    def kept(self) -> frozenset[int]:
        """Positions of the outputs that stay on the device."""
        made = [n for n, host in enumerate(self._back) if not host]
        return frozenset(made[n] for n in self._kept)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Send what is needed, run, and fetch the results; the list is emptied."""
        values = list(inputs)
        inputs.clear()
        seen = iter(self._views([*map(on_host, values)]) if self._views is not None else ())
        made = iter(self._run(values) if self.kernels else ())
        return [next(seen) if host else next(made) for host in self._back]

    def _run(self, values: Sequence[Any]) -> Sequence[Any]:
        sized = self._sized(values)
        slots, tensors = self._inputs(values, sized)
        plan = sized.plan({n: start for n, (_, start) in slots.items()}, self._kept)
        back = [
            torch.empty_strided(o.layout.shape, o.layout.strides, dtype=o.layout.torch)
            for o in plan.results
            if o.kept < 0
        ]
        kept = plan.run(
            [slots[n][0] for n in plan.slots],
            [tensors[n].data_ptr() for n in plan.uploads],
            [out.data_ptr() for out in back],
        )
        fetched = iter(back)
        return [
            next(fetched) if o.kept < 0 else Resident(self.library, kept[o.kept], o.layout, o.start)
            for o in plan.results
        ]

    def _inputs(
        self, values: Sequence[Any], sized: _Sized
    ) -> tuple[dict[int, tuple[Any, int]], dict[int, Any]]:
        """Inputs on the device, as buffers and bytes into them, and inputs that are sent."""
        weights = weights_of(self.library)
        slots: dict[int, tuple[Any, int]] = {}
        tensors = {}
        for n in self.sent:
            value, layout, constant = values[n], sized.inputs[n], n in self._constant
            if isinstance(value, Resident):
                there = value.on(self.library) if value.layout == layout else None
                if there is not None:
                    slots[n] = there.buffer, there.start
                    continue
                value = value.fetch()
            tensor = fitted(value, layout)
            pack = partial(packed_numbers, dtype=layout.dtype) if layout.is_packed else None
            if tensor is value and weights.keeps(tensor, layout.bytes, constant=constant):
                slots[n] = weights.get(tensor, layout.bytes, constant=constant, pack=pack), 0
            else:
                tensors[n] = tensor if pack is None else pack(tensor)
        return slots, tensors

    def _sized(self, values: Sequence[Any]) -> _Sized:
        """The layouts for the sizes of this call."""
        key = (
            *(values[n] for n in self._sizes),
            *(tuple(values[n].shape) for n in self._dynamic),
            *(values[n].stride() for n in self._dynamic),
        )
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= MAX_PLANS:
                self._layouts.pop(next(iter(self._layouts)))
            found = self._layouts[key] = _Sized(self, values)
        return found


class _Sized:
    """The segment for one set of sizes: the layout of each input, and plans made so far."""

    def __init__(self, owner: PluginSegment, values: Sequence[Any]) -> None:
        self.owner = owner
        self.number = bind_sizes(owner.segment, values)
        self.inputs = {
            n: layout_of(given.desc, self.number)
            for n, given in enumerate(owner.segment.inputs)
            if n in owner.sent and isinstance(given.desc, TensorDesc)
        }
        self._plans: dict[Any, PluginPlan] = {}

    def plan(self, stay: Mapping[int, int], kept: frozenset[int]) -> PluginPlan:
        """The program where inputs are on the device already, so many bytes into their buffers.

        The outputs ``kept`` stay there.
        """
        key = frozenset(stay.items()), kept
        found = self._plans.get(key)
        if found is None:
            owner = self.owner
            found = self._plans[key] = PluginPlan(
                owner.library, owner.segment, owner.fetched(), self, stay, kept, owner.blob
            )
        return found


# ---- which side a value is on ------------------------------------------------------------------


def _host_values(segment: Segment) -> set[str]:
    """The inputs, and what only looks at them."""
    names = {i.name for i in segment.inputs}
    for call in segment.calls:
        if is_view(call) and call.args[0].name in names:
            names.add(call.name)
    return names


def _is_from(out: Any, names: set[str]) -> bool:
    return isinstance(out, Ref) and out.name in names


def _views_of_inputs(segment: Segment, on_host: set[str]) -> Interpreter | None:
    """Makes the outputs that are views of inputs, or None when there are none."""
    outputs = [out for out in segment.outputs if _is_from(out, on_host)]
    needed, calls = {out.name for out in outputs}, []
    for call in reversed(segment.calls):
        if call.name in needed and call.name in on_host:
            calls.append(call)
            needed.add(call.args[0].name)
    if not outputs:
        return None
    part = Segment(f"{segment.name}_views", segment.inputs, tuple(reversed(calls)), tuple(outputs))
    return Interpreter(part)


def _inputs_used(segment: Segment, on_host: set[str], kernels: Sequence[OpCall]) -> list[int]:
    """Positions of the inputs that kernels read, by themselves or through views."""
    root = {i.name: i.name for i in segment.inputs}
    for call in segment.calls:
        if call.name in on_host and call.name not in root:
            root[call.name] = root[call.args[0].name]
    used = {root[ref.name] for call in kernels for ref in call.refs() if ref.name in root}
    return [n for n, i in enumerate(segment.inputs) if i.name in used]


def _symbolic_inputs(segment: Segment) -> list[int]:
    """Positions of tensor inputs whose layout differs from call to call."""
    return [
        n
        for n, given in enumerate(segment.inputs)
        if isinstance(given.desc, TensorDesc)
        and any(symbols_of(d) for d in (*given.desc.shape, *given.desc.strides))
    ]
