"""Runs a segment call by call on PyTorch's operators.

Everything that can be decided once is decided when the segment is read: registers are numbered,
operators resolved, size expressions compiled into one program. A run is then a loop over
instructions that frees each value after its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.backend import Executable
from dovetail.capture.ops import resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.ir import Arg, Attr, OpCall, Real, Ref, Segment, Size, SizeProgram, Table, TensorDesc
from dovetail.ir.call import leaves
from dovetail.ir.size import real_of
from dovetail.runtime.control_flow import CONTROL_FLOW

Values = list[Any]
Check = Callable[[OpCall, Any, Mapping[str, int]], None]
# The function that runs a call, or None for PyTorch's own.
Choose = Callable[[OpCall], Callable[..., Any] | None]
# Reads one argument from the registers and the computed sizes.
Getter = Callable[["RunState"], Any]


class RunState:
    """The state of one run."""

    __slots__ = ("registers", "sizes", "symbols")

    def __init__(self, registers: Values, symbols: dict[str, int]) -> None:
        self.registers = registers
        self.symbols = symbols
        self.sizes: Sequence[int] = ()


class Interpreter(Executable):
    """A segment ready to run; call it with the segment's inputs as one list."""

    def __init__(
        self, segment: Segment, check: Check | None = None, choose: Choose | None = None
    ) -> None:
        self.segment = segment
        self.check, self.choose = check, choose
        self.slots: dict[str, int] = {}
        self.size_index: dict[Size, int] = {}
        inputs = [self._slot(i.name) for i in segment.inputs]
        self.input_count = len(inputs)
        self._size_inputs = [(i.name, n) for n, i in enumerate(segment.inputs) if i.kind == "size"]
        self._shape_symbols = _symbols_from_shapes(segment)
        self.late = {symbol for call in segment.calls for symbol, _ in call.binds}
        self.steps = [self._step(call) for call in segment.calls]
        self.outputs = [self._getter(out) for out in segment.outputs]
        self._free_after_last_use()
        self._programs: dict[tuple[str, ...], SizeProgram] = {}

    def __call__(self, inputs: Values) -> Values:
        """Run with the segment's inputs; the list is emptied."""
        return self.run(inputs, {})

    def run(self, inputs: Values, outer: Mapping[str, int]) -> Values:
        """Run inside another segment, whose symbols are visible here too."""
        registers = [*inputs, *([None] * (len(self.slots) - self.input_count))]
        inputs.clear()
        state = RunState(registers, dict(outer))
        self._bind_inputs(state)
        for step in self.steps:
            step(state)
        return [get(state) for get in self.outputs]

    # ---- symbols ---------------------------------------------------------------------------

    def _bind_inputs(self, state: RunState) -> None:
        for name, slot in self._size_inputs:
            state.symbols[name] = state.registers[slot]
        for name, slot, dim in self._shape_symbols:
            state.symbols.setdefault(name, state.registers[slot].shape[dim])
        if self.size_index:
            names = tuple(state.symbols)
            program = self._programs.get(names)
            if program is None:
                program = self._programs[names] = SizeProgram(names, self.size_index)
            state.sizes = program.evaluate(tuple(state.symbols.values()))

    # ---- instructions ----------------------------------------------------------------------

    def _slot(self, name: str) -> int:
        return self.slots.setdefault(name, len(self.slots))

    def _step(self, call: OpCall) -> _CallStep:
        # Operators that are not ours to run may call a body on other dtypes than it was traced on.
        self._body_check = self.check if call.op in CONTROL_FLOW else None
        getters = [self._getter(arg) for arg in call.args]
        keywords = {key: self._getter(arg) for key, arg in call.kwargs.items()}
        used = {self.slots[ref.name] for ref in call.refs()}
        chosen = self.choose(call) if self.choose is not None else None
        target = chosen or CONTROL_FLOW.get(call.op) or resolve_op(call.op)
        if call.op.startswith("higher_order."):  # theirs are tuples, an operator's are lists
            getters = [_as_tuple(get) for get in getters]
        cls = _Binding if call.binds or self.check else _CallStep
        step = cls(target, getters, keywords, self._slot(call.name), used)
        if isinstance(step, _Binding):
            step.call, step.check = call, self.check
        return step

    def _getter(self, arg: Arg) -> Getter:
        if isinstance(arg, Ref):
            return _get_ref(self.slots[arg.name], arg.path)
        if isinstance(arg, Size):
            return self._get_size(arg)
        if isinstance(arg, Real):
            get_bits = self._get_size(arg.bits)
            return lambda state: real_of(get_bits(state))
        if isinstance(arg, Attr):
            return _get_constant(to_torch(arg))
        if isinstance(arg, Segment):
            sub = Interpreter(arg, self._body_check, self.choose)
            captured = [self._getter(ref) for ref in arg.captures]
            return lambda state: _Subgraph(sub, state.symbols, [get(state) for get in captured])
        if isinstance(arg, Table):
            getters = {key: self._getter(item) for key, item in arg.items}
            return lambda state: {key: get(state) for key, get in getters.items()}
        if isinstance(arg, tuple):
            return self._get_list(arg)
        return _get_constant(arg)

    def _get_size(self, size: Size) -> Getter:
        if size.symbols() & self.late:  # known only once the call that defines it has run
            return lambda state: size.evaluate(state.symbols)
        index = self.size_index.setdefault(size, len(self.size_index))
        return lambda state: state.sizes[index]

    def _get_list(self, args: tuple[Arg, ...]) -> Getter:
        if not any(isinstance(a, Ref | Size | Segment) for a in leaves(args)):
            constant = [g(None) for g in map(self._getter, args)]  # type: ignore[arg-type]
            return lambda _: list(constant)
        getters = [self._getter(a) for a in args]
        return lambda state: [get(state) for get in getters]

    def _free_after_last_use(self) -> None:
        kept = {self.slots[r.name] for r in leaves(self.segment.outputs) if isinstance(r, Ref)}
        for step in reversed(self.steps):
            step.frees = tuple(step.used - kept)
            if step.out not in kept:
                step.frees = (*step.frees, step.out)
            kept |= step.used


