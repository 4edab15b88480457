"""Runs a segment on a GPU: kernels on the current stream, memory from PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from dovetail.backend import Executable
from dovetail.backends.cuda.driver import LoadedKernel
from dovetail.backends.cuda.program import BlockLaunch, CudaProgram
from dovetail.capture.ops import resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.ir import Arg, Attr, Ref, Size
from dovetail.ir.tensor import ScalarDesc, TensorDesc
from dovetail.lower.values import LibraryCall, Source, Value, View, root_of
from dovetail.runtime.interpreter import Interpreter
from dovetail.runtime.layouts import copy_with_strides, has_strides
from dovetail.runtime.sized import TensorLayout, bind_sizes, fitted

MAX_SIZES = 64  # sets of sizes that are kept
_ALIGNED = 15  # bits of an address that are zero where accesses can be 16 bytes wide

Tensors = dict[Value, Any]


class CudaExecutable(Executable):
    """A segment ready to run; call it with the segment's inputs as one list."""

    def __init__(self, program: CudaProgram) -> None:
        self.program = program
        inputs = program.segment.inputs
        self.position = {given.name: n for n, given in enumerate(inputs)}
        self.numbers = [n for n, given in enumerate(inputs) if given.kind == "size"]
        self.dynamic = [
            n
            for n, given in enumerate(inputs)
            if isinstance(given.desc, TensorDesc) and given.desc.symbols()
        ]
        self.sources = [
            (value, n)
            for n, given in enumerate(inputs)
            if isinstance(value := program.values.get((given.name, ())), Source)
        ]
        self.sized: dict[Any, SizedSteps] = {}
        with torch.cuda.device(program.index):
            torch.cuda.current_stream()  # so that there is a context
            count = {s.name: len(s.buffers) + len(s.sizes) for s in self._launches()}
            self.functions = {
                name: LoadedKernel(cubin, count[name]) for name, cubin in program.code.items()
            }

    def _launches(self) -> list[BlockLaunch]:
        return [s for s in self.program.steps if isinstance(s, BlockLaunch)]

    @cached_property
    def call_by_call(self) -> Interpreter:
        """The same without kernels, for inputs that do not lie as they were described."""
        return Interpreter(self.program.segment)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run with the segment's inputs; the list is emptied."""
        if torch.cuda.current_device() == self.program.index:
            return self._run(inputs)
        with torch.cuda.device(self.program.index):
            return self._run(inputs)

    def _run(self, inputs: list[Any]) -> list[Any]:
        sized = self._sized(inputs)
        made: Tensors = {source: inputs[n] for source, n in self.sources}
        if not sized.fits(made):
            return self.call_by_call(inputs)
        values = list(inputs)
        inputs.clear()
        stream = torch.cuda.current_stream().cuda_stream
        for step in sized.steps:
            step(made, stream)
        return [self._output(out, sized, values, made) for out in self.program.outputs]

    def _sized(self, values: Sequence[Any]) -> SizedSteps:
        """What depends on the sizes of this call."""
        key = (
            *(values[n] for n in self.numbers),
            *((values[n].shape, values[n].stride()) for n in self.dynamic),
        )
        found = self.sized.get(key)
        if found is None:
            if len(self.sized) >= MAX_SIZES:
                self.sized.pop(next(iter(self.sized)))
            found = self.sized[key] = SizedSteps(self, values)
        return found

    def _output(self, out: Any, sized: SizedSteps, values: Sequence[Any], made: Tensors) -> Any:
        if isinstance(out, Ref):
            return values[self.position[out.name]]
        if isinstance(out, Size):
            return sized.number(out)
        return sized.tensor(out)(made) if isinstance(out, Value) else out


