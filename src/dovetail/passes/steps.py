"""Passes that the pipeline itself runs, after all others and on every graph.

They have an identity and a record as the others have, but cannot be removed: results depend on
them. ``split`` makes two graphs of one, the others one of one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from torch import fx

from dovetail import history
from dovetail.errors import PassFailed
from dovetail.passes import verify
from dovetail.passes.base import Pass
from dovetail.passes.constants import split_constants
from dovetail.passes.inplace import reinplace
from dovetail.passes.strides import restore
from dovetail.passes.text import graph_text

STRIDES = Pass("strides", restore)
SPLIT = Pass("split", split_constants)
REINPLACE = Pass("reinplace", reinplace)
STEPS = (STRIDES, SPLIT, REINPLACE)


def run_step(
    step: Pass,
    gm: fx.GraphModule,
    *context: Any,
    record: history.Compilation,
    graph: str,
    debug: bool = False,
    keep_graphs: bool = True,
) -> Any:
    """What ``step`` makes of a graph and ``context``, recorded as a stage of the compilation."""
    before = graph_text(gm) if keep_graphs else ""
    known = set(verify.problems(gm)) if debug else set()
    watch = verify.Watch(gm) if debug else None
    with record.stage(step.name, graph) as entry:
        result = step.fn(gm, *context)
    made = result if isinstance(result, tuple) else (result,)
    if watch is not None and (made != (gm,) or watch.sees_change(gm)):
        _check(step, made, known)
    if keep_graphs:
        entry.before, entry.after = before, "\n".join(map(graph_text, made))
    return result


def _check(step: Pass, made: Iterable[fx.GraphModule], known: Container[str]) -> None:
    for gm in made:
        for place, problem in verify.problems(gm).items():
            if place not in known:
                raise PassFailed(step.name, "post_grad", problem)
