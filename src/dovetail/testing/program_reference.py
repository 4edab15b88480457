"""The reference executor: a Program run in Python, one instruction at a time, on torch tensors.

It is what the C runtime is tested against: slow, plain, and with the memory of every buffer laid
out exactly as the Program says, in-place temporaries and views included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.capture._torch.operators import schema_of
from dovetail.capture.ops import resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.errors import GuardFailed, InvalidProgram
from dovetail.ir.call import Arg, Attr, Ref
from dovetail.ir.program import (
    VALUE,
    Attribute,
    BlobCall,
    Buffer,
    Copy,
    HostCall,
    KernelCall,
    Launch,
    Program,
)
from dovetail.ir.program_verify import extent
from dovetail.ir.real import Real
from dovetail.ir.size import Size, evaluate

Tensors = Sequence[torch.Tensor]
Numbers = Sequence[float]


def run_program(
    program: Program, inputs: Sequence[Any], constants: Mapping[str, torch.Tensor]
) -> list[Any]:
    """The outputs of a program; state in ``constants`` and inputs are written to where it does."""
    return _ProgramRun(program, inputs, constants).run()


class _ProgramRun:
    def __init__(
        self, program: Program, inputs: Sequence[Any], constants: Mapping[str, torch.Tensor]
    ) -> None:
        self.program = program
        self.symbols = _bind(program, inputs)
        self.memory: dict[str, torch.Tensor] = {}  # flat memory of each root
        self.values: dict[str, torch.Tensor] = {}
        self.inputs = dict(zip((b.name for b in program.inputs), inputs, strict=True))
        for name, value in (*self.inputs.items(), *constants.items()):
            self._view(program.by_name[name]).copy_(value)
        self.constants = constants

    def run(self) -> list[Any]:
        for instruction in self.program.instructions:
            if isinstance(instruction, KernelCall):
                self._kernel(instruction)
            elif isinstance(instruction, Copy):
                self._copy(instruction)
            elif isinstance(instruction, Launch):
                self._launch(instruction)
            elif isinstance(instruction, BlobCall):
                raise InvalidProgram(f"the oracle cannot run the code of {instruction.owner!r}")
            else:
                self._host(instruction)
        return [self._output(out) for out in self.program.outputs]

    def _output(self, out: Any) -> Any:
        if isinstance(out, str):
            return self._tensor(out).clone()
        return evaluate(out, self.symbols) if isinstance(out, Size) else out

    # ---- memory ----------------------------------------------------------------------------

    def _view(self, buffer: Buffer) -> torch.Tensor:
        root = self.program.root(buffer.name)
        if root.name not in self.memory:
            needed = [
                evaluate(extent(b), self.symbols)
                for b in self.program.buffers
                if b.kind != "view" and self.program.root(b.name) is root
            ]
            dtype = getattr(torch, root.desc.dtype)
            self.memory[root.name] = torch.zeros(max(needed), dtype=dtype)
        shape = [evaluate(d, self.symbols) for d in buffer.desc.shape]
        strides = [evaluate(d, self.symbols) for d in buffer.desc.strides]
        flat = self.memory[root.name]
        dtype = getattr(torch, buffer.desc.dtype)
        typed = flat if flat.dtype == dtype else flat.view(dtype)
        return torch.as_strided(typed, shape, strides, evaluate(buffer.offset, self.symbols))

    def _tensor(self, name: str) -> torch.Tensor:
        return self._view(self.program.by_name[name])

    # ---- instructions ----------------------------------------------------------------------

    def _kernel(self, call: KernelCall) -> None:
        name = call.kernel.split("@")[0]
        if name not in KERNELS and name != "arange":
            raise InvalidProgram(f"the oracle knows no kernel {call.kernel}")
        inputs = [self._tensor(n) for n in call.inputs]
        numbers = [self._number(a) for a in call.attributes]
        if name == "arange":
            results = _arange(numbers, self._tensor(call.outputs[0]).shape[0])
        else:
            results = KERNELS[name](inputs, numbers)
        made = results if isinstance(results, tuple) else (results,)
        for target, value in zip(call.outputs, made, strict=True):
            self._tensor(target).copy_(value)
            self._write_back(target)

    def _copy(self, copy: Copy) -> None:
        value = self._tensor(copy.source).clone()
        self._tensor(copy.target).copy_(value)
        self._write_back(copy.target)

    def _write_back(self, name: str) -> None:
        """What a caller sees of a write to an input or to state."""
        root = self.program.root(name)
        if root.kind == "input":
            self.inputs[root.name].copy_(self._tensor(root.name))
        elif root.kind == "state":
            self.constants[root.name].copy_(self._tensor(root.name))

    def _launch(self, call: Launch) -> None:
        """What a device's kernel should compute: the operator, on memory laid out as declared."""
        tensors = iter(self._tensor(n) if n else None for n in call.inputs)
        given = {name: self._arg(value) for name, value in call.attributes}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in schema_of(resolve_op(call.op)).arguments:
            value = _schema_value(argument, tensors, given)
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        result = resolve_op(call.op)(*args, **kwargs)
        made = result if isinstance(result, tuple | list) else (result,)
        for name, value in zip(call.outputs, made, strict=True):
            if name:
                self._tensor(name).copy_(value)

    def _host(self, call: HostCall) -> None:
        args = [self._arg(a) for a in call.args]
        result = resolve_op(call.op)(*args, **{k: self._arg(v) for k, v in call.kwargs.items()})
        made = result if isinstance(result, tuple | list) else (result,)
        for name, value in zip(call.outputs, made, strict=True):
            if name:
                self._tensor(name).copy_(value)

    def _arg(self, arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return self._tensor(arg.name)
        if isinstance(arg, Size | Real):
            return arg.evaluate(self.symbols)
        if isinstance(arg, Attr):
            return to_torch(arg)
        return [self._arg(a) for a in arg] if isinstance(arg, tuple) else arg

    def _number(self, value: Attribute) -> float:
        return evaluate(value, self.symbols) if isinstance(value, Size) else value


def _schema_value(argument: Any, tensors: Iterator[Any], given: Mapping[str, Any]) -> Any:
    """An operator's argument from what a launch carries: tensors in order, the rest by name."""
    kind = str(argument.type)
    if kind in ("Tensor", "Optional[Tensor]"):
        return next(tensors)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [next(tensors) for _ in range(given[argument.name])]
    value = given[argument.name]
    is_dtype = isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype)
    return getattr(torch, value) if is_dtype else value


