/* Scans of strips: every step of a reduction, along one strip or across many. They are in
 * double or int64_t, whatever the type of the values; bools are zero or one. */
#include "kernel_plan.h"

#define EACH for (int64_t i = 0; i < n; i++)

/* An expression makes a new total of the total `a` and the value `b`. */
#define SCAN(name, A, expression)                                                              \
    static void name##_across(int64_t n, const void *restrict given, void *restrict result,    \
                              void *restrict totals)                                           \
    {                                                                                          \
        const A *x = given;                                                                    \
        A *to = result, *total = totals;                                                       \
        EACH                                                                                   \
        {                                                                                      \
            A a = total[i], b = x[i];                                                          \
            to[i] = total[i] = (A)(expression);                                                \
        }                                                                                      \
    }                                                                                          \
    static void name##_along(int64_t n, const void *restrict given, void *restrict result,     \
                             void *restrict totals)                                            \
    {                                                                                          \
        const A *x = given;                                                                    \
        A *to = result, a = *(A *)totals;                                                      \
        EACH                                                                                   \
        {                                                                                      \
            A b = x[i];                                                                        \
            to[i] = a = (A)(expression);                                                       \
        }                                                                                      \
        *(A *)totals = a;                                                                      \
    }

SCAN(sum_f, double, a + b)
SCAN(sum_i, int64_t, (uint64_t)a + (uint64_t)b)
SCAN(prod_f, double, a *b)
SCAN(prod_i, int64_t, (uint64_t)a *(uint64_t)b)
SCAN(max_f, double, (b > a) | (b != b) ? b : a)
SCAN(max_i, int64_t, b > a ? b : a)
SCAN(min_f, double, (b < a) | (b != b) ? b : a)
SCAN(min_i, int64_t, b < a ? b : a)
SCAN(any_i, int64_t, (a | b))
SCAN(all_i, int64_t, (a & b))

#define WHOLE(name) {name##_i_across, name##_i_along}
#define BOTH(name)                                                                             \
    {                                                                                          \
        WHOLE(name),                                                                           \
        {                                                                                      \
            name##_f_across, name##_f_along                                                    \
        }                                                                                      \
    }

scan_function dvt_scan(uint8_t op, bool is_float, bool along)
{
    /* Positions have no scans, and there is no any or all of numbers. */
    static const scan_function table[F_COUNT][2][2] = {
        [F_sum] = BOTH(sum), [F_prod] = BOTH(prod),  [F_max] = BOTH(max),
        [F_min] = BOTH(min), [F_any] = {WHOLE(any)}, [F_all] = {WHOLE(all)},
    };
    return table[op][is_float][along];
}
