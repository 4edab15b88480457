/* Tensors that kernels use where they lie, work that is recorded and replayed, streams of the
 * vendor's own, and host calls that the device does not stop for: on the simulated device,
 * which counts what it is told to do, under the address sanitizer. */
#include "device_model.h"

#include "../../examples/accel_sim/accel_sim.h"

#include <dlfcn.h>

enum { KERNELS = 20 }; /* of chain.dvt */

typedef struct {
    model model;
    dvt_buffer *x, *y;
    dvt_stream *stream;
    dvt_event *done;
} chain;

static chain open_chain(void)
{
    chain c = {.model = open_model(FOLDER "sim/libaccel_sim.so", FOLDER "chain.dvt")};
    float values[COUNT];
    fill(values, 2);
    OK(dvt_buffer_new(c.model.plugin, DVT_MEMORY_DEVICE, 4 * BYTES, &c.x, &error));
    OK(dvt_buffer_new(c.model.plugin, DVT_MEMORY_DEVICE, 4 * BYTES, &c.y, &error));
    OK(dvt_stream_new(c.model.plugin, &c.stream, &error));
    OK(dvt_event_new(c.model.plugin, &c.done, &error));
    for (uint64_t i = 0; i < 4; i++)
        OK(dvt_buffer_write(c.x, c.stream, i * BYTES, values, BYTES, &error));
    OK(dvt_stream_wait(c.stream, EVER, &error));
    return c;
}

static void close_chain(chain *c)
{
    dvt_event_free(c->done);
    dvt_stream_free(c->stream);
    dvt_buffer_free(c->x);
    dvt_buffer_free(c->y);
    close_model(&c->model);
}

static void run_chain(chain *c, uint64_t from, uint64_t to)
{
    dvt_tensor x = tensor_of(&c->model, c->x, true), y = tensor_of(&c->model, c->y, true);
    x.byte_offset = from;
    y.byte_offset = to;
    OK(run(&c->model, x, y, c->stream, c->done, NULL));
    OK(dvt_event_wait(c->done, EVER, &error));
}

static void expect_result(chain *c, uint64_t at, float value)
{
    float found[COUNT];
    OK(dvt_buffer_read(c->y, NULL, at, found, BYTES, &error));
    EXPECT(is_all(found, value), "a wrong result");
}

/* Messages of one run, once it has run a few times. */
static int64_t messages_of_a_run(chain *c)
{
    for (int i = 0; i < 3; i++)
        run_chain(c, 0, 0);
    set(&c->model, "reset", 0);
    run_chain(c, 0, 0);
    int64_t counted = attribute(&c->model, "messages");
    EXPECT(attribute(&c->model, "launched") == KERNELS, "not every kernel ran");
    return counted;
}

static void test_in_place(chain *c)
{
    run_chain(c, 0, 0);
    set(&c->model, "reset", 0);
    run_chain(c, 0, 0);
    EXPECT(attribute(&c->model, "bytes.between") == 0, "tensors on the device were copied");
    EXPECT(attribute(&c->model, "bytes.in") + attribute(&c->model, "bytes.out") == 0,
           "tensors on the device visited the host");
    run_chain(c, 2 * BYTES, 3 * BYTES);
    EXPECT(attribute(&c->model, "bytes.between") == 0, "parts of buffers were copied");
    expect_result(c, 3 * BYTES, 2);
    run_chain(c, 4, 8); /* not aligned as kernels may want it */
    EXPECT(attribute(&c->model, "bytes.between") == 2 * BYTES, "these have to be copied");
    expect_result(c, 8, 2);
    float values[COUNT], found[COUNT]; /* the host's, after the device's: back to the arena */
    fill(values, 7);
    OK(run(&c->model, tensor_of(&c->model, values, false), tensor_of(&c->model, found, false),
           NULL, NULL, NULL));
    EXPECT(is_all(found, 7), "the host's tensors after the device's");
    run_chain(c, 0, 0);
    expect_result(c, 0, 2);
}

