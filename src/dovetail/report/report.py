"""The report of what was compiled, what runs where, and what each stage took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dovetail import history


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
    """Compile ``model`` anew for these inputs, run it once, and report every stage."""
    import torch

    before = {c.number for c in history.recent()}
    torch.compiler.reset()
    torch.compile(model, backend=backend)(*args, **kwargs)
    return since(before)


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
