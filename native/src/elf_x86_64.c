/* Native code for x86-64: see processor.h. */
#include "levels.h"
#include "processor.h"

#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#define R_X86_64_PC32  2u
#define R_X86_64_PLT32 4u

#if defined(__x86_64__) && defined(__GNUC__)
/* Which registers the system saves; only where CPUID says that it may be asked. */
static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int level(void)
{
    x86_64_features f = {0};
    uint32_t a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d))
        f.basic = c;
    if (__get_cpuid(0x80000001u, &a, &b, &c, &d))
        f.extended = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        f.structured = b;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        f.extensions = a;
    if ((f.basic & bit_OSXSAVE) != 0)
        f.saved = saved_registers();
    return dvt_x86_64_level(&f);
}
#else
static int level(void)
{
    return 0;
}
#endif

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
