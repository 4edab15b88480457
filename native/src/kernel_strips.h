/* kernel_strips.h: one loop over a strip of elements for each operation and type of kernel IR.
 *
 * Included once for each instruction set, with S(name) giving a name of its own to each copy;
 * the compiler vectorises the loops. Narrow integers are compiled once: their loops are SMALL.
 */

#define EACH for (int64_t i = 0; i < n; i++)
#define STRIP_FUNCTION(name)                                                                   \
    static void name(int64_t n, void *restrict result, const void *const *given,               \
                     uint32_t *flags)

#define UNARY(name, T, R, expression)                                                          \
    STRIP_FUNCTION(name)                                                                       \
    {                                                                                          \
        R *restrict out = result;                                                              \
        const T *x = given[0];                                                                 \
        (void)flags;                                                                           \
        EACH                                                                                   \
        {                                                                                      \
            T a = x[i];                                                                        \
            out[i] = (R)(expression);                                                          \
        }                                                                                      \
    }
#define BINARY(name, T, R, expression)                                                         \
    STRIP_FUNCTION(name)                                                                       \
    {                                                                                          \
        R *restrict out = result;                                                              \
        const T *x = given[0], *y = given[1];                                                  \
        (void)flags;                                                                           \
        EACH                                                                                   \
        {                                                                                      \
            T a = x[i], b = y[i];                                                              \
            out[i] = (R)(expression);                                                          \
        }                                                                                      \
    }
#define TERNARY(name, C, T, expression)                                                        \
    STRIP_FUNCTION(name)                                                                       \
    {                                                                                          \
        T *restrict out = result;                                                              \
        const C *x = given[0];                                                                 \
        const T *y = given[1], *z = given[2];                                                  \
        (void)flags;                                                                           \
        EACH                                                                                   \
        {                                                                                      \
            C a = x[i];                                                                        \
            T b = y[i], c = z[i];                                                              \
            out[i] = (T)(expression);                                                          \
        }                                                                                      \
    }

/* ---- floating point ---- */

