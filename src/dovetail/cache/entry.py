"""An entry of the cache as bytes.

    8   magic "DVTCACHE"
    4   format version
    4   length of the header
    8   length of the payload
        header: digest of the key (32), when it was made and what compiling took (two doubles,
        seconds), label, number of parts (2), and of each part its name, hash (32) and text
        payload
    32  SHA-256 of all of the above

Numbers are little-endian; a string is its length (2) and that many bytes of UTF-8.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.cache.key import FORMAT, Key

_MAGIC = b"DVTCACHE"
_FRONT = struct.Struct("<8sIIQ")
_TIMES = struct.Struct("<dd")
_COUNT = struct.Struct("<H")
_HASH = 32
# Bytes: what the header of a thousand parts takes. Read before anything vouches for the length.
_LONGEST_HEADER = 1 << 20
_LONGEST_STRING = 0xFFFF
FRONT = _FRONT.size


class Damaged(Exception):
    """Bytes that are no entry, or not the one they should be."""


@dataclass(frozen=True)
class EntryHeader:
    """What an entry says about itself."""

    key: Key
    created: float
    """Seconds since 1970."""
    seconds: float
    """What compiling it took."""
    label: str
    size: int
    """Bytes of the payload."""


def encode(key: Key, payload: bytes, *, seconds: float = 0.0, label: str = "") -> list[bytes]:
    """The bytes of an entry, in pieces that are written one after the other."""
    header = _encode_header(key, seconds, label)
    front = _FRONT.pack(_MAGIC, FORMAT, len(header), len(payload))
    return [front + header, payload, _hash(front, header, payload)]


def read_payload(take: Callable[[int], bytes], size: int, digest: str) -> bytes:
    """The payload of the entry of this key, every byte of the entry checked; or ``Damaged``.

    ``take`` gives the next bytes of the ``size`` that there are: a large payload is never copied.
    """
    front = take(FRONT)
    header = take(header_length(front))
    length = _FRONT.unpack(front)[3]
    missing = FRONT + len(header) + length + _HASH - size
    if missing:
        raise Damaged("it is cut short" if missing > 0 else "something follows it")
    payload = take(length)
    if _hash(front, header, payload) != take(_HASH):
        raise Damaged("its bytes are not those that were written")
    if header[:_HASH].hex() != digest:
        raise Damaged("it is the entry of another key")
    return payload


def payload_of(data: bytes, digest: str) -> bytes:
    """The same of an entry in memory."""
    return read_payload(_EntryReader(data, 0).take, len(data), digest)


def header_of(data: bytes) -> EntryHeader:
    """The header of a whole entry, every byte of the entry checked; or ``Damaged``."""
    header = decode_header(data)
    payload_of(data, header.key.digest)
    return header


def header_length(front: bytes) -> int:
    """How many bytes follow the first ``FRONT`` ones until the payload; or ``Damaged``."""
    if len(front) < FRONT:
        raise Damaged("it is cut short")
    magic, version, header, _ = _FRONT.unpack_from(front)
    if magic != _MAGIC:
        raise Damaged("it is no entry of a cache")
    if version != FORMAT:
        raise Damaged(f"its format is {version}, not {FORMAT}")
    if not _HASH <= header <= _LONGEST_HEADER:
        raise Damaged("its header has an impossible length")
    return int(header)


def decode_header(data: bytes) -> EntryHeader:
    """The header at the start of an entry, which may lack its payload; or ``Damaged``."""
    end = FRONT + header_length(data)
    reader = _EntryReader(data[:end], FRONT)
    digest = reader.take(_HASH).hex()
    created, seconds = _TIMES.unpack(reader.take(_TIMES.size))
    label = reader.string()
    key = reader.key()
    if reader.at != end or key.digest != digest:
        raise Damaged("its header contradicts itself")
    return EntryHeader(key, created, seconds, label, _FRONT.unpack_from(data)[3])


def encode_key(key: Key) -> bytes:
    """A key by itself, for ``decode_key``."""
    return _COUNT.pack(len(key.parts)) + b"".join(
        _string(name) + bytes.fromhex(hashed) + _string(text) for name, hashed, text in key.parts
    )


def decode_key(data: bytes) -> Key:
    """What ``encode_key`` wrote; or ``Damaged``."""
    return _EntryReader(data, 0).key()


def _encode_header(key: Key, seconds: float, label: str) -> bytes:
    header = bytes.fromhex(key.digest) + _TIMES.pack(time.time(), seconds)
    return header + _string(label) + encode_key(key)


def _hash(*pieces: bytes) -> bytes:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.digest()


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    if len(data) > _LONGEST_STRING:
        data = data[:_LONGEST_STRING].decode("utf-8", "ignore").encode()
    return _COUNT.pack(len(data)) + data


class _EntryReader:
    """Takes what stands next, or says that it is not there."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) != count:
            raise Damaged("it is cut short")
        self.at += count
        return taken

    def string(self) -> str:
        (length,) = _COUNT.unpack(self.take(_COUNT.size))
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise Damaged("its header holds text that is none") from None

    def key(self) -> Key:
        (count,) = _COUNT.unpack(self.take(_COUNT.size))
        return Key(
            tuple((self.string(), self.take(_HASH).hex(), self.string()) for _ in range(count))
        )
