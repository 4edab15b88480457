/* Elementwise kernels: broadcasting, any strides, in place where the program says so. */
#include "internal.h"
#include "iterate.h"

#include <tgmath.h>

#define GRAIN 32768 /* elements worth a thread of their own */

typedef struct {
    const dvt_loop *loops; /* by the type of the operands */
    uint32_t inputs, attributes;
    bool gives_bool;
} operation;

static dvt_status check(const dvt_call *c, const operation *op, const char *name,
                        dvt_error *error)
{
    if (c->output_count != 1 || c->input_count != op->inputs ||
        c->attribute_count != op->attributes)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "%s: wrong number of operands", name);
    const dvt_tensor *out = c->outputs[0];
    type_id type = dvt_type_of(c->inputs[0]->dtype);
    if (type == T_NONE || op->loops[type] == NULL)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "%s: no code for this dtype", name);
    type_id result = op->gives_bool ? T_BOOL : type;
    bool fits = dvt_type_of(out->dtype) == result;
    for (uint32_t i = 0; i < c->input_count; i++)
        fits = fits && dvt_type_of(c->inputs[i]->dtype) == type &&
               dvt_broadcasts(c->inputs[i], out);
    if (!fits)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "%s: shapes or dtypes do not fit", name);
    return DVT_OK;
}

static dvt_status run(const dvt_call *c, const operation *op)
{
    const dvt_tensor *tensors[DVT_OPERANDS] = {c->outputs[0]};
    for (uint32_t i = 0; i < c->input_count; i++)
        tensors[i + 1] = c->inputs[i];
    dvt_iterate((int)c->input_count + 1, tensors, op->loops[dvt_type_of(c->inputs[0]->dtype)],
                c->attributes, GRAIN);
    return DVT_OK;
}

#define AT(T, o, i) (*(T *)(void *)(p[o] + (i) * s[o]))

/* A loop with one operand; the branch lets the compiler vectorise the common case. */
#define LOOP1(name, suffix, T, R, expression)                                                  \
    static void name##_##suffix(int64_t n, char *const *p, const int64_t *s,                   \
                                const void *context)                                           \
    {                                                                                          \
        const dvt_number *attribute = context;                                                 \
        (void)attribute;                                                                       \
        if (s[0] == sizeof(R) && s[1] == sizeof(T)) {                                          \
            R *out = (R *)(void *)p[0];                                                        \
            const T *in = (const T *)(const void *)p[1];                                       \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                               \
            {                                                                                  \
                const T a = in[i];                                                             \
                out[i] = (R)(expression);                                                      \
            }                                                                                  \
            return;                                                                            \
        }                                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                      \
            const T a = AT(const T, 1, i);                                                     \
            AT(R, 0, i) = (R)(expression);                                                     \
        }                                                                                      \
    }

#define LOOP2(name, suffix, T, R, expression)                                                  \
    static void name##_##suffix(int64_t n, char *const *p, const int64_t *s,                   \
                                const void *context)                                           \
    {                                                                                          \
        (void)context;                                                                         \
        const int64_t item = sizeof(T);                                                        \
        if (s[0] == sizeof(R) && s[1] == item && s[2] == item) {                               \
            R *out = (R *)(void *)p[0];                                                        \
            const T *x = (const T *)(const void *)p[1], *y = (const T *)(const void *)p[2];    \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                               \
            {                                                                                  \
                const T a = x[i], b = y[i];                                                    \
                out[i] = (R)(expression);                                                      \
            }                                                                                  \
        } else if (s[0] == sizeof(R) && s[1] == item && s[2] == 0) {                           \
            R *out = (R *)(void *)p[0];                                                        \
            const T *x = (const T *)(const void *)p[1];                                        \
            const T b = AT(const T, 2, 0);                                                     \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                               \
            {                                                                                  \
                const T a = x[i];                                                              \
                out[i] = (R)(expression);                                                      \
            }                                                                                  \
        } else {                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                  \
                const T a = AT(const T, 1, i), b = AT(const T, 2, i);                          \
                AT(R, 0, i) = (R)(expression);                                                 \
            }                                                                                  \
        }                                                                                      \
    }

