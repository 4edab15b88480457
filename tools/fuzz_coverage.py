"""What the fuzzer reached of the loader and the verifier, and why the rest is out of its reach.

``make fuzz-coverage`` builds the runtime with gcov, runs the fuzzer and calls this with the
folder of the objects. Every line that never ran must be explained by ``native/fuzz/unreached.txt``,
or it is an error. Which lines run depends on how many inputs there are, so an entry that explains
nothing this time is only named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REASONS = ROOT / "native" / "fuzz" / "unreached.txt"
# Everything that reads, verifies and binds what a file says. Kernels' arithmetic is tested
# elsewhere, by its results.
HELD = (
    *(
        "file.c",
        "artifact.c",
        "generated.c",
        "decode.c",
        "layout.c",
        "flow.c",
        "frame.c",
        "run.c",
        "size.c",
        "plan.c",
    ),
    *("kernel_decode.c", "kernel_bind.c", "kernel_plan.c", "kernel_run.c", "kernel_memory.c"),
    "kernel_reduce.c",
    *("kernel_rules.c", "table.c", "defined.c", "region.c", "inputs.c", "source.c"),
    *("device_decode.c", "device.c", "device_run.c", "elf.c", "elf_x86_64.c", "elf_aarch64.c"),
)


@dataclass(frozen=True)
class Line:
    """A line of C that holds code: whose it is, and how often it ran."""

    file: str
    number: int
    function: str
    text: str
    count: int


@dataclass(frozen=True)
class Reason:
    """Why lines of a file cannot be reached: all of a function's, or those that hold a text."""

    file: str
    pattern: str
    words: str

    def explains(self, line: Line) -> bool:
        """Whether it speaks of this line."""
        if self.file not in ("*", line.file):
            return False
        if self.pattern.endswith("()"):
            return line.function == self.pattern[:-2]
        return self.pattern in line.text


def read_reasons(path: Path) -> list[Reason]:
    """Lines ``file | function() or text of the line | reason``; ``#`` starts a comment."""
    rows = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    parts = [row.split(" | ") for row in rows if row and not row.startswith("#")]
    for part in parts:
        if len(part) != 3:
            sys.exit(f"{path}: not 'file | what | reason': {' | '.join(part)}")
    return [Reason(*(p.strip() for p in part)) for part in parts]


def covered(folder: Path) -> Iterator[Line]:
    """What gcov counted for the objects of a folder."""
    for data in sorted(folder.glob("*.gcda")):
        ran = subprocess.run(
            ["gcov", "--json-format", "--stdout", data.name],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        for file in json.loads(ran.stdout)["files"]:
            yield from _lines(file)


def _lines(file: dict[str, object]) -> Iterator[Line]:
    path = Path(str(file["file"]))
    source = path if path.is_absolute() else ROOT / path
    text = source.read_text(encoding="utf-8").splitlines()
    rows = file["lines"]
    assert isinstance(rows, list)
    for row in rows:
        number = row["line_number"]
        words = text[number - 1].strip()
        yield Line(path.name, number, row.get("function_name", ""), words, row["count"])


def merged(lines: Iterable[Line]) -> dict[tuple[str, int], Line]:
    """One a place: a line of a header or a static function is in several objects."""
    found: dict[tuple[str, int], Line] = {}
    for line in lines:
        key = (line.file, line.number)
        if key not in found or found[key].count < line.count:
            found[key] = line
    return found


def main(folder: str) -> int:
    """Print the table and what was not reached; 1 where a line of it has no reason."""
    lines = sorted(merged(covered(Path(folder))).values(), key=lambda x: (x.file, x.number))
    reasons = read_reasons(REASONS)
    used: set[Reason] = set()
    unexplained = 0
    for name in sorted({line.file for line in lines}):
        rows = [line for line in lines if line.file == name]
        missed = [line for line in rows if line.count == 0]
        held = "" if name in HELD else "  (not held to account)"
        share = 100 * (1 - len(missed) / len(rows))
        print(f"{name}: {share:.1f}% of {len(rows)} lines{held}")
        for line in missed if name in HELD else []:
            found = [reason for reason in reasons if reason.explains(line)]
            used.update(found)
            unexplained += not found
            print(f"  {line.number:4} {line.text}  -- {found[0].words if found else 'NO REASON'}")
    held_lines = [line for line in lines if line.file in HELD]
    reached = sum(line.count > 0 for line in held_lines)
    print(f"loader and verifier: {reached} of {len(held_lines)} lines reached, ", end="")
    print(f"{len(held_lines) - reached} not, {unexplained} of these without a reason")
    for reason in reasons:
        if reason not in used:
            print(f"explains nothing this time: {reason.file} | {reason.pattern}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
