/* Every fault of the simulator (examples/accel_sim), under the address sanitizer: each is a
 * typed error, the next run works, and in the end nothing is left on the device or in the
 * process. */
#include "plugin.h"

#include "check.h"

#include <string.h>

#define LIBRARY "native/build/sim/libaccel_sim.so"

enum { ROWS = 2, INNER = 4, COLUMNS = 3 };

typedef struct {
    int64_t shape[2], strides[2];
} extents;

/* y = relu(x w) as two programs: the product stays on the device for the second. */
typedef struct {
    extents x, w, y;
    dvp_tensor inputs[3], outputs[2];
    int32_t product_slots[2], product_results[1], relu_slots[1], relu_results[1];
    uint8_t flags[3];
    plugin_prepared prepared[3];
    plugin_step steps[2];
    plugin_range sent, fetched;
    plugin_program product, relu;
} model;

static dvp_tensor matrix(extents *e, int64_t rows, int64_t columns, uint64_t offset)
{
    *e = (extents){{rows, columns}, {columns, 1}};
    return (dvp_tensor){.device = {DVP_DEVICE_MEMORY, 0},
                        .ndim = 2,
                        .dtype = {DVP_FLOAT, 32, 1},
                        .shape = e->shape,
                        .strides = e->strides,
                        .byte_offset = offset};
}

static void describe(model *m)
{
    m->inputs[0] = matrix(&m->x, ROWS, INNER, 0);
    m->inputs[1] = matrix(&m->w, INNER, COLUMNS, 0);
    m->inputs[2] = m->outputs[0] = m->outputs[1] = matrix(&m->y, ROWS, COLUMNS, 0);
    m->product_slots[0] = -1; /* x in the arena, w in slot 0, the result in slot 1 */
    m->product_slots[1] = 0;
    m->product_results[0] = 1;
    m->relu_slots[0] = 0;
    m->relu_results[0] = -1;
    m->steps[0] = (plugin_step){.op = {sizeof(dvp_op), 2, 1, 0, "aten.mm.default", m->inputs,
                                       m->outputs, NULL, NULL, m->flags},
                                .inputs = m->inputs,
                                .outputs = m->outputs,
                                .input_slots = m->product_slots,
                                .output_slots = m->product_results,
                                .input_flags = m->flags,
                                .prepared = m->prepared,
                                .kernel_name = "matmul"};
    m->steps[1] = (plugin_step){.op = {sizeof(dvp_op), 1, 1, 0, "aten.relu.default",
                                       m->inputs + 2, m->outputs + 1, NULL, NULL, m->flags + 2},
                                .inputs = m->inputs + 2,
                                .outputs = m->outputs + 1,
                                .input_slots = m->relu_slots,
                                .output_slots = m->relu_results,
                                .input_flags = m->flags + 2,
                                .prepared = m->prepared + 2,
                                .kernel_name = "unary"};
    m->sent = (plugin_range){0, ROWS * INNER * 4, -1};
    m->fetched = (plugin_range){0, ROWS * COLUMNS * 4, -1};
    m->product = (plugin_program){.arena_bytes = 64,
                                  .step_count = 1,
                                  .upload_count = 1,
                                  .slot_count = 2,
                                  .kept_at = 1,
                                  .steps = m->steps,
                                  .uploads = &m->sent};
    m->relu = (plugin_program){.arena_bytes = 64,
                               .step_count = 1,
                               .download_count = 1,
                               .slot_count = 1,
                               .kept_at = 1,
                               .steps = m->steps + 1,
                               .downloads = &m->fetched};
}

/* Memory on the device, sent there if there is something to send. */
static int make_buffer(plugin *p, uint64_t bytes, const float *from, plugin_buffer *made,
                       plugin_error *error)
{
    plugin_lane *lane;
    if (plugin_enter(p, NULL, 0, &lane, error) != 0)
        return -1;
    int failed = plugin_alloc(p, bytes, made, error);
    if (!failed && from != NULL)
        failed = plugin_upload(lane, made, 0, from, bytes, error) || plugin_sync(lane, error);
    plugin_leave(lane);
    return failed ? -1 : 0;
}

static int run_program(plugin *p, plugin_program *program, plugin_buffer *const *slots,
                       const void *const *from, void *const *to, plugin_error *error)
{
    plugin_lane *lane;
    if (plugin_enter(p, slots, program->kept_at, &lane, error) != 0)
        return -1;
    int failed = plugin_run(lane, program, slots, from, to, error);
    plugin_leave(lane);
    return failed;
}

static int run_model(plugin *p, model *m, float *y, plugin_error *error)
{
    static const float x[ROWS * INNER] = {1, 2, 3, 4, -1, -2, -3, -4};
    static const float w[INNER * COLUMNS] = {1, 0, 2, 0, 1, 0, 1, 1, 0, -1, 0, 1};
    plugin_buffer weight = {.lane = -1}, between = {.lane = -1};
    plugin_buffer *slots[2] = {&weight, &between}, *held[1] = {&between};
    const void *from[1] = {x};
    void *to[1] = {y};
    int failed = make_buffer(p, sizeof w, w, &weight, error);
    weight.constant = true;
    if (!failed)
        failed = make_buffer(p, ROWS * COLUMNS * 4, NULL, &between, error);
    if (!failed)
        failed = run_program(p, &m->product, slots, from, NULL, error) ||
                 run_program(p, &m->relu, held, NULL, to, error);
    plugin_free(p, &weight);
    plugin_free(p, &between);
    return failed ? -1 : 0;
}

