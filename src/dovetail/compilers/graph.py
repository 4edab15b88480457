"""Code for one placed graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dovetail.backend import Backend
from dovetail.capture.lines import note_lines
from dovetail.compiled import CompiledGraph, CompiledPart, CompiledSegment, verify
from dovetail.compilers.layouts import lay_out
from dovetail.compilers.placed import PlacedGraph, PlacedPart
from dovetail.compilers.segments import SegmentCompiler
from dovetail.errors import BackendFailed, DovetailError, SizeError, UnsupportedGraph
from dovetail.history import Compilation
from dovetail.ir.segment import Segment
from dovetail.ir.verify import verify_stage, verifying
from dovetail.options import Options
from dovetail.place.cut import PlacedSegment
from dovetail.tuning.chooser import Chooser

log = logging.getLogger(__name__)
CompileSegments = Callable[[Sequence[PlacedSegment]], tuple[CompiledSegment, ...]]


@dataclass(frozen=True)
class GraphCompiler:
    """Compiles placed graphs for a list of backends, best first; ``record`` has the times."""

    backends: tuple[Backend, ...]
    options: Options
    record: Compilation

    @cached_property
    def segments(self) -> SegmentCompiler:
        """What compiles each segment."""
        return SegmentCompiler(self.backends, self.options, self.record.notes.append)

    def compile(self, placed: PlacedGraph) -> CompiledGraph:
        """Code for each segment, as the options say."""
        return self._compile(placed, self.segments.compile_all, self._chooser())

    def compile_quickly(self, placed: PlacedGraph) -> CompiledGraph:
        """A first version that is there at once."""
        return self._compile(placed, self.segments.compile_quickly)

    def _chooser(self) -> Chooser | None:
        """What chooses between candidates, or tells what the rules take where somebody watches."""
        if self.options.autotune:
            return Chooser(self.segments.compile, remembers=self.options.cache)
        return Chooser() if self.record.observer is not None else None

    def _compile(
        self, placed: PlacedGraph, by: CompileSegments, chooser: Chooser | None = None
    ) -> CompiledGraph:
        with verifying(self.options.debug):
            stage = "autotune" if self.options.autotune and chooser is not None else "layout"
            with self.record.stage(stage, placed.kind):
                laid_out = lay_out(placed, chooser)
            graph = self._graph(laid_out, by)
            if laid_out is not placed and any(p.captured for _, p in graph.parts()):
                graph = self._graph(placed, by)  # PyTorch runs a part, and that as it was captured
            return verify_stage("compile", graph, verify)

    def _graph(self, placed: PlacedGraph, by: CompileSegments) -> CompiledGraph:
        once, kind = placed.once, placed.kind
        return CompiledGraph(
            kind,
            once=None if once is None else self._part(once, f"{kind}, once", by),
            every=self._part(placed.every, kind, by),
            frozen=placed.frozen,
            labels=placed.labels,
            backends=tuple((b.name, b.fingerprint()) for b in self.backends),
        )

    def _part(self, placed: PlacedPart, kind: str, compile_: CompileSegments) -> CompiledPart:
        """Code for each segment; what cannot be expressed stays as PyTorch captured it."""
        placement, problem = placed.placement, placed.problem
        if placement is not None:
            for each in placement.segments:
                verify_stage("place", each.segment, _verify_segment)
            try:
                with self.record.stages_within("compile", kind):  # lower, schedule, codegen, encode
                    segments = compile_(placement.segments)
            except (UnsupportedGraph, SizeError) as error:
                placement, problem = None, why_captured(error, strict=self.options.strict)
            except BackendFailed as error:
                note_lines(error, placed.gm, error.calls)
                raise
        if placement is None:
            placed.gm.recompile()
            forward = placed.gm.forward
            return CompiledPart((), (), (), {}, captured=forward, why_captured=problem)
        log.info("%s graph: %d calls in %d segments", kind, len(placement.verdicts), len(segments))
        return CompiledPart(
            inputs=placement.inputs,
            outputs=placement.outputs,
            segments=segments,
            symbols=placement.symbols,
            constants=placement.constants,
            verdicts=placement.verdicts,
            hints=placement.hints,
        )


def _verify_segment(segment: Segment) -> None:
    from dovetail.ir.segment_verify import verify_segment

    verify_segment(segment)


def why_captured(error: DovetailError, *, strict: bool) -> str:
    """Why PyTorch runs a graph as captured; an error in strict mode."""
    if strict:
        raise error
    return str(error)
