"""What each compilation did: stages with their graphs and times. ``explain`` reads this."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dovetail.locks import ForkLock

_AT_STAGE = "dovetail failed at the stage "  # how a note on an error begins
_numbers = itertools.count()
_recent: deque[Compilation] = deque(maxlen=256)
_lock = ForkLock()
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_here = threading.local()  # ``steps``: milliseconds of each step of the stage this thread is in


@dataclass
class Stage:
    """One step of a compilation: its graph before and after, and how long it took."""

    name: str
    graph: str  # which graph it worked on: "dynamo", "joint", "forward", "backward", …
    before: str = ""  # where graphs are kept
    after: str = ""
    ms: float = 0.0
    changed: bool = False  # whether the graph came out different


@dataclass
class Measured:
    """How long a segment took, over all calls so far."""

    calls: int = 0
    seconds: float = 0.0
    least: float = math.inf
    # Its instructions by name and the least seconds of each, where the backend's code can be read.
    instructions: Callable[[], list[tuple[str, float]]] = list

    def add(self, seconds: float) -> None:
        """Count one call."""
        self.calls += 1
        self.seconds += seconds
        self.least = min(self.least, seconds)


@dataclass(frozen=True)
class Copies:
    """Tensors that a graph moves from one memory to another at each call."""

    source: str  # "host", a backend with memory of its own, or a torch device
    target: str
    count: int
    bytes: int


class SegmentRecord(NamedTuple):
    """One segment: who runs it, what crosses its border, what it costs."""

    backend: str
    text: str
    name: str = ""
    calls: tuple[str, ...] = ()
    ops: dict[str, int] = {}  # noqa: RUF012  # never written to
    inputs: int = 0  # tensors that differ from call to call
    outputs: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    kept: int = 0  # parameters, buffers and constants
    bytes_kept: int = 0
    symbolic: bool = False  # bytes and times are those of the example call
    estimated_seconds: float | None = None  # None: neither the backend nor a speed tells
    copies: tuple[Copies, ...] = ()
    measured: Measured | None = None
    reformats: int = 0  # calls that do nothing but change a tensor's layout


class GraphRecord:
    """One functional graph: where each call runs, segment by segment.

    It is worked out when somebody asks for it; a compilation that nobody asks about pays nothing.
    """

    def __init__(self, kind: str, work_out: Callable[[], Details] | None = None) -> None:
        self.kind = kind
        self._work_out: Callable[[], Details] | None = work_out
        self._details: Details = ((), ())

    @property
    def verdicts(self) -> tuple[Any, ...]:
        """Where each call runs, and who refused it."""
        return self._worked_out()[0]

    @property
    def segments(self) -> tuple[SegmentRecord, ...]:
        """Each segment in order."""
        return self._worked_out()[1]

    def _worked_out(self) -> Details:
        if self._work_out is not None:
            self._details, self._work_out = self._work_out(), None
        return self._details

    def copies(self) -> list[Copies]:
        """What is copied between memories at each call, by source and target."""
        found: dict[tuple[str, str], Copies] = {}
        for each in (copies for segment in self.segments for copies in segment.copies):
            key = (each.source, each.target)
            before = found.get(key, Copies(*key, 0, 0))
            count, size = before.count + each.count, before.bytes + each.bytes
            found[key] = Copies(*key, count, size)
        return list(found.values())

    def backend_counts(self) -> dict[str, int]:
        """How many calls each backend runs."""
        counts: dict[str, int] = {}
        for verdict in self.verdicts:
            counts[verdict.backend] = counts.get(verdict.backend, 0) + 1
        return counts


class CacheVerdict(NamedTuple):
    """What the cache said of a graph."""

    graph: str  # "dynamo", before AOTAutograd; else the functional graph
    state: str  # "hit", "miss" or "bypass"
    reason: str = ""
    key: str = ""  # in hex
    nearest: tuple[str, ...] = ()  # parts of the key in which the nearest entry differs

    def __str__(self) -> str:
        text = f"{self.state} {self.key[:12]}".rstrip()
        text += f": {self.reason}" if self.reason else ""
        near = f"; the nearest entry differs in {', '.join(self.nearest)}" if self.nearest else ""
        return text + near


Details = tuple[tuple[Any, ...], tuple[SegmentRecord, ...]]  # verdicts, segments


class Observer(Protocol):
    """Is shown what a compilation lets go otherwise; ``explain`` has one, nobody else."""

    def saw_graph(self, number: int, kind: str, gm: Any, names: Sequence[str]) -> None:
        """A graph of FX as it is about to be placed; ``names`` as users call its inputs."""

    def saw_part(self, number: int, part: Any) -> None:
        """A LinkedPart, ready to run."""


@dataclass(eq=False)
class Compilation:
    """Everything kept of one Dynamo graph or exported program."""

    backend: str
    backends: tuple[str, ...] = ()  # who may run a call, best first
    number: int = field(default_factory=lambda: next(_numbers))
    stages: list[Stage] = field(default_factory=list)
    graphs: list[GraphRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cache: list[CacheVerdict] = field(default_factory=list)
    observer: Observer | None = field(default_factory=_observer.get)

    @contextlib.contextmanager
    def stage(self, name: str, graph: str) -> Iterator[Stage]:
        """Time a stage; the body fills in its graphs."""
        record = Stage(name, graph)
        self.stages.append(record)
        start = time.perf_counter()
        try:
            yield record
        except Exception as error:
            if failed_stage(error) is None:
                error.add_note(f"{_AT_STAGE}{name}, {graph} graph")
            raise
        finally:
            record.ms = (time.perf_counter() - start) * 1e3

    @contextlib.contextmanager
    def stages_within(self, name: str, graph: str) -> Iterator[None]:
        """Time what ``step`` names in the body, each as a stage of its own, and the rest as one."""
        outer, _here.steps = getattr(_here, "steps", None), {}
        before = len(self.stages)
        try:
            with self.stage(name, graph) as whole:
                yield
        finally:
            steps, _here.steps = _here.steps, outer
            made = [Stage(step, graph, ms=ms) for step, ms in steps.items()]
            self.stages[before:before] = made
            whole.ms -= sum(stage.ms for stage in made)

    @property
    def ms(self) -> float:
        """Milliseconds over all stages."""
        return sum(stage.ms for stage in self.stages)


def failed_stage(error: BaseException) -> str | None:
    """The stage at which an error arose, as its notes say; None: at none, as far as is known."""
    notes = (n for n in getattr(error, "__notes__", ()) if n.startswith(_AT_STAGE))
    return next((note.removeprefix(_AT_STAGE).partition(",")[0] for note in notes), None)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Time a step of a stage, wherever in the compiler it is; steps of one name add up.

    A step within another counts for itself alone. Nothing happens where nobody compiles.
    """
    steps: dict[str, float] | None = getattr(_here, "steps", None)
    if steps is None:
        yield
        return
    start, inner = time.perf_counter(), sum(steps.values())
    try:
        yield
    finally:
        within = sum(steps.values()) - inner
        steps[name] = steps.get(name, 0.0) + (time.perf_counter() - start) * 1e3 - within


def begin(*backends: str) -> Compilation:
    """A new compilation for these backends, best first, kept with the last few."""
    compilation = Compilation(backends[0], backends)
    with _lock:
        _recent.append(compilation)
    return compilation


@contextlib.contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Have compilations that begin in the context, whenever they end, shown to ``observer``."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def is_observed() -> bool:
    """Whether compilations that begin now are shown to somebody."""
    return _observer.get() is not None


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
