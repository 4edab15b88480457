"""Files of new keys, for ``dovetail sign`` and ``dovetail cache``."""

from __future__ import annotations

import os

from dovetail.errors import InvalidKey


def write_key(path: str, key: bytes) -> None:
    """Write a key as hex, readable by its owner alone; an existing file is never replaced."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidKey(f"cannot create {path!r}: {error.strerror}") from None
    with os.fdopen(handle, "w") as file:
        file.write(key.hex() + "\n")
