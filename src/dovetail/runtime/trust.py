"""Whose native code may run: Ed25519 keys that this user trusts.

One public key a line, 64 hex digits, ``#`` starts a comment, in the file ``trusted_keys`` of
dovetail's configuration directory (``DOVETAIL_CONFIG``, else ``dovetail`` in the user's
configuration directory). The file must belong to the user and be writable by nobody else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dovetail.errors import InvalidKey
from dovetail.options import variable

FILE = "trusted_keys"


def trusted_keys() -> list[bytes]:
    """The public keys that this user trusts; none where there is no such file."""
    path = config_directory() / FILE
    try:
        info = path.stat()
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidKey(f"{path} may be written by others than its owner: chmod 600 it")
    return parse_keys(text, str(path))


def parse_keys(text: str, where: str) -> list[bytes]:
    """Keys from the text of a key file."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.split("#", 1)[0].strip()
        if plain:
            keys.append(_parse(plain, f"{where}, line {number}"))
    return keys


def _parse(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidKey(f"{where}: a key is 64 hex digits")
    return key


def config_directory() -> Path:
    """Where dovetail looks for its configuration."""
    given = variable("DOVETAIL_CONFIG")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "dovetail"
