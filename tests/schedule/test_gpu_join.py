"""Kernels joined for a GPU: fewer of them, which compute the same by the reference."""

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.ir.kernel import Store
from dovetail.ir.target import TARGETS
from dovetail.lower.values import LibraryCall, Source, root_of
from dovetail.report.stages import cpu_segments
from dovetail.schedule.plan import make_plan
from dovetail.testing.kernel_reference import run_kernel

GPU = TARGETS["sm_90"]
F = nn.functional


class Function(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args):
        return self.fn(*args)


def plan_of(fn, *args):
    (segment,) = cpu_segments(Function(fn), args)
    return make_plan(segment, GPU)


def run(plan, *args):
    """The plan's kernels one by one on NumPy's arrays."""
    memory = {}
    for given, value in zip(plan.segment.inputs, args, strict=True):
        memory[plan.values[given.name, ()]] = value.numpy().reshape(-1).copy()
    for step in plan.steps:
        assert not isinstance(step, LibraryCall)
        arrays = {}
        for buffer in step.kernel.buffers:
            root = root_of(step.buffers[buffer.name])
            if root not in memory:
                assert not isinstance(root, Source)
                memory[root] = np.full(int(root.numel), np.nan, root.dtype)
            arrays[buffer.name] = memory[root]
        run_kernel(step.kernel, arrays, {})
    outputs = [plan.values[out.name, out.path] for out in plan.segment.outputs]
    return [torch.from_numpy(memory[root_of(v)]).view(*v.shape) for v in outputs]


def check(fn, kernels, *args):
    plan = plan_of(fn, *args)
    assert len(plan.steps) == kernels, [str(s.kernel) for s in plan.steps]
    wanted = fn(*args)
    found = run(plan, *args)
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    return plan


def rotated(x, angles):
    one, two = x.chunk(2, -1)
    c, s = angles.cos(), angles.sin()
    return torch.cat((one * c - two * s, two * c + one * s), -1)


def normalised(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def test_pieces_are_written_where_they_end_up():
    plan = check(rotated, 1, torch.randn(300, 16), torch.randn(300, 8))
    stores = [i for i in plan.steps[0].kernel.instructions() if isinstance(i, Store)]
    assert {s.index.offset for s in stores} == {0, 8}


def test_a_row_serves_two_widths():
    def fn(x, y, z):
        s = x.sum(-1, keepdim=True)
        return y * s, z * s

    check(fn, 1, torch.randn(300, 16), torch.randn(300, 2048), torch.randn(300, 512))


def test_rows_are_finished_where_they_were_reduced():
    def fn(x, w, angles):
        return rotated(normalised(x, w), angles)

    rows = 2 * GPU.cores
    plan = check(fn, 1, torch.randn(rows, 16), torch.randn(16), torch.randn(rows, 8))
    assert len({loop.axes for loop in plan.steps[0].kernel.loops if loop.axes}) == 2
    few = torch.randn(8, 16), torch.randn(16), torch.randn(8, 8)
    check(fn, 2, *few)  # more blocks than rows are better there


def test_a_statistic_that_is_wanted_is_still_stored():
    def fn(x, angles):
        norm = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return rotated(x * norm, angles), norm

    check(fn, 1, torch.randn(300, 16), torch.randn(300, 8))


def test_pieces_that_others_read_stay_where_they_are():
    def fn(x, y):
        one = (x.exp() * y.cos()).softmax(0)  # in columns, so that it is memory
        return torch.cat((one, (x * y).cumsum(0)), 1), one

    check(
        fn,
        len(plan_of(fn, torch.randn(40, 6), torch.randn(40, 6)).steps),
        *(torch.randn(40, 6),) * 2,
    )


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(3, 5), (4, 1, 3)])
def test_joined_along_any_dimension(dim, sizes):
    def fn(*given):
        return torch.cat([t.cos().cumsum(0) for t in given], dim)

    pieces = []
    for n, size in enumerate(sizes):
        shape = [4, 6, 5]
        shape[dim] = size + n
        pieces.append(torch.randn(*shape))
    check(fn, len(plan_of(fn, *pieces).steps), *pieces)


def test_an_input_among_the_pieces_leaves_the_kernel_that_joins():
    def fn(x, y):
        return torch.cat((x.cos().cumsum(0), y), 1)

    assert len(check(fn, 2, torch.randn(4, 3), torch.randn(4, 2)).steps) == 2
