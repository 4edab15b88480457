"""Kernels joined for a GPU: fewer of them, which compute the same by the reference."""

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.ir.kernel import Apply, Store
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


def layer_norm_backward(g, x, mean, rstd, w):
    width = [x.shape[-1]]
    return torch.ops.aten.native_layer_norm_backward(g, x, width, mean, rstd, w, w, [True] * 3)


def rms_norm_backward(x, g, w):
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    normal, inner = x * scale, g * w
    mean = (inner * normal).mean(-1, keepdim=True)
    return (inner - normal * mean) * scale, (g * normal).sum(0)


def check_rounded(fn, kernels, *args):
    """As ``check``, where long sums are rounded: not further from float64 than twice eager's."""
    plan = plan_of(fn, *args)
    assert len(plan.steps) == kernels, [str(s.kernel) for s in plan.steps]
    exact = fn(*(x.double() for x in args))
    for found, eager, wanted in zip(run(plan, *args), fn(*args), exact, strict=True):
        error, allowed = ((each.double() - wanted).norm() for each in (found, eager))
        assert error <= 2 * allowed + 1e-6 * wanted.norm()
    return plan


def sums_of(plan):
    """What each kernel adds to memory."""
    kernels = [step.kernel for step in plan.steps]
    return [sum(isinstance(i, Store) and i.sums for i in k.instructions()) for k in kernels]


def layer_norm_inputs(*shape):
    x, g, w = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [shape[-1]], w, w, 1e-5)
    return g, x, mean, rstd, w


@pytest.mark.parametrize("shape", [(1024, 37), (8, 128, 64), (2112, 5), (1056, 3)], ids=str)
def test_columns_are_summed_where_rows_are_gone_through(shape):
    plan = check_rounded(layer_norm_backward, 2, *layer_norm_inputs(*shape))
    assert sums_of(plan) == [2, 0]
    assert [b.dtype for b in plan.steps[1].kernel.buffers[:2]] == ["float32"] * 2


def test_a_row_that_the_kernel_makes_itself_is_at_hand_for_its_columns():
    x, g, w = torch.randn(2048, 48), torch.randn(2048, 48), torch.randn(48)
    plan = check_rounded(rms_norm_backward, 2, x, g, w)
    assert sums_of(plan) == [1, 0]


@pytest.mark.parametrize(
    "shape",
    [
        (64, 48),  # too few rows for all multiprocessors
        (1031, 48),  # a prime number of rows
        (1024, 1 << 15),  # rows that registers do not hold
    ],
    ids=str,
)
def test_columns_are_summed_apart_where_that_is_better(shape):
    plan = plan_of(layer_norm_backward, *layer_norm_inputs(*shape))
    assert not any(sums_of(plan))


def test_sums_that_rows_need_are_not_made_by_them():
    def fn(x):
        return x.softmax(-1) * x.sum(0)

    assert not any(sums_of(plan_of(fn, torch.randn(4096, 64))))


def test_sums_of_what_rows_do_not_read_stay_apart():
    def fn(x, y):
        return x.softmax(-1), y.sum(0)

    assert not any(sums_of(plan_of(fn, torch.randn(4096, 64), torch.randn(4096, 64))))


def test_a_sum_of_what_a_softmax_reads():
    plan = check_rounded(lambda x: (x.softmax(-1), x.sum(0)), 2, torch.randn(4096, 64))
    assert sums_of(plan) == [1, 0]


def test_a_window_reads_what_is_expensive_from_memory():
    def normed(x, mean, var, w, b):
        y = (x - mean) * (1 / (var + 1e-5).sqrt()) * w + b  # as a batch norm is
        return F.max_pool2d(y.relu(), 3, 2, 1)

    x, channels = torch.randn(2, 16, 28, 28), [torch.rand(16, 1, 1) for _ in range(4)]
    plan = check(normed, 2, x, *channels)
    first, second = (sum(i.op == "div" for i in applied(s.kernel)) for s in plan.steps)
    assert (first, second) == (1, 0)  # the pool divides nothing
    check(lambda x, b: F.max_pool2d((x + b).relu(), 3, 2, 1), 1, x, torch.randn(28))
    check(lambda x: F.max_pool2d(F.gelu(x), 3, 1, 1), 2, x)  # nine times each


def applied(kernel):
    return [i for i in kernel.instructions() if isinstance(i, Apply)]
