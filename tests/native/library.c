/* Everything of dovetail.h that a program without Python uses, on two files: add.dvt (x + bias,
 * a dynamic size) and count.dvt (state). Linked with the installed library. */
#include <dovetail.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                    \
            failures++;                                                                        \
        }                                                                                      \
    } while (0)

static dvt_tensor floats(float *data, int64_t *shape, int32_t rank)
{
    return (dvt_tensor){data, {DVT_CPU, 0}, rank, {DVT_FLOAT, 32, 1}, shape, NULL, 0};
}

/* ---- messages and memory ---- */

static int messages;
static void listen(void *context, int32_t level, const char *message)
{
    messages += level == DVT_LOG_DEBUG && message[0] != 0 && context == &messages;
}

static atomic_llong blocks, bytes, refused;
static void *allocate(void *context, size_t size, size_t alignment)
{
    (void)context;
    if (atomic_load(&refused) != 0)
        return NULL;
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    atomic_fetch_add(&blocks, 1);
    atomic_fetch_add(&bytes, (long long)size);
    return memory;
}

static void release(void *context, void *memory, size_t size, size_t alignment)
{
    (void)context;
    (void)alignment;
    atomic_fetch_sub(&blocks, 1);
    atomic_fetch_sub(&bytes, (long long)size);
    free(memory);
}

static dvt_artifact *open_file(const char *path)
{
    dvt_allocator allocator = {
        .struct_size = sizeof allocator, .allocate = allocate, .release = release};
    dvt_open_options options = {.struct_size = sizeof options, .allocator = &allocator};
    dvt_artifact *model = NULL;
    dvt_error error = {0, ""};
    if (dvt_open(path, &options, &model, &error) != DVT_OK) {
        fprintf(stderr, "%s: %s\n", path, error.message);
        exit(1);
    }
    return model;
}

/* ---- structures of older and newer callers ---- */

static void test_sizes(dvt_artifact *model)
{
    struct {
        uint32_t struct_size, input;
        unsigned char behind[64];
    } old = {.struct_size = 8};
    memset(old.behind, 0xA5, sizeof old.behind);
    CHECK(dvt_symbol_at(model, 0, (dvt_symbol_info *)(void *)&old) == DVT_OK);
    CHECK(old.struct_size == 8 && old.behind[0] == 0xA5);
    dvt_symbol_info unset = {0};
    CHECK(dvt_symbol_at(model, 0, &unset) == DVT_ERROR_ARGUMENT);
    dvt_memory memory = {0};
    CHECK(dvt_memory_used(model, &memory) == DVT_ERROR_ARGUMENT);
    dvt_run_options none = {0};
    CHECK(dvt_run(model, &none, NULL, 0, NULL, 0, NULL) == DVT_ERROR_ARGUMENT);
    dvt_allocator half = {.struct_size = sizeof half};
    dvt_open_options options = {.struct_size = sizeof options, .allocator = &half};
    CHECK(dvt_open("add.dvt", &options, &model, NULL) == DVT_ERROR_ARGUMENT);
}

/* ---- names, shapes, the caller's memory ---- */

