"""From a compiled graph to a function: load each segment's code, connect them.

The same for what was compiled just now, what comes from a cache, and what an artifact holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dovetail.backend import Backend, Blob, Executable, Fallback, FunctionExecutable
from dovetail.compiled.graph import Calls, CompiledGraph, CompiledPart, CompiledSegment
from dovetail.errors import BackendContract, BackendFailed, CompileFailed, VerificationFailed
from dovetail.ir.segment import Segment
from dovetail.registry import LAST_BACKEND
from dovetail.runtime.frozen import Bind, FrozenRunner
from dovetail.runtime.runner import Timed, binder_for, runner_for

Run = Callable[[list[Any]], Any]
Compile = Callable[[Backend, Segment], Blob]


class LinkedSegment(NamedTuple):
    """A segment that runs: its code, loaded by the backend that made it."""

    compiled: CompiledSegment
    backend: Backend
    executable: Executable


class LinkedPart(NamedTuple):
    """A part that runs."""

    kind: str
    compiled: CompiledPart
    segments: tuple[LinkedSegment, ...]
    run: Run


class Linked(NamedTuple):
    """A graph that runs; ``graph`` has the code that was loaded, where some of it did not load."""

    graph: CompiledGraph
    run: Run
    parts: tuple[LinkedPart, ...]


@dataclass(frozen=True)
class Linker:
    """What loading needs to know beside the compiled graph.

    ``compile`` serves a segment whose code does not load: the next of its backends is asked then.
    ``instead`` makes what runs a segment whose inputs are not what the graph says of them.
    """

    backends: Mapping[str, Backend]
    compile: Compile
    instead: Callable[[Calls, str], Fallback] | None = None
    strict: bool = False
    check: bool = False
    profile: bool = False
    check_weights: bool = False
    compare: bool = False
    replay: bool = False

    def link(self, graph: CompiledGraph) -> Linked:
        """The graph as a function of one list of inputs, which it empties."""
        parts = tuple(self.part(kind, part) for kind, part in graph.parts())
        run = parts[-1].run
        if self.replay and graph.kind == "inference":
            for each in parts[-1].segments:
                if not each.compiled.calls.draws:
                    each.executable.replay()
        if graph.once is not None:
            run = FrozenRunner(parts[0].run, run, graph.frozen, self.binder(parts[-1]))
        if self.check_weights:
            from dovetail.runtime.checked import CheckedRunner

            run = CheckedRunner(run, graph.labels)
        once = parts[0].compiled if graph.once is not None else None
        return Linked(replace(graph, every=parts[-1].compiled, once=once), run, parts)

    def part(self, kind: str, part: CompiledPart) -> LinkedPart:
        """One part as a function."""
        if part.captured is not None:
            return LinkedPart(kind, part, (), functools.partial(_as_captured, part.captured))
        segments = tuple(self.segment(each) for each in part.segments)
        executables = [(each.backend.name, each.executable) for each in segments]
        part = replace(part, segments=tuple(each.compiled for each in segments))
        run = runner_for(part, executables, check=self.check)
        if any(each.executable.memory is not None for each in segments):
            from dovetail.runtime.resident import keep_between

            keep_between(part, [each.executable for each in segments], run)
        return LinkedPart(kind, part, segments, run)

    def binder(self, part: LinkedPart) -> Bind:
        """What makes a function of a part for values that stay the same."""
        executables = [(each.backend.name, each.executable) for each in part.segments]
        return binder_for(part.compiled, executables, check=self.check)

    def segment(self, compiled: CompiledSegment) -> LinkedSegment:
        """Load a segment's code; where that fails, that of the next backend that may run it."""
        while True:
            backend = self.backends[compiled.backend]
            last = len(compiled.backends) == 1
            try:
                executable = self.load(backend, compiled)
            except Exception as error:  # a vendor's loader may raise anything
                if last:
                    raise
                compiled = self._next(compiled, "load", error)
            else:
                return LinkedSegment(compiled, backend, executable)

    def _next(self, compiled: CompiledSegment, what: str, error: Exception) -> CompiledSegment:
        failures = list(compiled.failures)
        note_failure(failures, compiled.backend, what, error, strict=self.strict)
        names = compiled.backends[1:]
        others = [self.backends[name] for name in names]
        found, blob = first_to_compile(
            others, compiled.segment, self.compile, failures, strict=self.strict
        )
        return replace(compiled, backends=names[found:], blob=blob, failures=tuple(failures))

    def load(self, backend: Backend, compiled: CompiledSegment) -> Executable:
        """A backend's code for a segment, ready to run, and measured if that is wanted."""
        loaded = backend.load(compiled.blob)
        if not callable(loaded):
            raise BackendContract(backend.name, "load()", f"returned {loaded!r}")
        executable = loaded if isinstance(loaded, Executable) else FunctionExecutable(loaded)
        if self.instead is not None and not self.strict:
            executable.fall_back_on(self.instead(compiled.calls, backend.name))
        if self.compare and backend.name != LAST_BACKEND:
            from dovetail.runtime.compared import Compared, can_compare

            segment = compiled.calls.segment
            if can_compare(segment):
                executable = Compared(executable, segment, backend, self.compile)
        return Timed(executable) if self.profile else executable


def first_to_compile(
    backends: Sequence[Backend],
    segment: Segment,
    compile_: Compile,
    failures: list[tuple[str, str]],
    *,
    strict: bool,
) -> tuple[int, Blob]:
    """Code from the first backend that manages it, and which that is; strict mode asks only one.

    The last one's errors are the caller's. ``failures`` is told of those before.
    """
    for position, backend in enumerate(backends[:-1]):
        try:
            return position, compile_(backend, segment)
        except VerificationFailed:
            raise
        except Exception as error:  # a vendor's compiler may raise anything
            note_failure(failures, backend.name, "compile", error, strict=strict)
    return len(backends) - 1, compile_(backends[-1], segment)


def note_failure(
    failures: list[tuple[str, str]], backend: str, what: str, error: Exception, *, strict: bool
) -> None:
    """Remember why a backend does not run a segment; BackendFailed in strict mode."""
    told = isinstance(error, CompileFailed)  # in words, and of whatever class there was
    reason = str(error) if told else f"{type(error).__name__}: {error}"
    if strict:
        raise BackendFailed(backend, what, reason) from error
    failures.append((backend, reason))


def _as_captured(forward: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    return list(forward(*inputs))