static void test_replay(chain *c)
{
    c->model.plugin->records = false;
    int64_t without = messages_of_a_run(c);
    c->model.plugin->records = true;
    uint64_t recorded = c->model.plugin->counters.recorded;
    int64_t with = messages_of_a_run(c);
    printf("native/tests/test_graphs: %d kernels are %d messages, replayed %d\n", KERNELS,
           (int)without, (int)with);
    EXPECT(without >= KERNELS && with <= 3, "replaying saves nothing");
    EXPECT(c->model.plugin->counters.recorded == recorded + 1, "recorded more than once");
    /* Other addresses come and go; each is recorded when it comes again. */
    for (int i = 0; i < 6; i++)
        for (uint64_t at = 0; at < 3; at++)
            run_chain(c, at * BYTES, (2 - at) * BYTES);
    EXPECT(c->model.plugin->counters.recorded == recorded + 4, "not one for each");
    for (int i = 0; i < 3; i++) /* more of them than are kept */
        for (uint64_t at = 0; at < 12; at++)
            run_chain(c, at % 4 * BYTES, at / 4 * BYTES);
    expect_result(c, 2 * BYTES, 2);
}

/* A handle comes again for other memory, which what was recorded with it does not know. */
static void test_handles_come_again(chain *c)
{
    float values[COUNT];
    uint32_t flags = c->model.plugin->info.flags;
    c->model.plugin->info.flags &= ~(uint32_t)DVP_ADDRESS_HANDLES;
    set(&c->model, "handles.numbered", 1);
    dvt_buffer_free(c->x);
    OK(dvt_buffer_new(c->model.plugin, DVT_MEMORY_DEVICE, 4 * BYTES, &c->x, &error));
    for (int i = 0; i < 3; i++)
        run_chain(c, 0, 0);
    const void *before = dvt_buffer_handle(c->x);
    dvt_buffer_free(c->x);
    OK(dvt_buffer_new(c->model.plugin, DVT_MEMORY_DEVICE, 64 * BYTES, &c->x, &error));
    EXPECT(dvt_buffer_handle(c->x) == before, "the handle did not come again");
    fill(values, 9);
    OK(dvt_buffer_write(c->x, NULL, 0, values, BYTES, &error));
    for (int i = 0; i < 3; i++) {
        run_chain(c, 0, 0);
        expect_result(c, 0, 9);
    }
    fill(values, 2);
    for (uint64_t i = 0; i < 4; i++)
        OK(dvt_buffer_write(c->x, NULL, i * BYTES, values, BYTES, &error));
    c->model.plugin->info.flags = flags;
    set(&c->model, "handles.numbered", 0);
}

static void test_refused(chain *c)
{
    static const char *const faults[] = {"fault.capture_begin", "fault.capture_end"};
    for (int i = 0; i < 2; i++) {
        set(&c->model, "kill", 1); /* a device that is opened again has refused nothing yet */
        float value = 2, found[COUNT], values[COUNT];
        fill(values, value);
        dvt_tensor x = tensor_of(&c->model, values, false),
                   y = tensor_of(&c->model, found, false);
        while (run(&c->model, x, y, NULL, NULL, NULL) == DVT_ERROR_DEVICE_LOST)
            continue;
        set(&c->model, faults[i], 1);
        uint64_t replayed = c->model.plugin->counters.replayed;
        for (int n = 0; n < 4; n++)
            OK(run(&c->model, x, y, NULL, NULL, NULL));
        EXPECT(is_all(found, value), "wrong where nothing can be recorded");
        EXPECT(c->model.plugin->counters.replayed == replayed, "replayed what was refused");
        set(&c->model, faults[i], 0);
    }
    set(&c->model, "kill", 1);
    float values[COUNT], found[COUNT];
    fill(values, 5);
    dvt_tensor x = tensor_of(&c->model, values, false), y = tensor_of(&c->model, found, false);
    while (run(&c->model, x, y, NULL, NULL, NULL) == DVT_ERROR_DEVICE_LOST)
        continue;
    OK(run(&c->model, x, y, NULL, NULL, NULL));
    set(&c->model, "fault.graph_launch", 1);
    FAILS(run(&c->model, x, y, NULL, NULL, NULL), DVT_ERROR_PLUGIN_FAILED);
    OK(run(&c->model, x, y, NULL, NULL, NULL));
    EXPECT(is_all(found, 5), "wrong after a launch that failed");
    set(&c->model, "fault.capture_begin", -1);
    dvt_buffer_free(c->x);
    dvt_buffer_free(c->y);
    c->x = c->y = NULL;
}