static void test_names(dvt_artifact *model)
{
    float x[12], bias[3] = {10, 20, 30}, y[12] = {0};
    int64_t shape[2] = {4, 3}, three[1] = {3}, made[2];
    for (int i = 0; i < 12; i++)
        x[i] = (float)i;
    dvt_tensor inputs[] = {floats(bias, three, 1), floats(x, shape, 2)};
    dvt_tensor ordered[] = {inputs[1], inputs[0]};
    const char *names[] = {"bias", "x"}, *wrong[] = {"bias", "z"}, *twice[] = {"x", "x"};
    const char *output = "y";
    dvt_managed *result = NULL;
    dvt_error error = {0, ""};
    dvt_symbol_info symbol = {.struct_size = sizeof symbol};
    CHECK(dvt_symbol_count(model) == 1 && dvt_symbol_at(model, 0, &symbol) == DVT_OK);
    CHECK(symbol.name_length == 2 && memcmp(symbol.name, "s0", 2) == 0 && symbol.low == 2 &&
          symbol.high == 8 && symbol.input == 0 && symbol.axis == 0);
    CHECK(dvt_find_input(model, "bias") == 1 && dvt_find_output(model, "x") == SIZE_MAX);
    CHECK(dvt_output_shape(model, ordered, 2, 0, made, 2, &error) == DVT_OK && made[0] == 4 &&
          made[1] == 3);
    CHECK(dvt_output_shape(model, ordered, 2, 1, made, 2, &error) == DVT_ERROR_ARGUMENT);
    CHECK(dvt_run_named(model, NULL, names, inputs, 2, &output, &result, 1, &error) == DVT_OK);
    CHECK(result != NULL && ((float *)result->tensor.data)[11] == 41);
    result->deleter(result);
    CHECK(dvt_run_named(model, NULL, names, inputs, 2, NULL, NULL, 0, &error) == DVT_OK);
    CHECK(dvt_run_named(model, NULL, wrong, inputs, 2, &output, &result, 1, &error) ==
              DVT_ERROR_GUARD &&
          strstr(error.message, "no input 'z'") != NULL);
    CHECK(dvt_run_named(model, NULL, twice, inputs, 2, &output, &result, 1, &error) ==
          DVT_ERROR_GUARD);
    CHECK(dvt_run_named(model, NULL, names, inputs, 2, names, &result, 1, &error) ==
          DVT_ERROR_ARGUMENT);
    dvt_tensor place = floats(y, shape, 2);
    dvt_run_options options = {.struct_size = sizeof options, .results = &place};
    CHECK(dvt_run_named(model, &options, names, inputs, 2, &output, &result, 1, &error) ==
              DVT_OK &&
          result == NULL && y[0] == 10 && y[11] == 41);
}

static void test_results(dvt_artifact *model)
{
    float x[12], bias[3] = {10, 20, 30}, wide[24] = {0};
    int64_t shape[2] = {4, 3}, three[1] = {3}, strides[2] = {6, 2};
    for (int i = 0; i < 12; i++)
        x[i] = (float)i;
    dvt_tensor inputs[] = {floats(x, shape, 2), floats(bias, three, 1)};
    dvt_tensor place = floats(wide, shape, 2);
    dvt_run_options options = {.struct_size = sizeof options, .results = &place};
    dvt_managed *result = (dvt_managed *)1;
    dvt_error error = {0, ""};
    place.strides = strides; /* with gaps, which stay as they are */
    memset(wide, 0xA5, sizeof wide);
    float before = wide[1];
    CHECK(dvt_run(model, &options, inputs, 2, &result, 1, &error) == DVT_OK && result == NULL);
    CHECK(wide[0] == 10 && wide[2] == 21 && wide[22] == 41 &&
          memcmp(&wide[1], &before, sizeof before) == 0);
    place = floats(x, shape, 2); /* where an input lies */
    CHECK(dvt_run(model, &options, inputs, 2, &result, 1, &error) == DVT_OK);
    CHECK(x[0] == 10 && x[11] == 41);
    shape[0] = 2;
    int64_t four[2] = {4, 3};
    place = floats(wide, four, 2);
    CHECK(dvt_run(model, &options, inputs, 2, &result, 1, &error) == DVT_ERROR_ARGUMENT);
    CHECK(strstr(error.message, "output 0") != NULL);
}

/* ---- batches ---- */

static int polled;
static int stop_now(void *context)
{
    (void)context;
    polled++;
    return 1;
}

