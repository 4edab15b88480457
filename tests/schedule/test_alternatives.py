"""Other schedules of the same kernel than the strategy's: refused, or with the same results."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from dovetail.errors import InvalidSchedule
from dovetail.ir.kernel import Reduce
from dovetail.ir.target import TARGETS
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.schedule import LOOPS, LoopSchedule, Schedule, Steps
from dovetail.schedule.verify_schedule import verify_schedule
from dovetail.testing.schedules import check_schedule
from tests.codegen.kernels import kernels_of
from tests.codegen.test_random_kernels import targets
from tests.native.random_kernels import RandomKernel

COUNTS = [*itertools.chain(*(itertools.combinations((8, 4, 2, 1), n) for n in range(4)))]
STEPS = [Steps(c, masked) for c in COUNTS for masked in ("none", "rest", "all")]


def alternatives(kernel, target):
    """Many schedules, most of which do not fit."""
    ours = make_schedule(kernel, target)
    yield replace(ours, tile=None)
    yield scalar(kernel, ours)
    for block, lanes in itertools.product((64, 128, 4096), (2, 4, 8, 16, 32)):
        for axis in kernel.axes:
            for steps in (Steps((1,), "rest"), Steps((1,), "none"), Steps((1,), "all")):
                yield along(kernel, ours, axis.name, lanes, block, steps)
    if ours.vector == LOOPS:
        for steps, lanes, chunk in itertools.product(STEPS, (4, 16, 32), (0, 64, 512)):
            yield by_rows(kernel, ours, steps, lanes, chunk)
    if ours.tile is not None:
        for rows, columns, band in itertools.product((1, 16, 50), (16, 32, 256), (2, 4, 8)):
            bands = tuple((name, band) for name, _ in ours.tile.transposed)
            tile = replace(ours.tile, rows=rows, columns=columns, transposed=bands)
            yield replace(ours, tile=tile)


def scalar(kernel, ours):
    loops = tuple(LoopSchedule(chunk=16 if reduces(loop) else 0) for loop in kernel.loops)
    return Schedule(ours.target, None, 1, loops, cost=ours.cost, grain=ours.grain)


def along(kernel, ours, axis, lanes, block, steps):
    """Vectors along an axis of the kernel, without what the strategy does together."""
    plain = scalar(kernel, ours)
    return replace(plain, vector=axis, lanes=lanes, block=block, steps=steps)


def by_rows(kernel, ours, steps, lanes, chunk):
    """Vectors along the last axis of every loop."""
    loops = tuple(
        replace(
            how,
            steps=steps,
            chunk=chunk if reduces(loop) else 0,
            scans=tuple((name, min(points, lanes)) for name, points in how.scans),
            interleaved=(),
        )
        if loop.axes
        else how
        for loop, how in zip(kernel.loops, ours.loops, strict=True)
    )
    return replace(ours, lanes=lanes, loops=loops)


def reduces(loop):
    return any(isinstance(i, Reduce) for i in loop.body)


def valid(kernel, target):
    """Those that fit."""
    for schedule in dict.fromkeys(alternatives(kernel, target)):
        try:
            yield verify_schedule(kernel, schedule, target)
        except InvalidSchedule:
            continue


def sample(kernel, target, most, seed):
    """Some of them, and how many there are."""
    found = list(valid(kernel, target))
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(found))[:most]
    return [found[n] for n in chosen], len(found)


@pytest.mark.parametrize("start", range(0, 36, 12))
def test_random_kernels_under_other_schedules(start):
    told = 0
    for seed in range(start, start + 12):
        made = RandomKernel(seed)
        for target in targets():
            schedules, count = sample(made.kernel, target, 4, seed)
            told += count
            for schedule in schedules:
                check_schedule(made.kernel, schedule, target, made.arrays, made.sizes)
    assert told > 200


PROGRAMS = {
    "rows": (lambda x: x.sum(1), (37, 700)),
    "columns": (lambda x: x.sum(0), (70, 90)),
    "transposed": (lambda x: (x.t() + 1).contiguous(), (70, 90)),
    "running": (lambda x: x.cumsum(1), (9, 200)),
    "largest": (lambda x: x.argmax(1), (9, 200)),
    "pairs": (lambda x: x[:, ::2] + x[:, 1::2], (9, 200)),
    "elements": (lambda x: x * 2 + 1, (9, 201)),
    "two_steps": (lambda x: (x - x.amax(1, keepdim=True)) * 2, (9, 201)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_under_other_schedules(name):
    fn, shape = PROGRAMS[name]
    x = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(1)).float()
    for kernel in kernels_of(fn, x):
        sizes = {"in": x.numel(), "out": fn(x).numel()}
        arrays = {
            b.name: np.resize(x.numpy(), sizes["in"]).astype(b.dtype)
            if b.role == "in"
            else np.zeros(sizes["out"], b.dtype)
            for b in kernel.buffers
        }
        for target in targets():
            schedules, count = sample(kernel, target, 12, len(name))
            assert count > 10
            kinds = {schedule.vector for schedule in valid(kernel, target)}
            assert len(kinds) > 1
            for schedule in schedules:
                check_schedule(kernel, schedule, target, arrays)


def test_results_are_compared():
    """A sum in another order is rounded otherwise, and that is seen."""
    (kernel,) = kernels_of(lambda x: x.sum(1), torch.randn(9, 700))
    target = min(targets(), key=lambda t: t.name)
    random = np.random.default_rng(0)
    arrays = {
        b.name: random.standard_normal(6300 if b.role == "in" else 9).astype(b.dtype)
        for b in kernel.buffers
    }
    schedule = scalar(kernel, make_schedule(kernel, target))
    check_schedule(kernel, schedule, target, arrays, rtol=1e-4)
    with pytest.raises(AssertionError):
        check_schedule(kernel, schedule, target, arrays)


def test_a_schedule_for_another_target_is_refused():
    (kernel,) = kernels_of(lambda x: x * 2 + 1, torch.randn(300))
    target = min(targets(), key=lambda t: t.name)
    arrays = {b.name: np.arange(300, dtype=b.dtype) for b in kernel.buffers}
    check_schedule(kernel, make_schedule(kernel, target), target, arrays)
    with pytest.raises(InvalidSchedule):
        check_schedule(kernel, make_schedule(kernel, TARGETS["sm_90"]), target, arrays)
