"""Runs a part of a compiled graph: segments in order, values handed from one to the next.

A runner takes one list of inputs (which it empties, so that a caller's tensors can be freed
early) and returns the graph's outputs in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dovetail.backend import Executable, Fallback, Memory, Run
from dovetail.compiled.graph import CompiledPart, CompiledSegment
from dovetail.errors import WrongOutputs
from dovetail.history import Measured
from dovetail.ir import Arg, Real, Ref, SizeProgram
from dovetail.ir.call import format_desc
from dovetail.ir.segment import ValueKey
from dovetail.ir.size import Size, real_of
from dovetail.registry import LAST_BACKEND
from dovetail.runtime.check import mismatch

Registers = list[Any]


def runner_for(
    part: CompiledPart, executables: Sequence[tuple[str, Executable]], *, check: bool = False
) -> Callable[[list[Any]], Any]:
    """The runner of a part; little more than the executable where there is only one.

    That is so when one segment takes nothing but inputs of the graph and gives all its outputs.
    """
    wiring = None if check else _wiring(part)
    if wiring is None:
        return Runner(part, executables, check=check)
    return _direct(*executables[0], *wiring, len(part.segments[0].results))


def binder_for(
    part: CompiledPart, executables: Sequence[tuple[str, Executable]], *, check: bool = False
) -> Callable[[Sequence[Any]], Run | None]:
    """What makes a faster runner of the part for inputs of which the last ones stay the same."""
    wiring = None if check else _wiring(part)

    def bind(values: Sequence[Any]) -> Run | None:
        if wiring is None or wiring[1] != list(range(len(part.segments[0].results))):
            return None
        first = len(part.inputs) - len(values)
        return executables[0][1].binding(wiring[0], dict(enumerate(values, first)))

    return bind


def _wiring(part: CompiledPart) -> tuple[list[int], list[int]] | None:
    """Which inputs the only segment takes, and which of its results are the part's; else None."""
    if len(part.segments) != 1 or part.constants:
        return None
    (placed,) = part.segments
    inputs: dict[Any, int] = {(given.name, ()): n for n, given in enumerate(part.inputs)}
    taken = [inputs[key] for key in placed.sources if key in inputs]
    keys = [(o.name, o.path) if isinstance(o, Ref) else None for o in part.outputs]
    if len(taken) < len(placed.sources) or any(key not in placed.results for key in keys):
        return None
    return taken, [placed.results.index(key) for key in keys if key is not None]


def _direct(
    backend: str, run: Executable, taken: Sequence[int], given: Sequence[int], count: int
) -> Callable[[list[Any]], Any]:
    """The executable on inputs in its own order, its outputs counted."""
    in_order = list(given) == list(range(count))
    picked = run.picking(taken) if in_order else None
    if picked is not None:
        return picked

    def direct(inputs: list[Any]) -> Any:
        own = [inputs[n] for n in taken]
        inputs.clear()
        results = run(own)
        check_outputs(results, count, backend)
        return results if in_order else [results[n] for n in given]

    return direct


class Runner:
    """A part and one loaded executable for each of its segments."""

    def __init__(
        self,
        part: CompiledPart,
        executables: Sequence[tuple[str, Executable]],
        *,
        check: bool = False,
    ) -> None:
        self.returned, self.symbol_names = part.outputs, tuple(part.symbols)
        self.check = check
        self.slots: dict[tuple[str, tuple[int, ...]], int] = {}
        for given in part.inputs:
            self._slot(given.name)
        self.input_count = len(part.inputs)
        constants = [(self._slot(n), v) for n, v in part.constants.items()]
        self.symbols = [(self._slot(s), pos, dim) for s, (pos, dim) in part.symbols.items()]
        self.steps = [
            self._step(placed, *executable)
            for placed, executable in zip(part.segments, executables, strict=True)
        ]
        self.outputs = [self._getter(out) for out in part.outputs]
        self._template: Registers = [None] * (len(self.slots) - self.input_count)
        for slot, value in constants:
            self._template[slot - self.input_count] = value
        self._free_after_last_use({slot for slot, _ in constants})

    def __call__(self, inputs: Registers) -> list[Any]:
        """Run; ``inputs`` is emptied."""
        registers = inputs + self._template
        inputs.clear()
        for slot, position, dim in self.symbols:
            value = registers[position]
            registers[slot] = value if dim is None else value.shape[dim]
        if self.check:
            return self._run_checked(registers)
        for step in self.steps:
            step(registers)
        return [get(registers) for get in self.outputs]

    def fetches(self, keys: Iterable[ValueKey], fetch: Callable[[Any], Any]) -> None:
        """These values stay on a device: who reads them elsewhere fetches them first."""
        for key in keys:
            slot = self.slots[key]
            for step in self.steps:
                if slot in step.taken and step.executable.memory is None:
                    step.fetched = (*step.fetched, slot)
                    step.fetch = fetch
            for n, out in enumerate(self.returned):
                if isinstance(out, Ref) and (out.name, out.path) == key:
                    self.outputs[n] = _fetching(slot, fetch)

    def leave(self, outputs: Iterable[int]) -> None:
        """Return these outputs as they are."""
        for n in outputs:
            self.outputs[n] = self._getter(self.returned[n])

    def _run_checked(self, registers: Registers) -> list[Any]:
        """Debug mode: each backend's results are held against what its segment promises."""
        symbols = {name: registers[self._slot(name)] for name in self.symbol_names}
        for step in self.steps:
            step(registers)
            if step.backend != LAST_BACKEND:  # ATen's own metadata is not always right
                self._check(step, registers, symbols)
        return [get(registers) for get in self.outputs]

    def _check(self, step: _SegmentStep, registers: Registers, symbols: dict[str, int]) -> None:
        for slot, out in zip(step.given, step.outputs, strict=True):
            problem = mismatch(out.desc, registers[slot], symbols) if isinstance(out, Ref) else ""
            if problem:
                raise WrongOutputs(step.backend, f"{problem} for {out}: {format_desc(out.desc)}")

    def _slot(self, name: str, path: tuple[int, ...] = ()) -> int:
        return self.slots.setdefault((name, path), len(self.slots))

    def _step(self, placed: CompiledSegment, backend: str, executable: Executable) -> _SegmentStep:
        taken = tuple(self._slot(*key) for key in placed.sources)
        given = tuple(self._slot(*key) for key in placed.results)
        outputs = placed.segment.outputs if self.check else ()  # else they stay unread
        return _SegmentStep(backend, executable, taken, given, outputs)

    def _getter(self, out: Arg) -> Callable[[Registers], Any]:
        if isinstance(out, Ref):
            slot = self._slot(out.name, out.path)
            return lambda registers: registers[slot]
        if isinstance(out, Size | Real):
            names = sorted(out.symbols())
            slots = [self._slot(name) for name in names]
            program = SizeProgram(names, [out.bits if isinstance(out, Real) else out])
            if isinstance(out, Real):
                return lambda registers: real_of(program.evaluate([registers[s] for s in slots])[0])
            return lambda registers: program.evaluate([registers[s] for s in slots])[0]
        return lambda _: out

    def _free_after_last_use(self, constants: set[int]) -> None:
        kept = {self._slot(out.name, out.path) for out in self.returned if isinstance(out, Ref)}
        for out in self.returned:
            if isinstance(out, Size | Real):
                kept |= {self._slot(name) for name in out.symbols()}
        for step in reversed(self.steps):
            step.frees = tuple(set(step.taken) - kept - constants)
            kept |= set(step.taken)