#define FLOAT_BOTH(name, single, twice)                                                        \
    UNARY(S(name##_f32), float, float, single)                                                 \
    UNARY(S(name##_f64), double, double, twice)
FLOAT_BOTH(neg, -a, -a)
FLOAT_BOTH(abs, fabsf(a), fabs(a))
FLOAT_BOTH(floor, floorf(a), floor(a))
FLOAT_BOTH(ceil, ceilf(a), ceil(a))
FLOAT_BOTH(trunc, truncf(a), trunc(a))
FLOAT_BOTH(round, nearbyintf(a), nearbyint(a))
FLOAT_BOTH(sqrt, sqrtf(a), sqrt(a))
FLOAT_BOTH(sign, (a > 0) - (a < 0), (a > 0) - (a < 0))
FLOAT_BOTH(exp, exp_single(a), exp(a))
FLOAT_BOTH(exp2, exp2f(a), exp2(a))
FLOAT_BOTH(expm1, expm1f(a), expm1(a))
FLOAT_BOTH(log, log_double(a), log(a))
FLOAT_BOTH(log2, log_double(a) * 1.44269504088896340736, log2(a))
FLOAT_BOTH(log10, log_double(a) * 0.43429448190325182765, log10(a))
FLOAT_BOTH(log1p, log1pf(a), log1p(a))
FLOAT_BOTH(sin, sinf(a), sin(a))
FLOAT_BOTH(cos, cosf(a), cos(a))
FLOAT_BOTH(tan, tanf(a), tan(a))
FLOAT_BOTH(tanh, tanh_single(a), tanh(a))
FLOAT_BOTH(sigmoid, sigmoid_single(a), 1 / (1 + exp(-a)))
FLOAT_BOTH(erf, erf_single(a), erf(a))
FLOAT_BOTH(erfc, erfcf(a), erfc(a))
FLOAT_BOTH(asin, (float)asin((double)a), asin(a))
FLOAT_BOTH(acos, (float)acos((double)a), acos(a))
FLOAT_BOTH(atan, (float)atan((double)a), atan(a))
FLOAT_BOTH(sinh, (float)sinh((double)a), sinh(a))
FLOAT_BOTH(cosh, (float)cosh((double)a), cosh(a))
FLOAT_BOTH(asinh, (float)asinh((double)a), asinh(a))
FLOAT_BOTH(acosh, (float)acosh((double)a), acosh(a))
FLOAT_BOTH(atanh, (float)atanh((double)a), atanh(a))
UNARY(S(isnan_f32), float, uint8_t, a != a)
UNARY(S(isnan_f64), double, uint8_t, a != a)
UNARY(S(from_bits), int64_t, double, double_of((uint64_t)a))
UNARY(S(round_half), float, float, widen_half(narrow_half(a)))
UNARY(S(round_bfloat16), float, float, widen_bfloat16(narrow_bfloat16(a)))

#define FLOAT_BINARY(name, expression)                                                         \
    BINARY(S(name##_f32), float, float, expression)                                            \
    BINARY(S(name##_f64), double, double, expression)
FLOAT_BINARY(add, a + b)
FLOAT_BINARY(sub, a - b)
FLOAT_BINARY(mul, a *b)
FLOAT_BINARY(div, a / b)
FLOAT_BINARY(min, (a < b) | (a != a) ? a : b)
FLOAT_BINARY(max, (a > b) | (a != a) ? a : b)
BINARY(S(pow_f32), float, float, powf(a, b))
BINARY(S(pow_f64), double, double, pow(a, b))
BINARY(S(atan2_f32), float, float, atan2f(a, b))
BINARY(S(atan2_f64), double, double, atan2(a, b))
BINARY(S(fmod_f32), float, float, fmodf(a, b))
BINARY(S(fmod_f64), double, double, fmod(a, b))
BINARY(S(hypot_f32), float, float, hypotf(a, b))
BINARY(S(hypot_f64), double, double, hypot(a, b))
BINARY(S(copysign_f32), float, float, copysignf(a, b))
BINARY(S(copysign_f64), double, double, copysign(a, b))
#ifdef __FMA__
TERNARY(S(fma_f32), float, float, fmaf(a, b, c))
#else
TERNARY(S(fma_f32), float, float, (double)a *(double)b + (double)c)
#endif
TERNARY(S(fma_f64), double, double, fma(a, b, c))

#define COMPARISONS(suffix, T)                                                                 \
    BINARY(S(eq_##suffix), T, uint8_t, a == b)                                                 \
    BINARY(S(ne_##suffix), T, uint8_t, a != b)                                                 \
    BINARY(S(lt_##suffix), T, uint8_t, a < b)                                                  \
    BINARY(S(le_##suffix), T, uint8_t, a <= b)                                                 \
    BINARY(S(gt_##suffix), T, uint8_t, a > b)                                                  \
    BINARY(S(ge_##suffix), T, uint8_t, a >= b)                                                 \
    TERNARY(S(where_##suffix), uint8_t, T, a ? b : c)
COMPARISONS(f32, float)
COMPARISONS(f64, double)

/* ---- integers: arithmetic wraps, in an unsigned type U ---- */

#define INTEGER(suffix, T, U)                                                                  \
    UNARY(S(neg_##suffix), T, T, (U)0 - (U)a)                                                  \
    UNARY(S(abs_##suffix), T, T, a < 0 ? (U)0 - (U)a : (U)a)                                   \
    UNARY(S(not_##suffix), T, T, ~a)                                                           \
    UNARY(S(sign_##suffix), T, T, (a > 0) - (a < 0))                                           \
    BINARY(S(add_##suffix), T, T, (U)a + (U)b)                                                 \
    BINARY(S(sub_##suffix), T, T, (U)a - (U)b)                                                 \
    BINARY(S(mul_##suffix), T, T, (U)a *(U)b)                                                  \
    BINARY(S(min_##suffix), T, T, a < b ? a : b)                                               \
    BINARY(S(max_##suffix), T, T, a > b ? a : b)                                               \
    BINARY(S(and_##suffix), T, T, a &b)                                                        \
    BINARY(S(or_##suffix), T, T, a | b)                                                        \
    BINARY(S(xor_##suffix), T, T, a ^ b)                                                       \
    BINARY(S(shl_##suffix), T, T, in_width(b, T) ? (U)a << (b & 63) : 0)                       \
    BINARY(S(shr_##suffix), T, T, in_width(b, T) ? a >> b : a < 0 ? -1 : 0)                    \
    BINARY(S(pow_##suffix), T, T, whole_power((int64_t)a, (int64_t)b))                         \
    DIVISION(S(div_int_##suffix), T, U, quotient)                                              \
    DIVISION(S(floordiv_##suffix), T, U, quotient - (rest != 0 && (rest < 0) != (b < 0)))      \
    DIVISION(S(floormod_##suffix), T, U, rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest) \
    COMPARISONS(suffix, T)
#define in_width(b, T) ((uint64_t)(b) < sizeof(T) * 8)
/* A divisor of zero is reported; of -1, the quotient wraps where it does not fit. */
#define DIVISION(name, T, U, expression)                                                       \
    STRIP_FUNCTION(name)                                                                       \
    {                                                                                          \
        T *restrict out = result;                                                              \
        const T *x = given[0], *y = given[1];                                                  \
        EACH                                                                                   \
        {                                                                                      \
            T a = x[i], b = y[i];                                                              \
            bool wraps = b == 0 || (b < 0 && b == (T) - 1);                                    \
            T quotient = (T)(wraps ? (T)((U)0 - (U)a) : (T)(a / b));                           \
            T rest = (T)(wraps ? (T)0 : (T)(a % b));                                           \
            (void)quotient, (void)rest;                                                        \
            *flags |= b == 0 ? FLAG_DIVIDE : 0u;                                               \
            out[i] = (T)(expression);                                                          \
        }                                                                                      \
    }
INTEGER(i64, int64_t, uint64_t)
INTEGER(i32, int32_t, uint32_t)
#ifdef STRIPS_SMALL
INTEGER(i16, int16_t, uint32_t)
INTEGER(i8, int8_t, uint32_t)
INTEGER(u8, uint8_t, uint32_t)
#endif
UNARY(S(not_b8), uint8_t, uint8_t, a ^ 1)
BINARY(S(and_b8), uint8_t, uint8_t, a &b)
BINARY(S(or_b8), uint8_t, uint8_t, a | b)
BINARY(S(xor_b8), uint8_t, uint8_t, a ^ b)
COMPARISONS(b8, uint8_t)

/* An index, the size it must lie in, and whether it is going to be used. */
#define CHECK(name, wraps, flag)                                                               \
    STRIP_FUNCTION(name)                                                                       \
    {                                                                                          \
        int64_t *restrict out = result;                                                        \
        const int64_t *x = given[0], *y = given[1];                                            \
        const uint8_t *z = given[2];                                                           \
        uint32_t found = 0;                                                                    \
        EACH                                                                                   \
        {                                                                                      \
            int64_t a = x[i];                                                                  \
            a = (wraps) && a < 0 ? (int64_t)((uint64_t)a + (uint64_t)y[i]) : a;                \
            bool bad = a < 0 || a >= y[i];                                                     \
            found |= bad && z[i];                                                              \
            out[i] = bad ? 0 : a;                                                              \
        }                                                                                      \
        *flags |= found ? (flag) : 0u;                                                         \
    }
CHECK(S(check), true, FLAG_CHECK)
CHECK(S(check_index), false, FLAG_CHECK_INDEX)
CHECK(S(check_bounds), false, FLAG_CHECK_BOUNDS)

/* A divisor, what to put in place of zero, and whether it is going to be used. */
STRIP_FUNCTION(S(check_divisor))
{
    int64_t *restrict out = result;
    const int64_t *x = given[0], *y = given[1];
    const uint8_t *z = given[2];
    uint32_t found = 0;
    EACH
    {
        found |= x[i] == 0 && z[i];
        out[i] = x[i] == 0 ? y[i] : x[i];
    }
    *flags |= found ? FLAG_DIVISOR : 0u;
}

/* ---- conversions ---- */

#define TO_ALL(from, T, long_value, int_value)                                                 \
    UNARY(S(f32_##from), T, float, a)                                                          \
    UNARY(S(f64_##from), T, double, a)                                                         \
    UNARY(S(i64_##from), T, int64_t, long_value)                                               \
    UNARY(S(i32_##from), T, int32_t, int_value)                                                \
    UNARY(S(i16_##from), T, int16_t, int_value)                                                \
    UNARY(S(i8_##from), T, int8_t, int_value)                                                  \
    UNARY(S(u8_##from), T, uint8_t, int_value)                                                 \
    UNARY(S(b8_##from), T, uint8_t, a != 0)
TO_ALL(f32, float, single_to_long(a), single_to_int(a))
TO_ALL(f64, double, double_to_long(a), double_to_int(a))
TO_ALL(i64, int64_t, a, a)
TO_ALL(i32, int32_t, a, a)
#ifdef STRIPS_SMALL
TO_ALL(i16, int16_t, a, a)
TO_ALL(i8, int8_t, a, a)
TO_ALL(u8, uint8_t, a, a)
#endif
TO_ALL(b8, uint8_t, a, a)
UNARY(S(widen_half), uint16_t, float, widen_half(a))
UNARY(S(widen_bfloat16), uint16_t, float, widen_bfloat16(a))
UNARY(S(narrow_half), float, uint16_t, narrow_half(a))
UNARY(S(narrow_bfloat16), float, uint16_t, narrow_bfloat16(a))

/* ---- reductions: floating point in double, the others in int64 ---- */

#define FOLD_FUNCTION(name)                                                                    \
    static void name(int64_t n, const void *restrict given, const int64_t *restrict places,    \
                     void *restrict totals, int64_t *restrict found)

/* Element by element into as many accumulators. */
#define ACROSS(name, T, A, expression)                                                         \
    FOLD_FUNCTION(name)                                                                        \
    {                                                                                          \
        const T *x = given;                                                                    \
        A *total = totals;                                                                     \
        (void)places, (void)found;                                                             \
        EACH                                                                                   \
        {                                                                                      \
            A a = total[i], b = (A)x[i];                                                       \
            total[i] = (A)(expression);                                                        \
        }                                                                                      \
    }
/* All elements into one accumulator, by way of LANES partial results: so many that the compiler
 * makes vectors of the loops over them instead of unrolling. */
#define LANES 64
#define ALONG(name, T, P, A, start, expression)                                                \
    FOLD_FUNCTION(name)                                                                        \
    {                                                                                          \
        const T *x = given;                                                                    \
        P part[LANES];                                                                         \
        int64_t i = 0;                                                                         \
        (void)places, (void)found;                                                             \
        for (int lane = 0; lane < LANES; lane++)                                               \
            part[lane] = (P)(start);                                                           \
        for (; i + LANES <= n; i += LANES)                                                     \
            for (int lane = 0; lane < LANES; lane++) {                                         \
                P a = part[lane], b = (P)x[i + lane];                                          \
                part[lane] = (P)(expression);                                                  \
            }                                                                                  \
        int64_t left = n - i;                                                                  \
        for (int64_t lane = 0; lane < left; lane++) {                                          \
            P a = part[lane], b = (P)x[i + lane];                                              \
            part[lane] = (P)(expression);                                                      \
        }                                                                                      \
        int64_t used = n < LANES ? n : LANES;                                                  \
        A total = *(A *)totals;                                                                \
        for (int64_t lane = 0; lane < used; lane++) {                                          \
            A a = total, b = (A)part[lane];                                                    \
            total = (A)(expression);                                                           \
        }                                                                                      \
        *(A *)totals = total;                                                                  \
    }
/* The position of the best; a NaN beats all, the first of equals wins. */
#define BETTER(b, a, sign) ((b)sign(a) || ((b) != (b) && (a) == (a)))
#define EQUAL(a, b)        ((a) == (b) || ((a) != (a) && (b) != (b)))
#define PLACES(name, extreme, start, T, A, sign)                                               \
    FOLD_FUNCTION(S(name##_across))                                                            \
    {                                                                                          \
        const T *x = given;                                                                    \
        A *total = totals;                                                                     \
        EACH                                                                                   \
        {                                                                                      \
            A a = total[i], b = (A)x[i];                                                       \
            bool takes = BETTER(b, a, sign) || (EQUAL(a, b) && places[i] < found[i]);          \
            total[i] = takes ? b : a;                                                          \
            found[i] = takes ? places[i] : found[i];                                           \
        }                                                                                      \
    }                                                                                          \
    FOLD_FUNCTION(S(name##_along))                                                             \
    {                                                                                          \
        const T *x = given;                                                                    \
        A *total = totals, best = (A)(start);                                                  \
        int64_t place = INT64_MAX;                                                             \
        extreme(n, given, NULL, &best, NULL); /* vectorised; few strips go on from here */     \
        if (!BETTER(best, *total, sign) && !EQUAL(*total, best))                               \
            return;                                                                            \
        EACH                                                                                   \
        {                                                                                      \
            bool here = EQUAL((A)x[i], best) & (places[i] < place);                            \
            place = here ? places[i] : place;                                                  \
        }                                                                                      \
        *found = BETTER(best, *total, sign) || place < *found ? place : *found;                \
        *total = best;                                                                         \
    }

#define FOLDS(suffix, T, P, A, low, high)                                                      \
    ACROSS(S(sum_across_##suffix), T, A, ADD_##A(a, b))                                        \
    ACROSS(S(prod_across_##suffix), T, A, MUL_##A(a, b))                                       \
    ACROSS(S(max_across_##suffix), T, A, (b > a) | (b != b) ? b : a)                           \
    ACROSS(S(min_across_##suffix), T, A, (b < a) | (b != b) ? b : a)                           \
    ALONG(S(sum_along_##suffix), T, P, A, 0, ADD_##A(a, b))                                    \
    ALONG(S(prod_along_##suffix), T, A, A, 1, MUL_##A(a, b))                                   \
    ALONG(S(max_along_##suffix), T, T, A, low, (b > a) | (b != b) ? b : a)                     \
    ALONG(S(min_along_##suffix), T, T, A, high, (b < a) | (b != b) ? b : a)                    \
    PLACES(argmax_##suffix, S(max_along_##suffix), low, T, A, >)                               \
    PLACES(argmin_##suffix, S(min_along_##suffix), high, T, A, <)
#define ADD_double(a, b)  ((a) + (b))
#define MUL_double(a, b)  ((a) * (b))
#define ADD_int64_t(a, b) ((uint64_t)(a) + (uint64_t)(b))
#define MUL_int64_t(a, b) ((uint64_t)(a) * (uint64_t)(b))
FOLDS(f32, float, float, double, -INFINITY, INFINITY)
FOLDS(f64, double, double, double, -INFINITY, INFINITY)
FOLDS(i64, int64_t, int64_t, int64_t, INT64_MIN, INT64_MAX)
FOLDS(i32, int32_t, int64_t, int64_t, INT32_MIN, INT32_MAX)
#ifdef STRIPS_SMALL
FOLDS(i16, int16_t, int64_t, int64_t, INT16_MIN, INT16_MAX)
FOLDS(i8, int8_t, int64_t, int64_t, INT8_MIN, INT8_MAX)
FOLDS(u8, uint8_t, int64_t, int64_t, 0, UINT8_MAX)
FOLDS(b8, uint8_t, int64_t, int64_t, 0, 1)
#endif

/* ---- the table ---- */

#define BOTH(name) {[T_F32] = S(name##_f32), [T_F64] = S(name##_f64)}
#define WHOLE(name)                                                                            \
    [T_I64] = S(name##_i64), [T_I32] = S(name##_i32), [T_I16] = SMALL(name##_i16),             \
    [T_I8] = SMALL(name##_i8), [T_U8] = SMALL(name##_u8)
#define NUMBER(name) {[T_F32] = S(name##_f32), [T_F64] = S(name##_f64), WHOLE(name)}
#define ANY(name, bools)                                                                       \
    {[T_F32] = S(name##_f32), [T_F64] = S(name##_f64), WHOLE(name), [T_BOOL] = S(bools)}
#define CAST_ROW(to)                                                                           \
    {[T_F32] = S(to##_f32),   [T_F64] = S(to##_f64),     [T_I64] = S(to##_i64),                \
     [T_I32] = S(to##_i32),   [T_I16] = SMALL(to##_i16), [T_I8] = SMALL(to##_i8),              \
     [T_U8] = SMALL(to##_u8), [T_BOOL] = S(to##_b8)}
#define FOLD_ROW(name)                                                                         \
    {[T_F32] = S(name##_f32),   [T_F64] = S(name##_f64),     [T_I64] = S(name##_i64),          \
     [T_I32] = S(name##_i32),   [T_I16] = SMALL(name##_i16), [T_I8] = SMALL(name##_i8),        \
     [T_U8] = SMALL(name##_u8), [T_BOOL] = SMALL(name##_b8)}
#define PLACE_ROW(name, how)                                                                   \
    {[T_F32] = S(name##_f32_##how),     [T_F64] = S(name##_f64_##how),                         \
     [T_I64] = S(name##_i64_##how),     [T_I32] = S(name##_i32_##how),                         \
     [T_I16] = SMALL(name##_i16_##how), [T_I8] = SMALL(name##_i8_##how),                       \
     [T_U8] = SMALL(name##_u8_##how),   [T_BOOL] = SMALL(name##_b8_##how)}

static const strip_table
    S(table) =
        {
            .apply =
                {
                    [K_neg] = NUMBER(neg),
                    [K_abs] = NUMBER(abs),
                    [K_not] = {WHOLE(not), [T_BOOL] = S(not_b8)},
                    [K_round_half] = {[T_F32] = S(round_half)},
                    [K_round_bfloat16] = {[T_F32] = S(round_bfloat16)},
                    [K_isnan] = BOTH(isnan),
                    [K_from_bits] = {[T_I64] = S(from_bits)},
                    [K_floor] = BOTH(floor),
                    [K_ceil] = BOTH(ceil),
                    [K_trunc] = BOTH(trunc),
                    [K_round] = BOTH(round),
                    [K_sqrt] = BOTH(sqrt),
                    [K_sign] = NUMBER(sign),
                    [K_sgn] = NUMBER(sign),
                    [K_exp] = BOTH(exp),
                    [K_exp_normal] = BOTH(exp),
                    [K_exp2] = BOTH(exp2),
                    [K_expm1] = BOTH(expm1),
                    [K_log] = BOTH(log),
                    [K_log2] = BOTH(log2),
                    [K_log10] = BOTH(log10),
                    [K_log1p] = BOTH(log1p),
                    [K_sin] = BOTH(sin),
                    [K_cos] = BOTH(cos),
                    [K_tan] = BOTH(tan),
                    [K_tanh] = BOTH(tanh),
                    [K_sigmoid] = BOTH(sigmoid),
                    [K_erf] = BOTH(erf),
                    [K_erfc] = BOTH(erfc),
                    [K_add] = ANY(add, or_b8),
                    [K_sub] = ANY(sub, xor_b8),
                    [K_mul] = ANY(mul, and_b8),
                    [K_div] = BOTH(div),
                    [K_div_int] = {WHOLE(div_int)},
                    [K_floordiv] = {WHOLE(floordiv)},
                    [K_floormod] = {WHOLE(floormod)},
                    [K_min] = ANY(min, and_b8),
                    [K_max] = ANY(max, or_b8),
                    [K_pow] = NUMBER(pow),
                    [K_copysign] = BOTH(copysign),
                    [K_eq] = ANY(eq, eq_b8),
                    [K_ne] = ANY(ne, ne_b8),
                    [K_lt] = ANY(lt, lt_b8),
                    [K_le] = ANY(le, le_b8),
                    [K_gt] = ANY(gt, gt_b8),
                    [K_ge] = ANY(ge, ge_b8),
                    [K_and] = {WHOLE(and), [T_BOOL] = S(and_b8)},
                    [K_or] = {WHOLE(or), [T_BOOL] = S(or_b8)},
                    [K_xor] = {WHOLE(xor), [T_BOOL] = S(xor_b8)},
                    [K_shl] = {WHOLE(shl)},
                    [K_shr] = {WHOLE(shr)},
                    [K_where] = ANY(where, where_b8),
                    [K_fma] = BOTH(fma),
                    [K_check] = {[T_I64] = S(check)},
                    [K_check_index] = {[T_I64] = S(check_index)},
                    [K_check_bounds] = {[T_I64] = S(check_bounds)},
                    [K_asin] = BOTH(asin),
                    [K_acos] = BOTH(acos),
                    [K_atan] = BOTH(atan),
                    [K_sinh] = BOTH(sinh),
                    [K_cosh] = BOTH(cosh),
                    [K_asinh] = BOTH(asinh),
                    [K_acosh] = BOTH(acosh),
                    [K_atanh] = BOTH(atanh),
                    [K_atan2] = BOTH(atan2),
                    [K_fmod] = BOTH(fmod),
                    [K_hypot] = BOTH(hypot),
                    [K_check_divisor] = {[T_I64] = S(check_divisor)},
                },
            .cast =
                {
                    [T_F32] = CAST_ROW(f32),
                    [T_F64] = CAST_ROW(f64),
                    [T_I64] = CAST_ROW(i64),
                    [T_I32] = CAST_ROW(i32),
                    [T_I16] = CAST_ROW(i16),
                    [T_I8] = CAST_ROW(i8),
                    [T_U8] = CAST_ROW(u8),
                    [T_BOOL] = CAST_ROW(b8),
                },
            .along =
                {
                    [F_sum] = FOLD_ROW(sum_along),
                    [F_prod] = FOLD_ROW(prod_along),
                    [F_max] = FOLD_ROW(max_along),
                    [F_min] = FOLD_ROW(min_along),
                    [F_any] = FOLD_ROW(max_along),
                    [F_all] = FOLD_ROW(min_along),
                    [F_argmax] = PLACE_ROW(argmax, along),
                    [F_argmin] = PLACE_ROW(argmin, along),
                },
            .across =
                {
                    [F_sum] = FOLD_ROW(sum_across),
                    [F_prod] = FOLD_ROW(prod_across),
                    [F_max] = FOLD_ROW(max_across),
                    [F_min] = FOLD_ROW(min_across),
                    [F_any] = FOLD_ROW(max_across),
                    [F_all] = FOLD_ROW(min_across),
                    [F_argmax] = PLACE_ROW(argmax, across),
                    [F_argmin] = PLACE_ROW(argmin, across),
                },
            .widen = {[T_F16] = S(widen_half),
                      [T_BF16] = S(widen_bfloat16),
                      [T_BOOL] = S(b8_b8)},
            .narrow = {[T_F16] = S(narrow_half), [T_BF16] = S(narrow_bfloat16)},
};

#undef EACH
#undef STRIP_FUNCTION
#undef UNARY
#undef BINARY
#undef TERNARY
#undef FLOAT_BOTH
#undef FLOAT_BINARY
#undef COMPARISONS
#undef INTEGER
#undef in_width
#undef DIVISION
#undef CHECK
#undef TO_ALL
#undef FOLD_FUNCTION
#undef ACROSS
#undef LANES
#undef ALONG
#undef BETTER
#undef EQUAL
#undef PLACES
#undef FOLDS
#undef ADD_double
#undef MUL_double
#undef ADD_int64_t
#undef MUL_int64_t
#undef BOTH
#undef WHOLE
#undef NUMBER
#undef ANY
#undef CAST_ROW
#undef FOLD_ROW
#undef PLACE_ROW