class SizedSteps:
    """A program's steps for one set of sizes."""

    def __init__(self, owner: CudaExecutable, values: Sequence[Any]) -> None:
        self.program, self.functions = owner.program, owner.functions
        self.device = torch.device("cuda", self.program.index)
        self.number = bind_sizes(self.program.segment, values)
        self.strides = [(v, self._form(v)[1]) for v, _ in owner.sources]
        self.tensors: dict[Value, Callable[[Tensors], Any]] = {}
        last = self._last_uses()
        self.steps = [
            self._library(step, last[n])
            if isinstance(step, LibraryCall)
            else self._launch(step, last[n])
            for n, step in enumerate(self.program.steps)
        ]

    def fits(self, made: Tensors) -> bool:
        """Whether all inputs lie as they are described: kernels and windows rely on it."""
        for value, strides in self.strides:
            tensor = made[value]
            if tensor.stride() != strides and not has_strides(tensor, strides):
                return False
            if tensor.is_neg():
                return False
        return True

    def _last_uses(self) -> list[list[Value]]:
        """What is not needed any more after each step."""
        kept = {root_of(v) for v in self.program.outputs if isinstance(v, Value)}
        found: list[list[Value]] = []
        for step in reversed(self.program.steps):
            if isinstance(step, LibraryCall):
                used = {*map(root_of, step.reads), *step.results}
            else:
                used = set(step.buffers)
            found.append([v for v in used if v not in kept and not isinstance(v, Source)])
            kept |= used
        return found[::-1]

    # ---- steps -----------------------------------------------------------------------------

    def _launch(self, step: BlockLaunch, done: list[Value]) -> Callable[..., None]:
        function, blocks = self.functions[step.name], self.number(step.blocks)
        sizes, buffers = [self.number(s) for s in step.sizes], step.buffers
        news = [(v, *self._form(v)) for v in step.written]
        device = self.device

        def launch(made: Tensors, stream: int) -> None:
            for value, shape, strides, dtype in news:
                made[value] = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            if blocks:
                held = [made[v] for v in buffers]
                places = [tensor.data_ptr() for tensor in held]
                for n, place in enumerate(places):
                    if place & _ALIGNED:
                        held[n] = copy_with_strides(held[n], held[n].stride())
                        places[n] = held[n].data_ptr()
                function(blocks, stream, places + sizes)
            for value in done:
                del made[value]

        return launch

    def _form(self, value: Value) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
        layout = self._layout(value)
        return layout.shape, layout.strides, layout.torch

    def _library(self, step: LibraryCall, done: list[Value]) -> Callable[..., None]:
        target = resolve_op(step.call.op)
        getters = [self._argument(arg) for arg in step.call.args]
        keywords = {key: self._argument(arg) for key, arg in step.call.kwargs.items()}
        results = [(value, value.path, *self._form(value)[1:]) for value in step.results]

        def run(made: Tensors, stream: int) -> None:
            del stream
            args = [get(made) for get in getters]
            if keywords:
                result = target(*args, **{key: get(made) for key, get in keywords.items()})
            else:
                result = target(*args)
            for value, path, strides, dtype in results:
                found = result
                for index in path:
                    found = found[index]
                if found.stride() != strides or found.dtype != dtype:
                    found = self._promised(value, found)
                made[value] = found
            for old in done:
                made.pop(old, None)

        return run

    def _promised(self, value: Value, tensor: Any) -> Any:
        """A library's result as it was described, which kernels rely on."""
        layout = self._layout(value)
        if tensor.dtype != layout.torch:
            tensor = tensor.to(layout.torch)
        return tensor if has_strides(tensor, layout.strides) else fitted(tensor, layout)

    def _layout(self, value: Value) -> TensorLayout:
        shape, strides = (tuple(map(self.number, dims)) for dims in (value.shape, value.strides))
        return TensorLayout(value.dtype, shape, strides)

    def _argument(self, arg: Arg) -> Callable[[Tensors], Any]:
        if isinstance(arg, Ref):
            value = self.program.values.get((arg.name, arg.path))
            if value is not None:
                return self.tensor(value)
            if isinstance(arg.desc, ScalarDesc) and arg.desc.size is not None:
                arg = arg.desc.size
        if isinstance(arg, tuple):
            getters = [self._argument(a) for a in arg]
            return lambda made: [get(made) for get in getters]
        constant: Any = arg
        if isinstance(arg, Size):
            constant = self.number(arg)
        elif isinstance(arg, Attr):
            constant = to_torch(arg)
        return lambda _: constant

    def tensor(self, value: Value) -> Callable[[Tensors], Any]:
        """How to get a value's tensor: memory, or a window on it."""
        if value not in self.tensors:
            self.tensors[value] = self._window(value)
        return self.tensors[value]

    def _window(self, value: Value) -> Callable[[Tensors], Any]:
        if not isinstance(value, View):
            return lambda made: made[value]
        root, offset = value.root, self.number(value.offset)
        shape, strides, _ = self._form(value)

        def window(made: Tensors) -> Any:
            base = made[root]
            return base.as_strided(shape, strides, base.storage_offset() + offset)

        return window
