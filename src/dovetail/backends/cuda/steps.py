"""A program's steps for one set of sizes, as the C runtime takes them.

Every tensor has a place in a list of values, of which the first are the segment's inputs. The C
runtime makes memory, launches kernels and calls matrix products; other operators are functions of
that list, which it calls in between (``native/python/gpu.c``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dovetail import _native
from dovetail.backends.cuda.attention import AttentionStep, attention_of
from dovetail.backends.cuda.driver import CudaFailed, LaunchedFunction
from dovetail.backends.cuda.memory import ALIGNMENT, Arena, lifetime, plan_arena
from dovetail.backends.cuda.products import LibraryCalls, native_product, product_of
from dovetail.backends.cuda.program import BlockLaunch, CudaProgram
from dovetail.capture.ops import resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.ir import Arg, Attr, Real, Ref, Size
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.memory import Lifetime, aligned
from dovetail.ir.size import real_of
from dovetail.ir.tensor import ScalarDesc
from dovetail.lower.values import Host, LibraryCall, Source, Value, View, root_of
from dovetail.runtime.layouts import copy_with_strides, has_strides
from dovetail.runtime.sized import Number, TensorLayout, fitted

Values = list[Any]
Getter = Callable[[Values], Any]
Step = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory that a product needs while it runs."""

    bytes: int


