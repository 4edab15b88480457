/* Unit tests of the levels of x86-64; built with ASan and UBSan by `make test`. */
#include "levels.h"

#include "check.h"

/* What each level asks for, those of the psABI and the one with AVX512-BF16, one by one: where
 * a processor that has all else lacks it, the level is the one below. */
typedef struct {
    const char *name;
    int level;
    enum { BASIC, EXTENDED, STRUCTURED, SAVED, EXTENSIONS } word;
    int bit;
} feature;

static const feature features[] = {
    {"SSE3", 2, BASIC, 0},
    {"SSSE3", 2, BASIC, 9},
    {"CMPXCHG16B", 2, BASIC, 13},
    {"SSE4.1", 2, BASIC, 19},
    {"SSE4.2", 2, BASIC, 20},
    {"POPCNT", 2, BASIC, 23},
    {"LAHF-SAHF", 2, EXTENDED, 0},
    {"FMA", 3, BASIC, 12},
    {"MOVBE", 3, BASIC, 22},
    {"OSXSAVE", 3, BASIC, 27},
    {"AVX", 3, BASIC, 28},
    {"F16C", 3, BASIC, 29},
    {"LZCNT", 3, EXTENDED, 5},
    {"BMI1", 3, STRUCTURED, 3},
    {"AVX2", 3, STRUCTURED, 5},
    {"BMI2", 3, STRUCTURED, 8},
    {"XMM saved", 3, SAVED, 1},
    {"YMM saved", 3, SAVED, 2},
    {"AVX512F", 4, STRUCTURED, 16},
    {"AVX512DQ", 4, STRUCTURED, 17},
    {"AVX512CD", 4, STRUCTURED, 28},
    {"AVX512BW", 4, STRUCTURED, 30},
    {"AVX512VL", 4, STRUCTURED, 31},
    {"masks saved", 4, SAVED, 5},
    {"ZMM saved", 4, SAVED, 6},
    {"ZMM16 to 31 saved", 4, SAVED, 7},
    {"AVX512-BF16", 5, EXTENSIONS, 5},
};
#define COUNT (sizeof features / sizeof *features)

static void set(x86_64_features *all, const feature *f)
{
    uint32_t bit = UINT32_C(1) << f->bit;
    if (f->word == SAVED)
        all->saved |= bit;
    else
        *(f->word == BASIC        ? &all->basic
          : f->word == EXTENDED   ? &all->extended
          : f->word == EXTENSIONS ? &all->extensions
                                  : &all->structured) |= bit;
}

/* Everything that levels up to this one ask for, but for one feature. */
static int level_without(int highest, size_t missing)
{
    x86_64_features all = {0};
    for (size_t i = 0; i < COUNT; i++)
        if (i != missing && features[i].level <= highest)
            set(&all, &features[i]);
    return dvt_x86_64_level(&all);
}

int main(void)
{
    for (int level = 1; level <= 5; level++)
        CHECK(level_without(level, COUNT) == level);
    for (size_t i = 0; i < COUNT; i++)
        if (level_without(5, i) != features[i].level - 1) {
            printf("without %s: level %d\n", features[i].name, level_without(5, i));
            failures++;
        }
    x86_64_features everything = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT32_MAX};
    CHECK(dvt_x86_64_level(&everything) == 5);
    printf("native/tests/test_levels: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
