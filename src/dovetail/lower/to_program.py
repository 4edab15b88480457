"""A list of calls as a Program: views become windows, known calls kernels, the rest host calls.

In process a Program is one segment; in a file it is all of a graph, so that its memory is planned
as a whole. Which calls may become kernels is the caller's choice, handed in as ``is_native``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.errors import CannotSave
from dovetail.ir.affine import add, product
from dovetail.ir.call import Arg, OpCall, Ref
from dovetail.ir.memory import share_in_place
from dovetail.ir.program import (
    VALUE,
    Buffer,
    Copy,
    Guard,
    HostCall,
    Instruction,
    KernelCall,
    PluginDevice,
    Program,
    Result,
    Symbol,
    reads,
    writes,
)
from dovetail.ir.program_verify import verify_program
from dovetail.ir.segment import Segment, is_write
from dovetail.ir.size import UNKNOWN, Size
from dovetail.ir.strides import contiguous_strides, is_row_major, same_dims
from dovetail.ir.tensor import Desc, ScalarDesc, TensorDesc
from dovetail.lower.portable import (
    ASSERTIONS,
    RESHAPES,
    KernelOperand,
    Match,
    is_elementwise,
    match,
)
from dovetail.lower.views import view_offsets

Key = tuple[str, tuple[int, ...]]
# Host calls that write straight into memory of the program's.
PRODUCTS = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm"))
# A number as a rank-0 constant: its dtype and value.
Scalar = tuple[str, int | float | bool]


@dataclass(frozen=True)
class ProgramSource:
    """A value that exists before the first call: an input, a constant or a piece of state."""

    name: str
    kind: str  # "input", "constant" or "state"
    desc: TensorDesc


@dataclass(frozen=True)
class LoweredProgram:
    """A program, the numbers that it holds as constants of its own, and its inputs' names."""

    program: Program
    scalars: Mapping[str, Scalar]
    taken: Mapping[str, str]  # input buffer → the segment's name for it


