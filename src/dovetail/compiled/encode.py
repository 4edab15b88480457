"""A compiled graph as bytes: a JSON head, then chunks that it refers to by number.

Reading runs nothing and decodes only what linking needs: the calls of a segment and the verdicts
stay bytes until somebody asks. Equal chunks are written once. The bytes carry no checksum: who
keeps or sends them (the cache) adds one.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.backend import Blob, Support
from dovetail.compiled.graph import Calls, CompiledGraph, CompiledPart, CompiledSegment
from dovetail.compiled.tensors import tensor_from_bytes, tensor_to_bytes
from dovetail.compiled.verify import verify
from dovetail.errors import DovetailError, InvalidCompiledGraph
from dovetail.ir.encode import (
    arg_to_json,
    desc_from_json,
    desc_to_json,
    segment_to_bytes,
    unbound_from_json,
)
from dovetail.ir.segment import Input, ValueKey
from dovetail.place.verdicts import Selection, Verdict

MAGIC = b"dvtgraph"
VERSION = 1
_HEAD = struct.Struct("<8sIIQ")  # magic, version, number of chunks, bytes of the JSON
_LENGTH = struct.Struct("<Q")
# What reading raises of bytes that are none; PyTorch, of a device that is not there, the last two.
_NO_GRAPH = (
    *(ValueError, LookupError, TypeError, ArithmeticError, struct.error),
    *(RuntimeError, AssertionError),
)


def encode(graph: CompiledGraph) -> bytes:
    """The graph as bytes; InvalidCompiledGraph where only this process can run it."""
    reason = graph.not_portable()
    if reason:
        raise InvalidCompiledGraph(reason)
    chunks = _Chunks()
    head = {
        "kind": graph.kind,
        "parts": [None if p is None else _part(p, chunks) for p in (graph.once, graph.every)],
        "frozen": list(graph.frozen),
        "labels": [[position, label] for position, label in graph.labels.items()],
        "backends": [list(each) for each in graph.backends],
    }
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    sizes = b"".join(_LENGTH.pack(len(chunk)) for chunk in chunks.numbers)
    start = _HEAD.pack(MAGIC, VERSION, len(chunks.numbers), len(text))
    return b"".join([start, sizes, text, *chunks.numbers])


def decode(data: bytes) -> CompiledGraph:
    """The graph that ``encode`` wrote; InvalidCompiledGraph for anything else."""
    try:
        graph = _decode(memoryview(data))
    except DovetailError:
        raise
    except _NO_GRAPH as error:
        raise InvalidCompiledGraph(f"these bytes hold no compiled graph: {error!r}") from None
    verify(graph)
    return graph


class _Chunks:
    """Numbers chunks as they come; equal ones have one number."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def add(self, chunk: bytes) -> int:
        return self.numbers.setdefault(chunk, len(self.numbers))


def _part(part: CompiledPart, chunks: _Chunks) -> dict[str, Any]:
    verdicts = json.dumps([_verdict(v) for v in part.all_verdicts()], separators=(",", ":"))
    constants = []
    for name, value in part.constants.items():
        desc, contents = tensor_to_bytes(name, value)
        constants.append([name, desc, chunks.add(contents)])
    return {
        "inputs": [[i.name, desc_to_json(i.desc), i.kind] for i in part.inputs],
        "outputs": [arg_to_json(out) for out in part.outputs],
        "segments": [_segment(each, chunks) for each in part.segments],
        "symbols": [[name, *where] for name, where in part.symbols.items()],
        "constants": constants,
        "verdicts": chunks.add(verdicts.encode()),
        "hints": dict(part.hints),
    }


def _segment(each: CompiledSegment, chunks: _Chunks) -> dict[str, Any]:
    return {
        "name": each.name,
        "backends": list(each.backends),
        "calls": chunks.add(segment_to_bytes(each.segment)),
        "blob": chunks.add(each.blob.data),
        "sources": [[name, *path] for name, path in each.sources],
        "results": [[name, *path] for name, path in each.results],
        "draws": each.calls.draws,
        "failures": [list(failure) for failure in each.failures],
    }


