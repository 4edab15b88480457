/* Unit tests of both processors' relocations; built with ASan and UBSan by `make test`. */
#include "processor.h"

#include "check.h"

#include <string.h>

/* An instruction after a relocation; 0 where it was refused. */
static uint32_t patched(uint32_t type, uint32_t instruction, uint64_t from, int64_t to)
{
    unsigned char place[4];
    memcpy(place, &instruction, 4);
    CHECK(dvt_aarch64.width(type) == 4);
    if (!dvt_aarch64.relocate(type, place, from, to))
        return 0;
    memcpy(&instruction, place, 4);
    return instruction;
}

static void test_pages(void) /* adrp x3, …: R_AARCH64_ADR_PREL_PG_HI21 */
{
    CHECK(patched(275, 0x90000003, 0x10, 0x0fff) == 0x90000003);
    CHECK(patched(275, 0x90000003, 0x10, 0x1000) == 0xb0000003);
    CHECK(patched(275, 0x90000003, 0x0ffc, 0x4567) == 0x90000023);
    CHECK(patched(275, 0xf0ffffe3, 0x2000, 0x1fff) == 0xf0ffffe3);
    CHECK(patched(275, 0x90000003, 0x3ffffffc, 0) == 0xb0e00003);
    CHECK(patched(275, 0x90000003, 0x12, 0x1000) == 0);
    CHECK(patched(275, 0x90000003, 0x10, INT64_MAX) == 0);
    CHECK(patched(275, 0x90000003, 0x10, INT64_MIN) == 0);
}

static void test_places_in_pages(void)
{
    CHECK(patched(277, 0x91000042, 0, 0x1abc) == 0x912af042); /* add x2, x2, … */
    CHECK(patched(277, 0x91000042, 0, -1) == 0x913ffc42);
    CHECK(patched(278, 0x39400020, 0, 0x1003) == 0x39400c20); /* ldrb w0, [x1, …] */
    CHECK(patched(284, 0x79400020, 0, 0x1006) == 0x79400c20); /* ldrh */
    CHECK(patched(285, 0xbd400020, 0, 0x100c) == 0xbd400c20); /* ldr s0 */
    CHECK(patched(286, 0xfd400020, 0, 0x1018) == 0xfd400c20); /* ldr d0 */
    CHECK(patched(299, 0x3dc00020, 0, 0x1030) == 0x3dc00c20); /* ldr q0 */
    CHECK(patched(284, 0x79400020, 0, 0x1005) == 0);
    CHECK(patched(285, 0xbd400020, 0, 0x100e) == 0);
    CHECK(patched(286, 0xfd400020, 0, 0x101c) == 0);
    CHECK(patched(299, 0x3dc00020, 0, 0x1038) == 0);
}

static void test_branches(void) /* bl, b */
{
    CHECK(patched(283, 0x94000000, 0x100, 0x108) == 0x94000002);
    CHECK(patched(283, 0x97ffffff, 0x100, 0x100) == 0x94000000);
    CHECK(patched(282, 0x14000000, 0x100, 0) == 0x17ffffc0);
    CHECK(patched(283, 0x94000000, 0, (1 << 27) - 4) == 0x95ffffff);
    CHECK(patched(283, 0x94000000, 1 << 27, 0) == 0x96000000);
    CHECK(patched(283, 0x94000000, 0, 1 << 27) == 0);
    CHECK(patched(283, 0x94000000, (1 << 27) + 4, 0) == 0);
    CHECK(patched(283, 0x94000000, 0x100, 0x102) == 0);
}

static void test_distances(void)
{
    unsigned char place[8] = {0};
    int64_t distance;
    int32_t word;
    CHECK(dvt_aarch64.width(260) == 8 && dvt_aarch64.relocate(260, place, 0x30, 0x10));
    memcpy(&distance, place, 8);
    CHECK(distance == -0x20);
    for (int i = 0; i < 2; i++) {
        const dvt_processor *p = i == 0 ? &dvt_aarch64 : &dvt_x86_64;
        uint32_t type = i == 0 ? 261 : 2;
        CHECK(p->width(type) == 4 && p->relocate(type, place, 0x31, 0x10));
        memcpy(&word, place, 4);
        CHECK(word == -0x21);
        CHECK(!p->relocate(type, place, 0x31, INT64_MIN));
        CHECK(!p->relocate(type, place, 0x31, INT64_MAX));
        CHECK(!p->relocate(type, place, 0, INT64_C(1) << 31));
        CHECK(!p->relocate(type, place, 0x31, INT32_MIN));
    }
}

static void test_kinds(void)
{
    for (uint32_t type = 0; type < 2048; type++) {
        CHECK(dvt_aarch64.width(type) <= 8);
        CHECK((dvt_x86_64.width(type) != 0) == (type == 2 || type == 4));
    }
    CHECK(dvt_aarch64.width(257) == 0); /* an address: depends on where code is loaded */
    CHECK(dvt_aarch64.width(311) == 0); /* a table of addresses, which there is none of */
}

int main(void)
{
    test_pages();
    test_places_in_pages();
    test_branches();
    test_distances();
    test_kinds();
    printf("native/tests/test_relocations: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
