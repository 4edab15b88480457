/* The loops of kernel_strips.h, compiled for the instruction sets of x86-64 where the compiler
 * can, and the choice among them. */
#include "kernel_math.h"
#include "kernel_plan.h"
#include "processor.h"

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

#ifdef DVT_SEVERAL_LEVELS
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
#ifdef DVT_SEVERAL_LEVELS
    int level = dvt_processor_level();
    if (level >= 3)
        return level >= 4 ? &table_v4 : &table_v3;
#endif
    return &table_default;
}
