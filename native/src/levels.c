#include "levels.h"

#include "processor.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BIT(n) (UINT32_C(1) << (n))

/* What each level asks for beyond the one below it. */
static const x86_64_features needed[] = {
    /* v2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF-SAHF */
    {.basic = BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23), .extended = BIT(0)},
    /* v3: FMA, MOVBE, OSXSAVE, AVX, F16C; LZCNT; BMI1, AVX2, BMI2; registers of 256 bits */
    {.basic = BIT(12) | BIT(22) | BIT(27) | BIT(28) | BIT(29),
     .extended = BIT(5),
     .structured = BIT(3) | BIT(5) | BIT(8),
     .saved = BIT(1) | BIT(2)},
    /* v4: AVX512F, DQ, CD, BW, VL; mask registers and those of 512 bits */
    {.structured = BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31),
     .saved = BIT(5) | BIT(6) | BIT(7)},
    /* v4-bf16: AVX512-BF16 */
    {.extensions = BIT(5)},
};

int dvt_x86_64_level(const x86_64_features *f)
{
    int level = 1;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++, level++) {
        const x86_64_features *n = &needed[i];
        if ((f->basic & n->basic) != n->basic || (f->extended & n->extended) != n->extended ||
            (f->structured & n->structured) != n->structured ||
            (f->saved & n->saved) != n->saved ||
            (f->extensions & n->extensions) != n->extensions)
            break;
    }
    return level;
}

/* The level that DOVETAIL_PROCESSOR names (x86-64-v3, armv8-a), or any where it names none of
 * this machine's kind. */
static int named_level(void)
{
    const char *name = getenv("DOVETAIL_PROCESSOR");
    if (name != NULL && PROCESSOR.family == 0 && strcmp(name, "x86-64-v4-bf16") == 0)
        return 5;
    if (name != NULL && PROCESSOR.family == 0 && strncmp(name, "x86-64-v", 8) == 0 &&
        name[8] >= '1' && name[8] <= '4' && name[9] == '\0')
        return name[8] - '0';
    return INT32_MAX;
}

int dvt_processor_level(void)
{
    static _Atomic int known = -1; /* any thread finds the same */
    int level = atomic_load_explicit(&known, memory_order_relaxed);
    if (level < 0) {
        int most = named_level();
        level = PROCESSOR.level();
        level = level < most ? level : most;
        atomic_store_explicit(&known, level, memory_order_relaxed);
    }
    return level;
}
