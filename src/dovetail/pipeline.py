"""The whole flow, in order. Reading this file is reading the compiler."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import fx

from dovetail import history
from dovetail.backend import Backend, Executable, FunctionExecutable
from dovetail.backends.instead import CallByCall
from dovetail.capture import _torch
from dovetail.capture.aot import Capture, has_calls
from dovetail.capture.decompose import Opinion, composite_rules, keeping_claimed
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
from dovetail.passes import constants, manager, steps, strides
from dovetail.passes.base import Pass, Passes
from dovetail.passes.text import graph_text
from dovetail.place import PlacedSegment, place, without_collection
from dovetail.place.summary import Built, record_graph
from dovetail.runtime.checked import CheckedRunner
from dovetail.runtime.frozen import FrozenRunner
from dovetail.runtime.runner import Timed, runner_for

log = logging.getLogger(__name__)

Run = Callable[[list[Any]], list[Any]]


def compile_dynamo(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backends: tuple[Backend, ...],
    options: Options,
) -> Callable[..., Any]:
    """Compile what Dynamo captured: pre-grad passes, AOTAutograd, then each functional graph."""
    if not has_calls(gm):
        return gm.forward  # type: ignore[no-any-return]
    compiler = Compiler(backends, options, history.begin(*(b.name for b in backends)))
    compiler.input_names.extend(_torch.input_names(gm))
    try:
        with without_collection():
            gm = compiler.run_passes("pre_grad", gm, "dynamo")
            return compiler.capture().run(gm, example_inputs)
    except BaseException:
        history.discard(compiler.record)
        raise


@dataclass(frozen=True)
class Compiler:
    """A list of backends, best first, one set of options, one record of what happened.

    The last backend is ``aten``, which takes what nobody else does.
    """

    backends: tuple[Backend, ...]
    options: Options
    record: history.Compilation
    kept_names: set[str] = field(default_factory=set)  # the module's own, in the forward graph
    input_names: list[str] = field(default_factory=list)  # what users call the inputs

    @cached_property
    def passes(self) -> manager.PassManager:
        """The passes to run: the chosen ones, then each backend's own, in the list's order."""
        passes = self.options.passes or manager.default()
        for backend in self.backends:
            own = backend.passes()
            if not isinstance(own, Passes):
                raise BackendContract(backend.name, "passes()", f"returned {own!r}")
            passes = passes.extend(own)
        return passes

    @cached_property
    def opinions(self) -> list[Opinion]:
        """What each backend would take apart and keep; the last one leaves all as it finds it."""
        found: list[Opinion] = []
        for backend in self.backends[:-1] or self.backends:
            table = backend.decompositions()
            if not isinstance(table, Mapping):
                raise BackendContract(backend.name, "decompositions()", f"returned {table!r}")
            found.append((table, backend.keeps_whole))
        return found

    def capture(self) -> Capture:
        """How a Dynamo graph becomes functional graphs for these backends."""
        first = self.backends[0]
        return Capture(
            compile_graph=lambda gm, _, kind: self.compile_graph(gm, kind, self.frozen(kind)),
            joint_passes=lambda gm: self.run_passes("joint", gm, "joint"),
            decompositions=keeping_claimed(self.opinions),
            composites=composite_rules(first.composites, first.keeps_whole),
        )

    def frozen(self, kind: str) -> frozenset[int]:
        """Which inputs of a functional graph are constants."""
        if not self.options.freeze or kind != "inference":
            return frozenset()
        return _torch.static_input_positions()

    def mark_kept(self, gm: fx.GraphModule, kind: str) -> None:
        """Mark inputs that are the module's own: parameters and buffers.

        A backward graph has those that were saved for it under the names of the forward graph.
        """
        if kind != "backward":
            self.kept_names.clear()
            self.kept_names.update(constants.mark_kept(gm, _torch.static_input_positions()))
        else:
            names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
            constants.mark_kept(gm, [n for n, name in enumerate(names) if name in self.kept_names])

    def compile_graph(self, gm: fx.GraphModule, kind: str, frozen: Iterable[int] = ()) -> Run:
        """Compile one functional graph: passes, constants, placement, code."""
        with without_collection():
            return self._compile_graph(gm, kind, frozen)

    def _compile_graph(self, gm: fx.GraphModule, kind: str, frozen: Iterable[int]) -> Run:
        expected = strides.output_descs(gm)
        gm.meta["kind"] = kind
        constants.mark_constants(gm, frozen)
        self.mark_kept(gm, kind)
        gm = self.run_passes("post_grad", gm, kind)
        gm = self.run_step(steps.STRIDES, gm, kind, expected)
        run = self.compile_split(gm, kind)
        if not self.options.check_weights:
            return run
        return CheckedRunner(run, constants.kept_labels(gm, self.input_names))

    def compile_split(self, gm: fx.GraphModule, kind: str) -> Run:
        """Compile a graph such that what depends on constants alone runs when they change."""
        positions = constants.constant_inputs(gm)
        if not positions:
            return self.compile_placed(gm, kind)
        once, every = self.run_step(steps.SPLIT, gm, kind)
        run_once = self.compile_placed(once, f"{kind}, once")
        return FrozenRunner(run_once, self.compile_placed(every, kind), positions)

    def compile_placed(self, gm: fx.GraphModule, kind: str) -> Run:
        """Place each call, compile each segment, and join them into one function."""
        if all(backend.writes_in_place for backend in self.backends):
            gm = self.run_step(steps.REINPLACE, gm, kind)
        _torch.trace_artifact(f"dovetail_{kind.replace(', ', '_')}_graph", lambda: graph_text(gm))
        log.debug("%s graph:\n%s", kind, graph_text(gm) if log.isEnabledFor(10) else "")
        try:
            with self.record.stage("place", kind):
                placement = place(gm, self.backends, keep_small=self.options.keep_small)
            with self.record.stage("codegen", kind):
                built = self.compile_segments(placement.segments)
        except (UnsupportedGraph, SizeError) as error:
            return self.run_by_torch(gm, kind, error)
        self.record.graphs.append(record_graph(kind, placement, built, self.options.keep_graphs))
        log.info("%s graph: %d calls in %d segments", kind, len(placement.verdicts), len(built))
        loaded = [(each.backend.name, each.executable) for each in built]
        return runner_for(placement, loaded, check=self.options.debug)

    def compile_segments(self, segments: Sequence[PlacedSegment]) -> list[Built]:
        """Code for each segment; where one fell back, one warning for each reason."""
        built = [self.compile_segment(placed) for placed in segments]
        reasons: dict[str, list[str]] = {}
        for each, placed in zip(built, segments, strict=True):
            for backend, reason in each.failures:
                note = f"from {backend} to {each.backend.name}: {reason}"
                reasons.setdefault(note, []).append(placed.segment.name)
        for note, names in reasons.items():
            which = names[0] if len(names) == 1 else f"{len(names)} segments"
            self.warn(f"{which} {'falls' if len(names) == 1 else 'fall'} back {note}")
        return built

    def warn(self, text: str) -> None:
        """Say that something runs otherwise than it was placed: a warning, a line in the report."""
        self.record.notes.append(text)
        warnings.warn(text, FallbackWarning, stacklevel=3)

    def compile_segment(self, placed: PlacedSegment) -> Built:
        """Code for a segment from the best backend that manages it; strict mode asks only one."""
        failures: list[tuple[str, str]] = []
        for backend in placed.backends[:-1]:
            try:
                return Built(backend, self.load(backend, placed.segment), tuple(failures))
            except Exception as error:  # a vendor's compiler may raise anything
                reason = f"{type(error).__name__}: {error}"
                if self.options.strict:
                    raise BackendFailed(backend.name, "compile", reason) from error
                failures.append((backend.name, reason))
        last = placed.backends[-1]
        return Built(last, self.load(last, placed.segment), tuple(failures))

    def load(self, backend: Backend, segment: Segment) -> Executable:
        """A backend's code for a segment, ready to run, and measured if that is wanted."""
        loaded = backend.load(backend.compile(segment))
        if not callable(loaded):
            raise BackendContract(backend.name, "load()", f"returned {loaded!r}")
        executable = loaded if isinstance(loaded, Executable) else FunctionExecutable(loaded)
        if not self.options.strict:
            told = f"{segment.name} runs call by call on PyTorch, not on {backend.name}: "
            executable.fall_back_on(CallByCall(segment, lambda why: self.warn(told + why)))
        return Timed(executable) if self.options.profile else executable

    def run_by_torch(self, gm: fx.GraphModule, kind: str, error: DovetailError) -> Run:
        """Run a graph we cannot express as PyTorch captured it; raise in strict mode."""
        if self.options.strict:
            raise error
        self.record.graphs.append(history.CompiledGraph(kind))
        self.warn(f"the {kind} graph runs in PyTorch as captured: {error}")
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

    def run_step(self, step: Pass, gm: fx.GraphModule, graph: str, *context: Any) -> Any:
        """Run a pass that is none of the user's to choose, recording it."""
        return steps.run_step(
            step,
            gm,
            *context,
            record=self.record,
            graph=graph,
            debug=self.options.debug,
            keep_graphs=self.options.keep_graphs,
        )
