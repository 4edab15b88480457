"""The report of what was compiled, what runs where, and what each stage took."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dovetail import history, registry
from dovetail.capture._torch.dynamo import explained, graph_breaks, told_graph_breaks
from dovetail.capture._torch.tensors import pytree
from dovetail.capture.lines import source_of_frames
from dovetail.page.html import page_html
from dovetail.report.collect import Collector, CompilationDetails
from dovetail.report.data import report_data
from dovetail.report.limits import machine_limits
from dovetail.report.text import call_lines, compilation_lines

PROFILED_RUNS = 5  # of which the least time counts: the first loads and allocates


@dataclass(frozen=True)
class Report:
    """The compilations that one call of a model caused; ``details`` of each, by its number."""

    compilations: tuple[history.Compilation, ...]
    details: Mapping[int, CompilationDetails] = field(default_factory=dict, repr=False)
    graph_breaks: tuple[dict[str, Any], ...] = ()
    limits: Mapping[str, Any] | None = None  # the machine's, where they were measured

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data; ``docs/report.md`` says what each field means."""
        return report_data(self.compilations, self.details, self.graph_breaks, self.limits)

    def to_json(self, *, indent: int | None = 2) -> str:
        """The same as JSON text, which ``schema.json`` beside this file describes."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_html(self, path: str | os.PathLike[str], *, title: str = "dovetail explain") -> None:
        """Write one page that shows it all: a file of its own, with no network and no server."""
        Path(path).write_text(self.html(title=title), encoding="utf-8", newline="\n")

    def html(self, *, title: str = "dovetail explain") -> str:
        """The page as text."""
        return page_html(self.to_dict(), title)

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for Perfetto: stages, and each instruction of the last run of a profile."""
        Path(path).write_text(self.trace(), encoding="utf-8", newline="\n")

    def trace(self) -> str:
        """The trace as text."""
        from dovetail.report.trace import trace_json

        return trace_json(self.to_dict())

    def placements(self) -> dict[str, int]:
        """How many calls each backend runs, over all graphs."""
        counts: dict[str, int] = {}
        for compilation in self.compilations:
            for graph in compilation.graphs:
                for backend, calls in graph.backend_counts().items():
                    counts[backend] = counts.get(backend, 0) + calls
        return counts

    def calls(self) -> str:
        """A line for every call: the backend that runs it, and who refused it and why."""
        return "\n".join(line for c in self.compilations for line in call_lines(c))

    def __str__(self) -> str:
        if not self.compilations:
            return "nothing was compiled"
        lines = [_graph_break_line(each) for each in self.graph_breaks]
        for compilation in self.compilations:
            lines += compilation_lines(compilation, self.details.get(compilation.number))
        return "\n".join(lines)


def _graph_break_line(found: Mapping[str, Any]) -> str:
    """The first line of the reason, and where; the data has the rest."""
    reason, source = found["reason"].strip().partition("\n")[0], found["source"]
    where = f" ({source['file']}, line {source['line']}: {source['code']})" if source else ""
    return f"graph break: {reason}{where}"


def explain(
    model: Any,
    *args: Any,
    backend: str = "dovetail",
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Report:
    """Compile ``model`` anew for these inputs, run it once, and report every stage.

    Where gradients are wanted the backward graph is compiled and run too; no ``.grad`` is touched.
    ``options`` are those of ``torch.compile``; with ``{"profile": True}`` it runs some times, since
    the first loads and allocates, and each segment and instruction is measured. The cache is asked
    and its answer reported, but nothing is taken from it: there would be no stages to show.
    """
    import torch

    from dovetail.cache.graphs import told_only
    from dovetail.compilers.background import background

    before, breaks = {c.number for c in history.recent()}, len(graph_breaks())
    profile = bool(options and options.get("profile"))
    collector = Collector()
    compiler = registry.lookup_backend(backend)
    given = {} if options is None else {"options": dict(options)}
    # A function of its own: Dynamo compiles anew for it and keeps what others compiled.
    anew = torch.compile(model, backend=lambda gm, inputs: compiler(gm, inputs, **given))
    with told_only(), history.observed_by(collector), told_graph_breaks() as told:
        for _ in range(PROFILED_RUNS if profile else 1):
            _run_backward(anew(*args, **kwargs), model, (args, kwargs))
    background.wait()
    compilations = since(before).compilations
    for compilation in compilations:
        compilation.observer = None  # what runs is not to be held by its record
    collector.limits = machine_limits() if profile else None
    details = {c.number: collector.details(c.number) for c in compilations}
    met = explained(graph_breaks()[breaks:], told)
    reasons = [{"reason": b.reason, "source": source_of_frames(b.frames)} for b in met]
    return Report(compilations, details, tuple(reasons), collector.limits)


def gradients(wanted: bool) -> contextlib.AbstractContextManager[None]:
    """Within the context a model runs for training, or for inference alone."""
    import torch

    return cast(
        contextlib.AbstractContextManager[None],
        torch.enable_grad() if wanted else torch.no_grad(),
    )


def _run_backward(outputs: Any, model: Any, inputs: Any) -> None:
    """Differentiate the outputs, which has the backward graph compiled."""
    import torch

    def tensors(tree: Any) -> list[Any]:
        return [t for t in pytree().tree_leaves(tree) if isinstance(t, torch.Tensor)]

    wanted = [t for t in (*tensors(inputs), *getattr(model, "parameters", list)()) if t.is_leaf]
    wanted = [t for t in wanted if t.requires_grad]
    results = [t for t in tensors(outputs) if t.requires_grad]
    if wanted and results:
        ones = [torch.ones_like(t) for t in results]
        torch.autograd.grad(results, wanted, ones, allow_unused=True)


def since(before: Iterable[int]) -> Report:
    """The report of every compilation that is not among ``before``."""
    known = set(before)
    return Report(tuple(c for c in history.recent() if c.number not in known))
