"""Rules of single operators against eager: windows, joins, norms, extremes, long folds."""

import math

import pytest
import torch
from torch import nn

from tests.codegen.kernels import assert_generated, plan_of
from tests.differential import assert_same

F = nn.functional


def data(*shape):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=g)


GENERATED = {
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "max_pool_padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max_pool_one_step": lambda x: F.max_pool2d(x.relu(), (2, 3), 1, (1, 0), return_indices=True),
    "avg_pool": lambda x: F.avg_pool2d(x * 2, 3, 2),
    "avg_pool_padded": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "avg_pool_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg_pool_1d": lambda x: F.avg_pool1d(x[0], 4, 2),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "adaptive_pool_of_a_sum": lambda x: F.adaptive_avg_pool2d(x + 1, (2, 2)).relu(),
    "adaptive_pool_to_one": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest_uneven": lambda x: F.interpolate(x, size=(7, 19)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(x, (9, 5), mode="bilinear", align_corners=True),
    "roll": lambda x: torch.roll(x, 3, -1),
    "roll_backwards": lambda x: torch.roll(x, (-2, 5), (0, 3)) + 1,
    "roll_twice": lambda x: torch.roll(x, (1, 1), (2, 2)),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm_kept": lambda x: x / torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True),
    "norm_one": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "norm_infinity": lambda x: torch.linalg.vector_norm(x, math.inf),
    "max_dim": lambda x: x.max(-1),
    "min_dim_kept": lambda x: x.min(1, keepdim=True),
    "max_all": lambda x: (x.max(), x.min()),
    "clamp_tensor": lambda x: x.clamp(x.mean(), x.abs()),
    "clamp_min_tensor": lambda x: x.clamp(min=x.mean(-1, keepdim=True)),
    "arange_floats": lambda x: x + torch.arange(12.0),
    "cat_eight": lambda x: torch.cat([x * n for n in range(8)], -1),
    "cat_twelve": lambda x: torch.cat([x * n for n in range(12)], -1) + 1,
    "triangle": lambda x: x.tril() + x.triu(1),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated(name):
    assert_generated(GENERATED[name], data(2, 6, 12, 12))


BACKWARD = ["max_pool", "max_pool_padded", "avg_pool", "adaptive_pool", "nearest", "bilinear"]
BACKWARD += ["roll", "norm", "max_dim", "clamp_tensor", "cat_eight", "batch_norm"]


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name):
    def fn(x):
        result = GENERATED[name](x)
        return (result[0] if isinstance(result, tuple) else result) * 2

    assert_same(fn, data(2, 6, 12, 12), backend="cpu", grad=True)


UPSAMPLING = {
    "nearest": lambda x: F.interpolate(x, size=(7, 19)),
    "nearest_exact": lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(x, (9, 5), mode="bilinear", align_corners=True),
    "linear": lambda x: F.interpolate(x[0], 17, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], (3, 4, 5), mode="trilinear"),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", UPSAMPLING)
def test_gradients_of_upsampling(name, dynamic):
    """Whole operators to autograd where sizes are fixed, indices where they vary."""
    x = data(2, 6, 12, 12).requires_grad_()
    assert_same(UPSAMPLING[name], x, backend="cpu", grad=True, dynamic=dynamic)


LIBRARY = {
    "large_window": lambda x: F.avg_pool2d(x, 7),
    "rounding_up": lambda x: F.max_pool2d(x, 5, 2, ceil_mode=True),
    "holes": lambda x: F.max_pool2d(x, 3, 1, 0, 2),
    "inside_only": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "unequal_parts": lambda x: F.adaptive_avg_pool2d(x, 5),
    "roll_of_all": lambda x: torch.roll(x, 7),
    "norm_of_order_three": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_left_to_a_library(name):
    assert_same(LIBRARY[name], data(2, 6, 12, 12), backend="cpu")


SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45])


@pytest.mark.parametrize("name", ["max_pool_padded", "avg_pool", "max_dim", "max_all", "norm"])
def test_special_values(name):
    x = SPECIAL[torch.randint(0, 8, (2, 6, 12, 12), generator=torch.Generator().manual_seed(3))]
    assert_same(GENERATED[name], x, backend="cpu")


def test_max_pool_of_nothing_but_minus_infinity():
    x = torch.full((1, 2, 6, 6), -math.inf)
    assert_same(GENERATED["max_pool_padded"], x, backend="cpu")


LONG = {
    "sum": lambda x: x.sum(),
    "mean_of_squares": lambda x: (x * x).mean(),
    "max": lambda x: x.max(),
    "var": lambda x: x.var(),
    "share": lambda x: x / x.abs().sum(),
    "any": lambda x: (x > 3).any(),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("shape", [(1024, 1024), (131101,), (64, 33, 40), (17, 30011)])
def test_long_folds(name, shape):
    """Beside eager's error, and the same whatever the threads."""
    fn, x = LONG[name], data(*shape) + 0.5
    exact = fn(x.double()).double()
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(torch.compile(fn, backend="cpu", dynamic=False)(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)
    scale = exact.abs().max()
    mine, theirs = ((v.double() - exact).abs().max() / scale for v in (results[0], fn(x)))
    assert mine <= max(2 * theirs, 4 * 2.0**-24), (mine, theirs)


@pytest.mark.parametrize("shape", [(1024, 1024), (131101,), (17, 30011), (1, 200003)])
def test_a_long_sum_is_shared(shape):
    *parts, last = plan_of(LONG["sum"], data(*shape)).steps
    assert any(step.kernel.axes for step in parts)
    assert not last.kernel.axes


ALONG = {
    "columns": lambda x: x.sum(0),
    "columns_of_three": lambda x: x.reshape(-1, 3, 2).sum((0, 2)),
    "few_rows": lambda x: x.t().reshape(2, -1).sum(1),
    "mean": lambda x: x.mean(0, keepdim=True),
    "var": lambda x: x.var(0),
    "prod": lambda x: (1 + x * 1e-3).prod(0),
    "extremes": lambda x: x.amax(0) - x.amin(0),
    "whole": lambda x: x.sum(),
    "softmax": lambda x: x.reshape(1, -1).softmax(1),
}


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ALONG)
def test_folds_along_dimensions(name, dynamic, constant):
    """As near to float64 as eager's, whatever is folded: the sizes have no round parts."""
    fn = ALONG[name]
    compiled = torch.compile(fn, backend="cpu", dynamic=dynamic)
    for rows in (30011, 70003):
        x = torch.full((rows, 6), 0.1) if constant else data(rows, 6) + 0.5
        exact = fn(x.double())
        scale = max(exact.abs().max(), 1e-7)
        mine, theirs = ((v.double() - exact).abs().max() / scale for v in (compiled(x), fn(x)))
        assert mine <= max(2 * theirs, 4 * 2.0**-24), (mine, theirs)


@pytest.mark.parametrize("rows", [1, 3, 1024, 2049, 5000])
def test_folds_of_sizes_that_vary(rows):
    fns = {"sum": lambda x: (x.sum(), x.sum(0)), "max": lambda x: (x.amax(), x.amax(0))}
    fns |= {"integers": lambda x: (x.long().sum(), (x > 0).all(0), (x > 3).any())}
    for fn in fns.values():
        compiled = torch.compile(fn, backend="cpu", dynamic=True)
        for size in (7, rows):
            torch.testing.assert_close(compiled(data(size, 5)), fn(data(size, 5)))
