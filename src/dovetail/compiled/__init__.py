"""The compiled graph: the value that compilation returns, and that ``runtime.link`` makes run."""

from dovetail.compiled.encode import decode, encode
from dovetail.compiled.graph import Calls, CompiledGraph, CompiledPart, CompiledSegment
from dovetail.compiled.verify import verify

__all__ = [
    "Calls",
    "CompiledGraph",
    "CompiledPart",
    "CompiledSegment",
    "decode",
    "encode",
    "verify",
]
