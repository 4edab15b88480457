"""The report of a .dvt file: its program as a graph of instructions, its kernels, its memory.

A file comes from anywhere. The C runtime opens and verifies it; what is shown are the sections that
it read. No code is generated from it, and none of it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail import __version__
from dovetail.errors import InvalidArtifact
from dovetail.file import container
from dovetail.file.decode import decode_sections
from dovetail.file.kernel_decode import decode_kernels, has_names
from dovetail.file.objects import functions
from dovetail.file.processors import processor_name
from dovetail.ir.call import format_desc
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_text import print_kernel
from dovetail.ir.program import Program, reads, writes
from dovetail.ir.program_text import parse_program
from dovetail.ir.program_verify import verify_program
from dovetail.page.program import Profile, program_data

MOST_INSTRUCTIONS = 20_000  # that are drawn: a browser takes seconds for so many
_SECTIONS = (
    container.STRINGS,
    container.SIZES,
    container.BUFFERS,
    container.PROGRAM,
    container.KERNELS,
    container.HOST_CALLS,
    container.GUARDS,
    container.LAYOUTS,
)
_GIVEN = ("input", "constant", "state")


def profiled_report(
    native: Any, shapes: Sequence[Sequence[int]], limits: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The report of a file that was measured, called with tensors of these shapes."""
    program, _ = read_program(native)
    given = dict(zip((buffer.name for buffer in program.inputs), shapes, strict=True))
    sizes = {
        symbol.name: given[symbol.input][symbol.axis]
        for symbol in program.symbols
        if 0 <= symbol.axis < len(given[symbol.input])  # else it is a number that was passed
    }
    profile = Profile(native.times(), native.last_times(), limits)
    return {**file_report(native, sizes=sizes, profile=profile), "limits": limits}


def file_report(
    native: Any,
    notes: Iterable[str] = (),
    sizes: Mapping[str, int] | None = None,
    profile: Profile | None = None,
) -> dict[str, Any]:
    """What ``inspect`` shows of an opened file, in the format of a report."""
    program, told = read_program(native)
    shown = replace(program, instructions=program.instructions[:MOST_INSTRUCTIONS])
    left = len(program.instructions) - len(shown.instructions)
    more = [f"the last {left:,} instructions are not drawn"] if left else []
    data = program_data(shown, sizes, None, profile, _kernels(native)) | {"counted": None}
    graph = _graph(shown, data)
    return {
        "format": "dovetail.report/1",
        "dovetail": __version__,
        "graph_breaks": [],
        "limits": None,
        "compilations": [
            {
                "number": 0,
                "backends": sorted({call["backend"] for call in graph["calls"]}) or ["none"],
                "milliseconds": 0,
                "notes": [*notes, *told, *more],
                "cache": [],
                "stages": [],
                "graphs": [graph],
                "kernels": kernel_rows(native),
            }
        ],
    }


def read_program(native: Any) -> tuple[Program, list[str]]:
    """The program of a file, and what a reader should know of where it comes from."""
    held = {kind: native.section(kind) for kind in _SECTIONS}
    sections = {kind: data for kind, data in held.items() if data is not None}
    sections.setdefault(container.CONSTANTS, b"")  # weights are not shown
    try:
        program, told = decode_sections(sections, "program").program, []
    except InvalidArtifact:
        text = native.section(container.DEBUG) or b""
        program = parse_program(text.decode(errors="replace"))  # what devices run stands there
        told = ["the program is shown as the file's own text has it, not as the runtime reads it"]
    verify_program(program)
    return program, told


def _kernels(native: Any) -> dict[str, Kernel]:
    described = native.section(container.KERNEL_IR)
    if not described or has_names(described):
        return {}
    return {kernel.name: kernel for kernel in decode_kernels(described)}


