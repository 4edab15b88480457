"""Compiled graphs through the cache: looked up under a graph's key, else compiled and stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dovetail import cache
from dovetail.backend import Backend
from dovetail.cache.settings import current
from dovetail.cache.size_guards import (
    AddedGuards,
    OtherSizes,
    add_guards,
    added_guards,
    check_guards,
    with_guards,
    without_guards,
)
from dovetail.cache.symbols import Symbols
from dovetail.cache.training import TrainingPair, decode_pair, encode_pair
from dovetail.capture._torch.logs import trace_artifact
from dovetail.capture._torch.symbols import GuardCount
from dovetail.compiled import CompiledGraph, decode, encode
from dovetail.errors import DovetailError, InvalidCompiledGraph
from dovetail.history import CacheVerdict, Compilation
from dovetail.options import Options

if TYPE_CHECKING:
    from dovetail.cache.graph_key import GraphKey

T = TypeVar("T")
GUARDS_ADDED = "compiling it added guards on its sizes that cannot be kept"
Found = TypeVar("Found", CompiledGraph, TrainingPair)
_told_only: ContextVar[bool] = ContextVar("told_only", default=False)


@contextmanager
def told_only() -> Iterator[None]:
    """Within the context the cache is asked and its answers are recorded, but all is compiled."""
    token = _told_only.set(True)
    try:
        yield
    finally:
        _told_only.reset(token)


class LookedUp(NamedTuple):
    """A key that the cache was asked for in vain, and what was known of sizes then."""

    key: cache.Key
    stage: str
    symbols: Symbols
    known: GuardCount

    def added(self) -> AddedGuards:
        """The guards on sizes that compiling has added so far: who finds the graph needs them."""
        added = added_guards(self.symbols, self.known)
        problem = added.problem
        if added.texts and self.stage == "backward":  # nobody asks before a backward pass
            problem = ", ".join(added.texts)
        return AddedGuards(problem=f"{GUARDS_ADDED}: {problem}") if problem else added


@dataclass(frozen=True)
class GraphCache:
    """The cache as one compilation uses it; each answer goes to the compilation's record."""

    backends: tuple[Backend, ...]
    options: Options
    record: Compilation
    kept: dict[str, cache.Key] = field(default_factory=dict)  # graphs that are stored, by stage

    @property
    def is_on(self) -> bool:
        """Whether graphs are looked up at all."""
        return current().enabled and self.options.cache

    def key(
        self, gm: Any, inputs: Sequence[Any], stage: str, static: Iterable[int] = ()
    ) -> GraphKey | None:
        """The key of a graph; None where it has none or the cache is off, with the reason kept."""
        if not self.is_on:
            if not self.record.cache:  # once will do
                self._note(stage, "bypass", "the cache is off")
            return None
        from dovetail.cache.graph_key import graph_key

        with self.record.stage("cache key", stage):
            key = graph_key(gm, inputs, self.backends, self.options, stage=stage, static=static)
        if isinstance(key, cache.Bypass):
            cache.bypass(key.reason)
            self._note(stage, "bypass", key.reason)
            return None
        return key

    def look_up(
        self, gm: Any, inputs: Sequence[Any], stage: str, link: Callable[[CompiledGraph], T]
    ) -> tuple[T | None, LookedUp | None]:
        """What ``link`` makes of the stored graph; or the key that the cache does not have."""
        return self._look_up(gm, inputs, stage, link, decode)

    def look_up_training(
        self, gm: Any, inputs: Sequence[Any], stage: str, link: Callable[[TrainingPair], T]
    ) -> tuple[T | None, LookedUp | None]:
        """What ``link`` makes of a stored training graph, as ``look_up`` does."""
        return self._look_up(gm, inputs, stage, link, decode_pair)

    def _look_up(
        self,
        gm: Any,
        inputs: Sequence[Any],
        stage: str,
        link: Callable[[Found], T],
        read: Callable[[bytes], Found],
    ) -> tuple[T | None, LookedUp | None]:
        """One entry serves all sizes that its guards allow; others have entries of their own."""
        asked = self.key(gm, inputs, stage)
        if asked is None:
            return None, None
        key, symbols = asked
        found = None
        try:
            found = self._find(key, stage, link, read, symbols)
        except OtherSizes:
            key = _for_these_sizes(key, symbols)
            with suppress(OtherSizes):
                found = self._find(key, stage, link, read, symbols)
        if found is not None:
            return found, None
        return None, LookedUp(key, stage, symbols, GuardCount(symbols.env))

    def found(self, key: cache.Key, stage: str, link: Callable[[CompiledGraph], T]) -> T:
        """What ``link`` makes of a graph that has to be stored for all sizes; else an error."""
        linked = self._find(key, stage, link, decode)
        if linked is None:
            raise InvalidCompiledGraph(f"its {stage} graph is not stored any more")
        return linked

    def _find(
        self,
        key: cache.Key,
        stage: str,
        link: Callable[[Found], T],
        read: Callable[[bytes], Found],
        symbols: Symbols | None = None,
    ) -> T | None:
        with self.record.stage("cache", stage):
            found = cache.lookup(key)
        if isinstance(found, cache.Hit) and _told_only.get():
            self._note(stage, "hit", "", key)
            return None
        if isinstance(found, cache.Hit):
            return self._read(found.payload, key, stage, link, read, symbols)
        state = "bypass" if isinstance(found, cache.Bypass) else "miss"
        self._note(stage, state, found.reason, key, found.nearest)
        return None

    def fill(
        self,
        looked_up: LookedUp,
        link: Callable[[CompiledGraph], T],
        compile_: Callable[[], tuple[T, CompiledGraph]],
        added: AddedGuards,
    ) -> T:
        """What ``compile_`` gives, kept for others, or what another process has just kept.

        ``added`` are guards that it is kept under; where they cannot be written, it is not.
        """
        key, stage, symbols, _ = looked_up
        if added.problem:
            self._stand_aside(key, stage, added.problem)
        if added.problem or _told_only.get():
            return compile_()[0]
        with cache.compiling(key) as payload:
            linked = None
            if payload is not None:
                try:
                    linked = self._read(payload, key, stage, link, decode, symbols)
                except OtherSizes:  # it stays; this one has an entry of its own
                    key = _for_these_sizes(key, symbols)
            if linked is not None:
                return linked
            start = time.perf_counter()
            made, graph = compile_()
            reason = why_not_stored(graph)
            reason = reason or self._store(key, graph, added, time.perf_counter() - start)
            if reason:
                self._stand_aside(key, stage, reason)
            else:
                self.kept[stage] = key
            return made

    def keep_training(self, key: cache.Key, plan: Mapping[str, Any], added: AddedGuards) -> None:
        """Keep how the forward and backward graph are run, where both are stored."""
        if {"forward", "backward"} <= self.kept.keys():
            pair = TrainingPair(plan, self.kept["forward"], self.kept["backward"])
            names = ", ".join(backend.name for backend in self.backends)
            data = with_guards(added.texts, encode_pair(pair))
            cache.store(key, data, label=f"training graph for {names}")

    def _stand_aside(self, key: cache.Key, stage: str, reason: str) -> None:
        cache.bypass(reason)
        self._note(stage, "bypass", reason, key)

    def _read(
        self,
        payload: bytes,
        key: cache.Key,
        stage: str,
        link: Callable[[Found], T],
        read: Callable[[bytes], Found],
        symbols: Symbols | None = None,
    ) -> T | None:
        """What ``link`` makes of a payload, once its guards hold; they are added only then."""
        try:
            guards, data = without_guards(payload)
            if symbols is not None:
                check_guards(guards, symbols)
            elif guards:  # others may have stored it anew, for other sizes than the pair's
                raise InvalidCompiledGraph("it is not for all sizes")
            linked = link(read(data))
            if symbols is not None:
                add_guards(guards, symbols)
        except OtherSizes as error:
            self._note(stage, "miss", str(error), key)
            raise
        except Exception as error:  # damaged before it was stored; a vendor's may raise anything
            told = str(error) if isinstance(error, DovetailError) else repr(error)
            self._note(stage, "miss", f"what is stored does not load: {told}", key)
            return None
        self._note(stage, "hit", "", key)
        self.kept[stage] = key
        return linked

    def _store(
        self, key: cache.Key, graph: CompiledGraph, added: AddedGuards, seconds: float
    ) -> str:
        """Keep a graph; why it cannot be written, if it cannot: it runs all the same."""
        names = ", ".join(name for name, _ in graph.backends)
        try:
            data = with_guards(added.texts, encode(graph))
        except Exception as error:  # PyTorch may refuse to read a tensor that the graph holds
            return f"it cannot be written: {error}"
        cache.store(key, data, seconds=seconds, label=f"{graph.kind} graph for {names}")
        return ""

    def _note(
        self,
        stage: str,
        state: str,
        reason: str,
        key: cache.Key | None = None,
        nearest: tuple[str, ...] = (),
    ) -> None:
        digest = "" if key is None else key.digest
        verdict = CacheVerdict(stage, state, reason, digest, nearest)
        self.record.cache.append(verdict)
        trace_artifact("dovetail_cache", lambda: f"{stage} graph: {verdict}")


def why_not_stored(graph: CompiledGraph) -> str:
    """Why a graph is not worth keeping, or cannot be; empty: it can."""
    for _, part in graph.parts():
        for segment in part.segments:
            for backend, _ in segment.failures:
                return f"the backend {backend!r} failed to compile a segment"
    return graph.not_portable()


def _for_these_sizes(key: cache.Key, symbols: Symbols) -> cache.Key:
    """The key of a graph whose guards hold for the sizes at hand and not for others'."""
    return key.with_part("sizes in the example", str(symbols.hints()))
