"""Looking up and storing: the folder of this machine first, then the remote cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dovetail.cache import entry
from dovetail.cache.entry import Damaged
from dovetail.cache.folder import Untrusted
from dovetail.cache.key import Key
from dovetail.cache.local import Local
from dovetail.cache.record import bypass, count, log, warn_once
from dovetail.cache.settings import current
from dovetail.errors import DovetailError


@dataclass(frozen=True)
class Hit:
    """What was stored under a key, every byte checked."""

    payload: bytes
    where: Literal["local", "remote"]


@dataclass(frozen=True)
class Miss:
    """Nothing is stored under a key."""

    reason: str
    nearest: tuple[str, ...] = ()
    """The names of the parts in which the nearest known key differs."""


class Bypass(Miss):
    """Nothing was looked up; the reason says why."""


def lookup(key: Key) -> Hit | Miss:
    """What is stored under the key; never an exception but for a setting that is wrong."""
    held = current()
    if not held.enabled:
        return _bypass("the cache is off")
    local = Local(held.folder, held.size)
    reason = "nothing is stored under this key"
    try:
        payload = local.read(key.digest)
    except Damaged as error:
        payload, reason = None, str(error)
    except (OSError, Untrusted) as error:
        warn_once("folder", f"the cache is not used: {_words(error)}")
        return _bypass(f"no folder to use: {_words(error)}")
    if payload is not None:
        count("hits")
        log.info("hit: %s", key)
        return Hit(payload, "local")
    return _miss(local, key, reason)


def store(key: Key, payload: bytes, *, seconds: float = 0.0, label: str = "") -> None:
    """Keep a payload under the key: ``seconds`` is what it took to make, ``label`` what it is.

    Never raises: where it cannot be kept, one warning says so and the next process compiles again.
    """
    try:
        held = current()
        if not held.enabled:
            return
        pieces = entry.encode(key, payload, seconds=seconds, label=label)
        Local(held.folder, held.size).write(key, pieces)
        count("stored")
        log.info("stored: %s, %d bytes", key, len(payload))
    except (DovetailError, OSError, Untrusted) as error:
        warn_once("store", f"compiled code is not kept in the cache: {_words(error)}")
    except Exception as error:
        log.exception("store failed")
        warn_once("store", f"compiled code is not kept in the cache: {error}")


def _miss(local: Local, key: Key, reason: str) -> Miss:
    nearest = local.nearest(key)
    local.remember_miss(key)
    count("misses")
    differing = f"; the nearest key differs in {', '.join(nearest)}" if nearest else ""
    log.info("miss: %s: %s%s", key, reason, differing)
    return Miss(reason, nearest)


def _bypass(reason: str) -> Bypass:
    bypass(reason)
    return Bypass(reason)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error)
