"""Extremes and where they stand: ties, infinities, NaN, along rows and down columns."""

import pytest
import torch

pytest.importorskip("llvmlite")

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


def _everything(x, dim):
    return *x.max(dim), *x.min(dim), x.argmax(dim), x.argmin(dim), x.argmax(), x.argmin()


def _values(shape, dtype):
    plain = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 2
    yield plain.to(dtype)
    yield plain.round().abs().to(dtype)  # many of each
    if dtype.is_floating_point:
        for number in (float("inf"), float("-inf"), float("nan")):
            yield torch.full(shape, number, dtype=dtype)
            yield torch.where(plain > 1, number, plain).to(dtype)
            yield torch.where(plain > 2, plain, number).to(dtype)
    else:
        yield torch.full(shape, torch.iinfo(dtype).min, dtype=dtype)
        yield torch.full(shape, torch.iinfo(dtype).max, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), [((3, 200), 1), ((70, 21), 0), ((2, 40, 9), 1)])
def test_values_and_places_are_eagers(shape, dim, dtype):
    compiled = torch.compile(_everything, backend="cpu", options={"strict": True})
    for x in _values(shape, dtype):
        for actual, expected in zip(compiled(x, dim), _everything(x, dim), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dim", [0, 1])
def test_lengths_that_vary(dim):
    compiled = torch.compile(_everything, backend="cpu", dynamic=True)
    for rows, columns in ((3, 100), (90, 7), (2, 2)):
        x = torch.randn(rows, columns).round()
        for actual, expected in zip(compiled(x, dim), _everything(x, dim), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1e20, 1e-25])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_deviations_whose_squares_leave_float32(dim, scale):
    def deviations(x):
        return x.std(dim), x.std(dim, correction=0), *torch.std_mean(x, dim)

    x = torch.randn(50, 70) * scale
    compiled = torch.compile(deviations, backend="cpu", options={"strict": True})
    for actual, exact in zip(compiled(x), deviations(x.double()), strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), exact, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool])
def test_no_dimensions_are_all_for_sums_and_none_for_quantifiers(dtype):
    def everything(x):
        none, kept = x.any(dim=()), x.all(dim=(), keepdim=True)
        return none, kept, x.any(dim=(0, 1)), x.sum(dim=()), x.amax(dim=())

    x = torch.tensor([[0, 1, 2], [0, 0, 3]]).to(dtype)
    compiled = torch.compile(everything, backend="cpu", options={"strict": True})
    for actual, expected in zip(compiled(x), everything(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
