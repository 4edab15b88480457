"""The report of what was compiled, what runs where, and what each stage took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dovetail import history, registry
from dovetail.capture import _torch


@dataclass(frozen=True)
class Report:
    """The compilations that one call of a model caused."""

    compilations: tuple[history.Compilation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {"compilations": [asdict(c) for c in self.compilations]}

    def placements(self) -> dict[str, int]:
        """How many calls each backend runs, over all graphs."""
        counts: dict[str, int] = {}
        for compilation in self.compilations:
            for graph in compilation.graphs:
                for backend, calls in graph.backend_counts().items():
                    counts[backend] = counts.get(backend, 0) + calls
        return counts

    def __str__(self) -> str:
        if not self.compilations:
            return "nothing was compiled"
        return "\n".join(line for c in self.compilations for line in _lines(c))


def explain(model: Any, *args: Any, backend: str = "dovetail", **kwargs: Any) -> Report:
    """Compile ``model`` anew for these inputs, run it once, and report every stage.

    Where gradients are wanted the backward graph is compiled and run too; no ``.grad`` is touched.
    """
    import torch

    before = {c.number for c in history.recent()}
    compiler = registry.lookup_backend(backend)
    # A function of its own: Dynamo compiles anew for it and keeps what others compiled.
    anew = torch.compile(model, backend=lambda gm, inputs: compiler(gm, inputs))
    _run_backward(anew(*args, **kwargs), model, (args, kwargs))
    return since(before)


def _run_backward(outputs: Any, model: Any, inputs: Any) -> None:
    """Differentiate the outputs, which has the backward graph compiled."""
    import torch

    def tensors(tree: Any) -> list[Any]:
        return [t for t in _torch.pytree().tree_leaves(tree) if isinstance(t, torch.Tensor)]

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


def _lines(compilation: history.Compilation) -> Iterator[str]:
    yield f"compilation {compilation.number}: backend {compilation.backend}"
    for graph in compilation.graphs:
        counts = graph.backend_counts()
        where = ", ".join(f"{n} on {b}" for b, n in counts.items()) or "no calls"
        segments = f"{len(graph.segments)} segment{'s' * (len(graph.segments) != 1)}"
        yield f"  {graph.kind} graph: {sum(counts.values())} calls, {segments}: {where}"
        yield from _refusals(graph)
    for note in compilation.notes:
        yield f"  note: {note}"
    yield f"  {'stage':<14}{'graph':<16}{'ms':>8}  changed"
    for stage in compilation.stages:
        changed = "yes" if stage.changed else ""
        yield f"  {stage.name:<14}{stage.graph:<16}{stage.ms:>8.2f}  {changed}".rstrip()


def _refusals(graph: history.CompiledGraph) -> Iterator[str]:
    """Each distinct refusal once, with how often it occurred."""
    counts: dict[tuple[str, str, str], int] = {}
    for verdict in graph.verdicts:
        for backend, reason in verdict.refusals:
            key = (verdict.op, backend, reason)
            counts[key] = counts.get(key, 0) + 1
    for (op, backend, reason), times in counts.items():
        yield f"    {op} ({times}x) refused by {backend}: {reason}"