static void test_batch(dvt_artifact *model)
{
    enum { CALLS = 40 };
    float x[CALLS][12], bias[3] = {1, 2, 3};
    int64_t shape[2] = {4, 3}, odd[2] = {3, 3}, three[1] = {3};
    dvt_tensor inputs[CALLS][2];
    dvt_managed *outputs[CALLS] = {NULL};
    dvt_batch_call calls[CALLS];
    dvt_error error = {0, ""}, own = {0, ""};
    dvt_run_options options = {.struct_size = sizeof options, .threads = 2};
    for (int i = 0; i < CALLS; i++) {
        for (int n = 0; n < 12; n++)
            x[i][n] = (float)i;
        inputs[i][0] = floats(x[i], i == 7 ? odd : shape, 2);
        inputs[i][1] = floats(bias, three, 1);
        calls[i] = (dvt_batch_call){.struct_size = sizeof calls[i],
                                    .inputs = inputs[i],
                                    .input_count = 2,
                                    .outputs = &outputs[i],
                                    .output_count = 1,
                                    .error = i == 7 ? &own : NULL};
    }
    CHECK(dvt_run_batch(model, &options, calls, CALLS, &error) == DVT_ERROR_GUARD);
    CHECK(strstr(error.message, "call 7 ") != NULL && own.message[0] != 0);
    for (int i = 0; i < CALLS; i++) {
        CHECK((calls[i].status == DVT_OK) == (i != 7) && (outputs[i] != NULL) == (i != 7));
        if (outputs[i] != NULL) {
            CHECK(((float *)outputs[i]->tensor.data)[11] == (float)i + 3);
            outputs[i]->deleter(outputs[i]);
        }
    }
    volatile int32_t stop = 1;
    options.cancel = &stop;
    options.poll = stop_now;
    CHECK(dvt_run_batch(model, &options, calls, CALLS, &error) == DVT_ERROR_CANCELLED);
    for (int i = 0; i < CALLS; i++)
        CHECK(calls[i].status == DVT_ERROR_CANCELLED);
    calls[3].struct_size = 8;
    CHECK(dvt_run_batch(model, NULL, calls, CALLS, &error) == DVT_ERROR_ARGUMENT);
    CHECK(dvt_run_batch(model, NULL, NULL, 0, &error) == DVT_OK);
}

/* ---- state ---- */

static float step(dvt_artifact *model, dvt_state *state)
{
    float x[2] = {1, 2}, y[2] = {0, 0};
    int64_t two[1] = {2};
    dvt_tensor input = floats(x, two, 1), place = floats(y, two, 1);
    dvt_run_options options = {
        .struct_size = sizeof options, .results = &place, .state = state};
    dvt_managed *made = NULL;
    dvt_error error = {0, ""};
    dvt_status status = dvt_run(model, &options, &input, 1, &made, 1, &error);
    if (status != DVT_OK)
        fprintf(stderr, "%s\n", error.message);
    CHECK(status == DVT_OK);
    return y[1];
}

static void test_state(dvt_artifact *model, dvt_artifact *other)
{
    dvt_state *fresh = NULL, *branch = NULL;
    dvt_state_info info = {.struct_size = sizeof info};
    dvt_error error = {0, ""};
    float held[2] = {0, 0};
    int64_t two[1] = {2}, three[1] = {3};
    dvt_tensor place = floats(held, two, 1), wrong = floats(held, three, 1);
    CHECK(dvt_state_count(model) == 1 && dvt_state_count(other) == 0);
    CHECK(dvt_state_at(model, 0, &info) == DVT_OK && strcmp(info.name, "total") == 0 &&
          info.ndim == 1 && info.shape[0] == 2 && info.dtype.bits == 32);
    CHECK(dvt_state_at(model, 1, &info) == DVT_ERROR_ARGUMENT);
    CHECK(step(model, NULL) == 2 && step(model, NULL) == 4);
    CHECK(dvt_state_new(model, NULL, &fresh, &error) == DVT_OK && step(model, fresh) == 2);
    CHECK(dvt_state_new(model, dvt_own_state(model), &branch, &error) == DVT_OK);
    CHECK(step(model, branch) == 6 && step(model, NULL) == 6 && step(model, fresh) == 4);
    CHECK(dvt_state_read(branch, 0, &place, &error) == DVT_OK && held[0] == 3 && held[1] == 6);
    held[1] = 100;
    CHECK(dvt_state_write(fresh, 0, &place, &error) == DVT_OK && step(model, fresh) == 102);
    CHECK(dvt_state_write(fresh, 0, &wrong, &error) == DVT_ERROR_ARGUMENT);
    CHECK(dvt_state_read(fresh, 1, &place, &error) == DVT_ERROR_ARGUMENT);
    CHECK(dvt_state_reset(dvt_own_state(model), &error) == DVT_OK && step(model, NULL) == 2);
    CHECK(step(model, branch) == 8);
    CHECK(dvt_state_new(other, branch, &fresh, &error) == DVT_ERROR_ARGUMENT);
    dvt_run_options options = {.struct_size = sizeof options, .state = branch};
    CHECK(dvt_run(other, &options, NULL, 2, NULL, 1, &error) == DVT_ERROR_ARGUMENT);
    dvt_state_free(branch);
    dvt_state_free(fresh);
    dvt_state_free(NULL);
}

