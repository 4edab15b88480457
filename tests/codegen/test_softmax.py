"""Softmax of rows that stay in cache and of longer ones, whose parts are put together."""

import math

import pytest
import torch

from dovetail.ir.kernel import Reduce
from dovetail.schedule.build import Built
from tests.codegen.kernels import kernels_of, plan_of
from tests.differential import assert_same

LONG = 200_000  # more than any row that is taken whole
DIVIDED = 1 << 18  # all parts alike, none left over
SHAPES = {
    "short": ((5, 1000), -1),
    "long": ((2, LONG + 7), -1),
    "divided": ((2, DIVIDED), -1),
    "many": ((17, 131_072), -1),
    "vector": ((LONG,), 0),
    "column": ((4099, 33), 0),
    "middle": ((2, 2048, 5), 1),
}
DTYPES = {"float32": 1e-6, "bfloat16": 2.0**-8, "float16": 2.0**-10, "float64": 1e-13}


def rows(shape, dtype=torch.float32, scale=4.0):
    g = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=g) * scale).to(dtype)


def error(result, exact, name):
    """The largest relative error; logarithms near 0 are differences of larger numbers."""
    smallest = 1.0 if name == "log_softmax" else torch.finfo(result.dtype).smallest_normal
    off = (result.double() - exact).abs() / exact.abs().clamp_min(smallest)
    return off.max().item() if off.numel() else 0.0


def both(x, dim):
    """Softmax and its logarithm: ours, eager's, and what is right."""
    torch._dynamo.reset()
    functions = (torch.softmax, torch.log_softmax)
    fn = torch.compile(lambda x: [f(x, dim) for f in functions], backend="cpu", dynamic=False)
    for f, ours in zip(functions, fn(x), strict=True):
        yield f.__name__, ours, f(x, dim), f(x.double(), dim)


CASES = [
    *((shape, dtype) for shape in SHAPES for dtype in ("float32", "bfloat16")),
    *((shape, dtype) for shape in ("long", "column") for dtype in ("float16", "float64")),
]


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_softmax_against_float64(shape, dtype):
    sizes, dim = SHAPES[shape]
    x = rows(sizes, getattr(torch, dtype))
    for name, ours, eager, exact in both(x, dim):
        assert ours.dtype == x.dtype, name
        assert ours.shape == x.shape, name
        limit = max(DTYPES[dtype], 2 * error(eager, exact, name))
        assert error(ours, exact, name) <= limit, name


# What a row of a long softmax may hold: whole parts of one value, and the rest behind them.
SPECIAL = {
    "low_parts": lambda x: x[:, : LONG // 2].fill_(-math.inf),
    "low_but_one": lambda x: x[:, 1:].fill_(-math.inf),
    "low_rest": lambda x: x[:, -3000:].fill_(-math.inf),
    "low_row": lambda x: x[0].fill_(-math.inf),
    "high": lambda x: x[0, 5].fill_(math.inf),
    "high_and_low": lambda x: (x[:, :70_000].fill_(-math.inf), x[1, -1].fill_(math.inf)),
    "nan": lambda x: x[1, 100_000].fill_(math.nan),
    "nan_among_low": lambda x: (x.fill_(-math.inf), x[0, -1].fill_(math.nan)),
    "far_apart": lambda x: (x[:, :50_000].fill_(-3e38), x[:, 60_000].fill_(3e38)),
    "same": lambda x: x.fill_(0.1),
    "rising": lambda x: x.copy_(torch.linspace(-80, 80, x.shape[1]).expand_as(x)),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_in_parts(name):
    x = rows((2, LONG))
    SPECIAL[name](x)
    for which, *found in both(x, -1):
        ours, eager, _ = found
        known = eager.isfinite()
        torch.testing.assert_close(ours[~known], eager[~known], rtol=0, atol=0, equal_nan=True)
        ours, eager, exact = (t[known] for t in found)
        assert error(ours, exact, which) <= max(1e-6, 2 * error(eager, exact, which)), which


@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax])
def test_a_long_row_is_read_twice(fn):
    """Once for all parts' maxima and sums, once for the result; in between are the parts alone."""
    x = rows((2, DIVIDED))
    parts, rows_, result = kernels_of(lambda x: fn(x, -1), x)
    assert all(isinstance(step, Built) for step in plan_of(lambda x: fn(x, -1), x).steps)
    assert [axis.extent for axis in parts.axes] == [x.numel() // 16384]
    assert [r.op for r in parts.instructions() if isinstance(r, Reduce)] == ["max", "sum"]
    assert [axis.extent for axis in rows_.axes] == [2]
    assert not any(isinstance(i, Reduce) for i in result.instructions())


@pytest.mark.parametrize("sizes", [((3, 140_000), (5, 300_001)), ((1, 70_000), (1, 4))])
def test_a_varying_length(sizes):
    fn = torch.compile(lambda x: torch.softmax(x * 2, -1), backend="cpu", dynamic=True)
    torch._dynamo.reset()
    for shape in sizes:
        x = rows(shape)
        torch.testing.assert_close(fn(x), torch.softmax(x * 2, -1), rtol=1e-5, atol=1e-9)


def test_gradients_of_long_rows():
    x = rows((2, LONG)).requires_grad_()
    assert_same(lambda x: torch.softmax(x * 0.5, -1).square().sum(), x, backend="cpu")


@pytest.mark.parametrize("dim", [0, 1])
def test_the_powers_are_read_before_their_memory_is_reused(dim):
    """They are kept in the result's memory, and another result reads them under a mask."""

    def fn(x):
        y = torch.softmax(x, dim)
        z = y.clone()
        z[1:] += 1
        z[:, :1] *= y[:, :1]
        return y, z

    with torch.no_grad():
        assert_same(fn, rows((24, 2)), backend="cpu", dynamic=False)
        assert_same(fn, rows((3, 70)), backend="cpu", dynamic=False)
