/* Unit tests of size programs; built with ASan and UBSan by `make test`. */
#include "dovetail.h"

#include "check.h"

static dvt_status run2(int64_t opcode, int64_t a, int64_t b, int64_t *result)
{
    dvt_size_instruction code[] = {
        {DVT_SIZE_PUSH, a}, {DVT_SIZE_LOAD, 0}, {opcode, 0}, {DVT_SIZE_STORE, 0}};
    CHECK(dvt_size_verify(code, 4, 1, 1) == DVT_OK);
    return dvt_size_run(code, 4, &b, result);
}

static void test_arithmetic(void)
{
    int64_t r = 0;
    CHECK(run2(DVT_SIZE_ADD, 2, 3, &r) == DVT_OK && r == 5);
    CHECK(run2(DVT_SIZE_SUB, 2, 3, &r) == DVT_OK && r == -1);
    CHECK(run2(DVT_SIZE_MUL, -2, 3, &r) == DVT_OK && r == -6);
    CHECK(run2(DVT_SIZE_FLOORDIV, -7, 2, &r) == DVT_OK && r == -4);
    CHECK(run2(DVT_SIZE_FLOORDIV, 7, -2, &r) == DVT_OK && r == -4);
    CHECK(run2(DVT_SIZE_MOD, -7, 2, &r) == DVT_OK && r == 1);
    CHECK(run2(DVT_SIZE_MOD, 7, -2, &r) == DVT_OK && r == -1);
    CHECK(run2(DVT_SIZE_MAX, 7, -2, &r) == DVT_OK && r == 7);
    CHECK(run2(DVT_SIZE_MIN, 7, -2, &r) == DVT_OK && r == -2);
}

static void test_edges(void)
{
    int64_t r = 0;
    CHECK(run2(DVT_SIZE_ADD, INT64_MAX, 1, &r) == DVT_ERROR_OVERFLOW);
    CHECK(run2(DVT_SIZE_SUB, INT64_MIN, 1, &r) == DVT_ERROR_OVERFLOW);
    CHECK(run2(DVT_SIZE_MUL, INT64_MAX, 2, &r) == DVT_ERROR_OVERFLOW);
    CHECK(run2(DVT_SIZE_FLOORDIV, INT64_MIN, -1, &r) == DVT_ERROR_OVERFLOW);
    CHECK(run2(DVT_SIZE_MOD, INT64_MIN, -1, &r) == DVT_OK && r == 0);
    CHECK(run2(DVT_SIZE_FLOORDIV, 1, 0, &r) == DVT_ERROR_DIVIDE_BY_ZERO);
    CHECK(run2(DVT_SIZE_MOD, 1, 0, &r) == DVT_ERROR_DIVIDE_BY_ZERO);
}

static void test_malformed(void)
{
    dvt_size_instruction load[] = {{DVT_SIZE_LOAD, 1}, {DVT_SIZE_STORE, 0}};
    CHECK(dvt_size_verify(load, 2, 1, 1) == DVT_ERROR_MALFORMED); /* no such symbol */
    CHECK(dvt_size_verify(load, 2, 2, 1) == DVT_OK);
    CHECK(dvt_size_verify(load, 1, 2, 1) == DVT_ERROR_MALFORMED); /* leaves a value */
    CHECK(dvt_size_verify(load, 2, 2, 2) == DVT_ERROR_MALFORMED); /* an output missing */
    dvt_size_instruction underflow[] = {{DVT_SIZE_PUSH, 1}, {DVT_SIZE_ADD, 0}};
    CHECK(dvt_size_verify(underflow, 2, 0, 0) == DVT_ERROR_MALFORMED);
    dvt_size_instruction unknown[] = {{DVT_SIZE_PUSH, 1}, {DVT_SIZE_PUSH, 1}, {99, 0}};
    CHECK(dvt_size_verify(unknown, 3, 0, 0) == DVT_ERROR_MALFORMED);
    dvt_size_instruction store[] = {{DVT_SIZE_PUSH, 1}, {DVT_SIZE_STORE, -1}};
    CHECK(dvt_size_verify(store, 2, 0, 1) == DVT_ERROR_MALFORMED);
    static dvt_size_instruction deep[DVT_SIZE_STACK + 1];
    for (size_t i = 0; i <= DVT_SIZE_STACK; i++)
        deep[i] = (dvt_size_instruction){DVT_SIZE_PUSH, 1};
    CHECK(dvt_size_verify(deep, DVT_SIZE_STACK + 1, 0, 0) == DVT_ERROR_MALFORMED);
    CHECK(dvt_size_verify(NULL, 0, 0, 0) == DVT_OK);
}

int main(void)
{
    test_arithmetic();
    test_edges();
    test_malformed();
    printf("native/tests/test_size: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