/* ---- streams of the vendor's own ---- */

typedef struct {
    void *(*stream_new)(int);
    void (*stream_free)(void *);
    int (*is_done)(void *), (*sync)(void *);
    int (*fill)(void *, void *, uint64_t, int64_t, double);
} vendor;

static vendor open_vendor(const model *m)
{
    vendor v;
    *(void **)&v.stream_new = dlsym(m->plugin->library, "accel_sim_stream_new");
    *(void **)&v.stream_free = dlsym(m->plugin->library, "accel_sim_stream_free");
    *(void **)&v.is_done = dlsym(m->plugin->library, "accel_sim_stream_is_done");
    *(void **)&v.sync = dlsym(m->plugin->library, "accel_sim_stream_sync");
    *(void **)&v.fill = dlsym(m->plugin->library, "accel_sim_fill");
    REQUIRE(v.stream_new && v.stream_free && v.is_done && v.sync && v.fill);
    return v;
}

/* A run between two kernels of the caller's own, on his stream or on one of ours. */
static void expect_order(chain *c, const vendor *v, dvt_stream *stream, void *native)
{
    dvt_tensor x = tensor_of(&c->model, c->x, true), y = tensor_of(&c->model, c->y, true);
    y.byte_offset = 2 * BYTES;
    set(&c->model, "slow", 1);
    CHECK(v->fill(native, dvt_buffer_handle(c->x), 0, COUNT, 11) == 0);
    set(&c->model, "slow", 0);
    OK(run(&c->model, x, y, stream, c->done, NULL));
    CHECK(v->fill(native, dvt_buffer_handle(c->x), 0, COUNT, 13) == 0);
    CHECK(!v->is_done(native)); /* the first takes 200 ms, and nobody waited */
    FAILS(dvt_event_wait(c->done, 0, &error), DVT_ERROR_NOT_YET);
    CHECK(v->sync(native) == 0);
    OK(dvt_event_wait(c->done, EVER, &error));
    expect_result(c, 2 * BYTES, 11);
    float found[COUNT];
    OK(dvt_buffer_read(c->x, NULL, 0, found, BYTES, &error));
    EXPECT(is_all(found, 13), "the caller's kernel did not come after the run");
}

static void test_native_streams(chain *c)
{
    vendor v = open_vendor(&c->model);
    void *native = v.stream_new(0), *told = NULL;
    dvt_stream *stream, *none;
    OK(dvt_stream_import(c->model.plugin, native, &stream, &error));
    OK(dvt_stream_native(stream, &told, &error));
    CHECK(told == native);
    run_chain(c, 0, 0); /* so that none of its kernels is slow for what is sent */
    expect_order(c, &v, stream, native);
    for (int i = 0; i < 3; i++) /* a native stream serves again and again */
        OK(run(&c->model, tensor_of(&c->model, c->x, true), tensor_of(&c->model, c->y, true),
               stream, NULL, NULL));
    dvt_stream_free(stream);
    CHECK(v.fill(native, dvt_buffer_handle(c->y), 0, COUNT, 17) == 0); /* it is still there */
    CHECK(v.sync(native) == 0);
    expect_result(c, 0, 17);
    OK(dvt_stream_native(c->stream, &told, &error));
    expect_order(c, &v, c->stream, told);
    FAILS(dvt_stream_import(c->model.plugin, &v, &none, &error), DVT_ERROR_PLUGIN_FAILED);
    OK(dvt_stream_import(c->model.plugin, native, &stream, &error));
    v.stream_free(native);
    dvt_stream_free(stream);
    native = v.stream_new(0); /* lost with its device, and the plug-in goes on */
    OK(dvt_stream_import(c->model.plugin, native, &stream, &error));
    set(&c->model, "kill", 1);
    float values[COUNT] = {0};
    dvt_tensor x = tensor_of(&c->model, values, false);
    while (run(&c->model, x, x, NULL, NULL, NULL) == DVT_OK) /* until it is noticed */
        continue;
    FAILS(dvt_stream_import(c->model.plugin, native, &none, &error), DVT_ERROR_PLUGIN_FAILED);
    FAILS(dvt_stream_native(stream, &told, &error), DVT_ERROR_DEVICE_LOST);
    dvt_stream_free(stream);
}

