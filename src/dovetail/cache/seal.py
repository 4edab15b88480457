"""What a remote cache gives is believed only with an HMAC under the user's key.

A sealed entry is 32 bytes of HMAC-SHA256, over the digest of the key that it is stored under and
the entry, and then the entry. It lies under a name that begins with a hash of the secret: users
with different secrets do not see each other's entries.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from dovetail.cache.entry import Damaged
from dovetail.errors import InvalidKey

_MAC = 32
_ENTRY, _NAME = b"dovetail cache entry 1\n", b"dovetail cache name 1\n"
# A secret that others can read is none, and one that they can write is theirs. A group may read
# it: so container platforms hand out secrets.
_OTHERS = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
HOW_TO_MAKE_A_KEY = "make one with `dovetail cache new-key FILE` and set DOVETAIL_CACHE_KEY=FILE"


def read_secret(path: str) -> bytes:
    """The secret of a key file: 64 hex digits."""
    try:
        with Path(path).open("rb") as file:
            info, text = os.fstat(file.fileno()), file.read(1024)
    except OSError as error:
        raise InvalidKey(f"cannot read {path}: {error.strerror}; {HOW_TO_MAKE_A_KEY}") from None
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & _OTHERS:
        raise InvalidKey(f"{path} is not its user's alone: chown it to yourself and chmod 600 it")
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise InvalidKey(f"{path} holds no key of 64 hex digits; {HOW_TO_MAKE_A_KEY}")
    return secret


def name_of(secret: bytes, digest: str) -> str:
    """The name that a key's entry has in a remote cache."""
    return f"{hmac.digest(secret, _NAME, hashlib.sha256).hex()[:16]}/{digest}"


def seal(secret: bytes, digest: str, pieces: Sequence[bytes]) -> bytes:
    """An entry, in pieces, with its proof."""
    return b"".join([_mac(secret, digest, pieces), *pieces])


def unseal(secret: bytes, digest: str, data: bytes) -> bytes:
    """The entry that was sealed for this key with this secret; or ``Damaged``."""
    data, mac = data[_MAC:], data[:_MAC]
    if not hmac.compare_digest(mac, _mac(secret, digest, [data])):
        raise Damaged("an entry there was not written with this key (DOVETAIL_CACHE_KEY)")
    return data


def _mac(secret: bytes, digest: str, pieces: Sequence[bytes]) -> bytes:
    mac = hmac.new(secret, _ENTRY + bytes.fromhex(digest), hashlib.sha256)
    for piece in pieces:
        mac.update(piece)
    return mac.digest()
