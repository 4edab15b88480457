"""Pools of every rank against eager: windows, parts, gradients, types, layouts, sizes that vary."""

import math

import pytest
import torch
from torch import nn

from tests.codegen.kernels import assert_generated
from tests.differential import assert_same

F = nn.functional


def data(rank, *, batch=2, channels=3):
    """Odd sizes, the pooled dimensions last."""
    g = torch.Generator().manual_seed(rank)
    return torch.randn(batch, channels, *(17, 12, 7)[-rank:], generator=g)


def means(rank):
    return (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]


def largest(rank):
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]


def means_of_parts(rank):
    return (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]


def largest_of_parts(rank):
    return (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[rank - 1]


POOLS = {
    "mean": lambda r: lambda x: means(r)(x, 2),
    "mean_padded": lambda r: lambda x: means(r)(x, 2, 1, 1),
    "mean_rounded_up": lambda r: lambda x: means(r)(x, 2, 2, ceil_mode=True),
    "mean_rounded_up_padded": lambda r: lambda x: means(r)(x, 2, 2, 1, ceil_mode=True),
    "mean_inside": lambda r: lambda x: means(r)(x, 2, 2, 1, False, False),
    "mean_inside_rounded_up": lambda r: lambda x: means(r)(x, 2, 2, 1, True, False),
    "mean_large": lambda r: lambda x: means(r)(x, 6, 1, 2),
    "mean_large_inside": lambda r: lambda x: means(r)(x, 6, 2, 2, True, False),
    "max": lambda r: lambda x: largest(r)(x, 2),
    "max_places": lambda r: lambda x: largest(r)(x, 2, 1, 1, return_indices=True),
    "max_holes": lambda r: lambda x: largest(r)(x, 2, 1, 1, 3, return_indices=True),
    "max_rounded_up": lambda r: lambda x: largest(r)(x, 2, 2, 1, 1, True, return_indices=True),
    "mean_parts": lambda r: lambda x: means_of_parts(r)(x, 5),
    "mean_more_parts": lambda r: lambda x: means_of_parts(r)(x, 19),
    "mean_whole": lambda r: lambda x: means_of_parts(r)(x, 1),
    "max_parts": lambda r: lambda x: largest_of_parts(r)(x, 6, return_indices=True),
    "max_more_parts": lambda r: lambda x: largest_of_parts(r)(x, 19, return_indices=True),
}
# In three dimensions these windows hold more taps than are worth unrolling.
LARGE = {("mean_parts", 3), ("max_parts", 3)}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", POOLS)
def test_generated(name, rank):
    fn, x = POOLS[name](rank), data(rank)
    if (name, rank) in LARGE:
        assert_same(fn, x, backend="cpu", dynamic=False)
    else:
        assert_generated(fn, x, dynamic=False)


GRADIENTS = [n for n in POOLS if n.startswith("mean")] + ["max_places", "max_parts"]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", GRADIENTS)
def test_backward(name, rank):
    def fn(x):
        result = POOLS[name](rank)(x)
        return (result[0] if isinstance(result, tuple) else result) * 2

    assert_same(fn, data(rank).requires_grad_(), backend="cpu", grad=True, dynamic=False)


def test_gradients_of_means_are_generated():
    x = data(2)

    def fn(x, grad):
        args = ((3, 3), (1, 1), (1, 1), True, False, None)
        window = torch.ops.aten.avg_pool2d_backward.default(grad, x, *args)
        parts = torch.ops.aten._adaptive_avg_pool2d_backward.default(grad[:, :, :4, :1], x)
        return window, parts

    grad = F.avg_pool2d(x, 3, 1, 1, True, False)
    assert_generated(fn, x, grad)


def everything(names, rank=2):
    """One program of several pools: a quicker test."""
    return lambda x: {name: POOLS[name](rank)(x) for name in names}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_types(dtype):
    assert_same(everything(POOLS), data(2).to(dtype), backend="cpu", dynamic=False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8], ids=str)
def test_integers(dtype):
    x = torch.randint(0, 100, (2, 3, 12, 7), generator=torch.Generator().manual_seed(1))
    names = ["max_places", "max_holes", "max_rounded_up"]
    assert_same(everything(names), x.to(dtype), backend="cpu", dynamic=False)
    assert_same(POOLS["max_parts"](2), x.to(dtype), backend="cpu", dynamic=False)


LAYOUTS = {
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
    "sliced": lambda x: x[:, 1:, ::2],
    "repeated": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "one": lambda x: x[:1, :1],
    "without_batch": lambda x: x[0],
    "no_batch": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    assert_same(everything(POOLS), LAYOUTS[layout](data(2)), backend="cpu", dynamic=False)


def test_sizes_that_vary():
    fn = everything(POOLS)
    compiled = torch.compile(fn, backend="cpu", dynamic=True)
    for shape in [(2, 3, 12, 7), (3, 2, 17, 13), (1, 5, 8, 24)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), fn(x))


def test_special_values():
    fn = everything([n for n in POOLS if n.startswith("max")])
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0])
    x = special[torch.randint(0, 6, (2, 3, 12, 7), generator=torch.Generator().manual_seed(3))]
    assert_same(fn, x, backend="cpu", dynamic=False)
    assert_same(fn, torch.full_like(x, -math.inf), backend="cpu", dynamic=False)
