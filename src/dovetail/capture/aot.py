"""AOTAutograd, driven by us: one entry for inference and training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dovetail.capture import _torch

# Compiles one functional graph: (graph, example inputs, kind) -> function of one list of inputs.
CompileGraph = Callable[[fx.GraphModule, Sequence[Any], str], Callable[[list[Any]], list[Any]]]


@dataclass(frozen=True)
class Capture:
    """How a Dynamo graph is turned into functional ones.

    ``compile_graph`` gets each functional graph with its kind, "inference", "forward" or
    "backward"; ``joint_passes`` gets the joint graph of a training step before it is cut in two.
    """

    compile_graph: CompileGraph
    joint_passes: Callable[[fx.GraphModule], fx.GraphModule]
    decompositions: Mapping[Any, Callable[..., Any]]
    composites: Mapping[Any, Callable[..., Any]]

    def run(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Capture and compile; the result takes and returns what ``gm`` does."""
        aot = _torch.aot_autograd(
            fw_compiler=self._compiler("forward"),
            bw_compiler=self._compiler("backward"),
            inference_compiler=self._compiler("inference"),
            partition_fn=self._partition,
            decompositions=dict(self.decompositions),
        )
        keep = self.composites and not needs_grad(gm, example_inputs)
        with _torch.keep_composites(self.composites) if keep else nullcontext():
            return aot(gm, example_inputs)  # type: ignore[no-any-return]

    def _compiler(self, kind: str) -> Callable[..., Any]:
        def compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            return _torch.boxed(self.compile_graph(gm, inputs, kind))

        return compiler

    def _partition(self, joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        return _torch.min_cut_partition(self.joint_passes(joint), inputs, **kwargs)


def needs_grad(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a call of this graph would be recorded for backward."""
    if not torch.is_grad_enabled():
        return False
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    return any(t.requires_grad for t in (*tensors, *gm.parameters()))


def has_calls(gm: fx.GraphModule) -> bool:
    """Whether a graph computes anything at all."""
    return any(n.op in ("call_function", "call_method", "call_module") for n in gm.graph.nodes)