/* A batch of several sequences, and one of a single sequence, whose order counts. */
static void test_states_in_a_batch(dvt_artifact *model)
{
    enum { CALLS = 16 };
    dvt_state *states[CALLS];
    float x[2] = {1, 2}, y[CALLS][2];
    int64_t two[1] = {2};
    dvt_tensor input = floats(x, two, 1), places[CALLS];
    dvt_managed *made[CALLS];
    dvt_batch_call calls[CALLS];
    dvt_error error = {0, ""};
    for (int i = 0; i < CALLS; i++) {
        CHECK(dvt_state_new(model, NULL, &states[i], &error) == DVT_OK);
        places[i] = floats(y[i], two, 1);
        calls[i] = (dvt_batch_call){.struct_size = sizeof calls[i],
                                    .inputs = &input,
                                    .input_count = 1,
                                    .outputs = &made[i],
                                    .output_count = 1,
                                    .results = &places[i],
                                    .state = states[i]};
    }
    CHECK(dvt_run_batch(model, NULL, calls, CALLS, &error) == DVT_OK);
    CHECK(dvt_run_batch(model, NULL, calls, CALLS, &error) == DVT_OK);
    for (int i = 0; i < CALLS; i++)
        CHECK(y[i][1] == 4);
    for (int i = 0; i < CALLS; i++)
        calls[i].state = states[0];
    CHECK(dvt_run_batch(model, NULL, calls, CALLS, &error) == DVT_OK);
    for (int i = 0; i < CALLS; i++) {
        CHECK(y[i][1] == 4 + 2 * (float)(i + 1));
        dvt_state_free(states[i]);
    }
}

int main(void)
{
    dvt_set_log(listen, &messages, DVT_LOG_DEBUG);
    CHECK(dvt_version() == DVT_VERSION && strcmp(dvt_version_text(), "0.1.0") == 0);
    dvt_artifact *add = open_file("add.dvt"), *count = open_file("count.dvt");
    CHECK(messages >= 2);
    dvt_set_log(NULL, NULL, DVT_LOG_DEBUG);
    test_sizes(add);
    test_names(add);
    test_results(add);
    test_batch(add);
    test_state(count, add);
    test_states_in_a_batch(count);
    CHECK(atomic_load(&blocks) > 0);
    atomic_store(&refused, 1);
    float x[6] = {0}, bias[3] = {0};
    int64_t shape[2] = {2, 3}, three[1] = {3};
    dvt_tensor inputs[] = {floats(x, shape, 2), floats(bias, three, 1)};
    dvt_managed *made = NULL;
    CHECK(dvt_run(add, NULL, inputs, 2, &made, 1, NULL) == DVT_ERROR_MEMORY);
    atomic_store(&refused, 0);
    dvt_close(add);
    dvt_close(count);
    CHECK(atomic_load(&blocks) == 0 && atomic_load(&bytes) == 0);
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
