/* Regions against a bitmap: what is called covered is covered, and parts of one structure are
 * recognised, however many there are. */
#include "region.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>

#define SPACE  4096
#define ROUNDS 20000

static uint64_t state = 88172645463325252ull;

static int64_t below(int64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)limit);
}

static void mark(const region *r, unsigned char *map)
{
    int64_t at[REGION_RANK] = {0};
    for (;;) {
        int64_t place = r->offset;
        for (uint32_t n = 0; n < r->rank; n++)
            place += at[n] * r->dims[n].stride;
        memset(map + place, 1, (size_t)r->run);
        uint32_t n = 0;
        while (n < r->rank && ++at[n] == r->dims[n].count)
            at[n++] = 0;
        if (n == r->rank)
            return;
    }
}

static bool is_covered(const region *wanted, const region *held, size_t count)
{
    static unsigned char needed[SPACE], there[SPACE];
    memset(needed, 0, sizeof needed);
    memset(there, 0, sizeof there);
    mark(wanted, needed);
    for (size_t n = 0; n < count; n++)
        mark(&held[n], there);
    for (size_t i = 0; i < SPACE; i++)
        if (needed[i] && !there[i])
            return false;
    return true;
}

/* Any dimensions at all, with strides of either sign, and what a region makes of them. */
static region random_region(void)
{
    for (;;) {
        region_dim dims[4];
        uint32_t rank = (uint32_t)below(4);
        int64_t low = below(40), high;
        int64_t offset = low;
        high = low;
        for (uint32_t n = 0; n < rank; n++) {
            dims[n] = (region_dim){1 + below(6), below(40) - 8};
            int64_t reach = (dims[n].count - 1) * dims[n].stride;
            low += reach < 0 ? reach : 0;
            high += reach > 0 ? reach : 0;
        }
        region made;
        if (low < 0 || high >= SPACE)
            continue;
        dvt_region_make(offset, dims, rank, &made);
        static unsigned char wanted[SPACE], found[SPACE];
        memset(wanted, 0, sizeof wanted);
        memset(found, 0, sizeof found);
        int64_t at[4] = {0};
        for (;;) {
            int64_t place = offset;
            for (uint32_t n = 0; n < rank; n++)
                place += at[n] * dims[n].stride;
            wanted[place] = 1;
            uint32_t n = 0;
            while (n < rank && ++at[n] == dims[n].count)
                at[n++] = 0;
            if (n == rank)
                break;
        }
        mark(&made, found);
        EXPECT(memcmp(wanted, found, SPACE) == 0, "a region of other elements than it was "
                                                  "made of");
        return made;
    }
}

static void test_soundness(void)
{
    int yes = 0;
    for (int round = 0; round < ROUNDS; round++) {
        region wanted = random_region(), held[5];
        size_t count = (size_t)below(6);
        for (size_t n = 0; n < count; n++)
            held[n] = random_region();
        bool said = dvt_region_covered(&wanted, held, count);
        bool right = is_covered(&wanted, held, count);
        EXPECT(!said || right, "said to be covered, and is not");
        EXPECT(said || !right, "few runs, and not seen to be covered");
        yes += said;
    }
    EXPECT(yes > ROUNDS / 100, "hardly a region is covered");
}

static region slice(int64_t offset, int64_t outer, int64_t stride, int64_t run)
{
    region_dim dims[] = {{outer, stride}, {run, 1}};
    region made;
    dvt_region_make(offset, dims, 2, &made);
    return made;
}

/* Far more runs than are listed one by one. */
static void test_structures(void)
{
    int64_t many = 1 << 20;
    region all = {.run = many * 10};
    region parts[] = {slice(0, many, 10, 3), slice(3, many, 10, 6), slice(9, many, 10, 1)};
    EXPECT(dvt_region_covered(&all, parts, 3), "a concatenation is not seen");
    EXPECT(!dvt_region_covered(&all, parts, 2), "a concatenation lacks a part");
    EXPECT(!dvt_region_covered(&all, parts + 1, 2), "a concatenation lacks its first part");
    region rows = slice(20, many / 2, 10, 3), wider = slice(20, many / 2, 10, 4);
    EXPECT(dvt_region_covered(&rows, parts, 1), "some rows of a part");
    EXPECT(!dvt_region_covered(&wider, parts, 1), "rows wider than their part");
    EXPECT(dvt_region_covered(&wider, parts, 2), "rows of two parts");
    region_dim nested[] = {{50, 100000}, {1000, 100}, {20, 5}, {2, 1}};
    region_dim others[] = {{50, 100000}, {1000, 100}, {20, 5}, {3, 1}};
    region both[2], whole = {.run = 50 * 100000};
    dvt_region_make(0, nested, 4, &both[0]);
    dvt_region_make(2, others, 4, &both[1]);
    EXPECT(dvt_region_covered(&whole, both, 2), "interleaved parts of four dimensions");
    EXPECT(!dvt_region_covered(&whole, both, 1), "one of two interleaved parts");
}

int main(void)
{
    test_soundness();
    test_structures();
    printf("native/tests/test_region: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
