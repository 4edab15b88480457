"""Where a Dynamo graph comes in: found in the cache and linked, else compiled.

A warm start imports what stands here and no more. Passes, placement and compilers come with
``pipeline.py``, once there is a graph to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from dovetail import history
from dovetail.backend import Backend
from dovetail.cache.dynamo import Answer, DynamoGraphs
from dovetail.cache.graphs import GraphCache
from dovetail.capture._torch import dynamo
from dovetail.capture.aot import Keep, has_calls, may_be_plain, may_train_plainly
from dovetail.capture.collector import CollectorPause
from dovetail.linking import GraphLinker
from dovetail.options import Options


def compile_dynamo(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backends: tuple[Backend, ...],
    options: Options,
    keep: Keep | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured: a function that takes and returns what ``gm`` does."""
    if not has_calls(gm):
        return gm.forward  # type: ignore[no-any-return]
    record = history.begin(*(backend.name for backend in backends))
    linker = GraphLinker(backends, options, record)
    names = dynamo.input_names(gm)
    graphs = DynamoGraphs(GraphCache(backends, options, record), names, linker.link_stored, keep)
    trains = keep is None and may_train_plainly(gm, example_inputs)  # else AOTAutograd keeps it
    try:
        found, looked_up = _look_up(graphs, gm, example_inputs, trains=trains)
        if found is not None:
            return found
        with CollectorPause():
            from dovetail.pipeline import Compiler

        compiler = Compiler(backends, options, record, keep, input_names=names)
        return compiler.compile_captured(gm, example_inputs, looked_up, trains=trains)
    except BaseException:
        history.discard(record)
        raise


def _look_up(
    graphs: DynamoGraphs, gm: fx.GraphModule, inputs: Sequence[Any], *, trains: bool
) -> Answer:
    """The function of a graph that the cache has, where finding it spares AOTAutograd."""
    if trains:
        return graphs.look_up_training(gm, inputs)
    return graphs.look_up_plain(gm, inputs) if may_be_plain(gm, inputs) else (None, None)
