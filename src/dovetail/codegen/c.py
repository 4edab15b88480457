"""A kernel as plain C11: for compilers of devices that speak C, and to read.

Compile it with contraction off (``-ffp-contract=off``) to round as eager does.
"""

from __future__ import annotations

from dovetail.codegen.source import SourceRenderer
from dovetail.ir.dtypes import COMPUTED, DTYPES, KERNEL_DTYPES

NAMES = {name: DTYPES[name].c for name in COMPUTED}
_STORED = {d.name: d.c for d in KERNEL_DTYPES} | {"bool": NAMES["uint8"]}

PRELUDE = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double as_double(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float from_bfloat16(uint16_t bits)
{
    return from_bits((uint32_t)bits << 16);
}

static inline uint16_t to_bfloat16(float x) /* to nearest even; a NaN stays one */
{
    const uint32_t bits = to_bits(x);
    return x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float from_half(uint16_t bits)
{
    const int exponent = (bits >> 10) & 31, rest = bits & 1023;
    float x = ldexpf((float)(exponent ? rest + 1024 : rest), (exponent ? exponent : 1) - 25);
    if (exponent == 31) x = rest ? NAN : INFINITY;
    return bits >> 15 ? -x : x;
}

static inline uint16_t to_half(float x) /* to nearest even; a NaN stays one */
{
    const uint32_t sign = (to_bits(x) >> 16) & 0x8000;
    const float size = fabsf(x);
    if (x != x) return (uint16_t)(sign | 0x7e00);
    if (size >= 65520.0f) return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14f) return (uint16_t)(sign | (uint32_t)rintf(size * 0x1p24f));
    const uint32_t bits = to_bits(size);
    return (uint16_t)(sign | (((bits + 0xfff + ((bits >> 13) & 1)) >> 13) - (112u << 10)));
}

static inline int64_t whole_power(int64_t base, int64_t exponent)
{
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    uint64_t result = 1, square = (uint64_t)base;
    for (; exponent; exponent >>= 1, square *= square)
        if (exponent & 1) result *= square;
    return (int64_t)result;
}

static inline float round_half(float x)
{
    return from_half(to_half(x));
}
"""


class CRenderer(SourceRenderer):
    """C's words for what kernels need; a kernel is a function over all of its points."""

    names = NAMES
    pointers = {dtype: f"{{}}{name} *" for dtype, name in _STORED.items()}  # noqa: RUF012
    half = ("from_half({0}[{1}])", "{0}[{1}] = to_half({2});")
    prelude = PRELUDE

    def begin(self) -> None:
        """The points are run one after another."""
        parameters = ", ".join(self.parameters("int64_t *flag"))
        self.lines += [f"void {self.kernel.name}({parameters})", "{"]
        self.line("for (int64_t number = 0; number < points; ++number) {")
        self.depth = 2
        self.line("int64_t point = number;")
        self.line("(void)point;")

    def end(self) -> None:
        """Close the loop over the points."""
        self.lines += ["    }", "}"]

    def function(self, name: str, dtype: str) -> str:
        """The math library's name for the type."""
        return f"{name}f" if dtype == "float32" else name
