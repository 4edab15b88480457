"""The whole flow, in order. Reading this file is reading the compiler."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import fx

from dovetail import history
from dovetail.backend import Backend, Blob, Fallback
from dovetail.backends.instead import CallByCall
from dovetail.cache.graphs import GraphCache
from dovetail.cache.key import Key
from dovetail.cache.training import TrainingPair, verify_pair
from dovetail.capture._torch import dynamo
from dovetail.capture._torch.aot_autograd import static_input_positions
from dovetail.capture._torch.logs import trace_artifact
from dovetail.capture._torch.symbols import size_guards
from dovetail.capture._torch.training import restored_training
from dovetail.capture.aot import (
    Capture,
    Keep,
    Runnable,
    as_plain,
    calls_custom_operators,
    has_calls,
    may_be_plain,
    may_train_plainly,
)
from dovetail.capture.decompose import Opinion, composite_rules, keeping_claimed
from dovetail.capture.ops import is_random, resolve_op
from dovetail.compiled import Calls, CompiledGraph, CompiledPart, CompiledSegment
from dovetail.compilers import (
    Limits,
    Outcome,
    Subprocess,
    compile_segment,
    compile_serialized,
    first_of_its_kind,
)
from dovetail.compilers.background import Switch, background
from dovetail.errors import (
    BackendContract,
    CompileFailed,
    DovetailError,
    FallbackWarning,
    InvalidCompiledGraph,
    SizeError,
    UnsupportedGraph,
)
from dovetail.ir import Ref, Segment
from dovetail.options import Options
from dovetail.passes import constants, manager, steps, strides
from dovetail.passes.base import Pass, Passes
from dovetail.passes.text import graph_text
from dovetail.place import PlacedSegment, Placement, place
from dovetail.place.summary import Ran, record_graph
from dovetail.runtime.link import Linked, LinkedPart, Linker, first_to_compile

log = logging.getLogger(__name__)

# Why a graph is not stored: who finds it would have to add them too.
GUARDS_ADDED = "compiling it added guards on its sizes"


def compile_dynamo(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backends: tuple[Backend, ...],
    options: Options,
    keep: Keep | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured: pre-grad passes, AOTAutograd, then each functional graph."""
    if not has_calls(gm):
        return gm.forward  # type: ignore[no-any-return]
    record = history.begin(*(backend.name for backend in backends))
    compiler = Compiler(backends, options, record, keep)
    compiler.input_names.extend(dynamo.input_names(gm))
    try:
        return compiler.compile_captured(gm, example_inputs)
    except BaseException:
        history.discard(compiler.record)
        raise


CompileSegments = Callable[[Sequence[PlacedSegment]], tuple[CompiledSegment, ...]]


class LookedUp(NamedTuple):
    """A key that the cache was asked for in vain, and what was known of sizes then."""

    key: Key
    stage: str
    guards: object


class PlannedPart(NamedTuple):
    """A part of a graph, placed; or why our IR cannot express it."""

    gm: fx.GraphModule
    placement: Placement | None
    problem: str = ""


class PlannedGraph(NamedTuple):
    """A functional graph after passes and placement, before there is code."""

    kind: str
    every: PlannedPart
    once: PlannedPart | None
    frozen: tuple[int, ...]
    labels: Mapping[int, str]


