"""Outputs keep the strides eager gives them, whatever passes did in between."""

from __future__ import annotations

import torch
from torch import fx

from dovetail.capture.from_fx import describe, outputs_of
from dovetail.ir import Desc, TensorDesc
from dovetail.passes.graphs import insert_call, value_of
from dovetail.passes.verify import fill_metadata

aten = torch.ops.aten


def output_descs(gm: fx.GraphModule) -> list[Desc]:
    """What is known of each output."""
    return [describe(value_of(o)) if isinstance(o, fx.Node) else None for o in outputs_of(gm)]


def restore(gm: fx.GraphModule, expected: list[Desc]) -> fx.GraphModule:
    """Copy an output whose strides a pass changed back to the strides it had."""
    output = gm.graph.output_node()
    results = list(outputs_of(gm))
    for position, (node, desc) in enumerate(zip(results, expected, strict=True)):
        if isinstance(node, fx.Node) and _moved(describe(value_of(node)), desc):
            results[position] = _restrided(gm, output, node, desc)  # type: ignore[arg-type]
    if results != list(outputs_of(gm)):
        output.args = (tuple(results),)
        fill_metadata(gm)
    return gm


def _moved(now: Desc, before: Desc) -> bool:
    if not isinstance(now, TensorDesc) or not isinstance(before, TensorDesc):
        return False
    static = before.is_static and all(isinstance(s, int) for s in before.strides)
    return static and now.shape == before.shape and now.strides != before.strides


def _restrided(gm: fx.GraphModule, output: fx.Node, node: fx.Node, desc: TensorDesc) -> fx.Node:
    shape, strides = tuple(map(int, desc.shape)), tuple(map(int, desc.strides))  # type: ignore[arg-type]
    return copy_with_strides(gm, output, node, shape, strides)


def copy_with_strides(
    gm: fx.GraphModule,
    before: fx.Node,
    node: fx.Node,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> fx.Node:
    """A copy of a value in another layout: by ``clone`` where a memory format names it."""
    value = value_of(node)
    for layout in (torch.contiguous_format, torch.channels_last):
        if layout is torch.channels_last and len(shape) != 4:
            continue
        named = torch.empty(shape, memory_format=layout, device="meta").stride()
        if tuple(named) == strides:
            return insert_call(gm, before, aten.clone.default, node, memory_format=layout)
    place = {"dtype": value.dtype, "device": value.device}
    target = insert_call(gm, before, aten.empty_strided.default, shape, strides, **place)
    return insert_call(gm, before, aten.copy.default, target, node)
