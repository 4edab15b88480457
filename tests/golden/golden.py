"""Golden files: values, kernels and schedules as text, one file a case.

``python -m tests.golden.golden`` writes them again: a changed strategy shows as a readable diff.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dovetail.backends.cpu.code import schedule_kernel
from dovetail.backends.cuda.code import schedule_blocks
from dovetail.ir.kernel_text import print_kernel
from dovetail.ir.segment import Segment
from dovetail.ir.target import TARGETS
from dovetail.report.stages import cpu_segments, kernels_of, middle
from dovetail.schedule.text import print_schedule
from tests.golden.cases import KERNELS, MODELS

HERE = Path(__file__).parent
PROCESSORS, GPU = ("x86-64-v4", "x86-64-v3", "armv8-a"), "sm_90"
CASES = {
    **{f"kernel_{n}": c for n, c in KERNELS.items()},
    **{f"model_{n}": c for n, c in MODELS.items()},
}


def path_of(case: str) -> Path:
    """Where a case's text is kept."""
    return HERE / "texts" / f"{case}.txt"


def text_of(case: str) -> str:
    """Every stage of a case up to schedules, for each processor and for a GPU."""
    model, inputs = CASES[case]()
    parts: list[str] = []
    for segment in cpu_segments(model, inputs, TARGETS[PROCESSORS[0]]):
        parts += [
            f"==== {stage.name}\n{stage.text}" for stage in middle(segment, TARGETS[PROCESSORS[0]])
        ]
        for kernel in kernels_of(segment, TARGETS[PROCESSORS[0]]):
            for name in PROCESSORS:
                _, schedule = schedule_kernel(kernel, TARGETS[name])
                parts.append(f"==== schedule of {kernel.name}\n{print_schedule(schedule)}")
        parts += gpu_parts(segment)
    return "\n".join(parts)


def gpu_parts(segment: Segment) -> list[str]:
    """The kernels that a GPU would have, where a processor has others, and their schedules."""
    parts: list[str] = []
    others = kernels_of(segment, TARGETS[PROCESSORS[0]])
    for kernel in kernels_of(segment, TARGETS[GPU]):
        if kernel not in others:
            parts.append(f"==== fuse for {GPU}\n{print_kernel(kernel)}")
        _, schedule = schedule_blocks(kernel, TARGETS[GPU])
        parts.append(f"==== schedule of {kernel.name}\n{print_schedule(schedule)}")
    return parts


def target_texts() -> str:
    """The targets that schedules are made for, and a GPU's."""
    return "\n".join(str(TARGETS[name]) for name in (*PROCESSORS, GPU))


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