@dataclass(frozen=True)
class Compiler:
    """A list of backends, best first, one set of options, one record of what happened.

    The last backend is ``aten``, which takes what nobody else does.
    """

    backends: tuple[Backend, ...]
    options: Options
    record: history.Compilation
    keep: Keep | None = None
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

    @cached_property
    def cache(self) -> GraphCache:
        """The cache, for this compilation."""
        return GraphCache(self.backends, self.options, self.record)

    def compile_captured(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a Dynamo graph, or find it in the cache where that spares AOTAutograd."""
        trains = self.keep is None and may_train_plainly(gm, inputs)  # else AOTAutograd keeps it
        key = self.cache.key(gm, inputs, "dynamo") if trains or may_be_plain(gm, inputs) else None
        if key is not None:
            found = self.find_training(key) if trains else self.find_plain(key)
            if found is not None:
                return found
        looked_up = None if key is None else LookedUp(key, "dynamo", size_guards())
        will_compile = looked_up is not None or not self.cache.is_on
        if self.options.compile == "subprocess" and will_compile:
            self.workers.prepare(self.backends[:-1])  # it comes up while the graph is traced
        gm = self.run_passes("pre_grad", gm, "dynamo")
        return self.capture(looked_up, trains=trains).run(gm, inputs)

    def find_plain(self, key: Key) -> Callable[..., Any] | None:
        """The function of an inference graph, from the cache."""
        found = self.cache.find(key, "dynamo", self.link_found)
        return None if found is None else as_plain(found, self.keep)

    def find_training(self, key: Key) -> Callable[..., Any] | None:
        """The function of a training graph, from the cache: two graphs, run as AOTAutograd does."""

        def link(pair: TrainingPair) -> Callable[..., Any]:
            forward = self.cache.found(pair.forward, "forward", self.link_found)
            known = saved_labels(forward.graph, len(pair.plan["outputs"]), self.input_names)

            def link_backward(graph: CompiledGraph) -> Linked:
                labels = {n: known[n] for n in graph.labels if n in known}
                return self.link(replace(graph, labels=labels))

            backward = self.cache.found(pair.backward, "backward", link_backward)
            verify_pair(pair.plan, forward.graph, backward.graph)
            return restored_training(pair.plan, forward.run, backward.run)

        def link_sensible(pair: TrainingPair) -> Callable[..., Any]:
            try:
                return link(pair)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InvalidCompiledGraph(f"a plan with nothing sensible: {error!r}") from None

        return self.cache.find_training(key, "dynamo", link_sensible)

    def capture(self, looked_up: LookedUp | None, *, trains: bool = False) -> Capture:
        """How a Dynamo graph becomes functional graphs for these backends.

        ``looked_up``: the key of the Dynamo graph, which the cache does not have. With ``trains``,
        it is for a forward and a backward graph and the plan to run them.
        """
        first = self.backends[0]
        plans: list[Mapping[str, Any]] = []

        def compile_graph(
            gm: fx.GraphModule,
            inputs: Sequence[Any],
            kind: str,
            *,
            plain: bool = False,
            plan: Mapping[str, Any] | None = None,
        ) -> Runnable:
            under = looked_up if plain and not trains else None
            linked = self.compile_linked(gm, inputs, kind, self.frozen(kind), under)
            if looked_up is not None and trains:
                unchanged = looked_up.guards == size_guards()
                if plan is not None and unchanged:
                    plans.append(plan)
                elif kind == "backward" and plans and not calls_custom_operators(gm):
                    self.cache.keep_training(looked_up.key, plans[0])
            return linked

        return Capture(
            compile_graph=compile_graph,
            joint_passes=lambda gm: self.run_passes("joint", gm, "joint"),
            decompositions=keeping_claimed(self.opinions),
            composites=composite_rules(first.composites, first.keeps_whole),
            keep=self.keep,
        )

    def frozen(self, kind: str) -> frozenset[int]:
        """Which inputs of a functional graph are constants."""
        if not self.options.freeze or kind != "inference":
            return frozenset()
        return static_input_positions()

    def mark_kept(self, gm: fx.GraphModule, kind: str) -> None:
        """Mark inputs that are the module's own: parameters and buffers.

        A backward graph has those that were saved for it under the names of the forward graph.
        """
        if kind != "backward":
            self.kept_names.clear()
            self.kept_names.update(constants.mark_kept(gm, static_input_positions()))
        else:
            names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
            constants.mark_kept(gm, [n for n, name in enumerate(names) if name in self.kept_names])

    def compile_linked(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        kind: str,
        frozen: Iterable[int] = (),
        looked_up: LookedUp | None = None,
        *,
        now: bool = False,
    ) -> Linked:
        """One functional graph, from the cache or compiled, ready to run.

        ``looked_up``: it is to be kept under this key, where it is not yet. ``now``: compiled
        before this returns, whatever the options say.
        """
        self.mark_inputs(gm, kind, frozen)
        labels = constants.kept_labels(gm, self.input_names)
        count = len(gm.graph.find_nodes(op="placeholder"))

        def link(graph: CompiledGraph) -> Linked:
            check_inputs(graph, count)
            return self.link(replace(graph, labels=labels))  # not those of who stored it

        if looked_up is None:
            key = self.cache.key(gm, inputs, kind)
            found = None if key is None else self.cache.find(key, kind, link)
            if found is not None:
                return found
            looked_up = None if key is None else LookedUp(key, kind, size_guards())
        planned = self.plan_graph(gm, kind)

        reason = GUARDS_ADDED if looked_up and size_guards() != looked_up.guards else ""

        def compile_() -> tuple[Linked, CompiledGraph]:
            linked = self.link(self.compile_planned(planned))
            return linked, linked.graph

        def compile_or_wait() -> Linked:
            """Compile and keep the graph, or take what another process is about to keep."""
            if looked_up is None:
                return compile_()[0]
            return self.cache.fill(looked_up.key, looked_up.stage, link, compile_, reason)

        if now or not (self.options.background or self.options.progressive):
            return compile_or_wait()
        return self.compile_later(planned, compile_or_wait)

    def compile_later(self, planned: PlannedGraph, compile_: Callable[[], Linked]) -> Linked:
        """A first version that is there at once, exchanged for the compiled one between calls."""
        first = self.linker().link(self.first_version(planned))
        switch = Switch(first.run)

        def exchange() -> None:
            try:
                switch.to(compile_().run)
            except Exception as error:  # a vendor's compiler may raise anything
                if self.options.strict:
                    switch.fail(error)
                else:
                    self.warn(f"the {planned.kind} graph stays uncompiled: {error}")

        background.submit(exchange)
        return Linked(first.graph, switch, first.parts)

    def first_version(self, planned: PlannedGraph) -> CompiledGraph:
        """What is there at once: PyTorch's calls one by one, or with ``progressive`` quick code."""
        return self.compile_planned(planned, lambda placed: tuple(map(self.quickly, placed)))

    def quickly(self, placed: PlacedSegment) -> CompiledSegment:
        """Quick code for a segment, or none: PyTorch's calls."""
        first, last = placed.backends[0], self.backends[-1]
        quick = first.quick() if self.options.progressive else None
        if quick is not None:
            try:
                blob = compile_segment(quick, placed.segment)
                return compiled_segment(placed, (first.name, last.name), blob)
            except Exception as error:  # a vendor's compiler may raise anything
                log.info("no quick code for %s: %s", placed.segment.name, error)
        return compiled_segment(placed, (last.name,), compile_segment(last, placed.segment))

    def link_found(self, graph: CompiledGraph) -> Linked:
        """Link a graph that stands for a whole Dynamo graph, with this one's names of inputs."""
        names = self.input_names
        check_inputs(graph, len(names))
        labels = {n: names[n] for n in graph.labels if n < len(names)}
        return self.link(replace(graph, labels=labels))

    def mark_inputs(self, gm: fx.GraphModule, kind: str, frozen: Iterable[int]) -> None:
        """Mark inputs that are the same at every call, and those that are the module's own."""
        gm.meta["kind"] = kind
        constants.mark_constants(gm, frozen)
        self.mark_kept(gm, kind)

    def compile_graph(
        self, gm: fx.GraphModule, kind: str, frozen: Iterable[int] = ()
    ) -> CompiledGraph:
        """Compile one functional graph: passes, constants, placement, code."""
        self.mark_inputs(gm, kind, frozen)
        return self.compile_planned(self.plan_graph(gm, kind))

    def plan_graph(self, gm: fx.GraphModule, kind: str) -> PlannedGraph:
        """Passes and placement; from here on nothing is of FX."""
        expected = strides.output_descs(gm)
        gm = self.run_passes("post_grad", gm, kind)
        gm = self.run_step(steps.STRIDES, gm, kind, expected)
        positions = constants.constant_inputs(gm)
        labels = constants.kept_labels(gm, self.input_names)
        once, every = self.run_step(steps.SPLIT, gm, kind) if positions else (None, gm)
        return PlannedGraph(
            kind,
            once=None if once is None else self.plan_part(once, f"{kind}, once"),
            every=self.plan_part(every, kind),
            frozen=tuple(positions),
            labels=labels,
        )

    def plan_part(self, gm: fx.GraphModule, kind: str) -> PlannedPart:
        """Place each call."""
        if all(backend.writes_in_place for backend in self.backends):
            gm = self.run_step(steps.REINPLACE, gm, kind)
        trace_artifact(f"dovetail_{kind.replace(', ', '_')}_graph", lambda: graph_text(gm))
        log.debug("%s graph:\n%s", kind, graph_text(gm) if log.isEnabledFor(10) else "")
        try:
            with self.record.stage("place", kind):
                placement = place(gm, self.backends, keep_small=self.options.keep_small)
        except (UnsupportedGraph, SizeError) as error:
            return PlannedPart(gm, None, self.inexpressible(error))
        return PlannedPart(gm, placement)

    def inexpressible(self, error: DovetailError) -> str:
        """Why PyTorch runs a graph as captured; an error in strict mode."""
        if self.options.strict:
            raise error
        return str(error)

    def compile_planned(
        self, planned: PlannedGraph, compile_: CompileSegments | None = None
    ) -> CompiledGraph:
        """Code for each segment, as the options say or by ``compile_``."""
        once, kind = planned.once, planned.kind
        by = compile_ or self.compile_segments
        return CompiledGraph(
            kind,
            once=None if once is None else self.compile_part(once, f"{kind}, once", by),
            every=self.compile_part(planned.every, kind, by),
            frozen=planned.frozen,
            labels=planned.labels,
            backends=tuple((b.name, b.fingerprint()) for b in self.backends),
        )

    def compile_part(
        self, planned: PlannedPart, kind: str, compile_: CompileSegments
    ) -> CompiledPart:
        """Code for each segment; what cannot be expressed stays as PyTorch captured it."""
        placement, problem = planned.placement, planned.problem
        if placement is not None:
            try:
                with self.record.stages_within("compile", kind):  # lower, schedule, codegen, encode
                    segments = compile_(placement.segments)
            except (UnsupportedGraph, SizeError) as error:
                placement, problem = None, self.inexpressible(error)
        if placement is None:
            planned.gm.recompile()
            forward = planned.gm.forward
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

    def compile_segments(self, segments: Sequence[PlacedSegment]) -> tuple[CompiledSegment, ...]:
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
            found.append(self.compile_segment(segments[n], made.get(n)))
        return tuple(found)

    def compile_segment(self, placed: PlacedSegment, made: Outcome | None) -> CompiledSegment:
        """Code for a segment from the best backend that manages it; strict mode asks only one.

        ``made`` is what the first of them has made of it, where that is known.
        """
        failures: list[tuple[str, str]] = []
        segment, backends = placed.segment, placed.backends
        strict = self.options.strict

        def compile_(backend: Backend, segment: Segment) -> Blob:
            if made is not None and backend is backends[0]:
                return code_of(made)
            return self.compile(backend, segment)

        chosen, blob = first_to_compile(backends, segment, compile_, failures, strict=strict)
        names = tuple(backend.name for backend in backends[chosen:])
        return compiled_segment(placed, names, blob, tuple(failures))

    @cached_property
    def workers(self) -> Subprocess:
        """The processes that compile with ``compile="subprocess"``."""
        chosen = self.options
        limits = chosen.compile_timeout, chosen.compile_memory, chosen.compile_workers
        return Subprocess(Limits.chosen(*limits), self.record.notes.append)

    def compile(self, backend: Backend, segment: Segment) -> Blob:
        """A backend's code for a segment, made in the way that was chosen; it may raise."""
        if self.options.compile == "serialize":
            return compile_serialized(backend, segment)
        if self.options.compile == "in-process" or backend is self.backends[-1]:
            return compile_segment(backend, segment)
        (outcome,) = self.workers.compile(backend, [segment])
        return code_of(outcome)

    def link(self, graph: CompiledGraph) -> Linked:
        """Make a compiled graph runnable, record what runs where, warn of what fell back."""
        with self.record.stage("link", graph.kind):
            linked = self.linker().link(graph)
        for part in linked.parts:
            self.record_part(part)
        return linked

    def linker(self) -> Linker:
        """What makes compiled graphs run, as the options say."""
        options = self.options
        return Linker(
            {backend.name: backend for backend in self.backends},
            self.compile,
            self.instead,
            strict=options.strict,
            check=options.debug,
            profile=options.profile,
            check_weights=options.check_weights,
        )

    def instead(self, calls: Calls, backend: str) -> Fallback:
        """What runs a segment whose inputs are not what the graph says of them."""
        told = f"{calls.name} runs call by call on PyTorch, not on {backend}: "
        return CallByCall(lambda: calls.segment, calls.draws, lambda why: self.warn(told + why))

    def record_part(self, part: LinkedPart) -> None:
        """Say in the report what runs where; where segments fell back, one warning a reason."""
        kind, compiled = part.kind, part.compiled
        if compiled.captured is not None:
            self.record.graphs.append(history.GraphRecord(kind))
            why = compiled.why_captured
            self.warn(f"the {kind} graph runs in PyTorch as captured: {why}")
            return
        ran = [
            Ran(
                functools.partial(getattr, each.compiled.calls, "segment"),
                each.compiled.sources,
                each.backend,
                each.compiled.failures,
                each.executable.transfers() if each.backend.transfer is not None else None,
                each.executable.measured,
            )
            for each in part.segments
        ]
        verdicts, keep = compiled.verdicts, self.options.keep_graphs
        told = verdicts if callable(verdicts) else lambda: verdicts  # not the part, with its code
        record = record_graph(kind, told, compiled.hints, ran, keep)
        self.record.graphs.append(record)
        reasons: dict[str, list[str]] = {}
        for each in part.segments:
            for backend, reason in each.compiled.failures:
                note = f"from {backend} to {each.backend.name}: {reason}"
                reasons.setdefault(note, []).append(each.compiled.name)
        for note, names in reasons.items():
            which = names[0] if len(names) == 1 else f"{len(names)} segments"
            self.warn(f"{which} {'falls' if len(names) == 1 else 'fall'} back {note}")

    def warn(self, text: str) -> None:
        """Say that something runs otherwise than it was placed: a warning, a line in the report."""
        self.record.notes.append(text)
        warnings.warn(text, FallbackWarning, stacklevel=3)

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


def compiled_segment(
    placed: PlacedSegment,
    backends: tuple[str, ...],
    blob: Blob,
    failures: tuple[tuple[str, str], ...] = (),
) -> CompiledSegment:
    """A placed segment with its code, that of the first of ``backends``."""
    segment = placed.segment
    calls = Calls(segment, segment.name, draws=draws(segment))
    return CompiledSegment(calls, backends, blob, placed.sources, placed.results, failures)


def saved_labels(forward: CompiledGraph, outputs: int, names: Sequence[str]) -> dict[int, str]:
    """What users call inputs of a forward graph that it saves for its backward graph.

    It returns what is saved after its ``outputs``.
    """
    positions = {given.name: n for n, given in enumerate(forward.every.inputs)}
    saved = enumerate(forward.every.outputs[outputs:])
    found = {n: positions.get(out.name) for n, out in saved if isinstance(out, Ref)}
    return {n: names[at] for n, at in found.items() if at is not None and at < len(names)}


def check_inputs(graph: CompiledGraph, count: int) -> None:
    """InvalidCompiledGraph where a graph takes another number of inputs: it is another's."""
    if graph.count_inputs() != count:
        raise InvalidCompiledGraph(f"it takes {graph.count_inputs()} inputs, not {count}")


def code_of(outcome: Outcome) -> Blob:
    """The code that came of a compilation; what failed is raised."""
    if isinstance(outcome, CompileFailed):
        raise outcome
    return outcome


def draws(segment: Segment) -> bool:
    """Whether a segment draws random numbers."""
    return any(is_random(resolve_op(call.op)) for call in segment.all_calls())
