/* Native code for x86-64: see processor.h. */
#include "processor.h"

#include <string.h>

#define R_X86_64_PC32  2u
#define R_X86_64_PLT32 4u

static int level(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        return 3;
    return __builtin_cpu_supports("sse4.2") ? 2 : 1;
#else
    return 0;
#endif
}

static unsigned width(uint32_t type)
{
    return type == R_X86_64_PC32 || type == R_X86_64_PLT32 ? 4 : 0;
}

static bool relocate(uint32_t type, unsigned char *place, uint64_t from, int64_t to)
{
    (void)type;
    int64_t distance;
    if (__builtin_sub_overflow(to, (int64_t)from, &distance) || distance < INT32_MIN ||
        distance > INT32_MAX)
        return false;
    int32_t value = (int32_t)distance;
    memcpy(place, &value, 4);
    return true;
}

/* A jump through the address that follows it. */
static void stub(unsigned char *place, uint64_t address)
{
    static const unsigned char jump[6] = {0xff, 0x25, 0, 0, 0, 0};
    memcpy(place, jump, sizeof jump);
    memcpy(place + sizeof jump, &address, 8);
}

const dvt_processor dvt_x86_64 = {62, 0, "x86-64", level, width, relocate, stub};
