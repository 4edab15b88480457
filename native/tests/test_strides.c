/* Strides that no memory has: those of empty tensors may be any numbers, and inputs with absurd
 * ones are refused. Arithmetic on them must not overflow, which the sanitizers see. */
#include "internal.h"

#include "check.h"

#include <string.h>

#define HUGE_STRIDE (INT64_MAX / 2)

static dvt_tensor tensor_of(void *data, int64_t *shape, int64_t *strides)
{
    return (dvt_tensor){data, {DVT_CPU, 0}, 2, {DVT_INT, 64, 1}, shape, strides, 0};
}

static void test_empty_copies(void)
{
    int64_t data[1] = {7}, shape[2] = {0, 2}, strides[2] = {HUGE_STRIDE, HUGE_STRIDE};
    dvt_tensor t = tensor_of(data, shape, strides);
    dvt_copy_tensor(&t, &t);
    CHECK(data[0] == 7);
}

/* Empty inputs before and behind one, and an output that is empty altogether. */
static void test_empty_parts(void)
{
    int64_t from[2] = {1, 2}, to[2] = {0, 0}, strides[2] = {HUGE_STRIDE, 1};
    int64_t none[2] = {0, 2}, one[2] = {1, 2}, empty[2] = {3, 0};
    dvt_tensor nothing = tensor_of(from, none, strides), row = tensor_of(from, one, strides);
    dvt_tensor out = tensor_of(to, one, strides), gone = tensor_of(to, empty, strides);
    dvt_tensor part = tensor_of(from, (int64_t[]){1, 0}, strides);
    const dvt_kernel *cat = dvt_find_kernel("cat", 3, 1);
    dvt_number axis = {.i = 0};
    const dvt_tensor *rows[] = {&nothing, &row, &nothing}, *made[] = {&out};
    dvt_call call = {sizeof call, 1, 3, 1, made, rows, &axis, dvt_parallel, cat};
    CHECK(cat->check(&call, NULL) == DVT_OK && cat->run(&call, NULL) == DVT_OK);
    CHECK(memcmp(from, to, sizeof from) == 0);
    const dvt_tensor *parts[] = {&part, &part, &part}, *hollow[] = {&gone};
    call.inputs = parts;
    call.outputs = hollow;
    CHECK(cat->check(&call, NULL) == DVT_OK && cat->run(&call, NULL) == DVT_OK);
}

/* A program that writes to its inputs asks whether they share memory. */
static dvt_status bind(int64_t *strides)
{
    int64_t data[2][4] = {{0}}, shape[2] = {2, 2}, rows[2] = {2, 1};
    uint32_t inputs[2] = {0, 1};
    buffer_record buffers[2] = {{.rank = 2, .item = 8}, {.rank = 2, .item = 8}};
    dvt_tensor expected[2], given[2];
    void *copies[2] = {NULL};
    unsigned char gaps[2] = {0};
    uint64_t extents[2] = {32, 32};
    dvt_artifact a = {0};
    for (int i = 0; i < 2; i++) {
        expected[i] = tensor_of(NULL, shape, rows);
        given[i] = tensor_of(data[i], shape, i == 0 ? rows : strides);
        buffers[i].first_view = DVT_NONE;
    }
    a.program = (program){.buffers = buffers,
                          .buffer_count = 2,
                          .inputs = inputs,
                          .input_count = 2,
                          .writes_inputs = true};
    frame f = {.tensors = expected, .copies = copies, .gaps = gaps, .extents = extents};
    dvt_status status = dvt_bind_inputs(&a, &f, given, NULL);
    dvt_return_inputs(&a, &f, given, false);
    return status;
}

static void test_inputs(void)
{
    int64_t sound[2] = {1, 2};
    int64_t absurd[][2] = {{INT64_MAX, 1},
                           {1, INT64_MIN},
                           {HUGE_STRIDE, HUGE_STRIDE},
                           {INT64_MAX / 8, 1},
                           {-HUGE_STRIDE, HUGE_STRIDE}};
    CHECK(bind(sound) == DVT_OK);
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++)
        CHECK(bind(absurd[i]) == DVT_ERROR_GUARD);
}

int main(void)
{
    dvt_set_threads(1);
    test_empty_copies();
    test_empty_parts();
    test_inputs();
    printf("native/tests/test_strides: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
