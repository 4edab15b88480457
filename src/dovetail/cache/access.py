"""Looking up and storing: the folder of this machine first, then the remote cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dovetail.cache import entry
from dovetail.cache.entry import Damaged
from dovetail.cache.folder import Untrusted
from dovetail.cache.key import Key
from dovetail.cache.local import Local
from dovetail.cache.record import bypass, count, log, warn_once
from dovetail.cache.settings import Settings, current
from dovetail.cache.torch_artifacts import record

if TYPE_CHECKING:
    from dovetail.cache.remote import Remote


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


def lookup(key: Key, *, told: bool = True) -> Hit | Miss:
    """What is stored under the key; never an exception but for a setting that is wrong.

    With ``told``, a miss is the one that ``dovetail cache why`` explains, and is counted.
    """
    held = current()
    if not held.enabled:
        return _bypass("the cache is off")
    local = Local(held.folder, held.size)
    payload, reason, unusable = _read_local(local, key)
    where: Literal["local", "remote"] = "local"
    if payload is None and (shared := _remote(held)):
        payload, where = _read_remote(shared, local, key), "remote"
    if payload is not None:
        return _hit(key, payload, where) if told else Hit(payload, where)
    if unusable:
        return _bypass(f"no folder to use: {reason}")
    return _miss(local, key, reason) if told else Miss(reason)


def store(key: Key, payload: bytes, *, seconds: float = 0.0, label: str = "") -> None:
    """Keep a payload under the key: ``seconds`` is what it took to make, ``label`` what it is.

    Never raises: where it cannot be kept, one warning says so and the next process compiles again.
    The remote cache gets it later.
    """
    try:
        held = current()
        if held.enabled:
            pieces = entry.encode(key, payload, seconds=seconds, label=label)
            if _write_local(Local(held.folder, held.size), key, pieces):
                count("stored")
                log.info("stored: %s, %d bytes", key, len(payload))
            if shared := _remote(held):
                shared.write_later(key.digest, pieces)
            record(key, payload)
    except Exception as error:
        log.info("store failed", exc_info=True)
        warn_once("store", f"compiled code is not kept in the cache: {error}")


def _read_local(local: Local, key: Key) -> tuple[bytes | None, str, bool]:
    """The payload, or why there is none, and whether the folder cannot be used at all."""
    try:
        return local.read(key.digest), "nothing is stored under this key", False
    except Damaged as error:
        return None, str(error), False
    except (OSError, Untrusted) as error:
        warn_once("folder", f"the cache is not used: {_words(error)}")
        return None, _words(error), True


def _write_local(local: Local, key: Key, pieces: Sequence[bytes]) -> bool:
    try:
        return local.write(key, pieces)
    except (OSError, Untrusted) as error:
        warn_once("store", f"compiled code is not kept in the cache: {_words(error)}")
        return False


def _remote(held: Settings) -> Remote | None:
    """The remote cache, where there is one; what talks to servers is imported then."""
    if not held.remote:
        return None
    from dovetail.cache.remote import remote

    return remote(held)


def _read_remote(shared: Remote, local: Local, key: Key) -> bytes | None:
    """The payload of a remote entry, which is kept in the folder from now on."""
    data = shared.read(key.digest)
    if data is None:
        return None
    try:
        payload = entry.payload_of(data, key.digest)
    except Damaged as error:
        log.info("an authentic entry is damaged: %s", error)
        return None
    _write_local(local, key, [data])
    return payload


def _hit(key: Key, payload: bytes, where: Literal["local", "remote"]) -> Hit:
    count("hits")
    if where == "remote":
        count("remote_hits")
    log.info("hit (%s): %s", where, key)
    record(key, payload)
    return Hit(payload, where)


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
