"""A segment's program as an artifact in memory, which ``runtime.executable`` calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail import history
from dovetail.file.container import Section, chunks, lay_out
from dovetail.file.encode import encode_program, scalar_bytes
from dovetail.ir.in_place import is_in_place
from dovetail.ir.program import HostCall, Program, writes
from dovetail.ir.segment import Segment
from dovetail.ir.size import Dim, parse_size, symbols_of
from dovetail.lower.to_program import LoweredProgram
from dovetail.runtime.executable import ManifestEntry

__all__ = ["ManifestEntry", "artifact_bytes", "dim_entry", "when_it_writes", "window"]

_NOT_TAKEN: ManifestEntry = {"any": True}  # a leaf of its inputs: the program does without


def window(shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> ManifestEntry:
    """The part of an entry that says where a window lies."""
    return {
        "shape": [dim_entry(d) for d in shape],
        "strides": [dim_entry(d) for d in strides],
        "offset": dim_entry(offset),
    }


def dim_entry(dim: Dim) -> int | str:
    """A size as an entry has it."""
    return dim if isinstance(dim, int) else str(dim)


def artifact_bytes(
    segment: Segment,
    lowered: LoweredProgram,
    results: Sequence[ManifestEntry],
    generated: Mapping[str, str] | None = None,
    more: Sequence[Section] = (),
    cannot_save: str = "",
) -> bytes:
    """The bytes of an artifact that ``runtime.executable.load`` makes a function of.

    ``cannot_save``: why no file can hold it.
    """
    with history.step("encode"):
        contents = {name: scalar_bytes(*scalar) for name, scalar in lowered.scalars.items()}
        manifest = {
            "inputs": {"list": _taken(segment, lowered)},
            "outputs": {"list": list(results)},
            "symbols": _symbols(lowered.program, results),
            "writes": when_it_writes(lowered.program),
        }
        if cannot_save:
            manifest["cannot_save"] = cannot_save
        sections, features = encode_program(
            lowered.program, contents, manifest, generated=generated, debug=False
        )
        return b"".join(chunks(*lay_out([*sections, *more], features)))


def _taken(segment: Segment, lowered: LoweredProgram) -> list[ManifestEntry]:
    """For each input of the segment, which of the program's it is."""
    positions = {lowered.taken[b.name]: n for n, b in enumerate(lowered.program.inputs)}
    return [
        {"tensor": positions[given.name]} if given.name in positions else _NOT_TAKEN
        for given in segment.inputs
    ]


def _symbols(program: Program, results: Sequence[ManifestEntry]) -> list[tuple[str, int, int]]:
    """Where the symbols of windows and sizes are read: name, input, axis (-1: its value)."""
    needed: set[str] = set()
    for entry in results:
        texts = [entry.get("size", 0), entry.get("offset", 0)]
        texts += [
            text for key in ("shape", "strides", "input_strides") for text in entry.get(key, ())
        ]
        for text in texts:
            needed |= symbols_of(parse_size(text) if isinstance(text, str) else text)
    positions = {buffer.name: n for n, buffer in enumerate(program.inputs)}
    known = {s.name: (positions[s.input], s.axis) for s in program.symbols}
    return [(name, *known[name]) for name in sorted(needed)]


def when_it_writes(program: Program) -> str:
    """When a program writes to its inputs: "never", "last" (no host call follows) or "early".

    Kernels that write where an input lies may fail when some of it is written.
    """
    inputs = {b.name for b in program.buffers if b.kind == "input"}
    inputs |= {b.name for b in program.buffers if b.of in inputs}
    written = [n for n, i in enumerate(program.instructions) if inputs & {*writes(i)}]
    if not written:
        return "never"
    follow = program.instructions[written[0] :]
    return "early" if any(isinstance(i, HostCall) or is_in_place(i) for i in follow) else "last"
