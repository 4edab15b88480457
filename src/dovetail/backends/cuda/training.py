"""Training graphs on a GPU, before they are cut in two: the layouts of their images."""

from __future__ import annotations

import torch
from torch import fx

from dovetail.capture.from_fx import segment_of
from dovetail.errors import UnsupportedGraph
from dovetail.passes.base import Pass
from dovetail.passes.graphs import calls, value_of
from dovetail.passes.laid_out import write_layouts

aten = torch.ops.aten


def lay_out_training(gm: fx.GraphModule) -> fx.GraphModule:
    """Channels-last where cuDNN gains more by it than changes of layout cost, over both passes."""
    from dovetail.backends.cuda.backend import CudaBackend

    if not any(_is_on_gpu(node) for node in calls(gm, aten.convolution_backward.default)):
        return gm
    try:
        before = segment_of(gm, "joint")
    except UnsupportedGraph:
        return gm
    after = CudaBackend().lay_out(before, frozenset())
    return gm if after is before else write_layouts(gm, before, after)


def _is_on_gpu(node: fx.Node) -> bool:
    return any(v.device.type == "cuda" for v in value_of(node) if isinstance(v, torch.Tensor))


LAYOUTS = Pass("layouts", lay_out_training, subgraphs=False)
