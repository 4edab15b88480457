/* Element types, iteration over strided tensors, and copies that convert. */
#include "internal.h"
#include "iterate.h"

#include <math.h>
#include <string.h>

type_id dvt_type_of(dvt_dtype d)
{
    if (d.lanes != 1)
        return T_NONE;
    switch (d.code << 8 | d.bits) {
#define X(number, name, code, bits, computed, least, most)                                     \
    case code << 8 | bits:                                                                     \
        return T_##name;
        KERNEL_TYPES(X)
#undef X
    }
    return T_NONE;
}

bool dvt_same_dtype(dvt_dtype a, dvt_dtype b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

int64_t dvt_numel(const dvt_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

bool dvt_broadcasts(const dvt_tensor *from, const dvt_tensor *to)
{
    if (from->ndim > to->ndim)
        return false;
    for (int32_t i = 0; i < from->ndim; i++) {
        int64_t size = from->shape[from->ndim - 1 - i];
        if (size != 1 && size != to->shape[to->ndim - 1 - i])
            return false;
    }
    return true;
}

/* ---- iteration ---- */

typedef struct {
    int operands, rank;
    int64_t shape[DVT_MAX_RANK];
    int64_t strides[DVT_OPERANDS][DVT_MAX_RANK]; /* bytes */
    char *data[DVT_OPERANDS];
    dvt_loop loop;
    const void *context;
} walk;

/* Neighbouring dimensions that every operand steps through evenly become one. */
static void collapse(walk *w)
{
    int kept = 0;
    for (int d = 0; d < w->rank; d++) {
        if (w->shape[d] == 1 && w->rank > 1)
            continue;
        bool joins = kept > 0;
        for (int o = 0; joins && o < w->operands; o++)
            joins = w->strides[o][kept - 1] == w->strides[o][d] * w->shape[d];
        if (joins)
            w->shape[kept - 1] *= w->shape[d];
        else
            w->shape[kept++] = w->shape[d];
        for (int o = 0; o < w->operands; o++)
            w->strides[o][kept - 1] = w->strides[o][d];
    }
    w->rank = kept;
}

/* `begin` and `end` count elements of the whole iteration space. */
static void walk_range(void *context, int64_t begin, int64_t end)
{
    const walk *w = context;
    int last = w->rank - 1;
    int64_t inner = w->shape[last];
    while (begin < end) {
        int64_t row = begin / inner, column = begin % inner;
        int64_t count = inner - column < end - begin ? inner - column : end - begin;
        char *at[DVT_OPERANDS];
        int64_t steps[DVT_OPERANDS];
        for (int o = 0; o < w->operands; o++) {
            at[o] = w->data[o] + column * w->strides[o][last];
            steps[o] = w->strides[o][last];
        }
        for (int d = last - 1; d >= 0; d--) {
            int64_t index = row % w->shape[d];
            row /= w->shape[d];
            for (int o = 0; o < w->operands; o++)
                at[o] += index * w->strides[o][d];
        }
        w->loop(count, at, steps, w->context);
        begin += count;
    }
}

void dvt_iterate(int operands, const dvt_tensor *const *tensors, dvt_loop loop,
                 const void *context, int64_t grain)
{
    walk w = {.operands = operands, .loop = loop, .context = context};
    const dvt_tensor *whole = tensors[0];
    int64_t total = dvt_numel(whole);
    if (total == 0)
        return; /* strides of what has no elements may be any numbers */
    w.rank = whole->ndim > 0 ? whole->ndim : 1;
    w.shape[0] = 1;
    for (int32_t d = 0; d < whole->ndim; d++)
        w.shape[d] = whole->shape[d];
    for (int o = 0; o < operands; o++) {
        const dvt_tensor *t = tensors[o];
        int64_t item = t->dtype.bits / 8;
        w.data[o] = dvt_data(t);
        for (int32_t d = 0; d < t->ndim; d++) {
            int32_t place = whole->ndim - t->ndim + d;
            w.strides[o][place] = t->shape[d] == 1 ? 0 : t->strides[d] * item;
        }
    }
    collapse(&w);
    if (w.rank == 0) {
        w.rank = 1;
        w.shape[0] = 1;
        for (int o = 0; o < operands; o++)
            w.strides[o][0] = 0;
    }
    dvt_parallel(total, grain, walk_range, &w);
}

/* ---- copies ---- */

static void copy_bytes(int64_t n, char *const *p, const int64_t *s, const void *context)
{
    size_t item = *(const size_t *)context;
    if (s[0] == (int64_t)item && s[1] == (int64_t)item) {
        memmove(p[0], p[1], (size_t)n * item);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        memcpy(p[0] + i * s[0], p[1] + i * s[1], item);
}

#define COPY_ITEMS(T)                                                                          \
    static void copy_##T(int64_t n, char *const *p, const int64_t *s, const void *context)     \
    {                                                                                          \
        if ((s[0] | s[1] | (int64_t)(intptr_t)p[0] | (int64_t)(intptr_t)p[1]) %                \
            (int64_t)sizeof(T)) {                                                              \
            copy_bytes(n, p, s, context);                                                      \
            return;                                                                            \
        }                                                                                      \
        if (s[0] == sizeof(T) && s[1] == sizeof(T)) {                                          \
            memmove(p[0], p[1], (size_t)n * sizeof(T));                                        \
            return;                                                                            \
        }                                                                                      \
        for (int64_t i = 0; i < n; i++)                                                        \
            *(T *)(void *)(p[0] + i * s[0]) = *(const T *)(const void *)(p[1] + i * s[1]);     \
    }
COPY_ITEMS(uint8_t)
COPY_ITEMS(uint16_t)
COPY_ITEMS(uint32_t)
COPY_ITEMS(uint64_t)

static float half_to_float(uint16_t h)
{
    int exponent = (h >> 10) & 31, fraction = h & 1023;
    float value = exponent == 0    ? ldexpf((float)fraction, -24)
                  : exponent == 31 ? (fraction ? NAN : INFINITY)
                                   : ldexpf((float)(fraction + 1024), exponent - 25);
    return h & 0x8000 ? -value : value;
}

static uint16_t float_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    float size = fabsf(value);
    if (value != value)
        return (uint16_t)(sign | 0x7e00);
    if (size == 0)
        return sign;
    if (size >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    int exponent;
    frexpf(size, &exponent);
    if (exponent < -13)
        exponent = -13; /* subnormal: a fixed step of 2^-24 */
    uint32_t steps = (uint32_t)rintf(ldexpf(size, 11 - exponent)); /* 11 bits, ties to even */
    uint32_t made = exponent == -13 && steps < 1024
                        ? steps
                        : ((uint32_t)(exponent + 14) << 10) + (steps - 1024);
    return (uint16_t)(sign | made);
}

static float bfloat_to_float(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t float_to_bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

typedef struct {
    bool whole;
    int64_t i;
    double f;
} number;

static number load(type_id type, const char *p)
{
    number v = {true, 0, 0};
    union {
        float f32;
        double f64;
        int64_t i64;
        int32_t i32;
        int16_t i16;
        int8_t i8;
        uint8_t u8;
        uint16_t u16;
    } u;
    static const uint8_t sizes[] = {
#define X(number, name, code, bits, computed, least, most) [number] = bits / 8,
        KERNEL_TYPES(X)
#undef X
    };
    memcpy(&u, p, sizes[type]);
    switch (type) {
    case T_I64:
        v.i = u.i64;
        return v;
    case T_I32:
        v.i = u.i32;
        return v;
    case T_I16:
        v.i = u.i16;
        return v;
    case T_I8:
        v.i = u.i8;
        return v;
    case T_U8:
        v.i = u.u8;
        return v;
    case T_BOOL:
        v.i = u.u8 != 0;
        return v;
    default:
        v.whole = false;
        v.f = type == T_F32   ? (double)u.f32
              : type == T_F64 ? u.f64
              : type == T_F16 ? (double)half_to_float(u.u16)
                              : (double)bfloat_to_float(u.u16);
        return v;
    }
}

static int64_t to_int(number v)
{
    if (v.whole)
        return v.i;
    return v.f >= -9.2e18 && v.f <= 9.2e18 ? (int64_t)v.f : INT64_MIN;
}

static void store(type_id type, char *p, number v)
{
    float f = v.whole ? (float)v.i : (float)v.f;
    double d = v.whole ? (double)v.i : v.f;
    int64_t i = type == T_F32 || type == T_F64 || type >= T_F16 ? 0 : to_int(v);
    uint16_t bits = type == T_F16 ? float_to_half(f) : type == T_BF16 ? float_to_bfloat(f) : 0;
    int32_t i32 = (int32_t)(uint32_t)(uint64_t)i;
    uint8_t u8 = type == T_BOOL ? (v.whole ? v.i != 0 : v.f != 0) : (uint8_t)(uint64_t)i;
    switch (type) {
    case T_F32:
        memcpy(p, &f, 4);
        return;
    case T_F64:
        memcpy(p, &d, 8);
        return;
    case T_I64:
        memcpy(p, &i, 8);
        return;
    case T_I32:
        memcpy(p, &i32, 4);
        return;
    case T_I16: {
        uint16_t low = (uint16_t)(uint64_t)i;
        memcpy(p, &low, 2);
        return;
    }
    case T_F16:
    case T_BF16:
        memcpy(p, &bits, 2);
        return;
    default:
        *(uint8_t *)p = u8;
    }
}

typedef struct {
    type_id to, from;
} conversion;

static void convert(int64_t n, char *const *p, const int64_t *s, const void *context)
{
    const conversion *c = context;
    for (int64_t i = 0; i < n; i++)
        store(c->to, p[0] + i * s[0], load(c->from, p[1] + i * s[1]));
}

bool dvt_can_copy(dvt_dtype to, dvt_dtype from)
{
    return dvt_same_dtype(to, from) ||
           (dvt_type_of(to) != T_NONE && dvt_type_of(from) != T_NONE);
}

void dvt_copy_tensor(const dvt_tensor *dst, const dvt_tensor *src)
{
    const dvt_tensor *both[2] = {dst, src};
    if (!dvt_same_dtype(dst->dtype, src->dtype)) {
        conversion c = {dvt_type_of(dst->dtype), dvt_type_of(src->dtype)};
        dvt_iterate(2, both, convert, &c, 16384);
        return;
    }
    size_t item = dst->dtype.bits / 8u;
    dvt_loop loop = item == 1   ? copy_uint8_t
                    : item == 2 ? copy_uint16_t
                    : item == 4 ? copy_uint32_t
                    : item == 8 ? copy_uint64_t
                                : copy_bytes;
    dvt_iterate(2, both, loop, &item, 65536);
}

void dvt_store_int(const dvt_tensor *t, int64_t value)
{
    store(dvt_type_of(t->dtype), dvt_data(t), (number){true, value, 0});
}
