"""Linking as the options say: a compiled graph runs, and the record says what runs where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail.backend import Backend, Blob, Fallback
from dovetail.compiled import Calls, CompiledGraph
from dovetail.errors import InvalidCompiledGraph
from dovetail.history import Compilation
from dovetail.ir.segment import Segment
from dovetail.options import Options
from dovetail.recording import record_part, warn
from dovetail.runtime.call_by_call import CallByCall
from dovetail.runtime.link import Compile, Linked, Linker


@dataclass(frozen=True)
class GraphLinker:
    """Links the graphs of one compilation.

    ``compile`` serves a segment whose code does not load, for the next of its backends. Without, it
    is compiled as the options say, and compilers are imported then: stored code mostly loads.
    """

    backends: tuple[Backend, ...]
    options: Options
    record: Compilation
    compile: Compile | None = None

    def link(self, graph: CompiledGraph) -> Linked:
        """Make a compiled graph runnable, record what runs where, warn of what fell back."""
        with self.record.stage("link", graph.kind):
            linked = self.link_unrecorded(graph)
        for part in linked.parts:
            record_part(self.record, part)
        return linked

    def link_stored(self, graph: CompiledGraph, inputs: int, labels: Mapping[int, str]) -> Linked:
        """Link a stored graph, with this compilation's ``labels`` and not those of who stored it.

        InvalidCompiledGraph where it takes another number of inputs: it is another's.
        """
        if graph.count_inputs() != inputs:
            raise InvalidCompiledGraph(f"it takes {graph.count_inputs()} inputs, not {inputs}")
        return self.link(replace(graph, labels=labels))

    def link_unrecorded(self, graph: CompiledGraph) -> Linked:
        """Make a compiled graph runnable that is soon exchanged for another."""
        return self._linker().link(graph)

    def _linker(self) -> Linker:
        options = self.options
        return Linker(
            {backend.name: backend for backend in self.backends},
            self.compile or self._compile_anew,
            self._instead,
            strict=options.strict,
            check=options.debug,
            profile=options.profile,
            check_weights=options.check_weights,
            compare=options.check,
            replay=options.cuda_graphs,
        )

    def _compile_anew(self, backend: Backend, segment: Segment) -> Blob:
        from dovetail.compilers.segments import SegmentCompiler

        compiler = SegmentCompiler(self.backends, self.options, self.record.notes.append)
        return compiler.compile(backend, segment)

    def _instead(self, calls: Calls, backend: str) -> Fallback:
        """What runs a segment whose inputs are not what the graph says of them."""
        told = f"{calls.name} runs call by call on PyTorch, not on {backend}: "
        return CallByCall(
            lambda: calls.segment, calls.draws, lambda why: warn(self.record, told + why)
        )