@dataclass
class Lowering:
    """Builds one Program; ``is_native`` says which calls may become kernels."""

    is_native: Callable[[OpCall], bool]
    buffers: dict[str, Buffer] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    values: dict[Key, str] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    handed_out: set[str] = field(default_factory=set)  # host buffers that are results
    taken: dict[str, str] = field(default_factory=dict)
    devices: list[PluginDevice] = field(default_factory=list)

    def source(self, source: ProgramSource, key: Key) -> str:
        """Declare a value that exists before the first call."""
        name = self.declare(source.name, source.kind, source.desc)
        self.values[key] = name
        return name

    # ---- calls -----------------------------------------------------------------------------

    def call(self, call: OpCall) -> None:
        """Append what one call needs."""
        if call.binds:
            raise CannotSave(
                f"{call.op} has a result whose size depends on data, which no file holds: choose "
                "by torch.where or topk, or run the model by torch.compile"
            )
        if any(True for _ in call.subgraphs()):
            raise CannotSave(f"{call.op} holds subgraphs")
        if is_write(call):
            call = functional(call)
        if call.op in ASSERTIONS or known_size(call.output) is not None:
            return  # a size is computed from symbols wherever it is used
        offsets = view_offsets(call)
        if offsets is not None and self._view(call, offsets):
            return
        found = match(call) if self.is_native(call) else ""
        if isinstance(found, Match):
            self._kernel(call, found)
        else:
            self._host(call)

    def _view(self, call: OpCall, offsets: Sequence[int | Size]) -> bool:
        base = self.buffers[self._name(call.args[0])]
        results = _results(call)
        if len(results) != len(offsets):
            return False
        for (path, desc), offset in zip(results, offsets, strict=True):
            assert isinstance(desc, TensorDesc)
            owner = base.of if base.kind == "view" else base.name
            start = add(base.offset, offset) if base.kind == "view" else offset
            name = self.declare(_join(call.name, path), "view", desc, owner, start)
            self.values[call.name, path] = name
        return True

    def _kernel(self, call: OpCall, found: Match) -> None:
        inputs = tuple(self._operand(operand, call.name) for operand in found.operands)
        outputs = []
        for path, desc in _results(call):
            if not isinstance(desc, TensorDesc):
                raise CannotSave(f"{call.op} has a result that is no tensor")
            name = self.declare(_join(call.name, path), "temporary", desc)
            self.values[call.name, path] = name
            outputs.append(name)
        if call.op in RESHAPES:
            outputs = [self._in_shape_of(inputs[0], outputs[0])]
        self.emit(KernelCall(found.kernel, tuple(outputs), inputs, found.attributes))

    def _in_shape_of(self, source: str, target: str) -> str:
        """A window on ``target`` of another shape and the same elements, in row-major order."""
        shape, desc = self.buffers[source].desc.shape, self.buffers[target].desc
        seen = TensorDesc(desc.dtype, shape, contiguous_strides(shape), desc.device)
        return self.declare(f"{target}_filled", "view", seen, target)

    def _operand(self, operand: KernelOperand, call: str) -> str:
        value, dtype = operand.value, operand.dtype
        if isinstance(value, Ref) and (size := known_size(value.desc)) is not None:
            value = size
        if isinstance(value, Ref):
            name = self._name(value)
            held = self.buffers[name].desc
            if held.dtype == dtype:
                return name
            desc = TensorDesc(dtype, held.shape, contiguous_strides(held.shape), held.device)
            made = self.declare(f"{call}_{name}_as_{dtype}", "temporary", desc)
            self.emit(KernelCall("copy@1", (made,), (name,)))
            return made
        if isinstance(value, Size):
            made = self.declare(f"{call}_size", "temporary", TensorDesc(dtype, (), ()))
            self.emit(KernelCall("size@1", (made,), (), (value,)))
            return made
        return self._scalar(dtype, value)

    def _scalar(self, dtype: str, value: int | float | bool) -> str:
        if dtype.startswith(("int", "uint")) and isinstance(value, float):
            value = int(value)
        for name, held in self.scalars.items():
            if held[0] == dtype and repr(held[1]) == repr(value):
                return name
        name = self.declare(f"scalar_{len(self.scalars)}", "constant", TensorDesc(dtype, (), ()))
        self.scalars[name] = dtype, value
        return name

    def _host(self, call: OpCall) -> None:
        names = []
        kind = "temporary" if call.op in PRODUCTS and _fills_memory(call.output) else "host"
        for path, desc in _results(call):
            if desc is None:
                names.append("")
                continue
            if not isinstance(desc, TensorDesc):
                raise CannotSave(f"{call.op} has a result that is no tensor")
            name = self.declare(_join(call.name, path), kind, desc)
            self.values[call.name, path] = name
            names.append(name)
        args = tuple(self._argument(a) for a in call.args)
        kwargs = {key: self._argument(a) for key, a in call.kwargs.items()}
        self.emit(HostCall(call.op, tuple(names), args, kwargs))

    def _argument(self, arg: Arg) -> Arg:
        if isinstance(arg, Ref) and (size := known_size(arg.desc)) is not None:
            return size
        if isinstance(arg, Ref):
            if not isinstance(arg.desc, TensorDesc):
                raise CannotSave(f"a host call takes %{arg.name}, which is no tensor")
            return Ref(self._name(arg))
        if isinstance(arg, tuple):
            return tuple(self._argument(a) for a in arg)
        return arg

    # ---- results ---------------------------------------------------------------------------

    def store(self, target: str, value: Ref) -> None:
        """Write a value back to an input or a piece of state."""
        self.emit(Copy(target, self._name(value)))

    def result(self, value: Arg) -> Result:
        """Make a value an output of the program."""
        if isinstance(value, Ref) and (size := known_size(value.desc)) is not None:
            return size
        if not isinstance(value, Ref):
            if isinstance(value, Size | int | float | bool | None):
                return value
            raise CannotSave(
                f"the model returns a {type(value).__name__}: a file's results are tensors, "
                "numbers, bools and None, in tuples, lists and dicts"
            )
        name = self._name(value)
        buffer = self.buffers[name]
        owner = self.buffers[buffer.of] if buffer.kind == "view" else buffer
        if owner.kind == "temporary" and _fills(buffer, owner):
            self.buffers[owner.name] = replace(owner, kind="output")
            return name
        if buffer.kind == "host" and name not in self.handed_out and _fills_memory(buffer.desc):
            self.handed_out.add(name)
            return name
        desc = buffer.desc
        dense = TensorDesc(desc.dtype, desc.shape, _dense_strides(desc), desc.device)
        copy = self.declare(f"{name}_out", "output", dense)
        self.emit(Copy(copy, name))
        return copy

    # ---- helpers ---------------------------------------------------------------------------

    def _name(self, ref: Arg) -> str:
        try:
            return self.values[ref.name, ref.path]
        except KeyError:
            raise CannotSave(f"the program needs {ref}, which is no tensor") from None

    def declare(
        self, name: str, kind: str, desc: TensorDesc, of: str = "", offset: int | Size = 0
    ) -> str:
        """Add a buffer under this name, or one like it that is free."""
        if len(desc.strides) != desc.rank:
            raise CannotSave(
                f"{name} is sparse, and a file holds tensors with strides: call to_dense()"
            )
        plain = re.sub(r"[^\w]", "_", name) or "value"
        unique, number = plain, 1
        while unique in self.buffers:
            unique, number = f"{plain}_{number}", number + 1
        self.buffers[unique] = Buffer(unique, kind, desc, of, offset)
        return unique

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction."""
        self.instructions.append(instruction)

    def drop_unused_inputs(self, symbols: Iterable[Symbol]) -> None:
        """Forget inputs that no instruction touches and no symbol is read from."""
        kept = {symbol.input for symbol in symbols}
        for instruction in self.instructions:
            for name in (*reads(instruction), *writes(instruction)):
                kept.add(self.buffers[name].of or name)
        for buffer in list(self.buffers.values()):
            if buffer.kind == "input" and buffer.name not in kept:
                del self.buffers[buffer.name]

    def program(
        self,
        name: str,
        outputs: Iterable[Result],
        symbols: Sequence[Symbol] = (),
        guards: Sequence[Guard] = (),
    ) -> LoweredProgram:
        """The finished program, verified."""
        made = Program(
            re.sub(r"[^\w]", "_", name) or "program",
            tuple(self.buffers.values()),
            tuple(self.instructions),
            tuple(outputs),
            tuple(symbols),
            tuple(guards),
            tuple(self.devices),
        )
        made = share_in_place(made, is_elementwise)
        verify_program(made)
        return LoweredProgram(made, dict(self.scalars), dict(self.taken))


def functional(call: OpCall) -> OpCall:
    """An in-place call as the functional one it stands for.

    A graph is functional before some of its calls are made in-place, and those are calls whose
    operand nobody reads afterwards: a result of its own means the same.
    """
    namespace, name, overload = call.op.split(".")
    return replace(call, op=f"{namespace}.{name.rstrip('_')}.{overload}")


def is_computed(call: OpCall) -> bool:
    """Whether a call needs a kernel: it is no assertion, no size and no window on an operand."""
    silent = call.op in ASSERTIONS or known_size(call.output) is not None
    return not silent and view_offsets(call) is None


def known_size(desc: Desc) -> int | Size | None:
    """The expression that a number is known by, if it is one."""
    return desc.size if isinstance(desc, ScalarDesc) and desc.kind == "int" else None


def declare_inputs(lowering: Lowering, segment: Segment) -> tuple[Symbol, ...]:
    """Declare a segment's inputs; the symbols that they tell come back.

    A size that no tensor's shape shows is an input of its own, a number.
    """
    symbols: dict[str, Symbol] = {}
    for given in segment.inputs:
        if isinstance(given.desc, TensorDesc):
            name = lowering.source(ProgramSource(given.name, "input", given.desc), (given.name, ()))
            lowering.taken[name] = given.name
            for symbol in input_symbols(name, given.desc):
                symbols.setdefault(symbol.name, symbol)
    for given in segment.inputs:
        if given.kind == "size" and given.name not in symbols:
            name = lowering.declare(given.name, "input", TensorDesc("int64", (), ()))
            lowering.taken[name] = given.name
            symbols[given.name] = Symbol(given.name, name, VALUE, -(2**63))
    return tuple(symbols.values())


def input_symbols(name: str, desc: TensorDesc) -> list[Symbol]:
    """The symbols that can be read from an input's shape."""
    return [
        Symbol(size.args[0], name, axis)
        for axis, size in enumerate(desc.shape)
        if isinstance(size, Size) and size.is_symbol and size != UNKNOWN
    ]