def _verdict(verdict: Verdict) -> list[Any]:
    answers = [[name, a.ok, a.reason, a.cost.hex()] for name, a in verdict.answers]
    row: list[Any] = [verdict.call, verdict.op, verdict.backend, answers]
    return row if verdict.selection is None else [*row, _selection(verdict.selection)]


def _selection(found: Selection) -> list[Any]:
    """Times as they are, to the last bit."""
    times = [[[n, each.hex()] for n, each in row] for row in (found.seconds, found.estimates)]
    return [found.chosen, found.reason, *times, found.taken]


def _read_selection(data: Any) -> Selection:
    chosen, reason, seconds, estimates, taken = data
    measured, modelled = (
        tuple((str(name), float.fromhex(each)) for name, each in row)
        for row in (seconds, estimates)
    )
    return Selection(str(chosen), str(reason), measured, modelled, str(taken))


def _decode(data: memoryview) -> CompiledGraph:
    magic, version, count, size = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise ValueError("another format or version")
    start = _HEAD.size + count * _LENGTH.size
    if start + size > len(data):
        raise ValueError("cut short")
    sizes = [n for (n,) in _LENGTH.iter_unpack(data[_HEAD.size : start])]
    head = json.loads(bytes(data[start : start + size]))
    offset, chunks = start + size, []
    for length in sizes:
        chunks.append(data[offset : offset + length])
        offset += length
    if offset != len(data):
        raise ValueError("chunks that do not fill the rest")
    once, every = (None if part is None else _read_part(part, chunks) for part in head["parts"])
    if every is None:
        raise ValueError("no part that runs at every call")
    return CompiledGraph(
        kind=str(head["kind"]),
        every=every,
        once=once,
        frozen=tuple(map(int, head["frozen"])),
        labels={int(position): str(label) for position, label in head["labels"]},
        backends=tuple((str(name), str(fingerprint)) for name, fingerprint in head["backends"]),
    )


def _read_part(data: dict[str, Any], chunks: Sequence[memoryview]) -> CompiledPart:
    inputs = tuple(Input(str(n), desc_from_json(d), str(kind)) for n, d, kind in data["inputs"])
    verdicts = bytes(_chunk(chunks, data["verdicts"]))
    return CompiledPart(
        inputs=inputs,
        outputs=tuple(map(unbound_from_json, data["outputs"])),
        segments=tuple(_read_segment(each, chunks) for each in data["segments"]),
        symbols={
            str(name): (int(position), None if dim is None else int(dim))
            for name, position, dim in data["symbols"]
        },
        constants={
            str(name): tensor_from_bytes(desc, _chunk(chunks, number))
            for name, desc, number in data["constants"]
        },
        verdicts=_later(verdicts),
        hints={str(symbol): int(value) for symbol, value in data["hints"].items()},
    )


def _read_segment(data: dict[str, Any], chunks: Sequence[memoryview]) -> CompiledSegment:
    return CompiledSegment(
        Calls(bytes(_chunk(chunks, data["calls"])), str(data["name"]), draws=bool(data["draws"])),
        tuple(map(str, data["backends"])),
        Blob(bytes(_chunk(chunks, data["blob"]))),
        tuple(map(_key, data["sources"])),
        tuple(map(_key, data["results"])),
        tuple((str(backend), str(reason)) for backend, reason in data["failures"]),
    )


def _chunk(chunks: Sequence[memoryview], number: int) -> memoryview:
    if not 0 <= number < len(chunks):
        raise ValueError(f"chunk {number} of {len(chunks)}")
    return chunks[number]


def _key(row: list[Any]) -> ValueKey:
    return str(row[0]), tuple(map(int, row[1:]))


def _later(data: bytes) -> Callable[[], tuple[Verdict, ...]]:
    """Verdicts that are read when somebody asks for them, once."""

    @functools.cache
    def read() -> tuple[Verdict, ...]:
        return tuple(
            Verdict(
                str(call),
                str(op),
                str(backend),
                tuple(
                    (str(name), Support(bool(ok), str(reason), float.fromhex(cost)))
                    for name, ok, reason, cost in answers
                ),
                *map(_read_selection, selection),
            )
            for call, op, backend, answers, *selection in json.loads(data)
        )

    return read
