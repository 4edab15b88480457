"""A plan as instructions of a Program: generated kernels, library calls, copies into inputs.

``PlanWriter`` appends to a ``Lowering``. A program is one segment; a file joins those of its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256

from dovetail.errors import CannotSave
from dovetail.file.kernel_encode import encode_kernel
from dovetail.ir import kernel as kernel_ir
from dovetail.ir.affine import add, mul
from dovetail.ir.call import Arg, Ref, leaves, tensors
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.kernel_call import call_inputs, call_outputs, call_sizes
from dovetail.ir.layout import Layout
from dovetail.ir.ops import CHECKS
from dovetail.ir.program import Copy, HostCall, KernelCall
from dovetail.ir.real import Real
from dovetail.ir.segment import is_write
from dovetail.ir.size import Dim, Size, symbols_of
from dovetail.ir.strides import same_dims
from dovetail.ir.target import Target
from dovetail.ir.tensor import ScalarDesc, TensorDesc
from dovetail.lower import values
from dovetail.lower.to_program import Lowering
from dovetail.lower.values import LibraryCall, Value, View, root_of
from dovetail.lower.views import view_offsets
from dovetail.schedule.build import Built
from dovetail.schedule.cpu.library import fills, runtime_kernel
from dovetail.schedule.plan import Plan, Unschedulable
from dovetail.schedule.starts import share_starts

PREFIX = "generated."  # of the names of generated kernels
_DIGITS = 16  # of a digest: 64 bits
_SILENT = frozenset({"cast", "where", "and", "or", "not", *CHECKS})


class Kernels:
    """Generated kernels by name. The same work is generated once, however often it is called.

    A name tells what the kernel does, so programs that are joined agree on what it stands for: it
    ends in a digest of the kernel as files hold it and of its sizes, which code may be made of.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, kernel_ir.Kernel] = {}
        self.encoded: dict[str, bytes] = {}
        self.cannot_save = ""  # why files cannot hold one of them
        self._named: dict[int, tuple[kernel_ir.Kernel, str]] = {}  # by the identity of its loops

    def add(self, kernel: kernel_ir.Kernel) -> str:
        """The name to call this kernel by."""
        known, name = self._named.get(id(kernel.loops), (None, ""))
        if known is None or _form(known) != _form(kernel):
            name = self._add(kernel)
            self._named[id(kernel.loops)] = kernel, name
        return name

    def _add(self, kernel: kernel_ir.Kernel) -> str:
        try:
            body = encode_kernel(kernel)
        except CannotSave as error:
            self.cannot_save = str(error)
            body = str(replace(kernel, name="")).encode()
        sizes = ",".join(map(str, (*call_sizes(kernel), *kernel.tile)))
        digest = sha256(body + b"\0" + sizes.encode()).hexdigest()[:_DIGITS]
        name = f"{PREFIX}{digest}{describe(kernel)}"
        if name not in self.by_name:
            self.by_name[name], self.encoded[name] = replace(kernel, name=name), body
        return name


def _form(kernel: kernel_ir.Kernel) -> tuple[object, ...]:
    """What makes kernels of the same loops different ones."""
    return kernel.buffers, kernel.axes, kernel.tile


def describe(kernel: kernel_ir.Kernel) -> str:
    """A few words for those who read a program: the first operations of a kernel."""
    found = dict.fromkeys(
        i.op
        for i in kernel.instructions()
        if isinstance(i, kernel_ir.Apply | kernel_ir.Reduce | kernel_ir.Scan)
        if i.op not in _SILENT
    )
    return "".join(f"_{op}" for op in list(found)[:4])