def _results(call: OpCall) -> list[tuple[tuple[int, ...], Desc]]:
    """Each result of a call, with the path that leads to it."""
    if isinstance(call.output, tuple):
        return [((i,), desc) for i, desc in enumerate(call.output)]
    return [((), call.output)]


def _fills_memory(desc: Desc | tuple[Desc, ...]) -> bool:
    """Whether a tensor has an address of its own for each element, with nothing in between."""
    return isinstance(desc, TensorDesc) and _dense_strides(desc) == desc.strides


def _join(name: str, path: tuple[int, ...]) -> str:
    return "_".join([name, *map(str, path)])


def _fills(view: Buffer, owner: Buffer) -> bool:
    """Whether a buffer shows all of its owner's memory, so that handing it out wastes nothing."""
    if view.name == owner.name:
        return True
    same_start = view.offset == 0
    ordered = sorted(map(str, view.desc.shape)) == sorted(map(str, owner.desc.shape))
    permuted = ordered and sorted(map(str, view.desc.strides)) == sorted(
        map(str, owner.desc.strides)
    )
    row_major = all(is_row_major(b.desc) for b in (view, owner))
    as_many = same_dims((product(view.desc.shape),), (product(owner.desc.shape),))
    return same_start and (permuted or (row_major and as_many))


def _dense_strides(desc: TensorDesc) -> tuple[int | Size, ...]:
    """The value's own strides if they leave no gap and no overlap, else row-major ones."""
    plain = contiguous_strides(desc.shape)
    if not all(isinstance(s, int) for s in (*desc.strides, *desc.shape)):
        return plain
    order = sorted(range(desc.rank), key=lambda i: (-int(desc.strides[i]), i))  # type: ignore[arg-type]
    dense = contiguous_strides([desc.shape[i] for i in order])
    fills = all(desc.strides[axis] == step for axis, step in zip(order, dense, strict=True))
    return desc.strides if fills else plain