def _bind(program: Program, inputs: Sequence[Any]) -> dict[str, int]:
    given = {b.name: value for b, value in zip(program.inputs, inputs, strict=True)}
    symbols = {
        s.name: int(given[s.input] if s.axis == VALUE else given[s.input].shape[s.axis])
        for s in program.symbols
    }
    for symbol in program.symbols:
        if not symbol.low <= symbols[symbol.name] <= symbol.high:
            raise GuardFailed(f"{symbol.name} is {symbols[symbol.name]}")
    for buffer in program.inputs:
        shape = tuple(evaluate(d, symbols) for d in buffer.desc.shape)
        if tuple(given[buffer.name].shape) != shape:
            raise GuardFailed(f"input {buffer.name!r} must have shape {shape}")
    for guard in program.guards:
        if evaluate(guard.left, symbols) != evaluate(guard.right, symbols):
            raise GuardFailed(f"{guard.left} is not {guard.right}")
    return symbols


def _dims(mask: float, rank: int) -> list[int]:
    return [d for d in range(rank) if int(mask) >> d & 1]


def _reduction(function: Callable[..., Any]) -> Callable[[Tensors, Numbers], Any]:
    def run(inputs: Tensors, numbers: Numbers) -> Any:
        dims = _dims(numbers[0], inputs[0].dim())
        if not dims:
            return inputs[0]
        return function(inputs[0], dims, keepdim=bool(numbers[1]))

    return run


def _variance(inputs: Tensors, numbers: Numbers) -> Any:
    dims = _dims(numbers[0], inputs[0].dim())
    return torch.var(inputs[0], dims, correction=numbers[2], keepdim=bool(numbers[1]))


def _layer_norm(inputs: Tensors, numbers: Numbers) -> Any:
    rest = list(inputs[1:])
    weight = rest.pop(0) if numbers[2] else None
    bias = rest.pop(0) if numbers[3] else None
    shape = inputs[0].shape[inputs[0].dim() - int(numbers[0]) :]
    return torch.native_layer_norm(inputs[0], shape, weight, bias, numbers[1])


def _matmul(inputs: Tensors, _: Numbers) -> Any:
    product = inputs[0] @ inputs[1]
    return product + inputs[2] if len(inputs) == 3 else product


def _arange(numbers: Numbers, count: int) -> Any:
    start, step = map(int, numbers)
    return start + step * torch.arange(count)


