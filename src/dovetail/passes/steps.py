"""Passes that the pipeline itself runs, after all others and on every graph.

They have an identity and a record as the others have, but cannot be removed: results depend on
them. ``split`` makes two graphs of one, the others one of one.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from dovetail.passes import verify
from dovetail.passes.base import Pass, PassRecorder
from dovetail.passes.constants import split_constants
from dovetail.passes.inplace import reinplace
from dovetail.passes.strides import restore
from dovetail.passes.text import graph_text

STRIDES = Pass("strides", restore)
SPLIT = Pass("split", split_constants)
REINPLACE = Pass("reinplace", reinplace)
STEPS = (STRIDES, SPLIT, REINPLACE)


def run_step(
    step: Pass, gm: fx.GraphModule, graph: str, recorder: PassRecorder, *context: Any
) -> Any:
    """What ``step`` makes of a graph and ``context``, recorded as a stage of the compilation."""
    record, debug, keep_graphs = recorder
    before = graph_text(gm) if keep_graphs else ""
    verifier = verify.Verifier(gm) if debug else None
    watch = verify.Watch(gm)
    with record.stage(step.name, graph) as entry:
        result = step.fn(gm, *context)
    made = result if isinstance(result, tuple) else (result,)
    entry.changed = made != (gm,) or watch.sees_change(gm)
    if verifier and entry.changed:
        for each in made:
            verifier.check(step.name, "post_grad", each)
    if keep_graphs:
        entry.before, entry.after = before, "\n".join(map(graph_text, made))
    return result
