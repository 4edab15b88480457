"""Runs a segment on a GPU: kernels on the current stream, memory from PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from dovetail.backend import Executable, Run
from dovetail.backends.cuda import driver
from dovetail.backends.cuda.cublas import library_of
from dovetail.backends.cuda.products import library_calls, multiplied
from dovetail.backends.cuda.program import CudaProgram
from dovetail.backends.cuda.replay import Call, ReplayedCall
from dovetail.backends.cuda.steps import Getter, SizedSteps, native_program
from dovetail.capture._torch.cuda import (
    current_device_reader,
    memory_maker,
    product_settings,
)
from dovetail.ir.segment import is_write
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.values import LibraryCall
from dovetail.runtime.interpreter import Interpreter
from dovetail.runtime.sized import bind_sizes

MAX_SIZES = 64  # sets of sizes that are kept


class CudaExecutable(Executable):
    """A segment ready to run; call it with the segment's inputs as one list."""

    def __init__(self, program: CudaProgram) -> None:
        self.program = program
        inputs = program.segment.inputs
        self.numbers = [n for n, given in enumerate(inputs) if given.kind == "size"]
        self.dynamic = [
            n
            for n, given in enumerate(inputs)
            if isinstance(given.desc, TensorDesc) and given.desc.symbols()
        ]
        self.sized: dict[Any, Call] = {}
        self.empty, self.current_device = memory_maker(), current_device_reader()
        self.alone = torch.cuda.device_count() == 1
        self.multiplies = multiplied(program)
        self.replays = False
        with torch.cuda.device(program.index):
            torch.cuda.current_stream()  # so that there is a context
            self.functions = {name: driver.load(code) for name, code in program.code.items()}

    @cached_property
    def call_by_call(self) -> Interpreter:
        """The same without kernels, for inputs that do not lie as they were described."""
        return Interpreter(self.program.segment)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run with the segment's inputs; the list is emptied."""
        if self.alone or self.current_device() == self.program.index:
            return self._run(inputs)
        with torch.cuda.device(self.program.index):
            return self._run(inputs)

    def replay(self) -> None:
        """Record calls as CUDA graphs from now on, unless some of them write to an input."""
        self.replays = not any(
            is_write(step.call) for step in self.program.steps if isinstance(step, LibraryCall)
        )
        self.sized.clear()

    def picking(self, positions: Sequence[int]) -> Run | None:
        """The same, where the segment's inputs are the first ones in their order."""
        count = len(self.program.segment.inputs)
        if list(positions) != list(range(count)):
            return None

        def run(inputs: list[Any]) -> list[Any]:
            own = inputs[:count]
            inputs.clear()
            return self(own)

        return run

    def _run(self, inputs: list[Any]) -> list[Any]:
        made = self._sized(inputs)(inputs)
        return self.call_by_call(inputs) if made is None else made

    def _sized(self, values: Sequence[Any]) -> Call:
        """What depends on the sizes of this call."""
        tf32 = product_settings("float32" in self.multiplies) if self.multiplies else None
        key = (
            tf32,
            *(values[n] for n in self.numbers),
            *((values[n].shape, values[n].stride()) for n in self.dynamic),
        )
        found = self.sized.get(key)
        if found is None:
            if len(self.sized) >= MAX_SIZES:
                self.sized.pop(next(iter(self.sized)))
            found = self.sized[key] = self._make(values, tf32)
        return found

    def _make(self, values: Sequence[Any], tf32: bool | None) -> Call:
        program = self.program
        number = bind_sizes(program.segment, values)
        calls = library_calls(library_of(program.index) if self.multiplies else None, tf32)
        steps = SizedSteps(program, number, self.functions, calls)
        native = native_program(steps, driver.launch_address(), program.index, self.empty)
        call: Call = native.run
        if steps.output_places() is None:
            call = _with_outputs(native.run, steps.outputs())
        return ReplayedCall(call) if self.replays else call


def _with_outputs(run: Call, outputs: Sequence[Getter]) -> Call:
    """A call whose outputs are not all plain values."""

    def call(inputs: list[Any]) -> list[Any] | None:
        values = run(inputs)
        return None if values is None else [get(values) for get in outputs]

    return call
