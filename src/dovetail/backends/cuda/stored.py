"""A compiled segment as bytes: the segment, and each kernel's code by the kernel's name.

Four bytes that tell it apart, the length of a JSON table, the table, the segment, the code. The
table says which GPU the code is for, and of each kernel a digest of its text and its schedule:
who reads it plans the segment again, and may find other kernels than those that were compiled.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.codegen.triton.compile import Cubin
from dovetail.errors import InvalidArtifact, UnsupportedGraph
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes

if TYPE_CHECKING:
    from dovetail.ir import Segment
    from dovetail.ir.kernel import Kernel
    from dovetail.schedule.gpu.blocks import BlockSchedule

_MAGIC = b"DVGC"
_HEAD = struct.Struct("<4sI")
CALLING = 1  # how a kernel takes its arguments; code of another number is compiled again


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment with its code, and what that code is of."""

    segment: Segment
    target: str  # whose code it is, such as sm_90
    code: Mapping[str, Cubin]  # by the kernels' names
    digests: Mapping[str, str]  # what was compiled: ``digest_of`` each


def digest_of(kernel: Kernel, schedule: BlockSchedule) -> str:
    """What tells whether code is that of a kernel under a schedule."""
    text = f"{CALLING}\n{kernel}\n{schedule}"
    return hashlib.sha256(text.encode()).hexdigest()


def is_stored(data: bytes) -> bool:
    """Whether bytes are of this form."""
    return data.startswith(_MAGIC)


def store(held: StoredSegment) -> bytes:
    """A segment and its code."""
    whole = segment_to_bytes(held.segment)
    table: dict[str, Any] = {"segment": len(whole), "target": held.target, "kernels": {}}
    for name, cubin in held.code.items():
        numbers = [len(cubin.code), cubin.warps, cubin.shared_bytes]
        table["kernels"][name] = [cubin.name, held.digests[name], *numbers]
    text = json.dumps(table, separators=(",", ":")).encode()
    head = _HEAD.pack(_MAGIC, len(text))
    return b"".join([head, text, whole, *(cubin.code for cubin in held.code.values())])


def stored(data: bytes) -> StoredSegment:
    """What ``store`` wrote; InvalidArtifact for anything else."""
    try:
        return _stored(data)
    except (
        *(ValueError, KeyError, TypeError, AttributeError),
        *(struct.error, RecursionError, UnsupportedGraph),
    ) as error:
        raise InvalidArtifact(f"this is no compiled segment of the cuda backend: {error}") from None


def _stored(data: bytes) -> StoredSegment:
    _, length = _HEAD.unpack_from(data)
    place = _HEAD.size + length
    table = json.loads(data[_HEAD.size : place])
    end = place + _count(table["segment"])
    segment = segment_from_bytes(data[place:end])
    code: dict[str, Cubin] = {}
    digests: dict[str, str] = {}
    for key, (name, digest, size, warps, shared) in table["kernels"].items():
        found = data[end : end + _count(size)]
        if len(found) != size:
            raise ValueError("code is missing")
        code[key] = Cubin(str(name), found, _count(warps), _count(shared))
        digests[key] = str(digest)
        end += size
    if end != len(data):
        raise ValueError("bytes behind the code")
    return StoredSegment(segment, str(table["target"]), code, digests)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