class _CallStep:
    """One instruction: fetch the arguments, call, keep the result, free what is done with."""

    __slots__ = ("frees", "getters", "keywords", "out", "target", "used")

    def __init__(
        self,
        target: Callable[..., Any],
        getters: list[Getter],
        keywords: dict[str, Getter],
        out: int,
        used: set[int],
    ) -> None:
        self.target, self.getters, self.keywords = target, getters, keywords
        self.out, self.used = out, used
        self.frees: tuple[int, ...] = ()

    def __call__(self, state: RunState) -> Any:
        args = [get(state) for get in self.getters]
        if self.keywords:
            kwargs = {key: get(state) for key, get in self.keywords.items()}
            result = self.target(*args, **kwargs)
        else:
            result = self.target(*args)
        state.registers[self.out] = result
        for slot in self.frees:
            state.registers[slot] = None
        return result


class _Binding(_CallStep):
    """An instruction whose result defines symbols or is checked against its descriptor."""

    __slots__ = ("call", "check")
    call: OpCall
    check: Check | None

    def __call__(self, state: RunState) -> Any:
        result = super().__call__(state)
        for symbol, path in self.call.binds:
            state.symbols[symbol] = read_path(result, path)
        if self.check is not None:
            self.check(self.call, result, state.symbols)
        return result


class _Subgraph:
    """A nested segment as a function of its operands, within one run of its parent."""

    __slots__ = ("captured", "interpreter", "symbols")

    def __init__(
        self, interpreter: Interpreter, symbols: Mapping[str, int], captured: Values
    ) -> None:
        self.interpreter, self.symbols, self.captured = interpreter, symbols, captured

    def __call__(self, *operands: Any) -> Any:
        results = self.interpreter.run([*operands, *self.captured], self.symbols)
        return results[0] if self.interpreter.segment.bare else tuple(results)


def read_path(value: Any, path: Sequence[tuple[str, int]]) -> int:
    """The number that lies at the end of a path from a call's result."""
    for kind, index in path:
        if kind == "item":
            value = value[index]
        elif kind in ("size", "stride"):
            value = getattr(value, kind)(index)
        elif kind == "storage_offset":
            value = value.storage_offset()
        else:
            value = value // index if kind == "div" else int(value)
    return int(value)


def _symbols_from_shapes(segment: Segment) -> list[tuple[str, int, int]]:
    found = []
    for slot, given in enumerate(segment.inputs):
        if isinstance(given.desc, TensorDesc):
            for dim, size in enumerate(given.desc.shape):
                if isinstance(size, Size) and size.is_symbol:
                    found.append((size.args[0], slot, dim))
    return found


def _get_ref(slot: int, path: tuple[int, ...]) -> Getter:
    if not path:
        return lambda state: state.registers[slot]
    if len(path) == 1:
        index = path[0]
        return lambda state: state.registers[slot][index]

    def get(state: RunState) -> Any:
        value = state.registers[slot]
        for index in path:
            value = value[index]
        return value

    return get


def _as_tuple(get: Getter) -> Getter:
    def as_tuple(state: RunState) -> Any:
        value = get(state)
        return tuple(value) if isinstance(value, list) else value

    return as_tuple


def _get_constant(value: Any) -> Getter:
    return lambda _: value
