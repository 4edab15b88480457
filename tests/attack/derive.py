"""``python -m tests.attack.derive``: the list of operators that untrusted files may call.

Collects calls from op_db, keeps those of candidates, attacks them, and writes what withstood to
``src/dovetail/ir/host_operators.py`` and a call of each to ``samples.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import dovetail.ir.host_operators
from tests.attack.mutate import of_dtype
from tests.attack.rule import refusal
from tests.attack.run import attack_calls
from tests.attack.samples import FILE, Call, collect

SAMPLES, PAIRS = 3, 8  # calls of an operator, pairs of changes of a call
DTYPES = ("bfloat16", "float64")  # besides float32


def operator(name: str) -> Any:
    """An operator of this PyTorch, or None."""
    _, base, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, base, None), overload, None)


def candidates(calls: Iterable[Call]) -> list[Call]:
    """The calls of operators that the rule lets on the list."""
    return [call for call in calls if not refusal(operator(call[0]))]


def in_dtypes(calls: Sequence[Call]) -> list[Call]:
    """The calls, and those of float32 in other dtypes too."""
    others = [of_dtype(call, dtype) for call in calls for dtype in DTYPES]
    return sorted([*calls, *filter(None, others)], key=lambda call: call[0])


def write_list(names: Iterable[str]) -> None:
    """Replace the names in the module that holds them."""
    path = Path(dovetail.ir.host_operators.__file__)
    before, rest = path.read_text().split('_NAMES = """\n', 1)
    _, after = rest.split('\n"""\n', 1)
    body = textwrap.fill(
        " ".join(sorted(name.removeprefix("aten.") for name in names)),
        96,
        initial_indent="    ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )
    path.write_text(f'{before}_NAMES = """\n{body}\n"""\n{after}')


def write_samples(calls: Iterable[Call]) -> None:
    """Keep one call of each operator, one a line."""
    first = {}
    for call in calls:
        first.setdefault(call[0], call)
    lines = ",\n".join(json.dumps(first[name]) for name in sorted(first))
    FILE.write_text(f"[\n{lines}\n]\n")


def main() -> None:
    """Derive the list and say what was found."""
    torch.set_num_threads(1)
    calls = candidates(collect(SAMPLES))
    with tempfile.TemporaryDirectory() as folder:
        findings, tried = attack_calls(
            in_dtypes(calls), Path(folder), pairs=PAIRS, deaths=sys.maxsize
        )
    for finding in findings:
        print(finding)
    bad = {finding.op for finding in findings}
    good = [call for call in calls if call[0] not in bad]
    write_list({call[0] for call in good})
    write_samples(good)
    print(f"{tried} calls; {len({c[0] for c in good})} operators listed, {sorted(bad)} not")


if __name__ == "__main__":
    main()
