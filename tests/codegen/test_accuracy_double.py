"""Our own math in float64, against more bits than it has, beside eager's error."""

import math

import mpmath
import numpy as np
import pytest
import torch

WIDE = np.longdouble
needs_wide = pytest.mark.skipif(
    np.finfo(WIDE).nmant < 63, reason="long double has no more bits than float64 here"
)
SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    5e-324,
    -5e-324,
]
SPECIAL += [
    2.3e-308,
    -1e-310,
    1.7e308,
    -1.7e308,
    709.7,
    709.8,
    710.4,
    711.0,
    -708.3,
    -745.1,
    -746.0,
]
SPECIAL += [1024.0, 1023.9, -1022.5, -1074.4, -1075.1, 1e22, 6381956970095103 * 2.0**797]


def precise(fn):
    """A function of mpmath on an array."""

    def each(x):
        found = np.full(len(x), np.nan, WIDE)
        with mpmath.workprec(140):
            for n, value in enumerate(x):
                if math.isfinite(value):
                    exact = fn(mpmath.mpf(float(value)))
                    found[n] = WIDE(float(exact)) + WIDE(float(exact - float(exact)))
        return found

    return each


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


# The function, and the same with more bits.
UNARY = {
    **{name: (getattr(torch, name), getattr(np, name)) for name in ("exp", "exp2", "expm1")},
    **{
        name: (getattr(torch, name), getattr(np, name))
        for name in ("log", "log2", "log10", "log1p")
    },
    **{name: (getattr(torch, name), getattr(np, name)) for name in ("sin", "cos", "tan", "sqrt")},
    **{name: (getattr(torch, name), getattr(np, name)) for name in ("sinh", "cosh", "tanh")},
    **{
        name: (getattr(torch, name), getattr(np, f"arc{name[1:]}"))
        for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")
    },
    "sigmoid": (torch.sigmoid, _sigmoid),
    "rsqrt": (torch.rsqrt, lambda x: 1 / np.sqrt(x)),
    "silu": (torch.nn.functional.silu, lambda x: x * _sigmoid(x)),
    "erf": (torch.erf, precise(mpmath.erf)),
    "erfc": (torch.erfc, precise(mpmath.erfc)),
    "gelu": (
        torch.nn.functional.gelu,
        precise(lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2),
    ),
    "softplus": (torch.nn.functional.softplus, lambda x: np.log1p(np.exp(np.minimum(x, 20)))),
}
SLOW = {"erf", "erfc", "gelu"}  # to compute with more bits


def points(count, seed=0):
    """Numbers of every exponent and sign, more of them where functions bend."""
    generator = np.random.default_rng(seed)
    exponent, sign = generator.integers(0, 2047, count), generator.integers(0, 2, count)
    bits = (sign << 63) | (exponent << 52) | generator.integers(0, 1 << 52, count)
    near = 1 + generator.uniform(-1, 1, count) * 2.0 ** generator.uniform(-52, 0, count)
    spread = 2.0 ** generator.uniform(-60, 12, count) * generator.choice([-1, 1], count)
    spans = [generator.uniform(-size, size, count) for size in (1, 30, 745)]
    return np.concatenate([bits.view(np.float64), near, spread, *spans])


def ulps(value, exact):
    """The distance from the exact result in units of its last place, for normal results."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float64)
        fine = np.isfinite(rounded) & np.isfinite(value) & (np.abs(rounded) >= 2.3e-308)
        error = np.abs(value.astype(WIDE) - exact) / np.spacing(np.abs(rounded))
    return float(np.where(fine, error, 0).max())


def both(fn, *args):
    """Eager's result and ours."""
    tensors = [torch.from_numpy(a) for a in args]
    compiled = torch.compile(fn, backend="cpu")
    return fn(*tensors).numpy(), compiled(*tensors).numpy()


def judge(fn, exact, *args):
    """Within twice eager's error; a NaN where eager has one."""
    eager, ours = both(fn, *args)
    with np.errstate(all="ignore"):
        reference = exact(*(a.astype(WIDE) for a in args))
    mine, theirs = ulps(ours, reference), ulps(eager, reference)
    assert mine <= 2 * theirs, (mine, theirs)
    assert np.array_equal(np.isnan(ours), np.isnan(eager))


@needs_wide
@pytest.mark.parametrize("name", UNARY)
def test_error_beside_eager(name):
    fn, exact = UNARY[name]
    if name in SLOW:
        generator = np.random.default_rng(1)
        spans = [
            generator.uniform(*span, 4000) for span in ((-6.5, 28), (-1.5, 1.5), (-1e-9, 1e-9))
        ]
        x = np.concatenate(spans)
    else:
        x = points(60000)
    judge(fn, exact, x)


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name):
    fn, exact = UNARY[name]
    x = np.array(SPECIAL)
    eager, ours = both(fn, x)
    known = eager
    if name in ("sinh", "cosh"):  # eager's overflow early; from where on depends on the processor
        with np.errstate(all="ignore"):
            known = np.where(np.isfinite(x) & np.isinf(eager), exact(x), eager)
    np.testing.assert_allclose(ours, known, rtol=1e-15, atol=3e-308)
    zero = (eager == 0) & (ours == 0)
    assert np.array_equal(np.signbit(ours)[zero], np.signbit(eager)[zero])


def pairs(count):
    """Operands in all combinations of special ones, and others at random."""
    left, right = points(count, 1), points(count, 2)
    np.random.default_rng(3).shuffle(right)
    grid = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    return np.concatenate([left, grid[0]]), np.concatenate([right, grid[1]])


@needs_wide
@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_two_operands(name):
    exact = {"atan2": np.arctan2, "hypot": np.hypot}[name]
    judge(getattr(torch, name), exact, *pairs(20000))


@needs_wide
def test_powers():
    x, y = pairs(20000)
    generator = np.random.default_rng(4)
    with np.errstate(all="ignore"):  # results of every size
        sized = generator.uniform(-700, 700, len(x)) / np.log(np.abs(x))
    y = np.where(np.isfinite(sized) & (generator.random(len(x)) < 0.7), sized, y)
    y = np.where(x < 0, np.round(y), y)
    judge(torch.pow, np.power, x, y)
    special = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    eager, ours = both(torch.pow, *special)
    np.testing.assert_allclose(ours, eager, rtol=1e-15, atol=3e-308)


# ---- remainders --------------------------------------------------------------------------------


def whole_pairs(dtype):
    x, y = pairs(4000)
    with np.errstate(over="ignore"):
        return x.astype(dtype), y.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fmod_is_exact(dtype):
    """However large the quotient: eager's vectors give up there, its scalars do not."""
    x, y = whole_pairs(dtype)
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    _, ours = both(torch.fmod, x, y)
    np.testing.assert_array_equal(ours, expected)
    zero = expected == 0
    assert np.array_equal(np.signbit(ours)[zero], np.signbit(expected)[zero])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["floor", "trunc", "remainder"])
def test_division_with_rounding(mode, dtype):
    def fn(x, y):
        return torch.remainder(x, y) if mode == "remainder" else torch.div(x, y, rounding_mode=mode)

    x, y = whole_pairs(dtype)
    eager, ours = both(fn, x, y)
    known = ~np.isnan(eager) | (mode != "remainder")
    np.testing.assert_array_equal(ours[known], eager[known])
    zero = eager == 0
    assert np.array_equal(np.signbit(ours)[zero], np.signbit(eager)[zero])
