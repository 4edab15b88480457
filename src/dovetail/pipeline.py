"""The whole flow, in order. Reading this file is reading the compiler."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from dovetail import history, registry
from dovetail.backend import Backend, Executable
from dovetail.capture import _torch
from dovetail.capture.aot import Capture, has_calls
from dovetail.capture.decompose import composite_rules, keeping_claimed
from dovetail.errors import (
    BackendContract,
    BackendFailed,
    DovetailError,
    FallbackWarning,
    SizeError,
    UnsupportedGraph,
)
from dovetail.ir import Segment
from dovetail.options import Options
from dovetail.passes import constants, manager, strides
from dovetail.passes.base import Passes
from dovetail.passes.inplace import reinplace
from dovetail.passes.text import graph_text
from dovetail.place import PlacedSegment, place, without_collection
from dovetail.runtime.frozen import FrozenRunner
from dovetail.runtime.runner import runner_for

log = logging.getLogger(__name__)

Run = Callable[[list[Any]], list[Any]]


def compile_dynamo(
    gm: fx.GraphModule, example_inputs: Sequence[Any], backend: Backend, options: Options
) -> Callable[..., Any]:
    """Compile what Dynamo captured: pre-grad passes, AOTAutograd, then each functional graph."""
    if not has_calls(gm):
        return gm.forward  # type: ignore[no-any-return]
    compiler = Compiler(backend, options, history.begin(backend.name))
    try:
        gm = compiler.run_passes("pre_grad", gm, "dynamo")
        return compiler.capture().run(gm, example_inputs)
    except BaseException:
        history.discard(compiler.record)
        raise


@dataclass(frozen=True)
class Compiler:
    """One backend, one set of options, one record of what happened."""

    backend: Backend
    options: Options
    record: history.Compilation

    @cached_property
    def backends(self) -> list[Backend]:
        """Who may run a call, best first; ATen takes what nobody else does."""
        if self.backend.name == registry.LAST_BACKEND:
            return [self.backend]
        return [self.backend, registry.get_backend(registry.LAST_BACKEND)]

    @cached_property
    def passes(self) -> manager.PassManager:
        """The passes to run: the chosen ones, then the backend's own."""
        own = self.backend.passes()
        if not isinstance(own, Passes):
            raise BackendContract(self.backend.name, "passes()", f"returned {own!r}")
        return (self.options.passes or manager.default()).extend(own)

    @cached_property
    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """The backend's own table."""
        table = self.backend.decompositions()
        if not isinstance(table, Mapping):
            raise BackendContract(self.backend.name, "decompositions()", f"returned {table!r}")
        return table

    def capture(self) -> Capture:
        """How a Dynamo graph becomes functional graphs for this backend."""
        return Capture(
            compile_graph=lambda gm, _, kind: self.compile_graph(gm, kind, self.frozen(kind)),
            joint_passes=lambda gm: self.run_passes("joint", gm, "joint"),
            decompositions=keeping_claimed(self.decompositions, self.backend.keeps_whole),
            composites=composite_rules(self.backend.composites, self.backend.keeps_whole),
        )

    def frozen(self, kind: str) -> frozenset[int]:
        """Which inputs of a functional graph are constants."""
        if not self.options.freeze or kind != "inference":
            return frozenset()
        return _torch.static_input_positions()

    def compile_graph(self, gm: fx.GraphModule, kind: str, frozen: Iterable[int] = ()) -> Run:
        """Compile one functional graph: passes, constants, placement, code."""
        with without_collection():
            return self._compile_graph(gm, kind, frozen)

    def _compile_graph(self, gm: fx.GraphModule, kind: str, frozen: Iterable[int]) -> Run:
        expected = strides.output_descs(gm)
        constants.mark_constants(gm, frozen)
        gm = self.run_passes("post_grad", gm, kind)
        gm = strides.restore(gm, expected)
        positions = constants.constant_inputs(gm)
        if not positions:
            return self.compile_placed(gm, kind)
        once, every = constants.split_constants(gm)
        run_once = self.compile_placed(once, f"{kind}, once")
        return FrozenRunner(run_once, self.compile_placed(every, kind), positions)

    def compile_placed(self, gm: fx.GraphModule, kind: str) -> Run:
        """Place each call, compile each segment, and join them into one function."""
        if self.backend.writes_in_place:
            gm = reinplace(gm)
        _torch.trace_artifact(f"dovetail_{kind.replace(', ', '_')}_graph", lambda: graph_text(gm))
        log.debug("%s graph:\n%s", kind, graph_text(gm) if log.isEnabledFor(10) else "")
        try:
            with self.record.stage("place", kind):
                placement = place(gm, self.backends)
            with self.record.stage("codegen", kind):
                loaded = [self.compile_segment(placed) for placed in placement.segments]
        except (UnsupportedGraph, SizeError) as error:
            return self.run_by_torch(gm, kind, error)
        texts = tuple(
            (name, str(placed.segment) if self.options.keep_graphs else "")
            for placed, (name, _) in zip(placement.segments, loaded, strict=True)
        )
        self.record.graphs.append(history.CompiledGraph(kind, placement.verdicts, texts))
        log.info("%s graph: %d calls in %d segments", kind, len(placement.verdicts), len(texts))
        return runner_for(placement, loaded, check=self.options.debug)

    def compile_segment(self, placed: PlacedSegment) -> tuple[str, Executable]:
        """Code for a segment from the best backend that manages it, and that backend's name."""
        for backend in placed.backends[:-1]:
            try:
                return backend.name, _load(backend, placed.segment)
            except Exception as error:  # a vendor's compiler may raise anything
                self.fall_back(backend, placed, error)
        last = placed.backends[-1]
        return last.name, _load(last, placed.segment)

    def fall_back(self, backend: Backend, placed: PlacedSegment, error: Exception) -> None:
        """Note and warn that a segment goes to the next backend; raise in strict mode."""
        reason = f"{type(error).__name__}: {error}"
        if self.options.strict:
            raise BackendFailed(backend.name, "compile", reason) from error
        note = f"{placed.segment.name} falls back from {backend.name}: {reason}"
        self.record.notes.append(note)
        warnings.warn(note, FallbackWarning, stacklevel=2)

    def run_by_torch(self, gm: fx.GraphModule, kind: str, error: DovetailError) -> Run:
        """Run a graph we cannot express as PyTorch captured it; raise in strict mode."""
        if self.options.strict:
            raise error
        note = f"the {kind} graph runs in PyTorch as captured: {error}"
        self.record.notes.append(note)
        self.record.graphs.append(history.CompiledGraph(kind))
        warnings.warn(note, FallbackWarning, stacklevel=2)
        gm.recompile()
        return lambda inputs: list(gm.forward(*inputs))

    def run_passes(self, stage: str, gm: fx.GraphModule, graph: str) -> fx.GraphModule:
        """Run one stage's passes, recording each."""
        return self.passes.run(
            stage,
            gm,
            self.record,
            graph=graph,
            debug=self.options.debug,
            keep_graphs=self.options.keep_graphs,
        )


def _load(backend: Backend, segment: Segment) -> Executable:
    executable = backend.load(backend.compile(segment))
    if not callable(executable):
        raise BackendContract(backend.name, "load()", f"returned {executable!r}")
    return executable
