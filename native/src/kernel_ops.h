/* kernel_ops.h: kernel IR's operations and reductions, their numbers in a file, and what
 * operands they take. Written by tools/generate_tables.py from src/dovetail/ir/ops.py:
 * make generate. */
#ifndef DVT_KERNEL_OPS_H
#define DVT_KERNEL_OPS_H

/* What operands a rule admits: FLOAT to SINGLE one type for operands and result; CAST any to
 * any; TEST a floating-point number to bool; COMPARE two of one type to bool; SELECT a bool and
 * two of the result's type; CHECK int64, int64, bool to int64; BITS_OF int64 to float64. */
typedef enum {
    RULE_FLOAT,
    RULE_NUMBER,
    RULE_ANY,
    RULE_INTEGER,
    RULE_BITS,
    RULE_SINGLE,
    RULE_CAST,
    RULE_TEST,
    RULE_COMPARE,
    RULE_SELECT,
    RULE_CHECK,
    RULE_BITS_OF
} rule_id;

/* X(number, name, operands, rule) */
#define KERNEL_OPERATIONS(X)                                                                   \
    X(0, neg, 1, NUMBER)                                                                       \
    X(1, abs, 1, NUMBER)                                                                       \
    X(2, not, 1, BITS)                                                                         \
    X(3, cast, 1, CAST)                                                                        \
    X(4, round_half, 1, SINGLE)                                                                \
    X(5, round_bfloat16, 1, SINGLE)                                                            \
    X(6, isnan, 1, TEST)                                                                       \
    X(7, floor, 1, FLOAT)                                                                      \
    X(8, ceil, 1, FLOAT)                                                                       \
    X(9, trunc, 1, FLOAT)                                                                      \
    X(10, round, 1, FLOAT)                                                                     \
    X(11, sqrt, 1, FLOAT)                                                                      \
    X(12, sign, 1, NUMBER)                                                                     \
    X(13, sgn, 1, NUMBER)                                                                      \
    X(14, exp, 1, FLOAT)                                                                       \
    X(15, exp_normal, 1, FLOAT)                                                                \
    X(16, exp2, 1, FLOAT)                                                                      \
    X(17, expm1, 1, FLOAT)                                                                     \
    X(18, log, 1, FLOAT)                                                                       \
    X(19, log2, 1, FLOAT)                                                                      \
    X(20, log10, 1, FLOAT)                                                                     \
    X(21, log1p, 1, FLOAT)                                                                     \
    X(22, sin, 1, FLOAT)                                                                       \
    X(23, cos, 1, FLOAT)                                                                       \
    X(24, tan, 1, FLOAT)                                                                       \
    X(25, tanh, 1, FLOAT)                                                                      \
    X(26, sigmoid, 1, FLOAT)                                                                   \
    X(27, erf, 1, FLOAT)                                                                       \
    X(28, erfc, 1, FLOAT)                                                                      \
    X(29, add, 2, ANY)                                                                         \
    X(30, sub, 2, ANY)                                                                         \
    X(31, mul, 2, ANY)                                                                         \
    X(32, div, 2, FLOAT)                                                                       \
    X(33, div_int, 2, INTEGER)                                                                 \
    X(34, floordiv, 2, INTEGER)                                                                \
    X(35, floormod, 2, INTEGER)                                                                \
    X(36, min, 2, ANY)                                                                         \
    X(37, max, 2, ANY)                                                                         \
    X(38, pow, 2, NUMBER)                                                                      \
    X(39, copysign, 2, FLOAT)                                                                  \
    X(40, eq, 2, COMPARE)                                                                      \
    X(41, ne, 2, COMPARE)                                                                      \
    X(42, lt, 2, COMPARE)                                                                      \
    X(43, le, 2, COMPARE)                                                                      \
    X(44, gt, 2, COMPARE)                                                                      \
    X(45, ge, 2, COMPARE)                                                                      \
    X(46, and, 2, BITS)                                                                        \
    X(47, or, 2, BITS)                                                                         \
    X(48, xor, 2, BITS)                                                                        \
    X(49, shl, 2, INTEGER)                                                                     \
    X(50, shr, 2, INTEGER)                                                                     \
    X(51, where, 3, SELECT)                                                                    \
    X(52, fma, 3, FLOAT)                                                                       \
    X(53, check, 3, CHECK)                                                                     \
    X(54, check_index, 3, CHECK)                                                               \
    X(55, check_bounds, 3, CHECK)                                                              \
    X(56, asin, 1, FLOAT)                                                                      \
    X(57, acos, 1, FLOAT)                                                                      \
    X(58, atan, 1, FLOAT)                                                                      \
    X(59, sinh, 1, FLOAT)                                                                      \
    X(60, cosh, 1, FLOAT)                                                                      \
    X(61, asinh, 1, FLOAT)                                                                     \
    X(62, acosh, 1, FLOAT)                                                                     \
    X(63, atanh, 1, FLOAT)                                                                     \
    X(64, atan2, 2, FLOAT)                                                                     \
    X(65, fmod, 2, FLOAT)                                                                      \
    X(66, hypot, 2, FLOAT)                                                                     \
    X(67, check_divisor, 3, CHECK)                                                             \
    X(68, from_bits, 1, BITS_OF)

/* What a reduction gives: a number, any type, a bool, or the int64 position that its second
 * operand is. */
typedef enum {
    REDUCES_TO_NUMBER,
    REDUCES_TO_ANY,
    REDUCES_TO_BOOL,
    REDUCES_TO_POSITION
} reduction_rule;

/* X(number, name, operands, rule) */
#define KERNEL_REDUCTIONS(X)                                                                   \
    X(0, sum, 1, NUMBER)                                                                       \
    X(1, prod, 1, NUMBER)                                                                      \
    X(2, max, 1, ANY)                                                                          \
    X(3, min, 1, ANY)                                                                          \
    X(4, any, 1, BOOL)                                                                         \
    X(5, all, 1, BOOL)                                                                         \
    X(6, argmax, 2, POSITION)                                                                  \
    X(7, argmin, 2, POSITION)

#define X(number, name, arity, rule) K_##name = number,
enum { KERNEL_OPERATIONS(X) K_COUNT };
#undef X
#define X(number, name, arity, rule) F_##name = number,
enum { KERNEL_REDUCTIONS(X) F_COUNT };
#undef X

#endif
