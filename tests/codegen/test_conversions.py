"""Numbers and other types beside a tensor: converted as eager converts them, or left to it."""

import pytest
import torch
from torch.nn import functional as F

from tests.differential import assert_same

HALVES = [torch.float16, torch.bfloat16]
MASK = torch.tensor([True, False, True])
# What each makes is read by a fused conversion, which shows what would have been stored.
ROUNDED = {
    "remainder": lambda x: x % 0.1,
    "fmod": lambda x: torch.fmod(x, 0.1),
    "fill": lambda x: x.masked_fill(MASK, 0.1),
    "pad": lambda x: F.pad(x, (1, 1), value=0.1),
    "slice_scatter": lambda x: torch.slice_scatter(x, torch.full((1,), 0.1), 0, 0, 1),
    "scatter": lambda x: x.scatter(0, torch.tensor([1]), 0.1),
    "where_tensor": lambda x: torch.where(MASK, x, torch.tensor(0.1)),
    "where_number": lambda x: torch.where(MASK, x, 0.1),
    "maximum": lambda x: torch.maximum(x, torch.tensor(0.2501)),
    "clamp": lambda x: x.clamp(0.2501, 0.6),
    "full": lambda x: torch.full_like(x, 0.1),
    "copy": lambda x: torch.empty_like(x).copy_(x.float() / 3),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_are_rounded_to_half_precision(name, dtype):
    x = torch.tensor([0.2, 0.3, 0.7]).to(dtype)

    def fn(x):
        return ROUNDED[name](x).float() * 1000

    assert torch.equal(torch.compile(fn, backend="cpu", dynamic=False)(x), fn(x))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_comparisons_round_other_types(dtype):
    ones, tenths = torch.ones(4).to(dtype), torch.tensor([0.1]).to(dtype)
    assert_same(lambda x: x == torch.tensor(1.0001), ones, backend="cpu")
    assert_same(lambda x: x < torch.tensor(0.1, dtype=torch.float64), tenths, backend="cpu")


@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_comparisons_with_the_default_type(default):
    x = torch.tensor([2**24, 2**24 + 1])
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert_same(lambda x: x == 2.0**24 + 1, x, backend="cpu")
    finally:
        torch.set_default_dtype(before)


BYTES = torch.tensor([1, 2, 3], dtype=torch.int8)
TOO_LARGE = {
    "fill": (lambda x: x.masked_fill(MASK, 200), BYTES),
    "fill_half": (lambda x: x.masked_fill(MASK, 1e6), BYTES.half()),
    "pad": (lambda x: F.pad(x, (1, 1), value=-1), BYTES.to(torch.uint8)),
    "clamp": (lambda x: x.clamp(-1000, 300), BYTES),
    "where": (lambda x: torch.where(MASK, x, 300), BYTES),
    "alpha": (lambda x: torch.add(x, x, alpha=200), BYTES),
    "scatter": (lambda x: x.scatter(0, torch.tensor([1]), 300), BYTES),
    "power": (lambda x: x**300, BYTES),
    "sum": (lambda x: x + 300, BYTES),
    "bits": (lambda x: x & 300, BYTES),
    "infinite": (lambda x: x.masked_fill(MASK, float("-inf")), BYTES.half()),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_numbers_that_do_not_fit_do_what_eager_does(name):
    fn, x = TOO_LARGE[name]
    assert_same(fn, x, backend="cpu", dynamic=False)


@pytest.mark.parametrize("factor", [0.9999, 1.0003])
def test_long_products_are_as_exact_as_eager(factor):
    x = torch.full((60_000,), factor)
    exact = x.double().prod()
    ours = torch.compile(torch.prod, backend="cpu")(x)
    assert abs(ours - exact) <= 2 * abs(x.prod() - exact)


def test_running_products_stay_in_range():
    x = torch.tensor([3e38] * 8 + [3e-41] * 8 + [1.0] * 16)
    assert_same(lambda x: x.cumprod(0), x, backend="cpu")


def test_adaptive_pool_of_a_varying_number_of_channels():
    x = torch.randn(2, 6, 8, 8).to(memory_format=torch.channels_last)
    torch._dynamo.mark_dynamic(x, 1)
    compiled = torch.compile(lambda x: F.adaptive_avg_pool2d(x, 2), backend="cpu")
    torch.testing.assert_close(compiled(x), F.adaptive_avg_pool2d(x, 2))
