"""Dynamo graphs in the cache, which are found before AOTAutograd has traced them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.cache.graphs import GraphCache, LookedUp
from dovetail.cache.size_guards import AddedGuards
from dovetail.cache.training import TrainingPair, verify_pair
from dovetail.capture._torch.training import restored_training
from dovetail.capture.aot import (
    FunctionalGraph,
    Keep,
    as_plain,
    calls_custom_operators,
    varying_outputs,
)
from dovetail.compiled import CompiledGraph
from dovetail.errors import InvalidCompiledGraph
from dovetail.ir import Ref
from dovetail.runtime.link import Linked

Answer = tuple[Callable[..., Any] | None, LookedUp | None]


class DynamoGraphs(NamedTuple):
    """Looks up Dynamo graphs whose inputs users call ``names``.

    An answer is the function, or the key that the cache does not have. ``link`` takes a stored
    graph, the number of its inputs, and what those are called.
    """

    cache: GraphCache
    names: Sequence[str]
    link: Callable[[CompiledGraph, int, Mapping[int, str]], Linked]
    keep: Keep | None = None

    def look_up_plain(self, gm: Any, inputs: Sequence[Any]) -> Answer:
        """An inference graph that needs nothing around it."""
        found, looked_up = self.cache.look_up(gm, inputs, "dynamo", self._link_whole)
        if found is None:
            return None, looked_up
        return as_plain(found, self.keep, varying_outputs(gm)), None

    def look_up_training(self, gm: Any, inputs: Sequence[Any]) -> Answer:
        """A training graph: two graphs, run as AOTAutograd does."""
        return self.cache.look_up_training(gm, inputs, "dynamo", self._link_sensible)

    def _link_whole(self, graph: CompiledGraph) -> Linked:
        """Link a graph that takes what its Dynamo graph does."""
        count = len(self.names)
        return self.link(graph, count, {n: self.names[n] for n in graph.labels if n < count})

    def _link_sensible(self, pair: TrainingPair) -> Callable[..., Any]:
        try:
            return self._link_pair(pair)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidCompiledGraph(f"a plan with nothing sensible: {error!r}") from None

    def _link_pair(self, pair: TrainingPair) -> Callable[..., Any]:
        forward = self.cache.found(pair.forward, "forward", self._link_whole)
        outputs, sizes = len(pair.plan["outputs"]), int(pair.plan["sizes"])
        known = saved_labels(forward.graph, outputs, sizes, self.names)

        def link_backward(graph: CompiledGraph) -> Linked:
            labels = {n: known[n] for n in graph.labels if n in known}
            return self.link(graph, graph.count_inputs(), labels)

        backward = self.cache.found(pair.backward, "backward", link_backward)
        verify_pair(pair.plan, forward.graph, backward.graph)
        return restored_training(pair.plan, forward.run, backward.run)


def saved_labels(
    forward: CompiledGraph, outputs: int, sizes: int, names: Sequence[str]
) -> dict[int, str]:
    """What users call inputs of a backward graph that were inputs of its forward graph.

    The forward graph returns tensors that are saved after its ``outputs``, then ``sizes``; the
    backward graph takes sizes first.
    """
    positions = {given.name: n for n, given in enumerate(forward.every.inputs)}
    saved = forward.every.outputs[outputs : len(forward.every.outputs) - sizes]
    pairs = enumerate(saved, sizes)
    found = {n: positions.get(out.name) for n, out in pairs if isinstance(out, Ref)}
    return {n: names[at] for n, at in found.items() if at is not None and at < len(names)}


class TrainingEntry:
    """Keeps a training graph of Dynamo's, once its forward and backward graph are stored."""

    def __init__(self, cache: GraphCache, looked_up: LookedUp) -> None:
        self.cache, self.looked_up = cache, looked_up
        self.plan: Mapping[str, Any] | None = None
        self.added = AddedGuards()

    def add(self, graph: FunctionalGraph) -> None:
        """One of the two has been compiled; the forward graph comes first, with the plan."""
        if graph.plan is not None and self.plan is None:
            self.plan, self.added = graph.plan, self.looked_up.added()
        elif graph.kind == "backward" and self.plan and not self.added.problem:
            if not calls_custom_operators(graph.gm):
                self.cache.keep_training(self.looked_up.key, self.plan, self.added)
