"""The cache's entries in ``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts``.

PyTorch joins what its own caches and ours used in one string of bytes, by type. It authenticates
none of it: who loads it trusts who made it, as PyTorch's own parts are pickles.
"""

from __future__ import annotations

import sys

from dovetail.cache import entry
from dovetail.cache.entry import Damaged
from dovetail.cache.folder import Untrusted
from dovetail.cache.key import Key
from dovetail.cache.local import Local
from dovetail.cache.record import log, warn_once
from dovetail.cache.settings import current
from dovetail.capture._torch.cache_artifacts import record_cache_artifact, register_cache_artifact

TYPE = "dovetail"


def register_artifact_type() -> None:
    """Let ``torch.compiler.load_cache_artifacts`` fill this cache too.

    PyTorch loads nothing at all of artifacts that hold a type it does not know: call this first, in
    a process that has not compiled with dovetail yet.
    """
    register_cache_artifact(TYPE, _populate)


def record(key: Key, payload: bytes) -> None:
    """Have ``torch.compiler.save_cache_artifacts`` save an entry that this process used."""
    if "torch.compiler._cache" not in sys.modules:  # nothing of PyTorch's compiler is in use
        return
    register_artifact_type()
    record_cache_artifact(TYPE, key.digest, b"".join(entry.encode(key, payload)))


def _populate(digest: str, data: bytes) -> None:
    """Put an entry into the folder; one that is damaged or not its key's is left out."""
    held = current()
    if not held.enabled:
        log.info("an artifact is not loaded: the cache is off")
        return
    try:
        entry.payload_of(data, digest)
        Local(held.folder, held.size).write(entry.header_of(data).key, [data])
    except (Damaged, OSError, Untrusted) as error:
        warn_once("artifacts", f"an artifact is not put into the cache: {error}")