def _take(inputs: Tensors, numbers: Numbers) -> Any:
    table, index = inputs
    axis = int(numbers[0])
    flat = torch.index_select(table, axis, index.reshape(-1))
    return flat.reshape((*table.shape[:axis], *index.shape, *table.shape[axis + 1 :]))


_MODES = ("set", "sum", "prod", "amax", "amin")


def _put(inputs: Tensors, numbers: Numbers) -> Any:
    base, source, *indices = inputs
    adds, first, mask, from_end = map(int, numbers)
    dims = [d for d in range(base.ndim) if mask >> d & 1]
    own = [d for d in range(base.ndim) if d not in dims]
    if not from_end and any((index < 0).any() for index in indices):
        raise IndexError("an index is out of bounds")
    rank = max(index.ndim for index in indices)
    # The indexed dimensions first, so that the indices' own come first too.
    ahead = base.permute(*dims, *own).clone()
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    kept = [base.shape[d] for d in own]
    spread = source.expand(*kept[:first], *shape, *kept[first:])
    spread = spread.movedim(tuple(range(first, first + rank)), tuple(range(rank)))
    ahead = ahead.index_put(tuple(indices), spread, accumulate=bool(adds))
    order = [*dims, *own]
    return ahead.permute([order.index(d) for d in range(base.ndim)])


def _sort(inputs: Tensors, numbers: Numbers) -> Any:
    axis, descending = map(int, numbers)
    return torch.sort(inputs[0], stable=True, dim=axis, descending=bool(descending))


def _select(inputs: Tensors, numbers: Numbers) -> Any:
    axis, which = map(int, numbers)
    if which >= 0:
        return torch.kthvalue(inputs[0], which + 1, axis)
    return (torch.median if which == -1 else torch.nanmedian)(inputs[0], axis)


def _scatter(inputs: Tensors, numbers: Numbers) -> Any:
    base, index, source = inputs
    axis, mode, slices, apart, from_end = map(int, numbers)
    if from_end:
        index = torch.where(index < 0, index + base.shape[axis], index)
    if slices:
        ones = (1,) * (base.ndim - 1 - axis)
        source = source.flatten(axis, axis + index.ndim - 1)
        index = index.reshape(*(1,) * axis, -1, *ones).expand_as(source)
    source = source.expand_as(index) if source.ndim == 0 else source
    if mode == 0:
        return base.scatter(axis, index, source)
    return base.scatter_reduce(axis, index, source, _MODES[mode], include_self=not apart)


def _elementwise(name: str) -> Callable[[Tensors, Numbers], Any]:
    function = getattr(torch, name)
    return lambda inputs, _: function(*inputs)


_SAME_NAME = """abs acos asin atan ceil cos cosh erf exp exp2 expm1 floor log log10 log1p log2 neg
reciprocal relu round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc add sub mul div pow maximum
minimum eq ne lt le gt ge logical_and logical_or logical_not where"""

KERNELS: dict[str, Callable[[Tensors, Numbers], Any]] = {
    **{name: _elementwise(name) for name in _SAME_NAME.split()},
    "silu": lambda i, _: torch.nn.functional.silu(i[0]),
    "gelu": lambda i, _: torch.nn.functional.gelu(i[0]),
    "gelu_tanh": lambda i, _: torch.nn.functional.gelu(i[0], approximate="tanh"),
    "clamp": lambda i, n: torch.clamp(i[0], n[0], n[1]),
    "leaky_relu": lambda i, n: torch.nn.functional.leaky_relu(i[0], n[0]),
    "matmul": _matmul,
    "softmax": lambda i, n: torch.softmax(i[0], int(n[0])),
    "log_softmax": lambda i, n: torch.log_softmax(i[0], int(n[0])),
    "safe_softmax": lambda i, n: torch.ops.aten._safe_softmax(i[0], int(n[0])),  # noqa: SLF001
    "layer_norm": _layer_norm,
    "sum": _reduction(torch.sum),
    "mean": _reduction(torch.mean),
    "amax": _reduction(torch.amax),
    "amin": _reduction(torch.amin),
    "var": _variance,
    "copy": lambda i, _: i[0],
    "size": lambda _, n: torch.tensor(int(n[0])),
    "take": _take,
    "scatter": _scatter,
    "put": _put,
    "sort": _sort,
    "select": _select,
    "cat": lambda i, n: torch.cat(list(i), int(n[0])),
}
