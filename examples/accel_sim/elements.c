/* Elements of tensors: where they are, and what they are. */
#include "device.h"

#include "dovetail_plugin.h"

#include <math.h>
#include <string.h>

const char SIM_MISFIT[] = "the shapes do not fit together";

int64_t sim_offset(int64_t n, int32_t rank, const int64_t *shape, const sim_tensor *t)
{
    int64_t offset = 0;
    for (int32_t i = rank - 1; i >= 0; i--) {
        int64_t at = n % shape[i];
        int32_t own = i - rank + t->rank;
        n /= shape[i];
        if (own >= 0 && t->shape[own] != 1)
            offset += at * t->strides[own];
    }
    return offset;
}

int64_t sim_count(const sim_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->rank; i++)
        count *= t->shape[i];
    return count;
}

bool sim_same_shape(const sim_tensor *a, const sim_tensor *b)
{
    if (a->rank != b->rank)
        return false;
    for (int32_t i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

bool sim_broadcasts(const sim_tensor *t, const sim_tensor *over)
{
    if (t->rank < 0 || t->rank > over->rank)
        return false;
    for (int32_t i = 1; i <= t->rank; i++)
        if (t->shape[t->rank - i] != 1 && t->shape[t->rank - i] != over->shape[over->rank - i])
            return false;
    return true;
}

/* ---- small floating-point numbers: a sign, an exponent, `fraction` bits ---- */

static double decode(uint32_t bits, int exponent_bits, int fraction, int bias)
{
    int exponent = (int)(bits >> fraction) & ((1 << exponent_bits) - 1);
    uint32_t rest = bits & ((1u << fraction) - 1);
    double value = exponent == 0
                       ? ldexp((double)rest, 1 - bias - fraction)
                       : ldexp((double)(rest | 1u << fraction), exponent - bias - fraction);
    return bits >> (exponent_bits + fraction) & 1 ? -value : value;
}

/* The nearest such number, ties to even; beyond the largest: as if exponents went on. */
static uint32_t encode(double value, int exponent_bits, int fraction, int bias)
{
    uint32_t sign = signbit(value) ? 1u << (exponent_bits + fraction) : 0;
    int exponent;
    double size = fabs(value);
    if (size == 0)
        return sign;
    frexp(size, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    uint64_t steps = (uint64_t)nearbyint(ldexp(size, fraction - exponent));
    return sign | (uint32_t)(((uint64_t)(exponent + bias - 1) << fraction) + steps);
}

static double load_e4m3(uint8_t bits)
{
    return (bits & 0x7F) == 0x7F ? NAN : decode(bits, 4, 3, 7);
}

static uint8_t store_e4m3(double value)
{
    uint8_t sign = signbit(value) ? 0x80 : 0;
    if (isnan(value))
        return sign | 0x7F;
    return fabs(value) >= 448 ? sign | 0x7E : (uint8_t)encode(value, 4, 3, 7); /* no infinity */
}

static double load_e5m2(uint8_t bits)
{
    if ((bits & 0x7C) != 0x7C)
        return decode(bits, 5, 2, 15);
    return bits & 3 ? NAN : bits & 0x80 ? -INFINITY : INFINITY;
}

static uint8_t store_e5m2(double value)
{
    uint8_t sign = signbit(value) ? 0x80 : 0;
    if (isnan(value))
        return sign | 0x7F;
    uint32_t bits = isinf(value) || fabs(value) >= 65536 ? 0x7C : encode(fabs(value), 5, 2, 15);
    return sign | (uint8_t)(bits > 0x7C ? 0x7C : bits);
}

static double load_bfloat(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

static uint16_t store_bfloat(double value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Integers of every size; those of four bits lie two in a byte. */
static double load_integer(const sim_tensor *t, const unsigned char *memory, int64_t offset)
{
    const unsigned char *at = memory + t->address + (uint64_t)offset * t->bits / 8u;
    bool is_signed = t->code == DVP_INT;
    if (t->bits == 4) {
        int number = *at >> (offset % 2 != 0 ? 4 : 0) & 15;
        return number - (is_signed && number > 7 ? 16 : 0);
    }
    if (t->bits == 8)
        return is_signed ? *(const int8_t *)at : *at;
    if (t->bits == 32)
        return is_signed ? (double)*(const int32_t *)(const void *)at
                         : (double)*(const uint32_t *)(const void *)at;
    return (double)*(const int64_t *)(const void *)at;
}

static void store_integer(const sim_tensor *t, unsigned char *memory, int64_t offset,
                          double value)
{
    unsigned char *at = memory + t->address + (uint64_t)offset * (t->bits / 8u);
    if (t->bits == 8)
        *at = (unsigned char)(int64_t)value;
    else if (t->bits == 32)
        *(int32_t *)(void *)at = (int32_t)value;
    else if (t->bits == 64)
        *(int64_t *)(void *)at = (int64_t)value;
}

double sim_load(const sim_tensor *t, const unsigned char *memory, int64_t offset)
{
    const unsigned char *at = memory + t->address + (uint64_t)offset * (t->bits / 8u);
    switch (t->code) {
    case DVP_FLOAT:
        return t->bits == 64 ? *(const double *)(const void *)at
                             : (double)*(const float *)(const void *)at;
    case DVP_BFLOAT:
        return load_bfloat(*(const uint16_t *)(const void *)at);
    case DVP_FLOAT8_E4M3FN:
        return load_e4m3(*at);
    case DVP_FLOAT8_E5M2:
        return load_e5m2(*at);
    case DVP_BOOL:
        return *at != 0;
    default:
        return load_integer(t, memory, offset);
    }
}

void sim_store(const sim_tensor *t, unsigned char *memory, int64_t offset, double value)
{
    unsigned char *at = memory + t->address + (uint64_t)offset * (t->bits / 8u);
    switch (t->code) {
    case DVP_FLOAT:
        *(float *)(void *)at = (float)value;
        break;
    case DVP_BFLOAT:
        *(uint16_t *)(void *)at = store_bfloat(value);
        break;
    case DVP_FLOAT8_E4M3FN:
        *at = store_e4m3(value);
        break;
    case DVP_FLOAT8_E5M2:
        *at = store_e5m2(value);
        break;
    case DVP_BOOL:
        *at = value != 0;
        break;
    default:
        store_integer(t, memory, offset, value);
    }
}
