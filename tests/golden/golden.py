"""Golden files: values, kernels and schedules as text, one file a case.

``python -m tests.golden.golden`` writes them again: a changed strategy shows as a readable diff.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dovetail.backends.cpu.code import schedule_kernel
from dovetail.ir.target import TARGETS
from dovetail.report.stages import cpu_segments, kernels_of, middle
from dovetail.schedule.text import print_schedule
from tests.golden.cases import KERNELS, MODELS

HERE = Path(__file__).parent
PROCESSORS = ("x86-64-v4", "x86-64-v3", "armv8-a")
CASES = {
    **{f"kernel_{n}": c for n, c in KERNELS.items()},
    **{f"model_{n}": c for n, c in MODELS.items()},
}


def path_of(case: str) -> Path:
    """Where a case's text is kept."""
    return HERE / "texts" / f"{case}.txt"


def text_of(case: str) -> str:
    """Every stage of a case up to schedules, for each processor."""
    model, inputs = CASES[case]()
    parts: list[str] = []
    for segment in cpu_segments(model, inputs):
        parts += [
            f"==== {stage.name}\n{stage.text}" for stage in middle(segment, TARGETS[PROCESSORS[0]])
        ]
        for kernel in kernels_of(segment, TARGETS[PROCESSORS[0]]):
            for name in PROCESSORS:
                _, schedule = schedule_kernel(kernel, TARGETS[name])
                parts.append(f"==== schedule of {kernel.name}\n{print_schedule(schedule)}")
    return "\n".join(parts)


def target_texts() -> str:
    """The targets that schedules are made for, and a GPU's."""
    return "\n".join(str(TARGETS[name]) for name in (*PROCESSORS, "sm_90"))


def main() -> None:
    """Write every file."""
    folder = HERE / "texts"
    folder.mkdir(exist_ok=True)
    (folder / "targets.txt").write_text(target_texts())
    for case in sys.argv[1:] or CASES:
        path_of(case).write_text(text_of(case))
    for stale in set(folder.glob("*_*.txt")) - {path_of(case) for case in CASES}:
        stale.unlink()


if __name__ == "__main__":
    main()
