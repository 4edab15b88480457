"""Schedules as values: texts that parse back, and a verifier that refuses what does not fit."""

from dataclasses import replace

import pytest

from dovetail.errors import InvalidSchedule
from dovetail.ir.kernel_text import parse_kernel
from dovetail.ir.target import TARGETS
from dovetail.schedule.cpu import strategy
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.cpu.volume import Budget
from dovetail.schedule.schedule import Steps
from dovetail.schedule.text import parse_schedule, print_schedule
from dovetail.schedule.verify_schedule import verify_schedule
from tests.codegen.kernels import PROGRAMS, kernels_of
from tests.native.random_kernels import RandomKernel

AVX512 = TARGETS["x86-64-v4"]
NAMES = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a")


def schedules(kernels):
    """Every kernel's schedule for every target, in the usual form and in the short one."""
    for kernel in kernels:
        for target in map(TARGETS.get, NAMES):
            for budget in (strategy.BUDGET, Budget(kernel=0, call=0)):
                yield kernel, make_schedule(kernel, target, budget), target


@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_of_programs_are_verified_and_parse_back(name):
    fn, args = PROGRAMS[name]
    for kernel, schedule, target in schedules(kernels_of(fn, *args)):
        assert verify_schedule(kernel, schedule, target) is schedule
        again = parse_schedule(print_schedule(schedule))
        assert again == schedule
        assert hash(again) == hash(schedule)


def test_schedules_of_random_kernels_are_verified_and_parse_back():
    random = (RandomKernel(seed).kernel for seed in range(150))
    for kernel, schedule, target in schedules(random):
        verify_schedule(kernel, schedule, target)
        assert parse_schedule(print_schedule(schedule)) == schedule


SOFTMAX = """
kernel softmax(in x: float32, out y: float32) over [i: 8] {
  loop [j: 1000] {
    v1: float32 = load x[0 | i * (1000) | j * (1)]
    v2: float32 = exp(v1)
    v3: float32 = mul(v2, v2)
    v4: float32 = reduce sum(v2)
    v5: float32 = reduce sum(v3)
  }
  loop [] {
    v6: float32 = add(v4, v5)
  }
  loop [j: 1000] {
    v7: float32 = load x[0 | i * (1000) | j * (1)]
    v8: float32 = div(v7, v6)
    store y[0 | i * (1000) | j * (1)] = v8
  }
}
"""
TRANSPOSED = """
kernel transposed(in x: float32, out y: float32) over [i: 100, j: 70] {
  loop [] {
    v1: float32 = load x[0 | i * (1) | j * (100)]
    store y[0 | i * (70) | j * (1)] = v1
  }
}
"""
PAIRS = """
kernel pairs(in x: float32, out y: float32) over [i: 100] {
  loop [] {
    v1: float32 = load x[0 | i * (2)]
    v2: float32 = load x[1 | i * (2)]
    v3: float32 = add(v1, v2)
    store y[0 | i * (1)] = v3
  }
}
"""
RUNNING = """
kernel running(in x: float32, out y: float32) over [i: 8] {
  loop [j: 1000] {
    v1: float32 = load x[0 | i * (1000) | j * (1)]
    v2: float32 = scan sum(v1)
    store y[0 | i * (1000) | j * (1)] = v2
  }
}
"""


def changed(schedule, place=None, **changes):
    """A schedule with other decisions, of the loop at ``place`` where that is given."""
    if place is None:
        return replace(schedule, **changes)
    loops = list(schedule.loops)
    loops[place] = replace(loops[place], **changes)
    return replace(schedule, loops=tuple(loops))


