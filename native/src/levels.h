/* The levels of x86-64: v1 to v4 as the psABI defines them, and 5, which is v4 with
 * AVX512-BF16. */
#ifndef DVT_LEVELS_H
#define DVT_LEVELS_H

#include <stdint.h>

/* What a processor says of itself: CPUID's leaves 1 and 0x80000001 (ECX) and 7 (EBX), and which
 * registers the system saves (XCR0, zero where XGETBV may not be asked); leaf 7's next part
 * (EAX). */
typedef struct {
    uint32_t basic, extended, structured;
    uint64_t saved;
    uint32_t extensions;
} x86_64_features;

/* The highest level all of whose features there are, with those of the levels below. */
int dvt_x86_64_level(const x86_64_features *features);

#endif
