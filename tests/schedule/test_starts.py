"""Kernels that differ in where their operands start become one."""

from dataclasses import replace

import pytest
import torch

from dovetail.lower.values import View
from dovetail.schedule.build import Built
from dovetail.schedule.starts import share_starts
from tests.codegen.kernels import assert_generated, plan_of
from tests.differential import needs_code


def data(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def recurrent(x, w, h):
    """Six steps, each with a row of its own, and the last of them backwards."""
    for row in (*x, x[-1].flip(-1)):
        h = torch.tanh(h @ w + row.add(0.5))
    return h


GIVEN = data(5, 4, 24), data(24, 24) / 5, data(4, 24)


def kernels(steps):
    return {replace(step.kernel, name="") for step in steps if isinstance(step, Built)}


def test_steps_that_are_written_out_share_a_kernel():
    before = plan_of(recurrent, *GIVEN).steps
    after = share_starts(before)
    assert len(kernels(before)) == len(before) == 6
    assert len(kernels(after)) == 2
    windows = [v for s in after for v in s.buffers.values() if isinstance(v, View)]
    assert [(w.offset, w.shape) for w in windows] == [(n * 96, (96,)) for n in range(1, 5)]


def test_a_kernel_that_is_like_no_other_stays_as_it_is():
    steps = plan_of(lambda x: x[3].exp() + x[1], data(5, 40)).steps
    assert share_starts(steps) == steps


STRIDED = data(5, 9, 24)[:, ::2][:, :4], GIVEN[1], GIVEN[2]
ONE_ROW = data(5, 1, 24), GIVEN[1], data(1, 24)


@needs_code
@pytest.mark.parametrize("given", [GIVEN, STRIDED, ONE_ROW], ids=["dense", "strided", "one_row"])
def test_results(given):
    assert_generated(recurrent, *given)
