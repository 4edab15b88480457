"""AOTAutograd, driven by us: one entry for inference and training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx

from dovetail.capture._torch.aot_autograd import (
    aot_autograd,
    boxed,
    inference_is_plain,
    keep_random_draws,
    without_grad,
)
from dovetail.capture._torch.decompositions import correct_lstm, keep_composites
from dovetail.capture._torch.logs import skip_unread_text
from dovetail.capture._torch.partition import min_cut_partition
from dovetail.capture._torch.precompile import bundling, output_code_compiler
from dovetail.capture._torch.state import autocast_is_on
from dovetail.capture._torch.tensors import is_plain_tensor
from dovetail.capture._torch.training import can_restore_training, training_plan
from dovetail.capture._torch.upsampling import whole_upsampling
from dovetail.capture.collector import CollectorPause
from dovetail.capture.metadata import correct
from dovetail.capture.ops import is_random
from dovetail.capture.saved_inputs import save_before_writes


class Runnable(Protocol):
    """A compiled graph that can be called."""

    @property
    def run(self) -> Callable[[list[Any]], Any]:
        """It as a function of one list of inputs."""


class FunctionalGraph(NamedTuple):
    """What AOTAutograd makes of a Dynamo graph: one for inference, two for training.

    ``plain`` says that it takes and returns just what its Dynamo graph does. ``plan`` says of a
    forward graph what AOTAutograd does around it and its backward graph, where JSON can say that.
    """

    kind: str  # "inference", "forward" or "backward"
    gm: fx.GraphModule
    inputs: Sequence[Any]
    plain: bool = False
    plan: Mapping[str, Any] | None = None


class Keep(Protocol):
    """Keeps compiled graphs for another process, where PyTorch's precompile is on."""

    def whole(self, compiled: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Keep the one graph that a Dynamo graph is; what to call in its place."""

    def part(self, compiled: Any) -> Callable[[list[Any]], Any]:
        """A graph as AOTAutograd can keep it with its own result."""


@dataclass(frozen=True)
class Capture:
    """How a Dynamo graph is turned into functional ones.

    ``compile_graph`` gets each functional graph; ``joint_passes`` gets the joint graph of a
    training step before it is cut in two. With ``ours`` neither calls code of others, so that the
    cycle collector can stay off in them.
    """

    compile_graph: Callable[[FunctionalGraph], Runnable]
    joint_passes: Callable[[fx.GraphModule], fx.GraphModule]
    decompositions: Mapping[Any, Callable[..., Any]]
    composites: Mapping[Any, Callable[..., Any]]
    keep: Keep | None = None
    ours: bool = False

    def run(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Capture and compile; the result takes and returns what ``gm`` does."""
        pause = CollectorPause()
        called = _pausing if self.ours else partial(_lifting, pause)
        wrapped = replace(
            self,
            compile_graph=called(self.compile_graph),
            joint_passes=called(self.joint_passes),
        )
        return wrapped.trace(gm, example_inputs, pause)

    def trace(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], pause: CollectorPause
    ) -> Callable[..., Any]:
        """Capture and compile, within ``pause``."""
        correct_lstm()
        skip_unread_text()
        plain: list[Runnable] = []
        returned: list[Any] = []  # by the backward graph
        count = len(example_inputs)
        varying = varying_outputs(gm)
        aot = aot_autograd(
            fw_compiler=self._forward_compiler(returned, count),
            bw_compiler=self._backward_compiler(),
            inference_compiler=self._inference_compiler(plain, count),
            partition_fn=self._partition(returned),
            decompositions=dict(self.decompositions),
        )
        trains = needs_grad(gm, example_inputs)
        keep = self.composites and not trains
        composites = keep_composites(self.composites) if keep else nullcontext()
        whole = trains and upsamples(gm) and has_fixed_sizes(example_inputs)  # else they become so
        gradients = whole_upsampling() if whole else nullcontext()
        bundled = bundling() if self.keep else nullcontext()
        with composites, gradients, bundled, keep_random_draws(), pause:
            compiled = aot(gm, example_inputs)
        if len(plain) == 1 and may_be_plain(gm, example_inputs):
            return as_plain(plain[0], self.keep, varying)
        return compiled  # type: ignore[no-any-return]

    def _inference_compiler(self, found: list[Runnable], count: int) -> Callable[..., Any]:
        """Compiles, and notes the result if it can be called without AOTAutograd around it."""

        def compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            plain = inference_is_plain() and len(inputs) == count
            plain = plain and not calls_custom_operators(gm)
            correct(gm)
            compiled = self.compile_graph(FunctionalGraph("inference", gm, inputs, plain))
            if plain:
                found.append(compiled)
            return self._boxed(compiled)

        return self._keeping(compiler)

    def _forward_compiler(self, returned: list[Any], count: int) -> Callable[..., Any]:
        """Compiles, with a plan for the cache where the graph takes what its Dynamo graph does."""

        def compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            whole = len(inputs) == count and not calls_custom_operators(gm)
            plan = training_plan(returned) if whole else None
            correct(gm)
            graph = FunctionalGraph("forward", gm, inputs, plan=plan)
            return self._boxed(self.compile_graph(graph))

        return self._keeping(compiler)

    def _boxed(self, compiled: Runnable) -> Callable[[list[Any]], Any]:
        return self.keep.part(compiled) if self.keep else boxed(compiled.run)

    def _keeping(self, compiler: Callable[..., Any]) -> Callable[..., Any]:
        return output_code_compiler(compiler) if self.keep else compiler

    def _backward_compiler(self) -> Callable[..., Any]:
        def compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            correct(gm)
            return self._boxed(self.compile_graph(FunctionalGraph("backward", gm, inputs)))

        return self._keeping(compiler)

    def _partition(self, returned: list[Any]) -> Callable[..., tuple[Any, Any]]:
        """Cuts a joint graph in two, and notes what the backward graph returns."""

        def partition(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
            correct(joint)
            joint = self.joint_passes(joint)
            unused = [n for n in joint.graph.nodes if is_random(n.target) and not n.users]
            following = {n.name: [m.name for m in _after(joint, n)] for n in unused}
            forward, backward = min_cut_partition(joint, inputs, **kwargs)
            for node in unused:
                _put_back(forward, node, following[node.name])
            save_before_writes(forward, backward, kwargs["num_fwd_outputs"])
            returned[:] = backward.graph.output_node().args[0]
            return forward, backward

        return partition


def _pausing(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` with the collector off, also when a backward graph is compiled long after."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with CollectorPause():
            return fn(*args, **kwargs)

    return call


def _lifting(pause: CollectorPause, fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn``, which calls passes and backends, with the collector on."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with pause.lifted():
            return fn(*args, **kwargs)

    return call


def _after(gm: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    nodes = list(gm.graph.nodes)
    return nodes[nodes.index(node) + 1 :]


def _put_back(forward: fx.GraphModule, draw: fx.Node, following: Sequence[str]) -> None:
    """Return an unused random draw that partitioning dropped to its place in the forward graph."""
    names = {n.name: n for n in forward.graph.nodes}
    if draw.name in names or any(n.name not in names for n in draw.all_input_nodes):
        return
    place = next((names[n] for n in following if n in names), forward.graph.output_node())
    with forward.graph.inserting_before(place):
        copy = forward.graph.node_copy(draw, lambda n: names[n.name])
    copy.meta = dict(draw.meta)


def may_be_plain(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a Dynamo graph may be one functional graph that needs nothing around it."""
    return not (autocast_is_on() or has_state(gm) or needs_grad(gm, inputs))


def may_train_plainly(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a Dynamo graph may be a forward and a backward graph that a plan tells how to run."""
    if autocast_is_on() or has_state(gm) or not needs_grad(gm, inputs):
        return False
    plain = all(isinstance(x, torch.SymInt) or is_plain_tensor(x) for x in inputs)
    return plain and can_restore_training()


def as_plain(
    compiled: Runnable,
    keep: Keep | None = None,
    varying: Mapping[int, set[int]] | None = None,
) -> Callable[..., Any]:
    """A functional graph as the function that its Dynamo graph is."""
    call = without_grad(compiled.run, varying)
    return call if keep is None else keep.whole(compiled, call)


def needs_grad(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a call of this graph would be recorded for backward."""
    if not torch.is_grad_enabled():
        return False
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    return any(t.requires_grad for t in (*tensors, *gm.parameters()))


def has_fixed_sizes(inputs: Sequence[Any]) -> bool:
    """Whether no size among the inputs varies."""
    sizes = [n for x in inputs for n in (x.shape if isinstance(x, torch.Tensor) else (x,))]
    return not any(isinstance(n, torch.SymInt) for n in sizes)


def varying_outputs(gm: fx.GraphModule) -> dict[int, set[int]]:
    """Outputs of a Dynamo graph with sizes that vary, and the dimensions of those."""
    returned = gm.graph.output_node().args[0]
    nodes = returned if isinstance(returned, tuple | list) else ()
    values = [n.meta.get("example_value") if isinstance(n, fx.Node) else None for n in nodes]
    found = {
        n: {d for d, size in enumerate(value.shape) if isinstance(size, torch.SymInt)}
        for n, value in enumerate(values)
        if isinstance(value, torch.Tensor)
    }
    return {n: dims for n, dims in found.items() if dims}


def upsamples(gm: fx.GraphModule) -> bool:
    """Whether a Dynamo graph, or a graph within it, calls upsampling by any of its names."""
    graphs = (each.graph for each in gm.modules() if isinstance(each, fx.GraphModule))
    names = (str(node.target) for graph in graphs for node in graph.nodes)
    return any("upsample" in name or "interpolate" in name for name in names)


def calls_custom_operators(gm: fx.GraphModule) -> bool:
    """Whether a graph calls operators that are not PyTorch's own; AOTAutograd looks after those."""
    calls = (n.target for n in gm.graph.nodes if n.op == "call_function")
    return any(getattr(target, "namespace", "aten") not in ("aten", "prims") for target in calls)


def has_state(gm: fx.GraphModule) -> bool:
    """Whether a graph holds parameters or buffers of its own, which AOTAutograd passes on."""
    return next(gm.parameters(), None) is not None or next(gm.buffers(), None) is not None


def has_calls(gm: fx.GraphModule) -> bool:
    """Whether a graph computes anything at all."""
    return any(n.op in ("call_function", "call_method", "call_module") for n in gm.graph.nodes)
