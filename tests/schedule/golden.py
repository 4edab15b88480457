"""Kernels with their schedules for three targets, a file each: a change of strategy is a diff.

python -m tests.schedule.golden          writes the schedules of the kernels anew
python -m tests.schedule.golden PROGRAM  adds the kernels of a program of the tests or the bench
"""

import sys
from pathlib import Path

from dovetail.ir.kernel_text import parse_kernel, print_kernel
from dovetail.ir.target import TARGETS
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.text import print_schedule

FOLDER = Path(__file__).parent / "golden"
NAMES = ("x86-64-v4", "x86-64-v3", "armv8-a")


def files():
    return sorted(FOLDER.glob("*.schedule"))


def kernel_in(path):
    """The kernel that a file starts with."""
    return parse_kernel(path.read_text().partition("\nschedule ")[0])


def text_of(kernel):
    """A kernel, and its schedules."""
    made = [print_schedule(make_schedule(kernel, TARGETS[name])) for name in NAMES]
    return "\n".join([print_kernel(kernel), *made])


def many_functions(x):
    """Too much code to write several times: it is written once, and calls."""
    return (x.erfc() - x.erfc().mean(-1, keepdim=True)) * x.erfc().amax(-1, keepdim=True)


def add(name):
    """The kernels of a program, under its name and their number."""
    import torch

    from dovetail.bench import cases
    from tests.codegen import kernels, test_tiles

    if name in kernels.PROGRAMS:
        fn, args = kernels.PROGRAMS[name]
    elif name in test_tiles.PROGRAMS | test_tiles.INTERLEAVED:
        fn, shape = (test_tiles.PROGRAMS | test_tiles.INTERLEAVED)[name]
        args = (test_tiles.data(shape, "float32"),)
    elif name == "many_functions":
        fn, args = many_functions, (torch.randn(8, 250, dtype=torch.float64),)
    else:
        fn, args = cases.make(name)
    for n, kernel in enumerate(kernels.kernels_of(fn, *args)):
        (FOLDER / f"{name}_{n}.schedule").write_text(text_of(kernel))


if __name__ == "__main__":
    for program in sys.argv[1:]:
        add(program)
    if not sys.argv[1:]:
        for path in files():
            path.write_text(text_of(kernel_in(path)))
