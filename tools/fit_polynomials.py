"""Fit the polynomials of codegen/llvm/math/coefficients: at Chebyshev nodes, or minimax.

Run it to see the coefficients (lowest power first) and the relative error of each fit.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60


def fit(fn: Callable[[mp.mpf], mp.mpf], low: float, high: float, degree: int) -> list[mp.mpf]:
    """Coefficients of the polynomial that meets ``fn`` at the Chebyshev nodes."""
    low, high = mp.mpf(low), mp.mpf(high)
    count = degree + 1
    nodes = [
        (low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * count))
        for k in range(count)
    ]
    matrix = mp.matrix(count, count)
    for row, x in enumerate(nodes):
        for power in range(count):
            matrix[row, power] = x**power
    return list(mp.lu_solve(matrix, mp.matrix([fn(x) for x in nodes])))


def worst(
    fn: Callable[[mp.mpf], mp.mpf], coefficients: list[mp.mpf], low: float, high: float
) -> float:
    """The largest error relative to ``fn`` on a grid."""
    points = [mp.mpf(low) + (mp.mpf(high) - low) * k / 400 for k in range(1, 400)]
    errors = [abs(mp.polyval(coefficients[::-1], x) / fn(x) - 1) for x in points]
    return float(max(errors))


def series(fn: Callable[[mp.mpf], mp.mpf], limit: mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    """``fn`` with its value at zero put in (a removable singularity)."""
    return lambda x: fn(x) if abs(x) > mp.mpf(10) ** -25 else limit


def odd(fn: Callable[[mp.mpf], mp.mpf], limit: mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    """(fn(x) / x - 1) / x², as a function of x²."""
    return series(lambda z: (fn(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, limit)


def erfcx(q: mp.mpf, middle: int = 4) -> mp.mpf:
    """(1 + 2x) exp(x²) erfc(x), as a function of (x - middle) / (x + middle)."""
    x = middle * (1 + q) / (1 - q)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def pair(value: mp.mpf, bits: int = 53) -> tuple[float, float]:
    """A number as two: the first of so many bits."""
    shift = bits - 1 - int(mp.floor(mp.log(abs(value), 2)))
    high = float(mp.ldexp(mp.nint(mp.ldexp(value, shift)), -shift))
    return high, float(value - high)


def minimax(
    fn: Callable[[mp.mpf], mp.mpf],
    weight: Callable[[mp.mpf], mp.mpf],
    powers: range,
    low: float,
    high: float,
    rounds: int = 60,
) -> tuple[float, list[mp.mpf]]:
    """Coefficients of ``powers`` with the smallest weighted error, by Lawson's iteration.

    Least squares, again and again, with more weight each time to the points that are off.
    """
    points = [
        (mp.mpf(low) + high) / 2 + (mp.mpf(high) - low) / 2 * mp.cos(mp.pi * (2 * k + 1) / 240)
        for k in range(120)
    ]
    shares = [mp.mpf(1) / len(points)] * len(points)
    best: tuple[float, list[mp.mpf]] = (float("inf"), [])
    for _ in range(rounds):
        size = len(powers)
        matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
        for share, x in zip(shares, points, strict=True):
            scale = share * weight(x) ** 2
            for row, p in enumerate(powers):
                right[row] += scale * x**p * fn(x)
                for column, q in enumerate(powers):
                    matrix[row, column] += scale * x ** (p + q)
        found = list(mp.lu_solve(matrix, right))
        errors = [
            weight(x) * abs(sum(c * x**p for c, p in zip(found, powers, strict=True)) - fn(x))
            for x in points
        ]
        if max(errors) < best[0]:
            best = float(max(errors)), found
        total = sum(s * e for s, e in zip(shares, errors, strict=True))
        shares = [s * e / total for s, e in zip(shares, errors, strict=True)]
    return best


Fit = tuple[Callable[[mp.mpf], mp.mpf], Callable[[mp.mpf], mp.mpf], range, float, float]


def odd_minimax(fn: Callable[[mp.mpf], mp.mpf], count: int, high: float) -> Fit:
    """Fn(x) - x with so many odd powers from the third, relative to ``fn``."""
    weight = series(lambda x: 1 / fn(x), mp.mpf(10) ** 20)
    return lambda x: fn(x) - x, weight, range(3, 3 + 2 * count, 2), 0.0, high


S = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2
FITS = {
    # exp(r) = 1 + r + r² p(r)
    "exp64": (series(lambda r: (mp.exp(r) - 1 - r) / r**2, mp.mpf(1) / 2), -0.3470, 0.3470, 10),
    # log(m) = 2 s + s³ p(s²), s = (m-1)/(m+1)
    "log_short": (
        series(lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z, mp.mpf(2) / 3),
        0,
        float(S) * 1.01,
        4,
    ),
    # tanh(x) = x + x³ p(x²) for |x| < 0.6875
    "tanh32": (
        series(lambda z: (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, mp.mpf(-1) / 3),
        0,
        0.6875**2,
        5,
    ),
    # erf(x) = x + x p(x²) for |x| < 0.9375
    "erf_near": (
        series(lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 2 / mp.sqrt(mp.pi) - 1),
        0,
        0.9375**2,
        6,
    ),
    # sin(r) = r + r³ p(r²), cos(r) = 1 - r²/2 + r⁴ p(r²), |r| <= pi/4
    "sin64": (odd(mp.sin, mp.mpf(-1) / 6), 0, 0.6169, 6),
    "cos64": (
        series(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, mp.mpf(1) / 24),
        0,
        0.6169,
        5,
    ),
    # log(m) = 2 s + s³ (2/3 + s² p(s²))
    "log_tail64": (
        series(
            lambda z: ((2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z - mp.mpf(2) / 3) / z,
            mp.mpf(2) / 5,
        ),
        0,
        float(S) * 1.01,
        7,
    ),
    # f(x) = x + x³ p(x²): |x| below tan(pi/8), 1/2, 1
    "atan64": (odd(mp.atan, mp.mpf(-1) / 3), 0, float((mp.sqrt(2) - 1) ** 2) * 1.001, 10),
    "asin64": (odd(mp.asin, mp.mpf(1) / 6), 0, 0.2502, 12),
    "sinh64": (odd(mp.sinh, mp.mpf(1) / 6), 0, 1, 6),
    # erf(x) = x + x p(x²) for |x| < 1
    "erf64": (
        series(lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 2 / mp.sqrt(mp.pi) - 1),
        0,
        1,
        12,
    ),
    # erfc(x) = exp(-x²) p((x - 4) / (x + 4)) / (1 + 2x) for x in [0.45, 28]
    "erfcx64": (erfcx, (0.45 - 4) / 4.45, 24 / 32, 21),
    # The same with 3 instead of 4, for a result in float32 from x in [0, 10.2]
    "erfcx_short": (lambda q: erfcx(q, 3), -1.0, 7.2 / 13.2, 10),
}

MINIMAX = {
    # log(1 + f) = f - f²/2 + f³ p(f), relative to the result
    "log32": (
        lambda f: mp.log(1 + f) - f + f * f / 2,
        series(lambda f: 1 / abs(mp.log(1 + f)), mp.mpf(10) ** 20),
        range(3, 11),
        -0.25,
        0.5,
    ),
    # exp(r) = 1 + r + r² p(r), relative to exp(r)
    "exp32": (lambda r: mp.exp(r) - 1 - r, lambda r: mp.exp(-r), range(2, 7), -0.347, 0.347),
    # f(r) = r + r³ p(r²), cos(r) = 1 - r²/2 + r⁴ p(r²), cosh(r) = 1 + r² p(r²), relative
    "sin32": odd_minimax(mp.sin, 3, 0.79),
    "tan32": odd_minimax(mp.tan, 7, 0.79),
    "sinh32": odd_minimax(mp.sinh, 3, 0.348),
    "asin32": odd_minimax(mp.asin, 5, 0.5),
    "atan32": odd_minimax(mp.atan, 9, 1.0),
    "cos32": (
        lambda r: mp.cos(r) - 1 + r * r / 2,
        lambda r: 1 / mp.cos(r),
        range(4, 10, 2),
        0.0,
        0.79,
    ),
    "cosh32": (
        lambda r: mp.cosh(r) - 1,
        lambda r: 1 / mp.cosh(r),
        range(2, 8, 2),
        0.0,
        0.348,
    ),
    # 2**f = 1 + f p(f), relative
    "exp2_32": (lambda f: 2**f - 1, lambda f: mp.mpf(2) ** -f, range(1, 7), -0.5, 0.5),
    # erf(x) = 1 - 2**(t q(t)) for t = |x| in [0.9375, 4], absolute
    "erf_far": (lambda t: mp.log(mp.erfc(t), 2), mp.erfc, range(1, 7), 0.9375, 4.0),
    # erfc(t) = 2**(t q(t)), absolute, down to where a sum with 1 no longer sees it
    "erfc": (
        lambda t: mp.log(mp.erfc(t), 2),
        lambda t: max(mp.erfc(t), mp.mpf(2) ** -10),
        range(1, 10),
        0.0,
        4.0,
    ),
}

CONSTANTS = {
    "ln2": pair(mp.log(2)),
    "inverse_ln2": pair(1 / mp.log(2)),
    "inverse_ln10": pair(1 / mp.log(10)),
    "log10_2": pair(mp.log10(2), 36),  # times an exponent exact
    # For float32.
    "inverse_ln2_short": pair(1 / mp.log(2), 24),
    "inverse_ln10_short": pair(1 / mp.log(10), 24),
    "log10_2_short": pair(mp.log10(2), 16),
    "two_thirds": pair(mp.mpf(2) / 3),
    "half_pi": pair(mp.pi / 2),
    "half_pi_short": pair(mp.pi / 2, 24),
}

if __name__ == "__main__":
    for name, (high, low) in CONSTANTS.items():
        print(f"{name} = ({high!r}, {low!r})")
    for name, given in MINIMAX.items():
        error, coefficients = minimax(*given)
        print(f"{name} = (  # {error:.1e}")
        for c in coefficients:
            print(f"    {mp.nstr(c, 19)},")
        print(")")
    for name, (fn, low, high, degree) in FITS.items():
        coefficients = fit(fn, low, high, degree)
        print(f"{name} = (  # {worst(fn, coefficients, low, high):.1e}")
        for c in coefficients:
            print(f"    {mp.nstr(c, 19)},")
        print(")")