/* A stream that cannot be imported leaves the turns that others wait for as they were. */
static void test_a_lane_that_cannot_be_made(chain *c)
{
    vendor v = open_vendor(&c->model);
    void *native = v.stream_new(0);
    dvt_stream *stream, *none;
    dvt_tensor x = tensor_of(&c->model, c->x, true), y = tensor_of(&c->model, c->y, true);
    OK(dvt_stream_import(c->model.plugin, native, &stream, &error));
    OK(run(&c->model, x, y, stream, c->done, NULL));
    OK(dvt_stream_follow(c->stream, c->done, &error));
    dvt_stream_free(stream);
    set(&c->model, "fault.stream_create", 1);
    FAILS(dvt_stream_import(c->model.plugin, native, &none, &error), DVT_ERROR_PLUGIN_FAILED);
    set(&c->model, "fault.stream_create", 0);
    OK(dvt_stream_wait(c->stream, EVER, &error));
    run_chain(c, 0, 0);
    v.stream_free(native);
}

/* ---- results that the library makes, and memory that it has from elsewhere ---- */

static void test_memory_from_elsewhere(chain *c)
{
    dvt_buffer *borrowed;
    dvt_managed *made = NULL;
    dvt_tensor wish = {.device = {DVT_DEVICE_BUFFER, 0}};
    dvt_run_options options = {
        .struct_size = sizeof options, .results = &wish, .stream = c->stream, .done = c->done};
    OK(dvt_buffer_borrow(c->model.plugin, dvt_buffer_handle(c->x), 4 * BYTES, &borrowed,
                         &error));
    dvt_tensor x = tensor_of(&c->model, borrowed, true);
    EXPECT(dvt_input_plugin(c->model.artifact, 0) == c->model.plugin &&
               dvt_output_plugin(c->model.artifact, 0) == c->model.plugin &&
               dvt_output_plugin(c->model.artifact, 1) == NULL,
           "where tensors may lie");
    OK(dvt_run(c->model.artifact, &options, &x, 1, &made, 1, &error));
    REQUIRE(made != NULL);
    CHECK(made->tensor.device.type == DVT_DEVICE_BUFFER && made->tensor.shape[0] == COUNT);
    float found[COUNT];
    OK(dvt_buffer_read(made->tensor.data, c->stream, 0, found, BYTES, &error));
    OK(dvt_stream_wait(c->stream, EVER, &error));
    EXPECT(is_all(found, 2), "a result that was made on the device is wrong");
    made->deleter(made);
    dvt_buffer_free(borrowed);
    FAILS(dvt_buffer_borrow(c->model.plugin, NULL, 4, &borrowed, &error), DVT_ERROR_ARGUMENT);
}

/* ---- functions that fail ---- */

static void test_memory_that_cannot_be_had(chain *c)
{
    dvt_buffer *none = NULL;
    float values[COUNT];
    set(&c->model, "fault.memory_alloc", 1);
    FAILS(dvt_buffer_new(c->model.plugin, DVT_MEMORY_PINNED, BYTES, &none, &error),
          DVT_ERROR_PLUGIN_FAILED);
    OK(dvt_buffer_new(c->model.plugin, DVT_MEMORY_PINNED, BYTES, &none, &error));
    dvt_buffer_free(none);
    if (!(dvt_memory_kinds(c->model.plugin) & DVT_MEMORY_IMPORTED))
        return; /* the system lets no process read another's memory */
    set(&c->model, "fault.memory_import", 1);
    FAILS(dvt_buffer_import(c->model.plugin, values, sizeof values, &none, &error),
          DVT_ERROR_PLUGIN_FAILED);
    OK(dvt_buffer_import(c->model.plugin, values, sizeof values, &none, &error));
    dvt_buffer_free(none);
}

