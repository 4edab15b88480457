"""What a process's cache did: counts, log lines, and warnings that are given once."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field, replace

from dovetail.errors import CacheWarning
from dovetail.locks import ForkLock

log = logging.getLogger("dovetail.cache")


@dataclass
class Stats:
    """What this process's cache did so far."""

    hits: int = 0
    remote_hits: int = 0
    """Those of ``hits`` that the remote cache gave."""
    misses: int = 0
    waited: int = 0
    """Misses that another process's compilation, waited for, turned into a result."""
    stored: int = 0
    bypasses: dict[str, int] = field(default_factory=dict)
    """How often nothing was looked up, by reason."""


_stats = Stats()
_warned: set[str] = set()
_lock = ForkLock()


def stats() -> Stats:
    """A copy of this process's counts."""
    with _lock:
        return replace(_stats, bypasses=dict(_stats.bypasses))


def reset() -> None:
    """Forget the counts and which warnings were given."""
    global _stats
    with _lock:
        _stats = Stats()
        _warned.clear()


def bypass(reason: str) -> None:
    """Record that a compilation neither asked nor fills the cache, and why."""
    with _lock:
        _stats.bypasses[reason] = _stats.bypasses.get(reason, 0) + 1
    log.info("bypass: %s", reason)


def count(what: str) -> None:
    """Add one to a count of ``Stats``."""
    with _lock:
        setattr(_stats, what, getattr(_stats, what) + 1)


def warn_once(kind: str, text: str) -> None:
    """Say what is wrong with the cache, once a kind and process; each time to the log.

    Never raises, also where warnings are errors: no result depends on the cache.
    """
    with _lock:
        is_new = kind not in _warned
        _warned.add(kind)
    log.info("%s", text)
    if is_new:
        try:
            warnings.warn(text, CacheWarning, stacklevel=2)
        except CacheWarning:
            log.warning("%s", text)
