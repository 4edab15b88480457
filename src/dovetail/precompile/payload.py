"""What PyTorch keeps of ours, as bytes: what the code was made for, then the compiled graph.

The file that PyTorch writes is a pickle of its own. Ours in it is one string of bytes: magic, the
SHA-256 of the rest, the length of a JSON head, the head, the compiled graph. Reading it runs
nothing.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import NotRestored

MAGIC = b"dvtpre01"
_SIZE = struct.Struct("<Q")  # bytes of the JSON


@dataclass(frozen=True)
class Payload:
    """A compiled graph, and all that must be the same where it runs."""

    parts: Mapping[str, str]  # by name: versions, processor, backends, options, the function
    guards: tuple[tuple[str, str], ...]  # where an object is found → what it must be
    backend: str  # what ``backend=`` named
    device: str  # where the inputs are
    graph: bytes
    options: Mapping[str, Any] = field(default_factory=dict)  # those of the call, by name
    names: int = 0  # Dynamo had numbered so many names

    def encode(self) -> bytes:
        """The payload as bytes."""
        head = {
            "parts": dict(self.parts),
            "guards": [list(guard) for guard in self.guards],
            "backend": self.backend,
            "device": self.device,
            "options": dict(self.options),
            "names": self.names,
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        size = _SIZE.pack(len(text))
        digest = hashlib.sha256(b"".join([size, text, self.graph])).digest()
        return b"".join([MAGIC, digest, size, text, self.graph])

    @staticmethod
    def decode(data: bytes) -> Payload:
        """What ``encode`` wrote; NotRestored for anything else."""
        start = len(MAGIC) + 32
        if not isinstance(data, bytes) or data[: len(MAGIC)] != MAGIC or len(data) < start + 8:
            raise NotRestored("its code is none of this format")
        if hashlib.sha256(memoryview(data)[start:]).digest() != data[len(MAGIC) : start]:
            raise NotRestored("its code is damaged")
        try:
            return _read(data, start)
        except (ValueError, KeyError, TypeError) as error:
            raise NotRestored(f"its code cannot be read: {error!r}") from None


def _read(data: bytes, start: int) -> Payload:
    (size,) = _SIZE.unpack_from(data, start)
    begin = start + _SIZE.size
    head = json.loads(data[begin : begin + size])
    return Payload(
        parts={str(name): str(text) for name, text in head["parts"].items()},
        guards=tuple((str(path), str(text)) for path, text in head["guards"]),
        backend=str(head["backend"]),
        device=str(head["device"]),
        options={str(name): value for name, value in head["options"].items()},
        names=int(head["names"]),
        graph=data[begin + size :],
    )
