"""Compiling in worker processes: a compiler that crashes, hangs or eats memory costs its segment.

One thread serves all the segments it brought, each in a worker: it waits for whatever happens
first, so there is nothing to join and nothing that a fork could leave half done.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.backend import Backend, Blob
from dovetail.compilers import process
from dovetail.compilers.frames import BadFrame
from dovetail.compilers.identical import Job, first_of_its_kind
from dovetail.compilers.local import compile_segment
from dovetail.compilers.pool import Pool, pool
from dovetail.compilers.recipe import NotElsewhere, Recipe, recipe_of
from dovetail.errors import CompileFailed, VerificationFailed
from dovetail.ir.encode import segment_to_bytes
from dovetail.ir.segment import Segment
from dovetail.ir.verify import is_verifying

_TICK_SECONDS = 0.05  # how often memory is looked at: a process fills about 0.1 GB in that time
_START_SECONDS = 60.0  # for a worker to come up, before anything of a backend runs in it
_MB = 1 << 20
Outcome = Blob | CompileFailed | VerificationFailed


@dataclass(frozen=True)
class CompileLimits:
    """What a compiler may take for one segment, and how many run side by side."""

    seconds: float
    memory_bytes: int
    workers: int

    @staticmethod
    def chosen(
        seconds: float = 600.0, memory_bytes: int | None = None, workers: int | None = None
    ) -> CompileLimits:
        """By default half of this machine's memory, and a worker for each core."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        memory_bytes = memory_bytes or _machine_bytes() // 2
        return CompileLimits(seconds, memory_bytes, workers or cores or 1)


def _machine_bytes() -> int:
    """The memory of this machine, or the part of it that this process's container may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:  # noqa: PTH123
            return min(total, int(file.read()))
    except (OSError, ValueError):  # no such file, or "max"
        return total


class Subprocess:
    """Compiles segments in worker processes, side by side, each kind once.

    ``note`` is told, once for each backend, why one is compiled in this process instead.
    """

    def __init__(
        self, limits: CompileLimits | None = None, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self.limits = limits or CompileLimits.chosen()
        self._note = note
        self._here: dict[int, Backend] = {}  # kept, so that no other gets its id

    def prepare(self, backends: Sequence[Backend]) -> None:
        """Start a worker for these now, so that it comes up while a graph is being captured."""
        recipes = [r for r in map(self._recipe, backends) if r is not None]
        with contextlib.suppress(process.WorkerNotStarted):  # it is said when it is needed
            if recipes:
                pool().prepare({"prepare": recipes})

    def compile(self, backend: Backend, segments: Sequence[Segment]) -> list[Outcome]:
        """Code for each segment, or why there is none."""
        return self.compile_all([(backend, segment) for segment in segments])

    def compile_all(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The same for segments of several backends."""
        first = first_of_its_kind(jobs)
        outcomes = self._compile_distinct({n: jobs[n] for n in dict.fromkeys(first)})
        for n, original in enumerate(first):
            outcome = outcomes[original]
            if n != original and isinstance(outcome, Blob) and not outcome.is_portable:
                outcomes[n] = self._compile_here(*jobs[n])
        return [outcomes.get(n, outcomes[original]) for n, original in enumerate(first)]

    def _compile_distinct(self, jobs: dict[int, Job]) -> dict[int, Outcome]:
        requests = []
        for n, (backend, segment) in jobs.items():
            recipe = self._recipe(backend)
            if recipe is not None:
                requests.append(_Request(n, recipe, segment_to_bytes(segment)))
        _Round(requests, self.limits, pool()).run()
        for request in requests:
            if request.elsewhere:
                self._refuse(jobs[request.number][0], request.elsewhere)
        outcomes = {r.number: r.outcome for r in requests if r.outcome is not None}
        here = {n: job for n, job in jobs.items() if n not in outcomes}
        return outcomes | {n: self._compile_here(*job) for n, job in here.items()}

    def _recipe(self, backend: Backend) -> Recipe | None:
        """How a worker makes this backend; None where it is compiled here."""
        if id(backend) in self._here:
            return None
        try:
            return recipe_of(backend)
        except NotElsewhere as reason:
            self._refuse(backend, str(reason))
            return None

    def _refuse(self, backend: Backend, reason: str) -> None:
        if id(backend) not in self._here:
            self._here[id(backend)] = backend
            self._note(f"{backend.name} compiles in this process, not in a worker: {reason}")

    def _compile_here(self, backend: Backend, segment: Segment) -> Outcome:
        try:
            return compile_segment(backend, segment)
        except VerificationFailed as error:
            return error
        except Exception as error:  # a vendor's compiler may raise anything
            failed = CompileFailed(f"{type(error).__name__}: {error}")
            failed.__cause__ = error
            return failed