class PlanWriter:
    """Appends one plan to a program for a target; ``known`` are the symbols its inputs tell."""

    def __init__(
        self, lowering: Lowering, plan: Plan, kernels: Kernels, known: Iterable[str], target: Target
    ) -> None:
        self.lowering, self.plan, self.kernels = lowering, plan, kernels
        self.known, self.target = frozenset(known), target
        self.names: dict[Value, str] = {}
        self.same: dict[Value, Value] = {}  # a library call's result → the memory it shows
        for step in plan.steps:
            if isinstance(step, LibraryCall):
                self._alias(step)
        self.copied = [
            tuple(self._value(arg) for arg in step.call.args[:2])
            for step in plan.steps
            if isinstance(step, LibraryCall) and is_write(step.call)
        ]
        self.needed = self._needed()
        self.layouts = dict(self._layouts())

    def _layouts(self) -> Iterator[tuple[Value, Layout]]:
        """The values that are the memory of other tensors, packed or with a halo."""
        for call in self.plan.segment.calls:
            for path, desc in tensors(call.output):
                value = self.plan.values.get((call.name, path))
                if desc.layout is not None and value is not None:
                    yield self.resolve(value), desc.layout

    def _alias(self, step: LibraryCall) -> None:
        """Note the results that are no memory of their own: views, and what is written to."""
        base = self._value(step.call.args[0]) if step.call.args else None
        if base is None:
            return
        base = self.resolve(base)
        if is_write(step.call):
            self.same |= dict.fromkeys(step.results, base)
            return
        offsets = view_offsets(step.call)
        if offsets is None or len(offsets) != len(step.results):
            return
        for result, offset in zip(step.results, offsets, strict=True):
            self.same[result] = _window(result, base, offset)

    def _needed(self) -> set[Value]:
        """What any step or output looks at."""
        found: set[Value] = set()
        for out in leaves(self.plan.segment.outputs):
            if isinstance(out, Ref) and (out.name, out.path) in self.plan.values:
                found.add(self.root(self.plan.values[out.name, out.path]))
        for step in self.plan.steps:
            read = step.buffers.values() if isinstance(step, Built) else step.reads
            found |= {self.root(value) for value in read}
        return found

    def write(self, handed_out: frozenset[Value] = frozenset()) -> None:
        """Append every step. Roots in ``handed_out`` are outputs of the program."""
        self.handed_out = handed_out
        for step in share_starts(self.plan.steps):
            if isinstance(step, Built):
                self._kernel(step)
            elif is_write(step.call):
                self._write(step)
            elif not all(result in self.same for result in step.results) or not step.results:
                self._library(step)

    # ---- values ----------------------------------------------------------------------------

    def resolve(self, value: Value) -> Value:
        """A value as memory of its own or as a view of such, whatever calls lie between."""
        if value in self.same:
            return self.same[value]
        if isinstance(value, View) and value.root in self.same:
            self.same[value] = _window(value, self.same[value.root], value.offset)
            return self.same[value]
        return value

    def root(self, value: Value) -> Value:
        """The value whose memory another one shows."""
        return root_of(self.resolve(value))

    def buffer(self, value: Value) -> str:
        """The buffer of a value that lies in memory; a view is declared on first use."""
        value = self.resolve(value)
        if value not in self.names:
            if isinstance(value, View):
                self.names[value] = self._view(value)
            elif isinstance(value, values.Source):
                self.names[value] = self._source(value)
            else:
                self.names[value] = self.lowering.declare(
                    value.name, self._kind(value), self._desc(value)
                )
        return self.names[value]

    def _kind(self, root: Value) -> str:
        return "output" if root in self.handed_out else "temporary"

    def _source(self, value: values.Source) -> str:
        try:
            name = self.lowering.values[value.name, ()]
        except KeyError:
            raise Unschedulable(f"{value} is no input") from None
        held = self.lowering.buffers[name].desc
        if not same_dims(held.strides, value.strides):
            raise Unschedulable(f"{value} lies otherwise in memory than it was planned for")
        return name

    def _view(self, value: View) -> str:
        base = self.lowering.buffers[self.buffer(value.root)]
        owner, offset = base.name, value.offset
        if base.kind == "view":
            owner = base.of
            offset = offset if base.offset == 0 else Size.binary("add", base.offset, offset)
        self._dims((offset,))
        return self.lowering.declare(value.name, "view", self._desc(value), owner, offset)

    def _desc(self, value: Value) -> TensorDesc:
        if value.dtype not in DTYPES:
            raise Unschedulable(f"{value} has a dtype that programs do not know")
        made = TensorDesc(value.dtype, self._dims(value.shape), self._dims(value.strides))
        layout = self.layouts.get(value)
        if layout is None:
            return made
        self._dims(layout.shape)
        return replace(made, layout=layout)

    def _dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        for dim in dims:
            if not symbols_of(dim) <= self.known:
                raise Unschedulable(f"nothing binds the symbols of {dim}")
        return dims

    # ---- steps -----------------------------------------------------------------------------

    def _kernel(self, built: Built) -> None:
        kernel = built.kernel
        named = {n: self.buffer(v) for n, v in built.buffers.items()}
        sizes = call_sizes(kernel)
        self._dims(sizes)
        call = f"{self.kernels.add(kernel)}@1"
        outputs = tuple(named[b.name] for b in call_outputs(kernel))
        inputs = tuple(named[b.name] for b in call_inputs(kernel))
        self.lowering.emit(KernelCall(call, outputs, inputs, sizes))

    def _write(self, step: LibraryCall) -> None:
        """``copy_``: the only in-place call that functional graphs have."""
        call = step.call
        target, source = (self._value(arg) for arg in call.args[:2])
        if call.op != "aten.copy_.default" or target is None or source is None:
            raise Unschedulable(f"{call.op} writes in place")
        if target.dtype != source.dtype or not same_dims(target.shape, source.shape):
            raise Unschedulable(f"{call.op} between tensors of different shape or dtype")
        self.lowering.emit(Copy(self.buffer(target), self.buffer(source)))

    def _value(self, arg: Arg) -> Value | None:
        return self.plan.values.get((arg.name, arg.path)) if isinstance(arg, Ref) else None

    def _join(self, step: LibraryCall) -> bool:
        """A cat as copies, piece by piece; False where it is more than that."""
        if step.call.op != "aten.cat.default":
            return False
        listed, *given = step.call.args
        (result,), dim = step.results, given[0] if given else step.call.kwargs.get("dim", 0)
        if not isinstance(listed, tuple) or not isinstance(dim, int):
            return False
        pieces = [self._value(arg) for arg in listed]
        rank = len(result.shape)
        start: Dim = 0
        windows: list[tuple[View, Value]] = []
        for piece in pieces:
            if piece is None or piece.dtype != result.dtype or len(piece.shape) != rank:
                return False
            offset: Dim = mul(start, result.strides[dim])
            part = View(f"{result.name}_part", result, piece.shape, result.strides, offset, None)
            windows.append((part, piece))
            start = add(start, piece.shape[dim])
        for part, piece in windows:
            self.lowering.emit(Copy(self.buffer(part), self.buffer(piece)))
        return True

    def _library(self, step: LibraryCall) -> None:
        if self._join(step) or self._runtime_kernel(step):
            return
        call = step.call
        args = tuple(self._argument(a) for a in call.args)
        kwargs = {k: self._argument(a) for k, a in call.kwargs.items()}
        if fills(call, self.target):
            (result,) = step.results
            self.lowering.emit(HostCall(call.op, (self.buffer(result),), args, kwargs))
            return
        self.lowering.emit(HostCall(call.op, self._results(step), args, kwargs))

    def _runtime_kernel(self, step: LibraryCall) -> bool:
        """Leave a call to a kernel of the runtime's, where that takes less time than PyTorch's."""
        if self.target.kind != "cpu":
            return False
        found = runtime_kernel(step.call, written_back=self._is_written_back(step))
        if found is None:
            return False
        operands = [(self._value(each.value), each.dtype) for each in found.operands]
        if any(value is None or value.dtype != dtype for value, dtype in operands):
            return False
        reads = tuple(self.buffer(value) for value, _ in operands if value is not None)
        (result,) = step.results
        made = (self.buffer(result),)
        self.lowering.emit(KernelCall(found.kernel, made, reads, found.attributes))
        return True

    def _is_written_back(self, step: LibraryCall) -> bool:
        """Whether a call's result is copied over its first operand."""
        base = self._value(step.call.args[0]) if step.call.args else None
        pairs = [(base, result) for result in step.results]
        return any(pair in self.copied for pair in pairs)

    def _results(self, step: LibraryCall) -> tuple[str, ...]:
        """A host buffer for each result that somebody needs."""
        made = {value.path: value for value in step.results}
        if any(len(path) > 1 for path in made):
            raise Unschedulable(f"{step.call.op} has lists among its results")
        count = len(step.call.output) if isinstance(step.call.output, tuple) else 1
        names = [""] * count
        for path, value in made.items():
            if value in self.needed:
                name = self.lowering.declare(value.name, "host", self._desc(value))
                self.names[value] = names[path[0] if path else 0] = name
        return tuple(names)

    def _argument(self, arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            value = self._value(arg)
            if value is not None:
                return Ref(self.buffer(value))
            if isinstance(arg.desc, ScalarDesc) and arg.desc.size is not None:
                return arg.desc.size
            raise Unschedulable(f"a library call takes {arg}, which is no tensor")
        if isinstance(arg, tuple):
            return tuple(self._argument(a) for a in arg)
        if isinstance(arg, Size):
            self._dims((arg,))
        if isinstance(arg, Real):
            self._dims((arg.bits,))
        return arg


def _window(value: Value, base: Value, offset: Dim) -> View:
    """``value`` as a view that starts ``offset`` elements into ``base``; memory, not indices."""
    return View(value.name, base, value.shape, value.strides, offset, None)
