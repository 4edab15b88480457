/* dtypes.h: element types. Written by tools/generate_tables.py from src/dovetail/ir/dtypes.py:
 * make generate. */
#ifndef DVT_DTYPES_H
#define DVT_DTYPES_H

#include <stdint.h>

/* The types that kernels know: X(number in kernel IR, name, DLPack's code, bits, the type that
 * its elements are computed in, its least and its greatest number where it is no floating-point
 * type). */
#define KERNEL_TYPES(X)                                                                        \
    X(0, F32, 2, 32, F32, 0, 0)                                                                \
    X(1, F64, 2, 64, F64, 0, 0)                                                                \
    X(2, I64, 0, 64, I64, INT64_MIN, INT64_MAX)                                                \
    X(3, I32, 0, 32, I32, INT32_MIN, INT32_MAX)                                                \
    X(4, I16, 0, 16, I16, INT16_MIN, INT16_MAX)                                                \
    X(5, I8, 0, 8, I8, INT8_MIN, INT8_MAX)                                                     \
    X(6, U8, 1, 8, U8, 0, UINT8_MAX)                                                           \
    X(7, BOOL, 6, 8, BOOL, 0, 1)                                                               \
    X(8, F16, 2, 16, F32, 0, 0)                                                                \
    X(9, BF16, 4, 16, F32, 0, 0)

#define X(number, name, code, bits, computed, least, most) T_##name = number,
typedef enum { KERNEL_TYPES(X) T_COUNT, T_NONE = -1 } type_id;
#undef X

/* All but complex types: X(name, DLPack's code, bits) */
#define REAL_TYPES(X)                                                                          \
    X(float32, 2, 32)                                                                          \
    X(float64, 2, 64)                                                                          \
    X(int64, 0, 64)                                                                            \
    X(int32, 0, 32)                                                                            \
    X(int16, 0, 16)                                                                            \
    X(int8, 0, 8)                                                                              \
    X(uint8, 1, 8)                                                                             \
    X(bool, 6, 8)                                                                              \
    X(float16, 2, 16)                                                                          \
    X(bfloat16, 4, 16)                                                                         \
    X(uint16, 1, 16)                                                                           \
    X(uint32, 1, 32)                                                                           \
    X(uint64, 1, 64)                                                                           \
    X(float8_e4m3fn, 10, 8)                                                                    \
    X(float8_e4m3fnuz, 11, 8)                                                                  \
    X(float8_e5m2, 12, 8)                                                                      \
    X(float8_e5m2fnuz, 13, 8)                                                                  \
    X(float8_e8m0fnu, 14, 8)

#endif