class Timed(Executable):
    """An executable that keeps count of its calls and their time; otherwise as it was."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.measured: Measured = Measured()
        self.measured.instructions = executable.measure()
        self._run = _timed(executable, self.measured)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run, and note how long it took."""
        return self._run(inputs)

    def fall_back_on(self, fallback: Fallback) -> None:
        """Have the executable do so: its time counts all the same."""
        self.executable.fall_back_on(fallback)

    def replay(self) -> None:
        """Have the executable do so."""
        self.executable.replay()

    def picking(self, positions: Sequence[int]) -> Run | None:
        """The executable's own, timed."""
        picked = self.executable.picking(positions)
        return None if picked is None else _timed(picked, self.measured)

    def binding(self, positions: Sequence[int], values: Mapping[int, Any]) -> Run | None:
        """The executable's own, timed."""
        bound = self.executable.binding(positions, values)
        return None if bound is None else _timed(bound, self.measured)

    def transfers(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The executable's own."""
        return self.executable.transfers()

    @property
    def memory(self) -> Memory | None:  # type: ignore[override]
        """The executable's own."""
        return self.executable.memory

    def keep(self, outputs: frozenset[int], fetched: frozenset[int] = frozenset()) -> None:
        """Have the executable do so."""
        self.executable.keep(outputs, fetched)

    def kept(self) -> frozenset[int]:
        """The executable's own."""
        return self.executable.kept()


def _timed(run: Run, measured: Measured) -> Run:
    def timed(inputs: list[Any]) -> Sequence[Any]:
        start = time.perf_counter()
        results = run(inputs)
        measured.add(time.perf_counter() - start)
        return results

    return timed


def _fetching(slot: int, fetch: Callable[[Any], Any]) -> Callable[[Registers], Any]:
    return lambda registers: fetch(registers[slot])


class _SegmentStep:
    __slots__ = (
        "backend",
        "executable",
        "fetch",
        "fetched",
        "frees",
        "given",
        "outputs",
        "taken",
    )

    def __init__(
        self,
        backend: str,
        executable: Executable,
        taken: tuple[int, ...],
        given: tuple[int, ...],
        outputs: tuple[Arg, ...],
    ) -> None:
        self.backend, self.executable = backend, executable
        self.taken, self.given, self.outputs = taken, given, outputs
        self.frees: tuple[int, ...] = ()
        self.fetched: tuple[int, ...] = ()  # what may be on a device
        self.fetch: Callable[[Any], Any] | None = None

    def __call__(self, registers: Registers) -> None:
        inputs = [registers[slot] for slot in self.taken]
        if self.fetch is not None:  # for this one alone: others may read it where it is
            for n, slot in enumerate(self.taken):
                if slot in self.fetched:
                    inputs[n] = self.fetch(inputs[n])
        for slot in self.frees:
            registers[slot] = None
        results = self.executable(inputs)
        check_outputs(results, len(self.given), self.backend)
        for slot, value in zip(self.given, results, strict=True):
            registers[slot] = value


def check_outputs(results: Any, count: int, backend: str) -> None:
    """Raise WrongOutputs unless ``results`` is a sequence of ``count`` values."""
    if not isinstance(results, tuple | list):
        raise WrongOutputs(backend, f"a {type(results).__name__}, not a sequence of outputs")
    if len(results) != count:
        raise WrongOutputs(backend, f"{len(results)} outputs where the graph has {count}")