static void expect_right(plugin *p, model *m, const char *what)
{
    static const float expected[ROWS * COLUMNS] = {0, 5, 6, 0, 0, 0};
    float y[ROWS * COLUMNS] = {0};
    plugin_error error = {0};
    if (run_model(p, m, y, &error) != 0)
        fprintf(stderr, "after %s: %s\n", what, error.message);
    EXPECT(error.problem == PLUGIN_OK, "a run fails though nothing is wrong");
    EXPECT(memcmp(y, expected, sizeof y) == 0, "a run gives something else");
}

static void close_device(plugin *p, model *m)
{
    int64_t leaked = 0;
    plugin_free_program(p, &m->product);
    plugin_free_program(p, &m->relu);
    dvt_lock_take(&p->lock);
    plugin_close(p, &leaked);
    dvt_lock_give(&p->lock);
    EXPECT(leaked == 0, "memory is left on the device");
}

static void set(plugin *p, const char *name, int64_t value)
{
    plugin_error error = {0};
    dvt_lock_take(&p->lock);
    CHECK(plugin_set(p, name, value, &error) == 0);
    dvt_lock_give(&p->lock);
}

typedef struct {
    const char *name;
    int64_t at; /* negative: the device is lost at it */
    plugin_problem problem;
} fault;

static const fault FAULTS[] = {
    {"fault.buffer_alloc", 1, PLUGIN_MEMORY},     {"fault.buffer_alloc", 2, PLUGIN_MEMORY},
    {"fault.buffer_alloc", 3, PLUGIN_MEMORY},     {"fault.buffer_alloc", 4, PLUGIN_MEMORY},
    {"fault.buffer_alloc", 5, PLUGIN_MEMORY},     {"fault.buffer_alloc", -1, PLUGIN_LOST},
    {"fault.buffer_alloc", -4, PLUGIN_LOST},      {"fault.copy_in", 1, PLUGIN_FAILED},
    {"fault.copy_in", 2, PLUGIN_FAILED},          {"fault.copy_in", -2, PLUGIN_LOST},
    {"fault.copy_out", 1, PLUGIN_FAILED},         {"fault.copy_out", -1, PLUGIN_LOST},
    {"fault.stream_sync", 1, PLUGIN_FAILED},      {"fault.stream_sync", 3, PLUGIN_FAILED},
    {"fault.stream_sync", -2, PLUGIN_LOST},       {"fault.event_record", 1, PLUGIN_FAILED},
    {"fault.event_record", -1, PLUGIN_LOST},      {"fault.event_wait", 1, PLUGIN_FAILED},
    {"fault.event_wait", -1, PLUGIN_LOST},        {"fault.find_kernel", 1, PLUGIN_FAILED},
    {"fault.find_kernel", -2, PLUGIN_LOST},       {"fault.execute", 1, PLUGIN_FAILED},
    {"fault.execute", 2, PLUGIN_FAILED},          {"fault.execute", -1, PLUGIN_LOST},
    {"fault.constant_prepare", 1, PLUGIN_FAILED}, {"fault.constant_prepare", -1, PLUGIN_LOST},
    {"fault.kernel_fails", 1, PLUGIN_FAILED},     {"fault.kernel_fails", 2, PLUGIN_FAILED},
    {"fault.kernel_dies", 1, PLUGIN_LOST},        {"fault.kernel_dies", 2, PLUGIN_LOST},
    {"fault.kernel_hangs", 1, PLUGIN_TIMEOUT},    {"fault.kernel_hangs", 2, PLUGIN_TIMEOUT},
    {"fault.copy_fails", 2, PLUGIN_FAILED},       {"fault.copy_dies", 2, PLUGIN_LOST},
    {"fault.copy_hangs", 1, PLUGIN_TIMEOUT},      {"kill", 1, PLUGIN_LOST},
};

static void test_fault(plugin *p, model *m, const fault *f)
{
    float y[ROWS * COLUMNS];
    plugin_error error = {0};
    close_device(p, m); /* so that everything is made and sent again */
    set(p, f->name, f->at);
    int failed = run_model(p, m, y, &error);
    if (!failed || error.problem != f->problem)
        fprintf(stderr, "%s at %d: problem %d, '%s'\n", f->name, (int)f->at, (int)error.problem,
                error.message);
    EXPECT(failed && error.problem == f->problem, "a fault is not the error that it should be");
    if (strcmp(f->name, "kill") != 0)
        set(p, f->name, 0);
    expect_right(p, m, f->name);
}

int main(void)
{
    plugin *p = NULL;
    plugin_error error = {0};
    static model m;
    if (plugin_open(LIBRARY, 0, &p, &error) != 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    p->timeout = 400000000;
    describe(&m);
    expect_right(p, &m, "nothing");
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++)
        test_fault(p, &m, &FAULTS[i]);
    close_device(p, &m);
    plugin_drop(p);
    printf("native/tests/test_device_faults: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