class SizedSteps:
    """The steps of a program whose sizes are numbers."""

    def __init__(
        self,
        program: CudaProgram,
        number: Number,
        functions: Mapping[str, LaunchedFunction],
        calls: LibraryCalls,
    ) -> None:
        self.program, self.number, self.functions, self.calls = program, number, functions, calls
        self.position = {given.name: n for n, given in enumerate(program.segment.inputs)}
        self.places: dict[Value | Workspace, int] = {}
        for name, n in self.position.items():
            value = program.values.get((name, ()))
            if isinstance(value, Source):
                self.places[value] = n
        self.count = len(self.position)
        self.steps: list[Step] = []
        self.made = set[Value | Workspace]()  # what has memory already
        self.products = {
            step: product_of(step, self._operand, self.layout, calls)
            for step in program.steps
            if isinstance(step, LibraryCall)
        }
        self.workspaces = {
            step: Workspace(product.planned.workspace)
            for step, product in self.products.items()
            if product is not None and product.planned is not None and product.planned.workspace
        }
        self.attention = self._attention()
        self.arena_place = self._next_place()
        self.arena = self._arena()
        for step, done in zip(program.steps, self._last_uses(), strict=True):
            if isinstance(step, LibraryCall):
                self._library(step)
            else:
                self._launch(step)
            self.steps += [self._freed(v) for v in done if not self._is_inside(v)]

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

    def place(self, value: Value | Workspace) -> int:
        """A value's place among all."""
        if value not in self.places:
            self.places[value] = self._next_place()
        return self.places[value]

    def _next_place(self) -> int:
        self.count += 1
        return self.count - 1

    def native_arena(self) -> tuple[int, tuple[Any, ...], list[tuple[int, int]]] | None:
        """What makes the memory of the values in one piece, and where each lies in it."""
        if self.arena is None:
            return None
        parts = [(int(place), offset) for place, offset in self.arena.offsets.items()]
        return self.arena_place, ((self.arena.bytes,), (1,), torch.uint8), parts

    def layout(self, value: Value) -> TensorLayout:
        """A value's sizes and strides as numbers."""
        shape, strides = (tuple(map(self.number, dims)) for dims in (value.shape, value.strides))
        return TensorLayout(value.dtype, shape, strides)

    # ---- memory ----------------------------------------------------------------------------

    def _uses(self, step: LibraryCall | BlockLaunch) -> set[Value | Workspace]:
        """The memory that a step reads or writes."""
        if isinstance(step, BlockLaunch):
            return set(step.buffers)
        found: set[Value | Workspace] = {*map(root_of, step.reads), *self._results(step)}
        if step in self.workspaces:
            found.add(self.workspaces[step])
        return found

    def _results(self, step: LibraryCall) -> list[Host]:
        """Those results of a call that something reads."""
        return [value for value in step.results if value in self._read]

    @functools.cached_property
    def _handed_out(self) -> set[Value]:
        return {root_of(v) for v in self.program.outputs if isinstance(v, Value)}

    @functools.cached_property
    def _read(self) -> set[Value]:
        """What a step reads, or the segment hands out."""
        found = set(self._handed_out)
        for step in self.program.steps:
            reads = step.reads if isinstance(step, LibraryCall) else step.buffers
            found.update(map(root_of, reads))
        return found

    @functools.cached_property
    def _held(self) -> set[Value]:
        """Inputs that others hold: parameters, buffers."""
        inputs = self.program.segment.inputs
        places = [(v, n) for v, n in self.places.items() if isinstance(v, Source)]
        return {v for v, n in places if inputs[n].kind == "constant"}

    def _last_uses(self) -> list[list[Value | Workspace]]:
        """What is not needed any more after each step: tensors that were saved for it, too."""
        kept: set[Value | Workspace] = {*self._handed_out, *self._held}
        found: list[list[Value | Workspace]] = []
        for step in reversed(self.program.steps):
            used = self._uses(step)
            found.append([v for v in used if v not in kept])
            kept |= used
        return found[::-1]

    def _arena(self) -> Arena | None:
        """One piece of memory for what only launches and products use, where that is worth it."""
        apart: set[Value | Workspace] = set(self._handed_out)
        spans: dict[Value | Workspace, list[int]] = {}
        for n, step in enumerate(self.program.steps):
            used = self._uses(step)
            for value in used:
                spans.setdefault(value, [n, n])[1] = n
            if isinstance(step, LibraryCall) and self.products[step] is None:
                apart |= {*step.results} if step in self.attention else used
        end = len(self.program.steps)
        inside, beside, given = list[Lifetime](), list[Lifetime](), 0
        for value, (first, last) in spans.items():
            if value in self._held:
                given += self._bytes(value)
                continue
            first = 0 if isinstance(value, Source) else first
            last = end if value in self._handed_out else last
            life = lifetime(str(self.place(value)), self._bytes(value), first, last)
            own = value in apart or isinstance(value, Source)
            (beside if own else inside).append(life)
        return plan_arena(inside, beside, given)

    def _bytes(self, value: Value | Workspace) -> int:
        return value.bytes if isinstance(value, Workspace) else self.layout(value).bytes

    def _is_inside(self, value: Value | Workspace) -> bool:
        return self.arena is not None and str(self.place(value)) in self.arena.offsets

    def _attention(self) -> dict[LibraryCall, AttentionStep]:
        """Attention that C calls: only launches and products read what it makes."""
        calls = [s for s in self.program.steps if isinstance(s, LibraryCall)]
        others = [step for step in calls if self.products[step] is None]
        objects = {*self._handed_out, *(root_of(v) for step in others for v in step.reads)}
        found = {}
        for step in others:
            results = self._results(step)
            given = (self._operand, self.layout, self.calls.attention)
            attention = attention_of(step, results, *given)
            if attention is not None and not objects.intersection(results):
                found[step] = attention
        return found

    def _freed(self, value: Value | Workspace) -> Step:
        """What gives memory back: a handle of libtorch's, or an object."""
        is_handle = isinstance(value, Host) and value.call in self.attention
        return "drop" if is_handle else "free", (self.place(value),)

    # ---- steps -----------------------------------------------------------------------------

    def _empty(self, value: Value | Workspace) -> None:
        """Make memory; a value that several kernels write parts of has it from the first on."""
        if value in self.made or self._is_inside(value):
            return
        self.made.add(value)
        if isinstance(value, Workspace):
            given: tuple[Any, ...] = ((value.bytes,), (1,), torch.uint8)
        else:
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
        called = (self._called(step), tuple(map(self.place, self._results(step))))
        product = self.products[step]
        if step in self.attention:
            self.steps.append(("attention", (self._native_attention(step), called)))
            return
        if product is None:
            self.steps.append(("call", called))
            return
        workspace = self.workspaces.get(step)
        self._empty(step.results[0])
        if workspace is not None:
            self._empty(workspace)
        places = [(self.place(root_of(v)), self._offset(v)) for v in product.operands]
        scratch = -1 if workspace is None else self.place(workspace)
        given = native_product(product, self.calls.on_gpu, places, scratch)
        self.steps.append(("product", (given, called)))

    def _native_attention(self, step: LibraryCall) -> tuple[Any, ...]:
        found, calls = self.attention[step], self.calls
        places = [(self.place(root_of(v)), self._offset(v)) for v in found.operands]
        result = self.place(found.result), 0
        return found.native(calls.attention[found.name], calls.on_gpu, places, result)

    def _called(self, step: LibraryCall) -> Callable[[Values], None]:
        """A call of an operator as a function of the values."""
        target = resolve_op(step.call.op)
        getters = [self._argument(arg) for arg in step.call.args]
        keywords = {key: self._argument(arg) for key, arg in step.call.kwargs.items()}
        results = [(self.place(v), v.path, self.layout(v)) for v in self._results(step)]

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

    def _operand(self, ref: Ref) -> Value | None:
        return self.program.values.get((ref.name, ref.path))

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
        memory = self._memory(root_of(value))
        if not isinstance(value, View):
            return memory
        layout, offset = self.layout(value), self.number(value.offset)

        def window(values: Values) -> Any:
            base = memory(values)
            return base.as_strided(layout.shape, layout.strides, base.storage_offset() + offset)

        return window

    def _memory(self, value: Value) -> Getter:
        """How to get a tensor of memory; of a part of the one piece, one is made."""
        place, arena = self.place(value), self.arena_place
        if isinstance(value, Host) and value.call in self.attention:
            return lambda values: _held(values[place])
        if not self._is_inside(value) or self.arena is None:
            return lambda values: values[place]
        layout, first = self.layout(value), self.arena.offsets[str(place)]

        def part(values: Values) -> Any:
            if values[place] is not None:  # what a call made that the C runtime left to it
                return values[place]
            memory = values[arena][first : first + aligned(layout.bytes, ALIGNMENT)]
            typed = memory.view(layout.torch)
            return typed.as_strided(layout.shape, layout.strides, typed.storage_offset())

        return part


def _held(tensor: Any) -> Any:
    """What a call made; of what C holds there is no tensor for another try of what reads it."""
    if tensor is None:
        raise CudaFailed("a product of attention's result, which PyTorch's library refuses")
    return tensor


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
        steps.native_arena(),
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
    if has_strides(tensor, layout.strides):  # but for dimensions of one element
        return tensor.as_strided(layout.shape, layout.strides)
    return fitted(tensor, layout)
