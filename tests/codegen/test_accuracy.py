"""Our own math over the whole float32 range, against float64, beside eager's error."""

import math

import pytest
import torch

UNARY = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erfc": torch.erfc,
    "sigmoid": torch.sigmoid,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "softplus": torch.nn.functional.softplus,
    "elu": torch.nn.functional.elu,
    "logit": torch.logit,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 1e-45, -1e-45, 1.2e-38]
SPECIAL += [3.4e38, -3.4e38, 88.7, 88.73, -87.3, -87.4, -103.9, -104.1, 128.0, 127.9, -126.5]


def whole_range(step=4099):
    """Every ``step``-th float32 there is, and the special ones."""
    bits = torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32)
    return torch.cat([bits.view(torch.float32), torch.tensor(SPECIAL)])


def ulps(value, exact):
    """The distance from the exact result in units of its last place."""
    rounded = exact.float()
    spacing = torch.nextafter(rounded.abs(), torch.tensor(math.inf)) - rounded.abs()
    spacing = spacing.double().clamp_min(2.0**-149)
    error = (value.double() - exact).abs() / spacing
    ok = torch.isfinite(rounded) & torch.isfinite(value)
    return torch.where(ok, error, torch.zeros(()).double())


@pytest.mark.parametrize("name", UNARY)
def test_error_beside_eager(name):
    fn, x = UNARY[name], whole_range()
    exact = fn(x.double())
    eager, ours = fn(x), torch.compile(fn, backend="cpu")(x)
    normal = exact.abs().float() >= 1.2e-38  # eager flushes some denormals itself
    mine, theirs = (torch.where(normal, ulps(v, exact), 0.0) for v in (ours, eager))
    assert mine.max() <= 2 * theirs.max(), (mine.max(), theirs.max())
    # Where a function vanishes eager's error has no bound, which would hide any other.
    mine, theirs = by_binade(x, mine), by_binade(x, theirs)
    assert (mine <= 2 * theirs.clamp_min(1.0)).all(), (mine / theirs.clamp_min(1.0)).max()
    assert_special(*(v[-len(SPECIAL) :] for v in (ours, eager, exact.float())))


def by_binade(x, error):
    """The largest error for each sign and exponent of x."""
    place = (x.view(torch.int32) >> 23).long() + 256
    return torch.zeros(512).double().scatter_reduce(0, place, error, "amax")


def assert_special(ours, eager, exact):
    """Special values give what they give in eager, zeros the sign of float64's."""
    # Eager's float32 gelu gives NaN at infinity, where its float64 one is right.
    known = torch.where(eager.isnan() & ~exact.isnan() | eager.isinf(), exact, eager)
    torch.testing.assert_close(ours, known, equal_nan=True, rtol=1e-6, atol=1.2e-38)
    # Without AVX-512, eager's gelu gives 0.0 for -0.0 and for what is far below 0.
    zero = (exact == 0) & (ours == 0)
    assert torch.equal(torch.signbit(exact[zero]), torch.signbit(ours[zero]))


@pytest.mark.parametrize("exponent", [0.0, 1.5, -2.5, 7.0, math.inf, -math.inf, math.nan, 0.3])
def test_pow(exponent):
    x = whole_range(8191)
    eager, exact = x**exponent, x.double() ** exponent
    ours = torch.compile(lambda x: x**exponent, backend="cpu")(x)
    assert torch.equal(torch.isnan(ours), torch.isnan(eager))
    normal = exact.abs().float() >= 1.2e-38
    assert ulps(ours, exact)[normal].max() <= 2 * ulps(eager, exact)[normal].max()


# Of the largest element: eager may happen to be right, but nobody is better than this on purpose.
HALF_ULP = 2.0**-24
REDUCTIONS = {
    "sum": lambda x: x.sum(-1),
    "sum_columns": lambda x: x.sum(0),
    "sum_all": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: torch.nn.functional.group_norm(x[None, :2], 2),
    "batch_norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "prod": lambda x: (x * 0.01 + 1).prod(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, 5), (64, 1000), (7, 100003)])
def test_reductions_beside_eager(name, shape):
    torch.manual_seed(1)
    fn, x = REDUCTIONS[name], torch.randn(shape) + 0.5
    exact = fn(x.double())
    eager, ours = fn(x), torch.compile(fn, backend="cpu")(x)
    scale = exact.abs().max()
    mine, theirs = ((v.double() - exact).abs().max() / scale for v in (ours, eager))
    assert mine <= 2 * max(theirs, HALF_ULP), (mine, theirs)


@pytest.mark.parametrize("scale", [1e-38, 1e-6, 1.0, 80.0, 1e4, 1e18])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_rows_of_every_size(name, scale):
    """From denormal to where squares are near overflow."""
    torch.manual_seed(2)
    fn, x = REDUCTIONS[name], torch.randn(16, 300) * scale
    exact = fn(x.double())
    eager, ours = fn(x), torch.compile(fn, backend="cpu")(x)
    assert torch.equal(torch.isfinite(ours), torch.isfinite(eager))
    scale = exact.abs().max()
    mine, theirs = ((v.double() - exact).abs().max() / scale for v in (ours, eager))
    assert mine <= 2 * max(theirs, HALF_ULP), (mine, theirs)


ROWS = [
    [math.inf, 1.0, 2.0],
    [-math.inf, 1.0, 2.0],
    [-math.inf] * 3,
    [math.nan, 1.0, 2.0],
    [3.4e38, -3.4e38, 0.0],
    [-0.0, 0.0, -0.0],
    [1e-45, 0.0, -1e-45],
]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "sum", "logsumexp"])
def test_special_rows(name):
    # Squares of the largest numbers overflow: eager's running moments then give NaN, where two
    # passes give zero. Both are wrong.
    rows = [r for r in ROWS if name != "layer_norm" or 3.4e38 not in r]
    fn, x = REDUCTIONS[name], torch.tensor(rows)
    ours = torch.compile(fn, backend="cpu")(x)
    torch.testing.assert_close(ours, fn(x), equal_nan=True, rtol=1e-5, atol=1e-7)
