"""What each compilation did: stages with their graphs and times. ``explain`` reads this."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_numbers = itertools.count()
_recent: deque[Compilation] = deque(maxlen=256)
_lock = threading.Lock()


@dataclass
class Stage:
    """One step of a compilation: its graph before and after, and how long it took."""

    name: str
    graph: str  # which graph it worked on: "dynamo", "joint", "forward", "backward", …
    before: str = ""
    after: str = ""
    ms: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether the graph came out different."""
        return self.before != self.after


@dataclass
class CompiledGraph:
    """One functional graph: where each call runs, segment by segment."""

    kind: str
    verdicts: tuple[Any, ...] = ()
    segments: tuple[tuple[str, str], ...] = ()  # backend that runs it, text

    def backend_counts(self) -> dict[str, int]:
        """How many calls each backend runs."""
        counts: dict[str, int] = {}
        for verdict in self.verdicts:
            counts[verdict.backend] = counts.get(verdict.backend, 0) + 1
        return counts


@dataclass(eq=False)
class Compilation:
    """Everything kept of one Dynamo graph or exported program."""

    backend: str
    number: int = field(default_factory=lambda: next(_numbers))
    stages: list[Stage] = field(default_factory=list)
    graphs: list[CompiledGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def stage(self, name: str, graph: str) -> Iterator[Stage]:
        """Time a stage; the body fills in its graphs."""
        record = Stage(name, graph)
        self.stages.append(record)
        start = time.perf_counter()
        try:
            yield record
        finally:
            record.ms = (time.perf_counter() - start) * 1e3

    @property
    def ms(self) -> float:
        """Milliseconds over all stages."""
        return sum(stage.ms for stage in self.stages)


def begin(backend: str) -> Compilation:
    """A new compilation, kept with the last few."""
    compilation = Compilation(backend)
    with _lock:
        _recent.append(compilation)
    return compilation


def discard(compilation: Compilation) -> None:
    """Forget a compilation that came to nothing (Dynamo may start over with other assumptions)."""
    with _lock, contextlib.suppress(ValueError):
        _recent.remove(compilation)


def recent() -> list[Compilation]:
    """The last compilations of this process, oldest first."""
    with _lock:
        return list(_recent)


def clear() -> None:
    """Forget them."""
    with _lock:
        _recent.clear()
