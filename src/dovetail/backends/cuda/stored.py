"""A compiled segment as bytes: the segment, and each kernel's code by the kernel's name.

Four bytes that tell it apart, the length of a JSON table, the table, the segment, the code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.codegen.triton.compile import Cubin
from dovetail.errors import InvalidArtifact, UnsupportedGraph
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes

if TYPE_CHECKING:
    from dovetail.ir import Segment

_MAGIC = b"DVGC"
_HEAD = struct.Struct("<4sI")


def is_stored(data: bytes) -> bool:
    """Whether bytes are of this form."""
    return data.startswith(_MAGIC)


def store(segment: Segment, code: Mapping[str, Cubin]) -> bytes:
    """A segment and its code."""
    whole = segment_to_bytes(segment)
    table: dict[str, Any] = {"segment": len(whole), "kernels": {}}
    for name, cubin in code.items():
        numbers = [len(cubin.code), cubin.warps, cubin.shared_bytes]
        table["kernels"][name] = [cubin.name, *numbers]
    text = json.dumps(table, separators=(",", ":")).encode()
    head = _HEAD.pack(_MAGIC, len(text))
    return b"".join([head, text, whole, *(cubin.code for cubin in code.values())])


def stored(data: bytes) -> tuple[Segment, dict[str, Cubin]]:
    """What ``store`` wrote; InvalidArtifact for anything else."""
    try:
        _, length = _HEAD.unpack_from(data)
        place = _HEAD.size + length
        table = json.loads(data[_HEAD.size : place])
        end = place + int(table["segment"])
        segment = segment_from_bytes(data[place:end])
        code: dict[str, Cubin] = {}
        for key, (name, size, warps, shared) in table["kernels"].items():
            found = data[end : end + size]
            if len(found) != size:
                raise ValueError("code is missing")
            code[key] = Cubin(str(name), found, int(warps), int(shared))
            end += size
    except (ValueError, KeyError, TypeError, struct.error, UnsupportedGraph) as error:
        raise InvalidArtifact(f"this is no compiled segment of the cuda backend: {error}") from None
    return segment, code