#define ENTRY(name, count, numbers, boolean)                                                   \
    static const operation name##_op = {name##_loops, count, numbers, boolean};                \
    static dvt_status check_##name(const dvt_call *c, dvt_error *error)                        \
    {                                                                                          \
        return check(c, &name##_op, #name, error);                                             \
    }                                                                                          \
    static dvt_status run_##name(const dvt_call *c, dvt_error *error)                          \
    {                                                                                          \
        (void)error;                                                                           \
        return run(c, &name##_op);                                                             \
    }

/* Floating point only, with or without attributes. */
#define UNARY(name, expression) UNARY_WITH(name, 0, expression)
#define UNARY_WITH(name, numbers, expression)                                                  \
    LOOP1(name, f32, float, float, expression)                                                 \
    LOOP1(name, f64, double, double, expression)                                               \
    static const dvt_loop name##_loops[T_COUNT] = {[T_F32] = name##_f32,                       \
                                                   [T_F64] = name##_f64};                      \
    ENTRY(name, 1, numbers, false)

/* `whole` is the expression for integers, in unsigned arithmetic where it could overflow. */
#define UNARY_INT(name, expression, whole64, whole32)                                          \
    LOOP1(name, f32, float, float, expression)                                                 \
    LOOP1(name, f64, double, double, expression)                                               \
    LOOP1(name, i64, int64_t, int64_t, whole64)                                                \
    LOOP1(name, i32, int32_t, int32_t, whole32)                                                \
    static const dvt_loop name##_loops[T_COUNT] = {[T_F32] = name##_f32,                       \
                                                   [T_F64] = name##_f64,                       \
                                                   [T_I64] = name##_i64,                       \
                                                   [T_I32] = name##_i32};                      \
    ENTRY(name, 1, 0, false)

#define BINARY(name, expression)                                                               \
    LOOP2(name, f32, float, float, expression)                                                 \
    LOOP2(name, f64, double, double, expression)                                               \
    static const dvt_loop name##_loops[T_COUNT] = {[T_F32] = name##_f32,                       \
                                                   [T_F64] = name##_f64};                      \
    ENTRY(name, 2, 0, false)

#define BINARY_INT(name, expression, whole64, whole32)                                         \
    LOOP2(name, f32, float, float, expression)                                                 \
    LOOP2(name, f64, double, double, expression)                                               \
    LOOP2(name, i64, int64_t, int64_t, whole64)                                                \
    LOOP2(name, i32, int32_t, int32_t, whole32)                                                \
    static const dvt_loop name##_loops[T_COUNT] = {[T_F32] = name##_f32,                       \
                                                   [T_F64] = name##_f64,                       \
                                                   [T_I64] = name##_i64,                       \
                                                   [T_I32] = name##_i32};                      \
    ENTRY(name, 2, 0, false)

#define COMPARE(name, expression)                                                              \
    LOOP2(name, f32, float, uint8_t, expression)                                               \
    LOOP2(name, f64, double, uint8_t, expression)                                              \
    LOOP2(name, i64, int64_t, uint8_t, expression)                                             \
    LOOP2(name, i32, int32_t, uint8_t, expression)                                             \
    LOOP2(name, bool, uint8_t, uint8_t, expression)                                            \
    static const dvt_loop name##_loops[T_COUNT] = {[T_F32] = name##_f32,                       \
                                                   [T_F64] = name##_f64,                       \
                                                   [T_I64] = name##_i64,                       \
                                                   [T_I32] = name##_i32,                       \
                                                   [T_BOOL] = name##_bool};                    \
    ENTRY(name, 2, 0, true)

#define LOGICAL(name, expression)                                                              \
    LOOP2(name, bool, uint8_t, uint8_t, expression)                                            \
    static const dvt_loop name##_loops[T_COUNT] = {[T_BOOL] = name##_bool};                    \
    ENTRY(name, 2, 0, true)

UNARY(acos, acos(a))
UNARY(asin, asin(a))
UNARY(atan, atan(a))
UNARY(ceil, ceil(a))
UNARY(cos, cos(a))
UNARY(cosh, cosh(a))
UNARY(erf, erf(a))
UNARY(exp, exp(a))
UNARY(exp2, exp2(a))
UNARY(expm1, expm1(a))
UNARY(floor, floor(a))
UNARY(gelu, a * (1 + erf(a * (__typeof__(a))M_SQRT1_2)) / 2)
UNARY(gelu_tanh, a *
                     (1 + tanh((__typeof__(a))(M_2_SQRTPI * M_SQRT1_2) *
                               (a + a * a * a * (__typeof__(a))0.044715))) /
                     2)
UNARY(log, log(a))
UNARY(log10, log10(a))
UNARY(log1p, log1p(a))
UNARY(log2, log2(a))
UNARY(reciprocal, 1 / a)
UNARY(round, rint(a))
UNARY(rsqrt, 1 / sqrt(a))
UNARY(sigmoid, 1 / (1 + exp(-a)))
UNARY(silu, a / (1 + exp(-a)))
UNARY(sin, sin(a))
UNARY(sinh, sinh(a))
UNARY(sqrt, sqrt(a))
UNARY(tan, tan(a))
UNARY(tanh, tanh(a))
UNARY(trunc, trunc(a))
UNARY_INT(abs, fabs(a), a < 0 ? (int64_t)(0 - (uint64_t)a) : a,
          a < 0 ? (int32_t)(0 - (uint32_t)a) : a)
UNARY_INT(neg, -a, (int64_t)(0 - (uint64_t)a), (int32_t)(0 - (uint32_t)a))
UNARY_INT(relu, a <= 0 ? 0 : a, a <= 0 ? 0 : a, a <= 0 ? 0 : a)
UNARY_INT(sign, (a > 0) - (a < 0), (a > 0) - (a < 0), (a > 0) - (a < 0))
UNARY_WITH(clamp, 2,
           a < attribute[0].f ? attribute[0].f : (a > attribute[1].f ? attribute[1].f : a))
UNARY_WITH(leaky_relu, 1, a > 0 ? a : a * attribute[0].f)

BINARY_INT(add, a + b, (int64_t)((uint64_t)a + (uint64_t)b),
           (int32_t)((uint32_t)a + (uint32_t)b))
BINARY_INT(sub, a - b, (int64_t)((uint64_t)a - (uint64_t)b),
           (int32_t)((uint32_t)a - (uint32_t)b))
BINARY_INT(mul, a *b, (int64_t)((uint64_t)a * (uint64_t)b),
           (int32_t)((uint32_t)a * (uint32_t)b))
BINARY(div, a / b)
BINARY(pow, pow(a, b))
BINARY_INT(maximum, a != a || a > b ? a : b, a > b ? a : b, a > b ? a : b)
BINARY_INT(minimum, a != a || a < b ? a : b, a < b ? a : b, a < b ? a : b)
COMPARE(eq, a == b)
COMPARE(ne, a != b)
COMPARE(lt, a < b)
COMPARE(le, a <= b)
COMPARE(gt, a > b)
COMPARE(ge, a >= b)
LOGICAL(logical_and, a &&b)
LOGICAL(logical_or, a || b)
LOOP1(logical_not, bool, uint8_t, uint8_t, !a)
static const dvt_loop logical_not_loops[T_COUNT] = {[T_BOOL] = logical_not_bool};
ENTRY(logical_not, 1, 0, true)

#define KERNEL(name) {sizeof(dvt_kernel), 1, #name, check_##name, run_##name}

const dvt_kernel dvt_elementwise_kernels[] = {
    KERNEL(abs),         KERNEL(acos),       KERNEL(add),        KERNEL(asin),
    KERNEL(atan),        KERNEL(ceil),       KERNEL(clamp),      KERNEL(cos),
    KERNEL(cosh),        KERNEL(div),        KERNEL(eq),         KERNEL(erf),
    KERNEL(exp),         KERNEL(exp2),       KERNEL(expm1),      KERNEL(floor),
    KERNEL(ge),          KERNEL(gelu),       KERNEL(gelu_tanh),  KERNEL(gt),
    KERNEL(le),          KERNEL(log),        KERNEL(log10),      KERNEL(log1p),
    KERNEL(log2),        KERNEL(lt),         KERNEL(leaky_relu), KERNEL(logical_and),
    KERNEL(logical_not), KERNEL(logical_or), KERNEL(maximum),    KERNEL(minimum),
    KERNEL(mul),         KERNEL(ne),         KERNEL(neg),        KERNEL(pow),
    KERNEL(reciprocal),  KERNEL(relu),       KERNEL(round),      KERNEL(rsqrt),
    KERNEL(sigmoid),     KERNEL(sign),       KERNEL(silu),       KERNEL(sin),
    KERNEL(sinh),        KERNEL(sqrt),       KERNEL(sub),        KERNEL(tan),
    KERNEL(tanh),        KERNEL(trunc),
};
const size_t dvt_elementwise_count = sizeof dvt_elementwise_kernels / sizeof(dvt_kernel);
