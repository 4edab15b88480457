"""A Dynamo graph as functional calls of ATen, traced with the values it is run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


def trace_calls(
    gm: fx.GraphModule, inputs: Sequence[Any], *, train: bool = False
) -> fx.GraphModule:
    """The ATen calls that a graph makes on these inputs; nodes keep the lines they come from."""

    def run(*given: Any) -> Any:
        return fx.Interpreter(gm).run(*given)

    with torch.set_grad_enabled(train), fx.traceback.preserve_node_meta():
        traced: fx.GraphModule = make_fx(torch.func.functionalize(run))(*inputs)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced
