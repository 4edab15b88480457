"""A program's steps for one set of sizes, as the C runtime takes them.

Every tensor has a place in a list of values, of which the first are the segment's inputs. The C
runtime makes memory, launches kernels and calls matrix products; other operators are functions of
that list, which it calls in between (``native/python/gpu.c``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail import _native
from dovetail.backends.cuda.driver import LaunchedFunction
from dovetail.backends.cuda.program import BlockLaunch, CudaProgram
from dovetail.capture.ops import resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.ir import Arg, Attr, Real, Ref, Size
from dovetail.ir.dtypes import COMPUTE, DTYPES, FLOATS
from dovetail.ir.size import real_of
from dovetail.ir.tensor import ScalarDesc
from dovetail.lower.values import LibraryCall, Source, Value, View, root_of
from dovetail.runtime.layouts import copy_with_strides, has_strides
from dovetail.runtime.sized import Number, TensorLayout, fitted

Values = list[Any]
Getter = Callable[[Values], Any]
Step = tuple[str, tuple[Any, ...]]
# Products that write into memory that exists, with the numbers that scale their terms.
_PRODUCTS = {f"aten.{name}.default": name for name in ("mm", "bmm", "addmm", "baddbmm")}
_SCALED = ("beta", "alpha")


class SizedSteps:
    """The steps of a program whose sizes are numbers."""

    def __init__(
        self,
        program: CudaProgram,
        number: Number,
        functions: Mapping[str, LaunchedFunction],
        products: Sequence[str] = (),
        on_gpu: bool = True,
    ) -> None:
        self.program, self.number, self.functions = program, number, functions
        self.products, self.on_gpu = products, on_gpu
        self.position = {given.name: n for n, given in enumerate(program.segment.inputs)}
        self.places: dict[Value, int] = {}
        for name, n in self.position.items():
            value = program.values.get((name, ()))
            if isinstance(value, Source):
                self.places[value] = n
        self.count = len(self.position)
        self.steps: list[Step] = []
        self.made = set[Value]()  # what has memory already
        self.used = self._used()
        for step, done in zip(program.steps, self._last_uses(), strict=True):
            if isinstance(step, LibraryCall):
                self._library(step)
            else:
                self._launch(step)
            self.steps += [("free", (self.place(value),)) for value in done]

    def inputs(self) -> list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]]:
        """How each input lies that kernels or windows rely on."""
        found = []
        for value, place in self.places.items():
            if isinstance(value, Source):
                layout, dtype = self.layout(value), DTYPES[value.dtype]
                found.append((place, dtype.dlpack, dtype.bits, layout.shape, layout.strides))
        return found

    def outputs(self) -> list[Getter]:
        """How to get each output from the values."""
        return [self._output(out) for out in self.program.outputs]

    def output_places(self) -> list[int] | None:
        """The outputs' places, where each is one of the values."""
        found = []
        for out in self.program.outputs:
            if isinstance(out, Value) and not isinstance(out, View):
                found.append(self.place(out))
            elif isinstance(out, Ref):
                found.append(self.position[out.name])
            else:
                return None
        return found

    def place(self, value: Value) -> int:
        """A value's place among all."""
        if value not in self.places:
            self.places[value] = self.count
            self.count += 1
        return self.places[value]

    def layout(self, value: Value) -> TensorLayout:
        """A value's sizes and strides as numbers."""
        shape, strides = (tuple(map(self.number, dims)) for dims in (value.shape, value.strides))
        return TensorLayout(value.dtype, shape, strides)

    def _last_uses(self) -> list[list[Value]]:
        """What is not needed any more after each step."""
        kept = {root_of(v) for v in self.program.outputs if isinstance(v, Value)}
        found: list[list[Value]] = []
        for step in reversed(self.program.steps):
            if isinstance(step, LibraryCall):
                used = {*map(root_of, step.reads), *self.used.intersection(step.results)}
            else:
                used = set(step.buffers)
            found.append([v for v in used if v not in kept and not isinstance(v, Source)])
            kept |= used
        return found[::-1]

    def _used(self) -> set[Value]:
        """What a step reads or writes, or the segment hands out."""
        found = {root_of(v) for v in self.program.outputs if isinstance(v, Value)}
        for step in self.program.steps:
            reads = step.reads if isinstance(step, LibraryCall) else step.buffers
            found.update(map(root_of, reads))
        return found

    # ---- steps -----------------------------------------------------------------------------

    def _empty(self, value: Value) -> None:
        """Make memory; a value that several kernels write parts of has it from the first on."""
        if value in self.made:
            return
        self.made.add(value)
        layout = self.layout(value)
        given = (layout.shape, layout.strides, layout.torch)
        self.steps.append(("empty", (self.place(value), given)))

    def _launch(self, step: BlockLaunch) -> None:
        function, blocks = self.functions[step.name], self.number(step.blocks)
        for value in step.written:
            self._empty(value)
        words = [(True, self.place(value)) for value in step.buffers]
        words += [(False, self.number(size)) for size in step.sizes]
        numbers = (function.address, blocks, function.threads, function.shared)
        self.steps.append(("launch", (*numbers, words)))

    def _library(self, step: LibraryCall) -> None:
        called = self._called(step)
        described = self._product(step, called)
        if described is None:
            self.steps.append(("call", (called,)))
            return
        (result,) = step.results
        self._empty(result)
        self.steps.append(("product", described))

    def _called(self, step: LibraryCall) -> Callable[[Values], None]:
        """A call of an operator as a function of the values."""
        target = resolve_op(step.call.op)
        getters = [self._argument(arg) for arg in step.call.args]
        keywords = {key: self._argument(arg) for key, arg in step.call.kwargs.items()}
        results = [(self.place(v), v.path, self.layout(v)) for v in step.results if v in self.used]

        def run(values: Values) -> None:
            args = [get(values) for get in getters]
            if keywords:
                result = target(*args, **{key: get(values) for key, get in keywords.items()})
            else:
                result = target(*args)
            for place, path, layout in results:
                found = result
                for index in path:
                    found = found[index]
                if found.stride() != layout.strides or found.dtype != layout.torch:
                    found = _promised(found, layout)
                values[place] = found

        return run

    def _product(self, step: LibraryCall, called: Callable[..., None]) -> tuple[Any, ...] | None:
        """A matrix product as the C runtime calls it; None where it has to go through Python."""
        call, name = step.call, _PRODUCTS.get(step.call.op, "")
        if name not in self.products or len(step.results) != 1 or not call.args:
            return None
        scales = [call.kwargs.get(key, 1) for key in _SCALED]
        given = [self._operand(arg) for arg in call.args]
        (result,) = step.results
        plain = all(isinstance(s, int | float) for s in scales)
        if None in given or not plain or call.kwargs.keys() - set(_SCALED):
            return None
        values = [result, *(value for value in given if value is not None)]
        if {v.dtype for v in values} != {result.dtype} or COMPUTE.get(result.dtype) not in FLOATS:
            return None
        layouts = [self.layout(v) for v in values]
        if any(0 in layout.shape or len(layout.shape) > 3 for layout in layouts):
            return None
        operands = tuple(
            (self.place(root_of(v)), self._offset(v), layout.shape, layout.strides)
            for v, layout in zip(values, layouts, strict=True)
        )
        kind = (f"dtype_{result.dtype}", layouts[0].item)
        numbers = (float(scales[0]), float(scales[1]))
        return name, *kind, self.on_gpu, operands, *numbers, called

    def _operand(self, arg: Arg) -> Value | None:
        return self.program.values.get((arg.name, arg.path)) if isinstance(arg, Ref) else None

    def _offset(self, value: Value) -> int:
        return self.number(value.offset) if isinstance(value, View) else 0

    # ---- values ----------------------------------------------------------------------------

    def _output(self, out: Any) -> Getter:
        if isinstance(out, Ref):
            place = self.position[out.name]
            return lambda values: values[place]
        if isinstance(out, Value):
            return self._tensor(out)
        constant = self.number(out) if isinstance(out, Size) else out
        return lambda _: constant

    def _argument(self, arg: Arg) -> Getter:
        if isinstance(arg, Ref):
            value = self.program.values.get((arg.name, arg.path))
            if value is not None:
                return self._tensor(value)
            if isinstance(arg.desc, ScalarDesc) and arg.desc.size is not None:
                arg = arg.desc.size
        if isinstance(arg, tuple):
            getters = [self._argument(a) for a in arg]
            return lambda values: [get(values) for get in getters]
        constant: Any = arg
        if isinstance(arg, Size):
            constant = self.number(arg)
        elif isinstance(arg, Real):
            constant = real_of(self.number(arg.bits))
        elif isinstance(arg, Attr):
            constant = to_torch(arg)
        return lambda _: constant

    def _tensor(self, value: Value) -> Getter:
        """How to get a value's tensor: memory, or a window on it."""
        place = self.place(root_of(value))
        if not isinstance(value, View):
            return lambda values: values[place]
        layout, offset = self.layout(value), self.number(value.offset)

        def window(values: Values) -> Any:
            base = values[place]
            return base.as_strided(layout.shape, layout.strides, base.storage_offset() + offset)

        return window


def native_program(
    steps: SizedSteps, launch: int, device: int, empty: Callable[..., Any]
) -> _native.GpuProgram:
    """The steps as one function of C's; ``launch`` is the address of the driver's."""
    from dovetail.backends.cuda.driver import raise_failed

    outputs = steps.output_places()
    return _native.GpuProgram(
        launch,
        device,
        steps.count,
        steps.inputs(),
        steps.steps,
        outputs,
        torch.Tensor,
        empty,
        _aligned,
        raise_failed,
    )


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that begins where accesses can be wide."""
    return copy_with_strides(tensor, tensor.stride())


def _promised(tensor: Any, layout: TensorLayout) -> Any:
    """A library's result as it was described, which kernels rely on."""
    if tensor.dtype != layout.torch:
        tensor = tensor.to(layout.torch)
    return tensor if has_strides(tensor, layout.strides) else fitted(tensor, layout)
