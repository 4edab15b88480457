"""Runs rendered kernels: what is sent, what is launched, what comes back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dovetail.backend import Executable
from dovetail.backends.rendered.program import placed
from dovetail.ir import Ref, Size
from dovetail.ir.memory import Lifetime, aligned, plan_lifetimes
from dovetail.ir.ops import CHECKS
from dovetail.lower.values import Source, Value
from dovetail.runtime.sized import TensorLayout, bind_sizes, fitted

if TYPE_CHECKING:
    from dovetail.backends.rendered.backend import Memory, Opened
    from dovetail.backends.rendered.program import RenderedProgram

MAX_SIZES = 16  # sets of sizes whose memory is kept


class RenderedExecutable(Executable):
    """A segment ready to run; call it with the segment's inputs as one list."""

    def __init__(self, opened: Opened, program: RenderedProgram) -> None:
        self.opened, self.program = opened, program
        inputs = program.segment.inputs
        self.numbers = [n for n, given in enumerate(inputs) if given.kind == "size"]
        self.dynamic = program.symbolic_inputs()
        self.constant = {n for n, given in enumerate(inputs) if given.kind == "constant"}
        self.position = {given.name: n for n, given in enumerate(inputs)}
        self.sized: dict[Any, SizedProgram] = {}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Send what is needed, run, and fetch the results; the list is emptied."""
        values = list(inputs)
        inputs.clear()
        with self.opened.lock:
            sized = self._sized(values)
            made = sized.run(values) if self.program.launches else {}
        return [self._output(out, sized, values, made) for out in self.program.outputs]

    def _sized(self, values: Sequence[Any]) -> SizedProgram:
        """What depends on the sizes of this call."""
        key = (
            *(values[n] for n in self.numbers),
            *((values[n].shape, values[n].stride()) for n in self.dynamic),
        )
        found = self.sized.get(key)
        if found is None:
            if len(self.sized) >= MAX_SIZES:
                self.sized.pop(next(iter(self.sized)))
            found = self.sized[key] = SizedProgram(self, values)
        return found

    def _output(
        self, out: Any, sized: SizedProgram, values: Sequence[Any], made: dict[Value, Any]
    ) -> Any:
        if isinstance(out, Ref):
            return values[self.position[out.name]]
        if isinstance(out, Size):
            return sized.number(out)
        if not isinstance(out, Value):
            return out
        root, offset = placed(out)
        base = values[self.position[root.name]] if isinstance(root, Source) else made[root]
        if root is out:
            return base
        layout, start = sized.layout(out), sized.number(offset)
        return base.as_strided(layout.shape, layout.strides, base.storage_offset() + start)


class SizedProgram:
    """A program for one set of sizes: layouts as numbers, launches, and memory once it is used."""

    def __init__(self, owner: RenderedExecutable, values: Sequence[Any]) -> None:
        self.opened, self.program, self.constant = owner.opened, owner.program, owner.constant
        self.number = bind_sizes(self.program.segment, values)
        self.layouts = {value: self.layout(value) for value in self.program.lives}
        for value in self.program.fetched():
            self.layouts.setdefault(value, self.layout(value))
        self.steps = [
            (function, self.number(launch.points), launch, [self.number(s) for s in launch.sizes])
            for function, launch in zip(self.program.functions, self.program.launches, strict=True)
        ]
        self.memory: dict[frozenset[int], dict[Value, Memory]] = {}
        self.flag = self.opened.device.allocate(8) if self.program.checks else None
        self.failed = ctypes.c_int64(0)
        if self.flag is not None:
            self.opened.upload(self.flag, ctypes.addressof(self.failed), 8)

    def layout(self, value: Value) -> TensorLayout:
        """A value's sizes as numbers."""
        shape, strides = (tuple(map(self.number, d)) for d in (value.shape, value.strides))
        return TensorLayout(value.dtype, shape, strides)

    def run(self, values: Sequence[Any]) -> dict[Value, Any]:
        """One call; the tensors that were made, by value."""
        program, opened = self.program, self.opened
        tensors = {v: fitted(values[n], self.layouts[v]) for v, n in program.inputs.items()}
        stay = frozenset(n for v, n in program.inputs.items() if self._stays(v, n, tensors, values))
        memory = dict(self._memory(stay))
        for value, n in program.inputs.items():
            size = self.layouts[value].bytes
            if n in stay:
                memory[value] = opened.kept(tensors[value], size)
            else:
                opened.upload(memory[value], tensors[value].data_ptr(), size)
        for function, count, launch, sizes in self.steps:
            if count:
                buffers = [memory[value] for value in launch.buffers]
                flag = self.flag if launch.checks else None
                opened.counters["launches"] += 1
                opened.device.launch(function, count, buffers, sizes, flag)
        self._raise_failure()
        return {value: self._fetch(value, memory) for value in program.fetched()}

    def _stays(
        self, value: Source, n: int, tensors: dict[Source, Any], values: Sequence[Any]
    ) -> bool:
        tensor, size = tensors[value], self.layouts[value].bytes
        if tensor is not values[n] or not size:
            return False
        return self.opened.weights.keeps(tensor, size, constant=n in self.constant)

    def _memory(self, stay: frozenset[int]) -> dict[Value, Memory]:
        """Memory for all values but the inputs that stay on the device, in one arena."""
        if stay not in self.memory:
            device, align = self.opened.device, self.opened.device.alignment
            blocks: list[Lifetime] = []
            named: dict[str, Value] = {}
            for value, (first, last) in self.program.lives.items():
                if self.program.inputs.get(value, -1) not in stay:  # type: ignore[call-overload]
                    size = aligned(max(self.layouts[value].bytes, 1), align)
                    named[str(len(named))] = value
                    blocks.append(Lifetime(str(len(named) - 1), size, first, last))
            plan = plan_lifetimes(blocks)
            arena = device.allocate(max(plan.peak, 1))
            self.memory[stay] = {
                named[b.name]: device.part(arena, plan.offsets[b.name], b.size) for b in blocks
            }
        return self.memory[stay]

    def _raise_failure(self) -> None:
        """Raise what eager raises where a kernel found an index out of range."""
        if self.flag is None:
            return
        address = ctypes.addressof(self.failed)
        self.opened.download(self.flag, address, 8)
        code = self.failed.value
        if code:
            self.failed.value = 0
            self.opened.upload(self.flag, address, 8)
            if CHECKS[code - 1] == "check_bounds":
                raise RuntimeError("index is out of bounds for the dimension it selects from")
            if CHECKS[code - 1] == "check_divisor":
                raise RuntimeError("ZeroDivisionError")
            raise IndexError("index out of range in self")

    def _fetch(self, value: Value, memory: dict[Value, Memory]) -> Any:
        layout = self.layouts[value]
        made = torch.empty_strided(layout.shape, layout.strides, dtype=layout.torch)
        self.opened.download(memory[value], made.data_ptr(), layout.bytes)
        return made
