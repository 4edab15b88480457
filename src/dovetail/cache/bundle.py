"""Entries in one file, to carry to another machine.

    8   magic "DVTBUNDL"
    4   format version
    4   1 where the entries are sealed with the user's key (``seal.py``), else 0
        of each entry: length (8) and that many bytes
    8   zero, and the end of the file

Numbers are little-endian. An entry holds code that runs when it is hit. So a bundle is read only
with the key that it was sealed with, or when the caller vouches for it; and all of it or nothing.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from dovetail.cache import entry
from dovetail.cache.entry import Damaged
from dovetail.cache.key import Key
from dovetail.cache.local import Local
from dovetail.cache.seal import seal, unseal
from dovetail.errors import InvalidBundle, UntrustedBundle

_MAGIC, _FORMAT = b"DVTBUNDL", 1
_FRONT = struct.Struct("<8sII")
_LENGTH = struct.Struct("<Q")
# A seal comes before each entry.
_SEAL = 32


def write_bundle(path: str, local: Local, digests: Iterable[str], secret: bytes | None) -> int:
    """Write the sound ones of these entries to a file; how many they are."""
    target = Path(path)
    try:
        file = tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False)  # noqa: SIM115
    except OSError as error:
        raise InvalidBundle(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            count = _write(file, local, digests, secret)
        os.replace(file.name, target)  # noqa: PTH105
    except BaseException:
        Path(file.name).unlink()
        raise
    return count


def read_bundle(path: str, local: Local, secret: bytes | None, *, trust: bool = False) -> int:
    """Keep the entries of a bundle, once all of them proved sound; how many they are."""
    try:
        file = Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise InvalidBundle(f"cannot read {path}: {error.strerror}") from None
    with file:
        for _ in _entries(file, local.size, secret, trust):
            pass
        file.seek(0)
        return sum(
            local.write(key, [data]) for key, data in _entries(file, local.size, secret, trust)
        )


def _write(file: IO[bytes], local: Local, digests: Iterable[str], secret: bytes | None) -> int:
    file.write(_FRONT.pack(_MAGIC, _FORMAT, int(secret is not None)))
    count = 0
    for digest in digests:
        data = _sound(local, digest)
        if data is not None:
            sealed = seal(secret, digest, [data]) if secret else data
            file.write(_LENGTH.pack(len(sealed)))
            file.write(sealed)
            count += 1
    file.write(_LENGTH.pack(0))
    return count


def _sound(local: Local, digest: str) -> bytes | None:
    try:
        data = local.raw(digest)
        if data is not None:
            entry.payload_of(data, digest)
        return data
    except Damaged:
        return None


def _entries(
    file: IO[bytes], limit: int, secret: bytes | None, trust: bool
) -> Iterator[tuple[Key, bytes]]:
    """Each entry with its key, checked."""
    is_sealed = _read_front(file)
    if not trust and not (is_sealed and secret):
        what = "is sealed: set DOVETAIL_CACHE_KEY to the key's file" if is_sealed else "has no seal"
        raise UntrustedBundle(f"it {what}; what it holds will run: --trust vouches for it")
    number = 0
    while length := _LENGTH.unpack(_take(file, _LENGTH.size))[0]:
        number += 1
        if length > limit + _SEAL:
            raise InvalidBundle(f"entry {number} is larger than the whole cache may be")
        data = _take(file, length)
        try:
            checked = _checked(data, is_sealed, None if trust else secret)
        except Damaged as error:
            raise InvalidBundle(f"entry {number} is refused: {error}") from None
        yield checked
    if file.read(1):
        raise InvalidBundle("something follows its end")


def _checked(data: bytes, is_sealed: bool, secret: bytes | None) -> tuple[Key, bytes]:
    plain = data[_SEAL:] if is_sealed else data
    key = entry.header_of(plain).key
    if is_sealed and secret is not None:
        unseal(secret, key.digest, data)
    return key, plain


def _read_front(file: IO[bytes]) -> bool:
    magic, version, is_sealed = _FRONT.unpack(_take(file, _FRONT.size))
    if magic != _MAGIC:
        raise InvalidBundle("it is no bundle of cache entries")
    if version != _FORMAT or is_sealed > 1:
        raise InvalidBundle(f"its format is {version}, not {_FORMAT}")
    return bool(is_sealed)


def _take(file: IO[bytes], length: int) -> bytes:
    data = file.read(length)
    if len(data) != length:
        raise InvalidBundle("it is cut short")
    return data