def kernel_rows(native: Any) -> list[dict[str, Any]]:
    """Each kernel whose IR the file has; its target is what the file has code for."""
    code, described = (native.section(kind) for kind in (container.CODE, container.KERNEL_IR))
    if not described or has_names(described):
        return []
    levels = functions(code) if code else {}
    made: dict[str, list[str]] = {}
    for number, found in levels.items():
        for name, size in found.items():
            made.setdefault(name, []).append(f"{processor_name(number)} ({size:,} bytes)")
    texts = dict.fromkeys(("schedule", "llvm", "assembly"), "")
    return [
        {"name": k.name, "target": ", ".join(made.get(k.name, ())), "ir": print_kernel(k), **texts}
        for k in decode_kernels(described)
    ]


def _graph(program: Program, data: Mapping[str, Any]) -> dict[str, Any]:
    """Instructions as calls: each reads what wrote its buffers last, or what is given."""
    writer: dict[str, str] = {}
    calls = []
    for number, (each, row) in enumerate(
        zip(program.instructions, data["instructions"], strict=True)
    ):
        made = writes(each)
        name = f"{number} {made[0] if made else ''}".rstrip()
        taken = [program.root(buffer).name for buffer in reads(each)]
        calls.append(_call(number, name, row, _made(program, made), _sources(taken, writer)))
        row["calls"] = [name]
        writer |= {program.root(buffer).name: name for buffer in made}
    used = {name for call in calls for name in call["reads"]}
    handed_out = [program.root(out).name for out in program.outputs if isinstance(out, str)]
    given = [b for b in program.buffers if b.kind in _GIVEN and _given(b.name) in used]
    return {
        "kind": "program",
        "inputs": [
            {"name": _given(b.name), "label": b.name, "desc": f"{b.kind} {format_desc(b.desc)}"}
            for b in given
        ],
        "outputs": list(dict.fromkeys(writer[out] for out in handed_out if out in writer)),
        "calls": calls,
        "segments": [_segment(program, data)],
        "counts": {**data["counts"], "elsewhere": 0},
        "copies": [],
    }


def _given(buffer: str) -> str:
    return f"%{buffer}"  # no instruction's name starts so


def _sources(taken: Iterable[str], writer: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(writer.get(buffer, _given(buffer)) for buffer in taken))


def _made(program: Program, names: Iterable[str]) -> str:
    return ", ".join(format_desc(program.by_name[name].desc) for name in names)


def _call(
    number: int, name: str, row: Mapping[str, Any], made: str, sources: list[str]
) -> dict[str, Any]:
    generated = {"kernel": "generated code", "copy": "runtime", "device": "device"}
    by_pytorch = "PyTorch" if "aten." in row["name"] or row["kind"] == "host" else "runtime"
    return {
        "name": name,
        "op": row["name"],
        "backend": generated.get(row["kind"], by_pytorch),
        "segment": "program",
        "answers": [],
        "selection": None,
        "text": f"%{name}: {made} = {row['text']}",
        "reads": sources,
        "source": None,
        "module": "",
        "estimated_seconds": None,
        "expression": "",
        "instructions": [number],
    }


def _segment(program: Program, data: Mapping[str, Any]) -> dict[str, Any]:
    groups = {
        "inputs": [b for b in program.buffers if b.kind == "input"],
        "outputs": [b for b in program.buffers if b.kind == "output"],
        "kept": [b for b in program.buffers if b.kind in ("constant", "state")],
    }
    sizes = {"inputs": "bytes_in", "outputs": "bytes_out", "kept": "bytes_kept"}
    return {
        "name": "program",
        "backend": "file",
        "ops": dict(Counter(row["name"] for row in data["instructions"])),
        **{kind: len(found) for kind, found in groups.items()},
        **{sizes[kind]: sum(map(_bytes, found)) for kind, found in groups.items()},
        "symbolic": bool(program.symbols),
        "estimated_seconds": None,
        "measured": None,
        "copies": [],
        "reformats": 0,
        "text": "",
        "program": dict(data),
    }


def _bytes(buffer: Any) -> int:
    """What a buffer holds; nothing where its sizes are told at each call."""
    total = item_bytes(buffer.desc.dtype)
    for size in buffer.desc.shape:
        if not isinstance(size, int):
            return 0
        total *= size
    return total
