/* Native code for AArch64: see processor.h. */
#include "processor.h"

#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define HAS_ASIMD (1ul << 1)
#endif

#define MACHINE 183

enum {
    PREL64 = 260,
    PREL32 = 261,
    ADR_PREL_PG_HI21 = 275,
    ADD_ABS_LO12_NC = 277,
    LDST8_ABS_LO12_NC = 278,
    JUMP26 = 282,
    CALL26 = 283,
    LDST16_ABS_LO12_NC = 284,
    LDST32_ABS_LO12_NC = 285,
    LDST64_ABS_LO12_NC = 286,
    LDST128_ABS_LO12_NC = 299
};

static int level(void)
{
#if defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & HAS_ASIMD) != 0 ? 1 : 0;
#else
    return 0;
#endif
}

static unsigned width(uint32_t type)
{
    switch (type) {
    case PREL64:
        return 8;
    case PREL32:
    case ADR_PREL_PG_HI21:
    case ADD_ABS_LO12_NC:
    case LDST8_ABS_LO12_NC:
    case LDST16_ABS_LO12_NC:
    case LDST32_ABS_LO12_NC:
    case LDST64_ABS_LO12_NC:
    case LDST128_ABS_LO12_NC:
    case JUMP26:
    case CALL26:
        return 4;
    default:
        return 0;
    }
}

/* Puts the low `bits` of a value into an instruction, from bit `shift` on. */
static void put(unsigned char *place, uint64_t value, unsigned bits, unsigned shift)
{
    uint32_t instruction, mask = ((1u << bits) - 1) << shift;
    memcpy(&instruction, place, 4);
    instruction = (instruction & ~mask) | ((uint32_t)(value << shift) & mask);
    memcpy(place, &instruction, 4);
}

/* The distance between two pages of 4 KiB, in two pieces of the instruction. */
static bool put_page(unsigned char *place, uint64_t from, int64_t to)
{
    int64_t pages = (to >> 12) - (int64_t)(from >> 12);
    if (pages < -(1 << 20) || pages >= 1 << 20)
        return false;
    put(place, (uint64_t)pages & 3, 2, 29);
    put(place, (uint64_t)(pages >> 2), 19, 5);
    return true;
}

static bool put_branch(unsigned char *place, int64_t distance)
{
    if (distance % 4 != 0 || distance < -(1 << 27) || distance >= 1 << 27)
        return false;
    put(place, (uint64_t)(distance / 4), 26, 0);
    return true;
}

/* The place within a page, in units of what is loaded or stored there. */
static bool put_low(unsigned char *place, int64_t to, unsigned scale)
{
    uint64_t low = (uint64_t)to & 0xfff;
    if ((low & ((1u << scale) - 1)) != 0)
        return false;
    put(place, low >> scale, 12, 10);
    return true;
}

static bool relocate(uint32_t type, unsigned char *place, uint64_t from, int64_t to)
{
    if (to < INT32_MIN || to > INT32_MAX || (from % 4 != 0 && type > PREL32))
        return false;
    int64_t distance = to - (int64_t)from;
    int32_t word = (int32_t)distance;
    switch (type) {
    case PREL64:
        memcpy(place, &distance, 8);
        return true;
    case PREL32:
        memcpy(place, &word, 4);
        return word == distance;
    case ADR_PREL_PG_HI21:
        return put_page(place, from, to);
    case ADD_ABS_LO12_NC:
    case LDST8_ABS_LO12_NC:
        return put_low(place, to, 0);
    case LDST16_ABS_LO12_NC:
        return put_low(place, to, 1);
    case LDST32_ABS_LO12_NC:
        return put_low(place, to, 2);
    case LDST64_ABS_LO12_NC:
        return put_low(place, to, 3);
    case LDST128_ABS_LO12_NC:
        return put_low(place, to, 4);
    default: /* JUMP26, CALL26 */
        return put_branch(place, distance);
    }
}

/* ldr x16, .+8; br x16; and the address. */
static void stub(unsigned char *place, uint64_t address)
{
    static const uint32_t jump[2] = {0x58000050, 0xd61f0200};
    memcpy(place, jump, sizeof jump);
    memcpy(place + sizeof jump, &address, 8);
}

const dvt_processor dvt_aarch64 = {MACHINE, MACHINE << 8, "AArch64", level,
                                   width,   relocate,     stub};