@dataclass
class _Request:
    """A segment for a worker, and what came of it: an outcome, or why it is the parent's."""

    number: int
    recipe: Recipe
    segment: bytes
    outcome: Outcome | None = None
    elsewhere: str = ""


@dataclass
class _Exchange:
    """A request in the hands of a worker."""

    request: _Request
    worker: process.Worker
    limits: CompileLimits
    deadline: float
    looked: float = 0.0  # when memory was looked at
    is_over: bool = field(default=False, init=False)  # the worker was given back, or is gone

    def step(self, workers: Pool, now: float) -> None:
        """Do what can be done without waiting."""
        try:
            is_open = self.worker.exchange()
            if self._answered(now):
                self.is_over = True
                workers.give_back(self.worker)
            elif not is_open or self.worker.exited():
                self._lose(workers, now)
            else:
                self._check_limits(workers, now)
        except BadFrame as error:
            self.end(workers, f"the compiler wrote to its worker's pipe: {error}")

    def _answered(self, now: float) -> bool:
        while (frame := self.worker.frame()) is not None:
            head = frame.head
            if "ready" in head:
                self.worker.ready = True
                self.deadline = now + self.limits.seconds
                continue
            if "blob" in head:
                self.request.outcome = Blob(frame.body)
            elif "failed" in head:
                self.request.outcome = CompileFailed(str(head["failed"]))
            elif "invalid" in head:
                self.request.outcome = _invalid(head["invalid"], frame.body)
            elif "elsewhere" in head:
                self.request.elsewhere = str(head["elsewhere"])
            else:
                raise BadFrame("an answer of no known kind")
            return True
        return False

    def _check_limits(self, workers: Pool, now: float) -> None:
        if now >= self.deadline:
            limit = f"{self.limits.seconds:g} s (compile_timeout)"
            self.end(workers, f"the compiler took longer than {limit}")
        elif now - self.looked >= _TICK_SECONDS:
            self.looked = now
            if self.worker.resident_bytes() > self.limits.memory_bytes:
                limit = f"{self.limits.memory_bytes / _MB:,.0f} MB (compile_memory)"
                self.end(workers, f"the compiler took more than {limit}")

    def _lose(self, workers: Pool, now: float) -> None:
        """The worker's process is gone, or about to be."""
        self.worker.exchange()  # what it wrote last
        self.is_over = True
        words = self.worker.last_words()
        status = workers.discard(self.worker, process.GRACE_SECONDS)
        if not self._answered(now):
            self._settle(process.failure(status, words))

    def end(self, workers: Pool, problem: str) -> None:
        """Kill the worker."""
        self.is_over = True
        workers.discard(self.worker)
        self._settle(CompileFailed(problem))

    def _settle(self, failed: CompileFailed) -> None:
        """What failed is the compiler, or a worker in which none has run yet."""
        if self.worker.ready:
            self.request.outcome = failed
        else:
            self.request.elsewhere = f"a worker does not start: {failed}"


def _invalid(told: Any, value: bytes) -> VerificationFailed:
    """What a worker's verification found, which is dovetail's fault and no backend's."""
    if not isinstance(told, dict):
        raise BadFrame("a fault that is no table")
    stage, problem = (str(told.get(word, "")) for word in ("stage", "problem"))
    return VerificationFailed(stage, problem, value.decode(errors="replace"))


class _Round:
    """All requests of one call."""

    def __init__(self, requests: Sequence[_Request], limits: CompileLimits, workers: Pool) -> None:
        self.limits, self.workers = limits, workers
        self.pending = deque(requests)
        self.active: list[_Exchange] = []

    def run(self) -> None:
        """Take each request to its end."""
        try:
            while self.pending or self.active:
                self._start()
                self._wait()
                now = time.monotonic()
                for each in self.active:
                    each.step(self.workers, now)
                self.active = [each for each in self.active if not each.is_over]
        finally:
            for each in self.active:
                if not each.is_over:  # something was raised: KeyboardInterrupt, at least
                    each.end(self.workers, "interrupted")

    def _start(self) -> None:
        """Hand out requests to as many workers as there may be."""
        while self.pending:
            try:
                worker = self.workers.borrow(self.limits.workers, wait=not self.active)
            except process.WorkerNotStarted as reason:
                self.pending.popleft().elsewhere = f"a worker does not start: {reason}"
                continue
            if worker is None:
                return
            request = self.pending.popleft()
            seconds = self.limits.seconds if worker.ready else _START_SECONDS
            deadline = time.monotonic() + seconds
            self.active.append(_Exchange(request, worker, self.limits, deadline))
            head = {"backend": request.recipe, "debug": is_verifying()}
            worker.ask(head, request.segment, self.limits.memory_bytes)

    def _wait(self) -> None:
        poll = select.poll()
        for each in self.active:
            each.worker.watch(poll)
        poll.poll(_TICK_SECONDS * 1000)
