"""The report of what was compiled, what runs where, and what each stage took."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from dovetail import history, registry
from dovetail.capture._torch.tensors import pytree
from dovetail.report.data import report_data
from dovetail.report.text import call_lines, compilation_lines


@dataclass(frozen=True)
class Report:
    """The compilations that one call of a model caused."""

    compilations: tuple[history.Compilation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data; ``docs/report.md`` says what each field means."""
        return report_data(self.compilations)

    def to_json(self, *, indent: int | None = 2) -> str:
        """The same as JSON text, which ``schema.json`` beside this file describes."""
        return json.dumps(self.to_dict(), indent=indent)

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
        return "\n".join(line for c in self.compilations for line in compilation_lines(c))


def explain(
    model: Any,
    *args: Any,
    backend: str = "dovetail",
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Report:
    """Compile ``model`` anew for these inputs, run it once, and report every stage.

    Where gradients are wanted the backward graph is compiled and run too; no ``.grad`` is touched.
    ``options`` are those of ``torch.compile``; with ``{"profile": True}`` each segment's time is
    measured, over a second call too, since the first may load and allocate. The cache is asked
    and its answer reported, but nothing is taken from it: there would be no stages to show.
    """
    import torch

    from dovetail.cache.graphs import told_only
    from dovetail.compilers.background import background

    before = {c.number for c in history.recent()}
    compiler = registry.lookup_backend(backend)
    given = {} if options is None else {"options": dict(options)}
    # A function of its own: Dynamo compiles anew for it and keeps what others compiled.
    anew = torch.compile(model, backend=lambda gm, inputs: compiler(gm, inputs, **given))
    with told_only():
        for _ in range(2 if options and options.get("profile") else 1):
            _run_backward(anew(*args, **kwargs), model, (args, kwargs))
    background.wait()
    return since(before)


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
