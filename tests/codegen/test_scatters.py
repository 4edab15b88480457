"""Scatters of few elements, against eager."""

import pytest
import torch
from torch.nn import functional as F

from tests.codegen.kernels import assert_generated
from tests.differential import assert_same

SCATTERS = {
    "number": lambda x, i, s: (x * 2).scatter(1, i, 5),
    "values": lambda x, i, s: (x * 2).scatter(1, i, s),
    "sums": lambda x, i, s: (x * 2).scatter_add(1, i, s),
    "other_dimension": lambda x, i, s: (x * 2).scatter(0, i.t()[:, :17] % 7, s.t()),
    "fewer_rows": lambda x, i, s: (x * 2).scatter_add(1, i[:3], s),
    "into_nothing": lambda x, i, s: torch.zeros_like(x).scatter(-1, i, 3),
}
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_scatters(dtype, count):
    g = torch.Generator().manual_seed(count)
    x = torch.randint(0, 9, (17, 17), generator=g).to(dtype)
    places = torch.stack([torch.randperm(17, generator=g)[:count] for _ in range(17)])
    values = torch.randint(0, 9, (17, count + 1), generator=g).to(dtype)

    def fn(x, i, s):
        return {name: each(x, i, s) for name, each in SCATTERS.items() if name in named}

    named = set(SCATTERS) if count == 1 else set(SCATTERS) - {"other_dimension"}
    assert_generated(fn, x, places, values, dynamic=False)


def test_sums_at_one_place():
    """An index that names a place twice."""
    x, places = torch.randn(5, 8), torch.tensor([[1, 1, 3]]).expand(5, 3)
    assert_same(lambda x, i: x.scatter_add(1, i, x * 2), x, places, backend="cpu")
    assert_same(lambda x, i: x.scatter(1, i, 7.0), x, places, backend="cpu")


@pytest.mark.parametrize("place", [8, -1])
def test_out_of_range(place):
    x, places = torch.randn(5, 8), torch.full((5, 1), place)
    assert_same(lambda x, i: x.scatter(1, i, 7.0) + 1, x, places, backend="cpu")


def test_many_places_are_left_to_a_library():
    x, places = torch.randn(5, 80), torch.arange(40).expand(5, 40)
    assert_same(lambda x, i: x.scatter_add(1, i, x) + 1, x, places, backend="cpu")


def test_sizes_that_vary():
    def fn(x, i):
        return (x * 2).scatter(1, i, 5)

    compiled = torch.compile(fn, backend="cpu", dynamic=True)
    for shape in [(5, 8), (7, 9), (6, 33)]:
        x, places = torch.randn(shape), torch.randint(0, 8, (shape[0], 1))
        torch.testing.assert_close(compiled(x, places), fn(x, places))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_cross_entropy(reduction):
    x, target = torch.randn(9, 33).requires_grad_(), torch.randint(0, 33, (9,))
    target[3] = -100

    def fn(x, target):
        loss = F.cross_entropy(x * 2, target, reduction=reduction)
        return loss / 16  # the sine of a large sum would show its last bits magnified

    assert_same(fn, x, target, backend="cpu", grad=True)


def test_gradients_of_extremes():
    def fn(x):
        return x.max(1)[0], x.min(0)[0], x.gather(1, x.argmax(1, keepdim=True))

    assert_same(fn, torch.randn(9, 33).requires_grad_(), backend="cpu", grad=True)
