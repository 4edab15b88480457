"""Products with one row, as generated sums, and of many layouts: beside eager's error, fused."""

import pytest
import torch
from torch import nn

from dovetail.schedule.build import Built
from tests.codegen.kernels import plan_of
from tests.differential import assert_same

F = nn.functional


def data(*shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=g).to(dtype)


PRODUCTS = {
    "linear": (F.linear, (data(1, 100), data(70, 100), data(70))),
    "no_bias": (F.linear, (data(1, 100), data(70, 100))),
    "rows": (torch.mm, (data(1, 65), data(65, 130))),
    "columns": (torch.mm, (data(70, 65), data(65, 1))),
    "scaled": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0),
        (data(1, 9), data(1, 33), data(33, 9)),
    ),
    "without_bias": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0),
        (torch.full((9,), float("nan")), data(1, 33), data(33, 9)),
    ),
    "times_zero": (
        lambda b, x, w: torch.addmm(b, x, w, alpha=0),
        (data(1, 9), torch.full((1, 33), float("inf")), data(33, 9)),
    ),
    "batch": (torch.bmm, (data(3, 1, 40), data(3, 40, 17))),
    "vector": (torch.mv, (data(19, 80), data(80))),
    "transposed": (lambda a, x: torch.mv(a.t(), x), (data(80, 19), data(80))),
    "wide": (torch.mm, (data(1, 2000), data(2000, 300))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_error_beside_eager(name):
    fn, args = PRODUCTS[name]
    exact = fn(*(a.double() for a in args))
    eager, ours = fn(*args), torch.compile(fn, backend="cpu", dynamic=False)(*args)
    assert ours.stride() == eager.stride()
    scale = exact.abs().max()
    mine, theirs = ((v.double() - exact).abs().max() / scale for v in (ours, eager))
    assert mine <= max(2 * theirs, 4 * 2.0**-24), (mine, theirs)


@pytest.mark.parametrize("name", PRODUCTS)
def test_double(name):
    fn, args = PRODUCTS[name]
    assert_same(fn, *(a.double() for a in args), backend="cpu")


@pytest.mark.parametrize("name", PRODUCTS)
def test_half_precision(name):
    fn, args = PRODUCTS[name]
    assert_same(fn, *(a.bfloat16() for a in args), backend="cpu")


def test_one_row_needs_no_library():
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 64), nn.GELU())
    model = model.append(nn.Linear(64, 5)).eval()
    assert_same(model, data(1, 64), backend="cpu")
    steps = plan_of(model, data(1, 64)).steps
    assert all(isinstance(step, Built) for step in steps)
    assert len(steps) == 3


def test_a_layer_reads_the_one_before_from_memory():
    """Its activation is cheap, but would be computed again for every weight."""
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 64)).eval()
    first, second = plan_of(model, data(1, 64)).steps
    assert len(second.kernel.buffers) == 4
    assert "max" in {getattr(i, "op", "") for i in first.kernel.instructions()}


def test_training_with_one_row():
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))
    assert_same(model, data(1, 20), backend="cpu", grad=True)


LEFT = {
    "rows": lambda: data(256, 200),
    "columns": lambda: data(200, 256).t(),
    "columns, huge": lambda: data(512, 800).t(),
    "apart": lambda: data(256, 300)[:, 50:250],
    "every other": lambda: data(256, 400)[:, ::2],
}
RIGHT = {
    "rows": lambda k: data(k, 700),
    "columns": lambda k: data(700, k).t(),
    "apart": lambda k: data(k, 800)[:, 33:733],
}


def scaled(b, x, w):
    return torch.addmm(b, x, w, beta=2)


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("left", LEFT)
def test_large_products_of_any_layout(left, right):
    """Two libraries share them by size and layout; both read every layout right."""
    x = LEFT[left]()
    w = RIGHT[right](x.shape[1])
    for fn, args in (
        (torch.mm, (x, w)),
        (torch.addmm, (data(700), x, w)),
        *(
            [(scaled, (data(700), x, w)), (torch.addmm, (data(x.shape[0], 700), x, w))]
            * (left == right)
        ),
    ):
        exact = fn(*(a.double() for a in args))
        torch._dynamo.reset()
        eager, ours = fn(*args), torch.compile(fn, backend="cpu", dynamic=False)(*args)
        assert ours.stride() == eager.stride()
        mine, theirs = ((v.double() - exact).square().mean().sqrt() for v in (ours, eager))
        assert mine <= 2 * theirs, (mine, theirs)


def test_a_large_product_runs_again_and_again():
    """Its result lies in new memory at every call; what was returned before stays as it was."""
    layer = nn.Linear(256, 512)
    compiled = torch.compile(layer, backend="cpu")
    given = [data(128, 256) * n for n in range(1, 5)]
    with torch.no_grad():
        found = [compiled(x) for x in given]
        for x, y in zip(given, found, strict=True):
            torch.testing.assert_close(y, layer(x), rtol=1e-5, atol=1e-4)
