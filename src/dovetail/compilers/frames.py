"""What a compile worker and its parent say to each other: a JSON head, then raw bytes.

A frame is a magic, the length of each part, and both parts. Nothing in it is evaluated, and a
frame that is not of this form, or longer than it may be, is refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

_START = struct.Struct("<4sIQ")  # magic, bytes of the head, bytes of the body
_MAGIC = b"dvcw"
_LONGEST_HEAD = 1 << 24
CHUNK = 1 << 20  # bytes read at once


class BadFrame(Exception):
    """Bytes that are no frame: somebody else wrote to the pipe."""


class Frame(NamedTuple):
    """One message."""

    head: dict[str, Any]
    body: bytes = b""


def pack(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A frame as bytes."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return _START.pack(_MAGIC, len(text), len(body)) + text + body


class FrameReader:
    """Frames from bytes that come in pieces."""

    def __init__(self, longest_body: int = 1 << 40) -> None:
        self.longest_body = longest_body
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self._held += data

    def take(self) -> Frame | None:
        """The next whole frame; None where more bytes are needed first."""
        if len(self._held) < _START.size:
            return None
        magic, head, body = _START.unpack_from(self._held)
        if magic != _MAGIC or head > _LONGEST_HEAD or body > self.longest_body:
            raise BadFrame("not the start of a frame")
        end = _START.size + head + body
        if len(self._held) < end:
            return None
        text = bytes(self._held[_START.size : _START.size + head])
        data = bytes(self._held[_START.size + head : end])
        del self._held[:end]
        return Frame(_read_head(text), data)


def _read_head(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a head that is no JSON: {error}") from None
    if not isinstance(head, dict):
        raise BadFrame("a head that is no table")
    return head