static void test_functions_that_fail(chain *c)
{
    dvt_stream *none;
    vendor v = open_vendor(&c->model);
    void *native = v.stream_new(0), *told = NULL;
    test_memory_that_cannot_be_had(c);
    set(&c->model, "fault.stream_import", 1);
    FAILS(dvt_stream_import(c->model.plugin, native, &none, &error), DVT_ERROR_PLUGIN_FAILED);
    v.stream_free(native);
    set(&c->model, "fault.stream_native", 1);
    FAILS(dvt_stream_native(c->stream, &told, &error), DVT_ERROR_PLUGIN_FAILED);
    OK(dvt_stream_native(c->stream, &told, &error));
    dvt_tensor x = tensor_of(&c->model, c->x, true), y = tensor_of(&c->model, c->y, true);
    x.byte_offset = y.byte_offset = 4; /* copied within the device */
    for (int i = 0; i < 2; i++) {
        set(&c->model, "fault.copy_between", i + 1);
        FAILS(run(&c->model, x, y, c->stream, c->done, NULL), DVT_ERROR_PLUGIN_FAILED);
        set(&c->model, "fault.copy_between", 0);
        run_chain(c, 4, 4);
        expect_result(c, 4, 2);
    }
}

/* ---- host calls ---- */

typedef struct {
    model *model;
    int64_t launched; /* when the host was called */
    float values[COUNT];
} caller;

static void keep_nothing(dvt_managed *managed)
{
    (void)managed;
}

static dvt_status call_host(void *context, const dvt_host_operation *operation, dvt_error *said)
{
    static dvt_managed made;
    (void)said;
    caller *c = context;
    c->launched = attribute(c->model, "launched");
    const float *from = operation->inputs[0]->data;
    for (int i = 0; i < COUNT; i++)
        c->values[i] = from[i] > 0 ? from[i] : 0;
    made = (dvt_managed){.version = {1, 0}, .deleter = keep_nothing};
    made.tensor = *operation->outputs[0];
    made.tensor.data = c->values;
    operation->made[0] = &made;
    return DVT_OK;
}

static void test_host_calls(void)
{
    model m = {.shape = {COUNT}};
    OK(dvt_load_plugin(FOLDER "sim/libaccel_sim.so", &m.plugin, &error));
    dvt_open_options options = {.struct_size = sizeof options,
                                .plugins = &m.plugin,
                                .plugin_count = 1,
                                .host_available = 1};
    OK(dvt_open(FOLDER "calls.dvt", &options, &m.artifact, &error));
    caller c = {.model = &m};
    float values[COUNT], found[2][COUNT];
    fill(values, -4);
    dvt_tensor x = tensor_of(&m, values, false);
    dvt_tensor results[] = {tensor_of(&m, found[0], false), tensor_of(&m, found[1], false)};
    dvt_managed *outputs[2];
    dvt_run_options how = {
        .struct_size = sizeof how, .host = call_host, .host_context = &c, .results = results};
    for (int i = 0; i < 3; i++) {
        set(&m, "reset", 0);
        set(&m, "slow", 1);
        OK(dvt_run(m.artifact, &how, &x, 1, outputs, 2, &error));
        EXPECT(is_all(found[0], 4) && is_all(found[1], 4), "wrong beside a host call");
        EXPECT(c.launched == 1, "a host call waited for more than it reads");
    }
    set(&m, "slow", 0);
    set(&m, "fault.event_sync", 1); /* where the event cannot be waited for, the stream is */
    OK(dvt_run(m.artifact, &how, &x, 1, outputs, 2, &error));
    set(&m, "fault.event_sync", 0);
    set(&m, "fault.kernel_fails", 1);
    FAILS(dvt_run(m.artifact, &how, &x, 1, outputs, 2, &error), DVT_ERROR_PLUGIN_FAILED);
    OK(dvt_run(m.artifact, &how, &x, 1, outputs, 2, &error));
    EXPECT(is_all(found[0], 4) && is_all(found[1], 4), "wrong after an error");
    close_model(&m);
}

int main(void)
{
    chain c = open_chain();
    test_replay(&c);
    test_in_place(&c);
    test_memory_from_elsewhere(&c);
    test_handles_come_again(&c);
    test_functions_that_fail(&c);
    test_refused(&c);
    close_chain(&c);
    c = open_chain();
    test_a_lane_that_cannot_be_made(&c);
    test_native_streams(&c);
    close_chain(&c);
    test_host_calls();
    printf("native/tests/test_graphs: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
