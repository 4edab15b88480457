/* The loops of kernel_strips.h, compiled for the instruction sets of x86-64 where the compiler
 * can, and the choice among them. */
#include "kernel_math.h"
#include "kernel_plan.h"

#pragma GCC diagnostic ignored "-Wtype-limits" /* the same text serves unsigned types */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wtautological-compare" /* and types that have no NaN */
#else
#pragma clang diagnostic ignored "-Wtautological-compare"
#endif

#define SMALL(name) name##_default
#define S(name)     name##_default
#define STRIPS_SMALL
#include "kernel_strips.h"
#undef STRIPS_SMALL
#undef S

/* Sanitizers get one version: they watch the same text, and compile it once. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                         \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SEVERAL 1
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define S(name) name##_v3
#include "kernel_strips.h"
#undef S
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#define S(name) name##_v4
#include "kernel_strips.h"
#undef S
#pragma GCC pop_options
#endif

const strip_table *dvt_strips(void)
{
#ifdef SEVERAL
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("fma"))
        return &table_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("bmi"))
        return &table_v3;
#endif
    return &table_default;
}
