/* kernel_math.h: single-precision functions without branches or tables, which the compiler can
 * vectorise, and conversions of 16-bit floating point. The polynomials are those of
 * codegen/llvm/math/, fitted by tools/fit_polynomials.py. */
#ifndef DVT_KERNEL_MATH_H
#define DVT_KERNEL_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t wide_bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#define ROUNDING 12582912.0f /* added, it leaves the nearest integer in the low bits */

/* x = n ln 2 + r: e**r - 1 comes back, n in the low bits of *shifted. */
static inline float exp_less_one(float x, float *shifted)
{
    *shifted = x * 1.44269504088896341f + ROUNDING;
    float n = *shifted - ROUNDING;
    float r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
    float p = 0.0001989110342054432665f;
    p = p * r + 0.001393375138798722366f;
    p = p * r + 0.008333310823923211213f;
    p = p * r + 0.0416664640107855562f;
    p = p * r + 0.1666666668172500176f;
    p = p * r + 0.5000000013557447029f;
    return (r * r) * p + r;
}

static inline float exp_fraction(float x, float *shifted)
{
    return exp_less_one(x, shifted) + 1.0f;
}

static inline float power_of_two(uint32_t n)
{
    return float_of((n + 127u) << 23);
}

static inline float exp_single(float x)
{
    float bounded = x > 100.0f ? 100.0f : x, shifted;
    bounded = bounded < -110.0f ? -110.0f : bounded;
    float p = exp_fraction(bounded, &shifted);
    int32_t n = (int32_t)(bits_of(shifted) - bits_of(ROUNDING));
    int32_t half = n >> 1; /* in two steps: the result may be subnormal */
    float value = p * power_of_two((uint32_t)half) * power_of_two((uint32_t)(n - half));
    return x != x ? x : value;
}

/* e**x between -80 and 80. */
static inline float exp_bounded(float x)
{
    float shifted, p = exp_fraction(x, &shifted);
    return p * power_of_two(bits_of(shifted) - bits_of(ROUNDING));
}

/* 1 - 2 / (e**2x + 1), the last steps in double: their roundings would be the worst errors. */
static inline float tanh_far(float size)
{
    float bounded = size > 20.0f ? 20.0f : size, shifted;
    float t = exp_less_one(bounded + bounded, &shifted);
    double grown = power_of_two(bits_of(shifted) - bits_of(ROUNDING));
    return (float)(1.0 - 2.0 / (grown * t + (grown + 1.0)));
}

static inline float tanh_single(float x)
{
    float z = x * x, size = fabsf(x), p = 0.002098952822317725196f;
    p = p * z + -0.00815522196231633768f;
    p = p * z + 0.02170512040127289236f;
    p = p * z + -0.05395055347441234829f;
    p = p * z + 0.1333326259638908944f;
    p = p * z + -0.3333333287020081981f;
    float near = (z * size) * p + size;
    return x != x ? x : copysignf(size < 0.6875f ? near : tanh_far(size), x);
}

static inline float erf_single(float x)
{
    float z = x * x, p = 0.00008285826548691171604f;
    p = p * z + -0.000812296088777280524f;
    p = p * z + 0.005199318198075916429f;
    p = p * z + -0.02685872269475625741f;
    p = p * z + 0.112836836993192075f;
    p = p * z + -0.3761263300303897491f;
    p = p * z + 0.1283791665669025433f;
    float near = x * p + x, size = fabsf(x);
    float t = size > 4.0f ? 4.0f : size, q = -2.634545316321180513e-7f;
    q = q * t + 4.210347220905629485e-6f;
    q = q * t + -0.00001023959979227851269f;
    q = q * t + -0.0002887885018981164738f;
    q = q * t + 0.003706136242053151819f;
    q = q * t + -0.02408968140469235254f;
    q = q * t + 0.106746792766817267f;
    q = q * t + 0.6347905174484043161f;
    q = q * t + 1.128746793411394749f;
    float far = 1.0f - exp_bounded(-(t * q));
    return size < 0.9375f ? near : x != x ? x : copysignf(far, x);
}

static inline float sigmoid_single(float x)
{
    return 1.0f / (1.0f + exp_single(-x));
}

/* By way of double, whose error vanishes in the rounding. */
static inline double log_double(float x)
{
    double wide = (double)x;
    uint64_t bits = wide_bits_of(wide); /* no float is subnormal as a double */
    int64_t exponent = (int64_t)(bits - 0x3FE6A09E667F3BCDu) >> 52;
    double m = double_of(bits - ((uint64_t)exponent << 52)), e = (double)(int32_t)exponent;
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.1189655856841216441;
    p = p * z + 0.1168650891731204597;
    p = p * z + 0.1333571108500843531;
    p = p * z + 0.1538457345002896918;
    p = p * z + 0.1818181861517727863;
    p = p * z + 0.2222222221971029625;
    p = p * z + 0.2857142857143585766;
    p = p * z + 0.3999999999999999187;
    p = p * z + 0.6666666666666666667;
    double value = e * 0.69314718055994530942 + (s * 2.0 + s * z * p);
    value = x == 0.0f ? (double)-INFINITY : value;
    value = x == INFINITY ? (double)INFINITY : value;
    return x < 0.0f || x != x ? (double)NAN : value;
}

/* Powers of integers wrap; with a negative exponent all but 1 and -1 give 0. */
static inline int64_t whole_power(int64_t base, int64_t exponent)
{
    if (exponent < 0)
        return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    uint64_t result = 1, square = (uint64_t)base;
    for (; exponent != 0; exponent >>= 1, square *= square)
        result *= exponent & 1 ? square : 1;
    return (int64_t)result;
}

/* ---- 16-bit floating point ---- */

static inline float widen_half(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    float size = float_of(bits) * 0x1p112f; /* the exponents' biases differ by 112 */
    size = (half & 0x7c00) == 0x7c00 ? float_of(bits | 0x7f800000u) : size;
    return float_of(bits_of(size) | (uint32_t)(half & 0x8000) << 16);
}

static inline uint16_t narrow_half(float x)
{
    uint32_t bits = bits_of(x), size = bits & 0x7fffffffu;
    uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
    /* Subnormal: adding 1/2 rounds to its steps of 2**-24. */
    uint32_t tiny = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    uint32_t made = size < (113u << 23) ? tiny : normal;
    made = size >= 0x477ff000u ? 0x7c00u : made; /* 65520 and above */
    made = size > 0x7f800000u ? 0x7e00u : made;
    return (uint16_t)(made | (bits >> 16 & 0x8000u));
}

static inline float widen_bfloat16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

static inline uint16_t narrow_bfloat16(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t made = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : made);
}

/* ---- to integers: what does not fit gives the least, as the processor's own conversion ----
 */

static inline int32_t single_to_int(float x)
{
    return (int32_t)(x >= -0x1p31f && x < 0x1p31f ? x : -0x1p31f);
}

static inline int32_t double_to_int(double x)
{
    return (int32_t)(x > -0x1p31 - 1 && x < 0x1p31 ? x : -0x1p31);
}

static inline int64_t single_to_long(float x)
{
    return (int64_t)(x >= -0x1p63f && x < 0x1p63f ? x : -0x1p63f);
}

static inline int64_t double_to_long(double x)
{
    return (int64_t)(x >= -0x1p63 && x < 0x1p63 ? x : -0x1p63);
}

#endif
