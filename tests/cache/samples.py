"""Keys and folders that the tests of the cache share."""

from __future__ import annotations

from pathlib import Path

from dovetail.cache import Key
from dovetail.cache.local import Local

NOBODY = 65534
PARTS = {"graph": "add(a, b)", "options": "freeze=False", "dovetail": "0.1.0"}
KEY = Key.of(PARTS)


def key(**changed: str) -> Key:
    """The key of ``PARTS`` with some changed."""
    return Key.of({**PARTS, **changed})


def path_of(local: Local, digest: str = KEY.digest) -> Path:
    """Where an entry lies."""
    return Path(local.path, f"{digest}.entry")
