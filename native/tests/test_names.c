/* Lists of names for messages, of every length; built with ASan and UBSan by `make test`. */
#include "internal.h"

#include "check.h"

#include <string.h>

static uint8_t letters[1024];

static void add(dvt_names *names, size_t at, size_t size)
{
    dvt_names_add(names, (span){letters + at, size});
    CHECK(names->length < sizeof names->text && strlen(names->text) == names->length);
}

static void test_text(void)
{
    dvt_names names = {.length = 0};
    dvt_names_add(&names, (span){(const uint8_t *)"aten.mm", 7});
    dvt_names_add(&names, (span){(const uint8_t *)"", 0});
    dvt_names_add(&names, (span){(const uint8_t *)"aten.relu", 9});
    dvt_names_add(&names, (span){(const uint8_t *)"aten.mm", 7});
    CHECK(strcmp(names.text, "aten.mm, aten.relu") == 0);
    add(&names, 0, 500);
    add(&names, 0, 3);
    CHECK(strcmp(names.text, "aten.mm, aten.relu, …") == 0 && names.cut);
    dvt_names one = {.length = 0};
    add(&one, 0, 500);
    CHECK(strcmp(one.text, "…") == 0);
}

/* Whatever fits to the last byte, and whatever just does not. */
static void test_lengths(void)
{
    for (size_t first = 0; first < 310; first++)
        for (size_t second = 0; second < 310; second++) {
            dvt_names names = {.length = 0};
            add(&names, 0, first);
            add(&names, 1, second);
            add(&names, 2, 300);
            CHECK(names.cut);
        }
    dvt_names many = {.length = 0};
    for (size_t i = 0; i < 100; i++)
        add(&many, i, 1);
    CHECK(many.cut && many.count == 16);
}

int main(void)
{
    for (size_t i = 0; i < sizeof letters; i++)
        letters[i] = (uint8_t)('a' + i % 26);
    test_text();
    test_lengths();
    CHECK(dvt_shown(SIZE_MAX) == 200 && dvt_shown(0) == 0 && dvt_shown(7) == 7);
    return failures != 0;
}
