"""``dovetail inspect model.dvt``: what a file holds. Runs none of it and needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dovetail.cli.command import Command
from dovetail.cli.files import write_text
from dovetail.cli.progress import progress
from dovetail.errors import ArtifactNotFound
from dovetail.file import container
from dovetail.file.encode import DTYPE_NAMES
from dovetail.file.kernel_decode import decode_kernels, has_names
from dovetail.file.needs_trust import needs_trust, verdict
from dovetail.file.objects import functions
from dovetail.file.processors import processor_name
from dovetail.runtime.loaded import INSPECT, open_native
from dovetail.runtime.trust import SIGNATURES

_INSTRUCTIONS = ("kernel ", "call ", "copy ", "launch ", "blob ")


@click.command(
    cls=Command,
    examples={
        "dovetail inspect model.dvt": "Inputs, outputs, sections, kernels, what it needs.",
        "dovetail inspect model.dvt --html page.html": "The explain page, from the file alone.",
    },
)
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--program", is_flag=True, help="Print the whole program.")
@click.option("--html", metavar="FILE", help="Write a page that shows it.")
def command(file: str, as_json: bool, program: bool, html: str | None) -> int:
    """Show what a .dvt FILE holds; nothing of it runs."""
    with progress(f"reading {file}"):
        found = describe(file)
    if html is not None:
        write_text(html, page(file, found))
        print(f"wrote {html}")
        return 0
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    print(_summary(found))
    if program:
        print(found["program"] or "the file carries no text of its program")
    return 0


def page(path: str, found: dict[str, Any]) -> str:
    """The explain page of a file alone; ``found`` is what is known of it."""
    from dovetail.page.file import file_report
    from dovetail.page.html import page_html

    notes = [
        f"made by {found['producer'] or 'unknown'}, torch {found['torch'] or '-'}",
        f"{found['bytes']:,} bytes, {found['signature']}",
        verdict(found["needs_trust"]),
    ]
    report = file_report(open_native(_existing(path), flags=INSPECT), notes)
    return page_html(report, f"{Path(path).name} {found['name']}".rstrip())


def describe(path: str) -> dict[str, Any]:
    """Everything ``inspect`` shows, as one value."""
    native = open_native(_existing(path), flags=INSPECT)
    with Path(path).open("rb") as file:
        header = container.read_header(file)
    manifest = json.loads(native.section(container.MANIFEST) or b"{}")
    text = native.section(container.DEBUG)
    program = text.decode(errors="replace") if text else ""
    return {
        "file": path,
        "bytes": header.size,
        "version": list(header.version),
        "name": manifest.get("name", ""),
        "producer": manifest.get("producer", ""),
        "torch": manifest.get("torch", ""),
        "signature": SIGNATURES[native.signature()],
        "sections": [{"name": e.name, "offset": e.offset, "bytes": e.size} for e in header.entries],
        "inputs": [_tensor(row) for row in native.inputs()],
        "outputs": [_tensor(row) for row in native.outputs()],
        "host_ops": sorted({op for op, _ in native.host_calls()}),
        "needs_trust": why_untrusted(native),
        "kernels": _words(program, "kernel"),
        "generated": _generated(native),
        "devices": [_device(*row) for row in native.devices()],
        "launches": _words(program, "launch"),
        "blobs": [
            {"owner": owner, "on_device": on_device, "bytes": len(data)}
            for owner, _, on_device, data, _ in native.blobs()
        ],
        "instructions": sum(line.startswith(_INSTRUCTIONS) for line in program.splitlines()),
        "memory": _memory(program),
        "program": program,
    }


def why_untrusted(native: Any) -> list[str]:
    """What in a file only a trusted one may do."""
    bare = native.section(container.CODE) is not None
    return needs_trust(
        (op for op, _ in native.host_calls()),
        (owner for owner, *_ in native.blobs()),
        bare_code=bare and native.section(container.KERNEL_IR) is None,
    )


def _generated(native: Any) -> list[dict[str, Any]]:
    """Each generated kernel: bytes of code by processor, instructions of kernel IR."""
    code, described = (native.section(kind) for kind in (container.CODE, container.KERNEL_IR))
    levels = functions(code) if code else {}
    instructions = {
        kernel.name: sum(1 for _ in kernel.instructions())
        for kernel in (decode_kernels(described) if described and not has_names(described) else ())
    }
    names = dict.fromkeys([*instructions, *(name for found in levels.values() for name in found)])
    return [
        {
            "name": name,
            "code": {
                processor_name(n): found[name] for n, found in levels.items() if name in found
            },
            "instructions": instructions.get(name),
        }
        for name in names
    ]


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise ArtifactNotFound(f"there is no file {path!r}")
    return path


def _tensor(row: tuple[str, int, int, tuple[int, ...]]) -> dict[str, Any]:
    name, code, bits, shape = row
    dtype = DTYPE_NAMES.get((code, bits), f"code{code}:{bits}")
    return {"name": name, "dtype": dtype, "shape": [None if n < 0 else n for n in shape]}


def _words(program: str, word: str) -> dict[str, int]:
    """Each kernel, and how often it is called."""
    found: dict[str, int] = {}
    for line in program.splitlines():
        if line.startswith(f"{word} "):
            name = line.split(" = ", 1)[1].split("(", 1)[0].split(" ", 1)[0]
            found[name] = found.get(name, 0) + 1
    return found


def _memory(program: str) -> str:
    """The memory plan, where sizes are known without a call."""
    from dovetail.errors import DovetailError
    from dovetail.ir.memory import plan_memory
    from dovetail.ir.program_text import parse_program

    try:
        parsed = parse_program(program)
        if parsed.symbols:
            return "planned at each new size"
        plans = [str(plan_memory(parsed))]
        plans += [f"{d.name}: {plan_memory(parsed, device=d.name)}" for d in parsed.devices]
        return "; ".join(plans)
    except DovetailError:
        return "unknown"


def _device(name: str, version: str, abi: int) -> dict[str, Any]:
    return {"plugin": name, "version": version, "abi": f"{abi >> 16}.{abi & 0xFFFF}"}


def _device_lines(found: dict[str, Any]) -> list[str]:
    """Who must be there besides the runtime, and what runs there."""
    lines = [
        f"runs on the plug-in {d['plugin']}: made with version {d['version']}, ABI {d['abi']}"
        for d in found["devices"]
    ]
    if found["launches"]:
        counts = (f"{name} x{n}" for name, n in found["launches"].items())
        lines.append("kernels on devices: " + ", ".join(counts))
    for blob in found["blobs"]:
        where = "on its device" if blob["on_device"] else "by its backend in Python"
        lines.append(f"compiled segment of {blob['owner']}: {blob['bytes']:,} bytes, run {where}")
    return lines


def _summary(found: dict[str, Any]) -> str:
    major, minor = found["version"]
    lines = [
        f"{found['file']}: {found['name'] or 'unnamed'}, {found['bytes']:,} bytes",
        f"format {major}.{minor}, {found['signature']}",
        f"made by {found['producer'] or 'unknown'}, torch {found['torch'] or '-'}",
    ]
    for kind in ("inputs", "outputs"):
        lines.append(f"{kind}:")
        for t in found[kind]:
            shape = ", ".join("?" if n is None else str(n) for n in t["shape"])
            lines.append(f"  {t['name']:<24} {t['dtype']}[{shape}]")
    lines.append("sections:")
    lines += [f"  {s['name']:<24} {s['bytes']:>14,} bytes" for s in found["sections"]]
    lines.append(f"{found['instructions']} instructions; memory: {found['memory']}")
    lines.append("kernels: " + (", ".join(f"{k} x{n}" for k, n in found["kernels"].items()) or "-"))
    lines += _generated_lines(found["generated"])
    lines += _device_lines(found)
    lines.append("calls PyTorch for: " + (", ".join(found["host_ops"]) or "nothing"))
    lines.append(verdict(found["needs_trust"]))
    return "\n".join(lines)


def _generated_lines(generated: list[dict[str, Any]]) -> list[str]:
    lines = ["generated kernels:"] if generated else []
    for kernel in generated:
        sizes = ", ".join(f"{level} {size:,} bytes" for level, size in kernel["code"].items())
        count = kernel["instructions"]
        described = f"kernel IR of {count} instructions" if count is not None else "no kernel IR"
        lines.append(f"  {kernel['name']:<40} {sizes or 'no code'}; {described}")
    return lines
