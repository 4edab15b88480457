"""The whole flow, in order. Reading this file is reading the compiler.

A Dynamo graph that the cache does not have (``lookup.py``) goes through pre-grad passes and is
captured: AOTAutograd makes functional graphs of it, through joint passes where it trains. Each of
those is looked up in the cache, goes through post-grad passes, is placed, laid out, compiled
segment by segment, and linked. An exported program is a functional graph already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import fx

from dovetail import history
from dovetail.backend import Backend
from dovetail.cache.dynamo import TrainingEntry
from dovetail.cache.graphs import GraphCache, LookedUp
from dovetail.cache.size_guards import AddedGuards
from dovetail.capture._torch.aot_autograd import static_input_positions
from dovetail.capture._torch.logs import trace_artifact
from dovetail.capture.aot import Capture, FunctionalGraph, Keep
from dovetail.capture.decompose import Opinion, composite_rules, keeping_claimed
from dovetail.compiled import CompiledGraph
from dovetail.compilers.background import exchange_later
from dovetail.compilers.graph import GraphCompiler, why_captured
from dovetail.compilers.placed import PlacedGraph, PlacedPart
from dovetail.errors import BackendContract, SizeError, UnsupportedGraph
from dovetail.linking import GraphLinker
from dovetail.options import Options
from dovetail.passes import constants, manager, steps, strides
from dovetail.passes.base import STAGES, PassRecorder
from dovetail.passes.text import graph_text
from dovetail.place.placement import place
from dovetail.recording import warn
from dovetail.runtime.link import Linked

log = logging.getLogger(__name__)


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

    # ---- a Dynamo graph: pre-grad passes, capture ------------------------------------------------

    def compile_captured(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        looked_up: LookedUp | None = None,
        *,
        trains: bool = False,
    ) -> Callable[..., Any]:
        """Compile a Dynamo graph; ``looked_up`` and ``trains`` as for ``capture``."""
        if looked_up is not None or not self.cache.is_on:
            self.graphs.segments.prepare()  # workers come up while the graph is traced
        gm = self.passes.run("pre_grad", gm, "dynamo", self.recorder)
        return self.capture(looked_up, trains=trains).run(gm, inputs)

    def capture(self, looked_up: LookedUp | None, *, trains: bool = False) -> Capture:
        """How a Dynamo graph becomes functional graphs for these backends.

        ``looked_up``: the key of the Dynamo graph, which the cache does not have. With ``trains``,
        it is for a forward and a backward graph and the plan to run them.
        """
        first = self.backends[0]
        training = TrainingEntry(self.cache, looked_up) if looked_up and trains else None

        def compile_graph(graph: FunctionalGraph) -> Linked:
            kind = graph.kind
            under = looked_up if graph.plain and not trains else None
            linked = self.compile_linked(graph.gm, graph.inputs, kind, self.frozen(kind), under)
            if training is not None:
                training.add(graph)
            return linked

        return Capture(
            compile_graph=compile_graph,
            joint_passes=lambda gm: self.passes.run("joint", gm, "joint", self.recorder),
            decompositions=keeping_claimed(self.opinions, frozen=self.options.freeze),
            composites=composite_rules(first.composites, first.keeps_whole),
            keep=self.keep,
            ours=self.runs_own_code_alone,
        )

    def frozen(self, kind: str) -> frozenset[int]:
        """Which inputs of a functional graph are constants."""
        if not self.options.freeze or kind != "inference":
            return frozenset()
        return static_input_positions()

    # ---- a functional graph: cache, post-grad passes, placement, code, linking -------------------

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

        def link_stored(graph: CompiledGraph) -> Linked:
            return self.linker.link_stored(graph, count, labels)

        if looked_up is None:
            found, looked_up = self.cache.look_up(gm, inputs, kind, link_stored)
            if found is not None:
                return found
        placed = self.place_graph(gm, kind)
        added = looked_up.added() if looked_up else AddedGuards()

        def compile_() -> tuple[Linked, CompiledGraph]:
            linked = self.link(self.graphs.compile(placed))
            return linked, linked.graph

        def compile_or_wait() -> Linked:
            """Compile and keep the graph, or take what another process is about to keep."""
            if looked_up is None:
                return compile_()[0]
            return self.cache.fill(looked_up, link_stored, compile_, added)

        if now or not (self.options.background or self.options.progressive):
            return compile_or_wait()
        return self.compile_later(placed, compile_or_wait)

    def compile_graph(
        self, gm: fx.GraphModule, kind: str, frozen: Iterable[int] = ()
    ) -> CompiledGraph:
        """Compile one functional graph, whatever the cache has."""
        self.mark_inputs(gm, kind, frozen)
        return self.graphs.compile(self.place_graph(gm, kind))

    def place_graph(self, gm: fx.GraphModule, kind: str) -> PlacedGraph:
        """Passes and placement; from here on nothing is of FX."""
        expected = strides.output_descs(gm)
        gm = self.passes.run("post_grad", gm, kind, self.recorder)
        gm = steps.run_step(steps.STRIDES, gm, kind, self.recorder, expected)
        positions = constants.constant_inputs(gm)
        labels = constants.kept_labels(gm, self.input_names)
        once, every = None, gm
        if positions:
            once, every = steps.run_step(steps.SPLIT, gm, kind, self.recorder)
        return PlacedGraph(
            kind,
            once=None if once is None else self.place_part(once, f"{kind}, once"),
            every=self.place_part(every, kind),
            frozen=tuple(positions),
            labels=labels,
        )

    def place_part(self, gm: fx.GraphModule, kind: str) -> PlacedPart:
        """Place each call."""
        if all(backend.writes_in_place for backend in self.backends):
            gm = steps.run_step(steps.REINPLACE, gm, kind, self.recorder)
        trace_artifact(f"dovetail_{kind.replace(', ', '_')}_graph", lambda: graph_text(gm))
        log.debug("%s graph:\n%s", kind, graph_text(gm) if log.isEnabledFor(10) else "")
        if self.record.observer is not None:
            self.record.observer.saw_graph(self.record.number, kind, gm, self.input_names)
        try:
            with self.record.stage("place", kind):
                placement = place(gm, self.backends, keep_small=self.options.keep_small)
        except (UnsupportedGraph, SizeError) as error:
            return PlacedPart(gm, None, why_captured(error, strict=self.options.strict))
        return PlacedPart(gm, placement)

    def link(self, graph: CompiledGraph) -> Linked:
        """Make a compiled graph runnable, record what runs where, warn of what fell back."""
        return self.linker.link(graph)

    def compile_later(self, placed: PlacedGraph, compile_: Callable[[], Linked]) -> Linked:
        """A first version that is there at once, exchanged for the compiled one between calls."""
        first = self.linker.link_unrecorded(self.graphs.compile_quickly(placed))

        def stay(error: Exception) -> None:
            warn(self.record, f"the {placed.kind} graph stays uncompiled: {error}")

        return exchange_later(first, compile_, None if self.options.strict else stay)

    def mark_inputs(self, gm: fx.GraphModule, kind: str, frozen: Iterable[int]) -> None:
        """Mark inputs that are the same at every call, and those that are the module's own."""
        gm.meta["kind"] = kind
        constants.mark_constants(gm, frozen)
        self.mark_kept(gm, kind)

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

    # ---- what the stages are done by -------------------------------------------------------------

    @cached_property
    def cache(self) -> GraphCache:
        """The cache, for this compilation."""
        return GraphCache(self.backends, self.options, self.record)

    @cached_property
    def passes(self) -> manager.PassManager:
        """The passes to run: the chosen ones, then each backend's own, in the list's order."""
        return manager.with_backends(self.options.passes, self.backends)

    @property
    def runs_own_code_alone(self) -> bool:
        """Whether every pass and every backend is one of ours."""
        passes = (p.fn for stage in STAGES for p in self.passes.passes.at(stage))
        modules = (getattr(each, "__module__", "") for each in (*passes, *map(type, self.backends)))
        return all(module.startswith("dovetail.") for module in modules)

    @cached_property
    def recorder(self) -> PassRecorder:
        """Where passes are recorded."""
        keep = self.options.keep_graphs or self.record.observer is not None
        return PassRecorder(self.record, self.options.debug, keep)

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
    def graphs(self) -> GraphCompiler:
        """What compiles placed graphs."""
        return GraphCompiler(self.backends, self.options, self.record)

    @cached_property
    def linker(self) -> GraphLinker:
        """What makes compiled graphs run."""
        compile_ = self.graphs.segments.compile
        return GraphLinker(self.backends, self.options, self.record, compile_)