WRONG = {
    "another target": (SOFTMAX, {"target": "x86-64-v3"}),
    "other loops": (SOFTMAX, {"loops": ()}),
    "an unknown axis": (SOFTMAX, {"vector": "k"}),
    "three lanes": (SOFTMAX, {"lanes": 3}),
    "one lane": (SOFTMAX, {"lanes": 1}),
    "no vectors": (SOFTMAX, {"vector": None}),
    "no work": (SOFTMAX, {"grain": 0}),
    "a block of rows": (SOFTMAX, {"block": 64}),
    "no steps": (SOFTMAX, {"place": 0, "steps": None}),
    "no rest": (SOFTMAX, {"place": 0, "steps": Steps((4, 1), "none")}),
    "too large steps": (SOFTMAX, {"place": 0, "steps": Steps((4,), "rest")}),
    "steps of three": (SOFTMAX, {"place": 0, "steps": Steps((3, 1), "rest")}),
    "steps that grow": (SOFTMAX, {"place": 0, "steps": Steps((1, 4), "rest")}),
    "masked steps of four": (SOFTMAX, {"place": 0, "steps": Steps((4,), "all")}),
    "an unknown mask": (SOFTMAX, {"place": 0, "steps": Steps((4, 1), "some")}),
    "pieces of vectors": (SOFTMAX, {"place": 0, "chunk": 100}),
    "chunks of nothing": (SOFTMAX, {"place": 2, "chunk": 1024}),
    "a product with two uses": (SOFTMAX, {"place": 0, "multiply_adds": ("v2",)}),
    "no product": (SOFTMAX, {"place": 0, "multiply_adds": ("v9",)}),
    "no scan": (SOFTMAX, {"place": 0, "scans": (("v4", 16),)}),
    "steps without vectors": (SOFTMAX, {"place": 1, "steps": Steps()}),
    "no sum with erf": (SOFTMAX, {"erf_plus_one": ("v6",)}),
    "a call of no function": (SOFTMAX, {"calls": (("floordiv", "int64"),)}),
    "no block": (TRANSPOSED, {"block": 0}),
    "no steps along a block": (TRANSPOSED, {"steps": None}),
    "two vectors a step": (TRANSPOSED, {"steps": Steps((2, 1), "rest")}),
    "a scan that is not listed": (RUNNING, {"place": 0, "scans": ()}),
    "a scan of too many points": (RUNNING, {"place": 0, "scans": (("v2", 32),)}),
    "a scan under masks": (RUNNING, {"place": 0, "steps": Steps((1,), "all")}),
    "a group in another order": (PAIRS, {"place": 0, "interleaved": ((1, 0),)}),
    "half a group": (PAIRS, {"place": 0, "interleaved": ((0,),)}),
    "an access in two groups": (PAIRS, {"place": 0, "interleaved": ((0, 1), (0, 1))}),
    "a group of a sum": (PAIRS, {"place": 0, "interleaved": ((0, 2),)}),
    "a group beyond the body": (PAIRS, {"place": 0, "interleaved": ((0, 9),)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name):
    text, changes = WRONG[name]
    kernel = parse_kernel(text)
    schedule = verify_schedule(kernel, make_schedule(kernel, AVX512), AVX512)
    with pytest.raises(InvalidSchedule):
        verify_schedule(kernel, changed(schedule, **changes), AVX512)


TILES = {
    "along another axis": {"along": "i", "across": "j"},
    "of one axis": {"across": "j"},
    "of nothing": {"rows": 0},
    "larger than a stack": {"rows": 1 << 30},
    "columns in pieces": {"columns": 40},
    "no load": {"transposed": (("v2", 8),)},
    "twice": {"transposed": (("v1", 8), ("v1", 8))},
    "bands of three": {"transposed": (("v1", 3),)},
    "bands of too many": {"transposed": (("v1", 64),)},
}


@pytest.mark.parametrize("name", TILES)
def test_tiles_that_do_not_fit_are_refused(name):
    kernel = parse_kernel(TRANSPOSED)
    schedule = verify_schedule(kernel, make_schedule(kernel, AVX512), AVX512)
    assert schedule.tile.transposed
    wrong = replace(schedule, tile=replace(schedule.tile, **TILES[name]))
    with pytest.raises(InvalidSchedule):
        verify_schedule(kernel, wrong, AVX512)


def test_a_schedule_of_another_kernel_is_refused():
    kernels = [parse_kernel(text) for text in (SOFTMAX, TRANSPOSED, PAIRS, RUNNING)]
    for kernel in kernels:
        for other in kernels:
            if other is not kernel:
                with pytest.raises(InvalidSchedule):
                    verify_schedule(kernel, make_schedule(other, AVX512), AVX512)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kernel k {\n}",
        "schedule x86-64-v4 {\n  cost 1 ps of 1 ps\n",
        "schedule x86-64-v4 {\n  cost 1 ps of 1 ps\n}",
        "schedule x86-64-v4 {\n  scalar\n  cost 1 ps of 1 ps\n}\n}",
        "schedule x86-64-v4 {\n  scalar\n  scalar\n  cost 1 ps of 1 ps\n}",
        "schedule x86-64-v4 {\n  scalar\n  colour red\n  cost 1 ps of 1 ps\n}",
        "schedule x86-64-v4 {\n  scalar\n  cost 1 ps of many\n}",
        "schedule x86-64-v4 {\n  scalar\n  steps 1\n  cost 1 ps of 1 ps\n}",
        "schedule x86-64-v4 {\n  scalar\n  transposed v1 by 8\n  cost 1 ps of 1 ps\n}",
        "schedule x86-64-v4 {\n  scalar\n  cost 1 ps of 1 ps\n  loop {\n    block 4\n  }\n}",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(InvalidSchedule):
        parse_schedule(text)
