"""Attack calls in processes of their own, one after the other's death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.attack.samples import Call

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finding:
    """A call that an operator should have refused or answered."""

    op: str
    variant: str
    problem: str


def build_guard(folder: Path) -> Path:
    """The library of guard.c."""
    made = folder / "guard.so"
    source = Path(__file__).with_name("guard.c")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def attack_calls(
    calls: Sequence[Call], folder: Path, *, pairs: int, limit: int = 0, deaths: int = 5
) -> tuple[list[Finding], int]:
    """What is wrong with these calls, and how many variants were tried, ``limit`` of a call.

    After a death the rest of that call's variants is left out, and at the second one of an
    operator the rest of its calls.
    """
    guard, path = build_guard(folder), folder / "calls.json"
    findings: list[Finding] = []
    tried, died = 0, Counter[str]()
    while calls and died.total() < deaths:
        path.write_text(json.dumps(calls))
        lines, status = _run(guard, path, pairs, limit)
        found, at, last = _read(lines, calls)
        findings += found
        tried += len(lines) - len(found)
        if lines and lines[-1] == "end":
            break
        findings.append(Finding(calls[at][0], last, _how(status)))
        died[calls[at][0]] += 1
        calls = [call for call in calls[at + 1 :] if died[call[0]] < 2]
    return findings, tried


def _read(lines: list[str], calls: Sequence[Call]) -> tuple[list[Finding], int, str]:
    """What a process reported, and the call and variant that it reached."""
    findings, at, variant = [], 0, ""
    for line in lines[:-1] if lines and lines[-1] == "end" else lines:
        kind, place, told = line.split(" ", 2)
        if kind == "call":
            at, variant = int(place), told
        else:
            findings.append(Finding(calls[at][0], variant, told))
    return findings, at, variant


def _how(status: int) -> str:
    return f"the process died: {signal.Signals(-status).name}" if status < 0 else f"exit {status}"


def _run(guard: Path, calls: Path, pairs: int, limit: int) -> tuple[list[str], int]:
    reader, writer = os.pipe()
    command = [sys.executable, "-X", "faulthandler=0", "-m", "tests.attack.child"]
    process = subprocess.Popen(
        [*command, str(calls), str(pairs), str(limit), str(writer)],
        cwd=ROOT,
        env=os.environ | {"LD_PRELOAD": str(guard), "OMP_NUM_THREADS": "1"},
        pass_fds=[writer],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    os.close(writer)
    with os.fdopen(reader) as file:
        lines = file.read().splitlines()
    return lines, process.wait()
