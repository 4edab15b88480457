"""Code for each segment of a graph, from the best backend that manages it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dovetail.backend import Backend, Blob
from dovetail.capture.ops import draws
from dovetail.compiled import Calls, CompiledSegment
from dovetail.compilers.identical import first_of_its_kind
from dovetail.compilers.local import compile_segment, compile_serialized
from dovetail.errors import BackendFailed, CompileFailed, VerificationFailed
from dovetail.ir import Segment
from dovetail.options import Options
from dovetail.place.cut import PlacedSegment
from dovetail.runtime.link import first_to_compile

if TYPE_CHECKING:
    from dovetail.compilers.remote import Outcome, Subprocess

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SegmentCompiler:
    """Compiles segments for a list of backends, best first, in the way that the options say.

    The last backend is ``aten``, which has no compiler. ``note`` is told of worker processes.
    """

    backends: tuple[Backend, ...]
    options: Options
    note: Callable[[str], None]

    @cached_property
    def workers(self) -> Subprocess:
        """The processes that compile with ``compile="subprocess"``."""
        from dovetail.compilers.remote import CompileLimits, Subprocess  # few compile so

        chosen = self.options
        limits = chosen.compile_timeout, chosen.compile_memory, chosen.compile_workers
        return Subprocess(CompileLimits.chosen(*limits), self.note)

    def prepare(self) -> None:
        """Start the worker processes, where they are to compile."""
        if self.options.compile == "subprocess":
            self.workers.prepare(self.backends[:-1])

    def compile_all(self, segments: Sequence[PlacedSegment]) -> tuple[CompiledSegment, ...]:
        """Code for each segment; those alike but for names are compiled once."""
        jobs = [(placed.backends[0], placed.segment) for placed in segments]
        made: dict[int, Outcome] = {}
        if self.options.compile == "subprocess":  # all at once; the last backend has no compiler
            ahead = [n for n, placed in enumerate(segments) if placed.backends[1:]]
            outcomes = self.workers.compile_all([jobs[n] for n in ahead])
            made.update(zip(ahead, outcomes, strict=True))
        found: list[CompiledSegment] = []
        for n, first in enumerate(first_of_its_kind(jobs)):
            if first < n and found[first].blob.is_portable and not found[first].failures:
                made.setdefault(n, found[first].blob)
            found.append(self.compile_placed(segments[n], made.get(n)))
        return tuple(found)

    def compile_placed(self, placed: PlacedSegment, made: Outcome | None) -> CompiledSegment:
        """Code for a segment from the best backend that manages it; strict mode asks only one.

        ``made`` is what the first of them has made of it, where that is known.
        """
        failures: list[tuple[str, str]] = []
        segment, backends = placed.segment, placed.backends
        strict = self.options.strict

        def compile_(backend: Backend, segment: Segment) -> Blob:
            if made is not None and backend is backends[0]:
                return _code_of(made)
            return self.compile(backend, segment)

        try:
            chosen, blob = first_to_compile(backends, segment, compile_, failures, strict=strict)
        except BackendFailed as error:
            error.calls = tuple(call.name for call in segment.calls)
            raise
        names = tuple(backend.name for backend in backends[chosen:])
        return _compiled(placed, names, blob, tuple(failures))

    def compile(self, backend: Backend, segment: Segment) -> Blob:
        """A backend's code for a segment, made in the way that was chosen; it may raise."""
        if self.options.compile == "serialize":
            return compile_serialized(backend, segment)
        if self.options.compile == "in-process" or backend is self.backends[-1]:
            return compile_segment(backend, segment)
        (outcome,) = self.workers.compile(backend, [segment])
        return _code_of(outcome)

    def compile_quickly(self, segments: Sequence[PlacedSegment]) -> tuple[CompiledSegment, ...]:
        """What is there at once: PyTorch's calls one by one, or with ``progressive`` quick code."""
        return tuple(map(self._quick_code, segments))

    def _quick_code(self, placed: PlacedSegment) -> CompiledSegment:
        first, last = placed.backends[0], self.backends[-1]
        quick = first.quick() if self.options.progressive else None
        if quick is not None:
            try:
                blob = compile_segment(quick, placed.segment)
                return _compiled(placed, (first.name, last.name), blob)
            except VerificationFailed:
                raise
            except Exception as error:  # a vendor's compiler may raise anything
                log.info("no quick code for %s: %s", placed.segment.name, error)
        return _compiled(placed, (last.name,), compile_segment(last, placed.segment))


def _compiled(
    placed: PlacedSegment,
    backends: tuple[str, ...],
    blob: Blob,
    failures: tuple[tuple[str, str], ...] = (),
) -> CompiledSegment:
    """A placed segment with its code, that of the first of ``backends``."""
    segment = placed.segment
    calls = Calls(segment, segment.name, draws=any(map(draws, segment.all_calls())))
    return CompiledSegment(calls, backends, blob, placed.sources, placed.results, failures)


def _code_of(outcome: Outcome) -> Blob:
    """The code that came of a compilation; what failed is raised."""
    if isinstance(outcome, CompileFailed | VerificationFailed):
        raise outcome
    return outcome
