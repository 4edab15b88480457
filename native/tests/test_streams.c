/* Streams, events and device memory of the library's callers, on a simulated device that works
 * by itself (examples/accel_sim) and on one that does nothing before it is waited for
 * (examples/accel_c), under the address sanitizer. The files are those of
 * tests/native/streams_file.py. */
#include "device_model.h"

/* ---- on any device ---- */

static void test_runs_of_one_stream(model *m)
{
    float one[COUNT], found[COUNT], host[COUNT];
    fill(one, 1);
    dvt_buffer *x, *y;
    dvt_stream *stream;
    dvt_event *done;
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, BYTES, &x, &error));
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, 2 * BYTES, &y, &error));
    OK(dvt_stream_new(m->plugin, &stream, &error));
    OK(dvt_event_new(m->plugin, &done, &error));
    OK(dvt_event_wait(done, EVER, &error));
    OK(dvt_state_reset(dvt_own_state(m->artifact), &error));
    OK(dvt_buffer_write(x, stream, 0, one, BYTES, &error));
    dvt_tensor to = tensor_of(m, y, true);
    to.byte_offset = BYTES;
    for (int i = 0; i < 5; i++)
        OK(run(m, tensor_of(m, x, true), to, stream, done, NULL));
    OK(dvt_buffer_read(y, stream, BYTES, found, BYTES, &error));
    OK(dvt_event_wait(done, EVER, &error));
    OK(dvt_stream_wait(stream, EVER, &error));
    EXPECT(is_all(found, 5), "five runs of a stream do not add up");
    /* Host memory, on the stream and on none; the state is still the device's. */
    OK(run(m, tensor_of(m, one, false), tensor_of(m, host, false), stream, done, NULL));
    OK(dvt_event_wait(done, EVER, &error));
    EXPECT(is_all(host, 6), "a run on memory of the host is wrong");
    OK(run(m, tensor_of(m, x, true), tensor_of(m, host, false), stream, NULL, NULL));
    OK(run(m, tensor_of(m, one, false), tensor_of(m, found, false), NULL, done, NULL));
    OK(dvt_event_wait(done, 0, &error));
    EXPECT(is_all(found, 8) && is_all(host, 7), "a run does not wait for a stream's");
    dvt_event_free(done);
    dvt_stream_free(stream);
    dvt_buffer_free(x);
    dvt_buffer_free(y);
}

static void test_streams_share_state(model *m)
{
    float one[COUNT], found[COUNT];
    fill(one, 1);
    dvt_stream *streams[3];
    dvt_event *done;
    dvt_buffer *y;
    OK(dvt_event_new(m->plugin, &done, &error));
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, BYTES, &y, &error));
    OK(dvt_state_reset(dvt_own_state(m->artifact), &error));
    for (int i = 0; i < 3; i++)
        OK(dvt_stream_new(m->plugin, &streams[i], &error));
    for (int i = 0; i < 12; i++)
        OK(run(m, tensor_of(m, one, false), tensor_of(m, y, true), streams[i % 3], done, NULL));
    OK(dvt_stream_follow(streams[0], done, &error));
    OK(dvt_buffer_read(y, streams[0], 0, found, BYTES, &error));
    OK(dvt_event_record(done, streams[0], &error));
    OK(dvt_event_wait(done, EVER, &error));
    EXPECT(is_all(found, 12), "runs of one state on several streams do not follow each other");
    dvt_tensor held = tensor_of(m, found, false);
    OK(run(m, tensor_of(m, one, false), tensor_of(m, y, true), streams[1], NULL, NULL));
    OK(dvt_state_read(dvt_own_state(m->artifact), 0, &held, &error));
    EXPECT(is_all(found, 13), "state is read before it is computed");
    for (int i = 0; i < 3; i++)
        dvt_stream_free(streams[i]);
    dvt_event_free(done);
    dvt_buffer_free(y);
}

static void test_mistakes(model *m)
{
    float one[COUNT];
    fill(one, 1);
    dvt_buffer *small, *both;
    dvt_stream *streams[16];
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, BYTES - 4, &small, &error));
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, 2 * BYTES, &both, &error));
    dvt_tensor x = tensor_of(m, one, false), y = x;
    FAILS(run(m, tensor_of(m, small, true), y, NULL, NULL, NULL), DVT_ERROR_GUARD);
    FAILS(run(m, x, tensor_of(m, small, true), NULL, NULL, NULL), DVT_ERROR_GUARD);
    FAILS(run(m, tensor_of(m, NULL, true), y, NULL, NULL, NULL), DVT_ERROR_GUARD);
    float elsewhere = 0; /* memory of another library's device is not taken for a buffer */
    dvt_tensor foreign = tensor_of(m, &elsewhere, true);
    foreign.device.type = DVT_EXTENSION;
    FAILS(run(m, foreign, y, NULL, NULL, NULL), DVT_ERROR_GUARD);
    FAILS(run(m, x, foreign, NULL, NULL, NULL), DVT_ERROR_GUARD);
    dvt_tensor behind = tensor_of(m, both, true);
    behind.byte_offset = BYTES;
    FAILS(run(m, tensor_of(m, both, true), behind, NULL, NULL, NULL), DVT_ERROR_ARGUMENT);
    behind.byte_offset = UINT64_MAX - 3;
    FAILS(run(m, behind, y, NULL, NULL, NULL), DVT_ERROR_GUARD);
    int64_t backwards[] = {-1};
    behind = tensor_of(m, both, true);
    behind.strides = backwards;
    FAILS(run(m, behind, y, NULL, NULL, NULL), DVT_ERROR_GUARD);
    FAILS(dvt_buffer_write(small, NULL, 4, one, BYTES - 4, &error), DVT_ERROR_ARGUMENT);
    FAILS(dvt_buffer_read(small, NULL, UINT64_MAX, one, 4, &error), DVT_ERROR_ARGUMENT);
    int made = 0;
    while (made < 16 && dvt_stream_new(m->plugin, &streams[made], &error) == DVT_OK)
        made++;
    EXPECT(made == 8, "there are not 8 streams");
    while (made > 0)
        dvt_stream_free(streams[--made]);
    dvt_buffer_free(small);
    dvt_buffer_free(both);
}

/* Any kind of memory serves as input and result; the host sees what it may see. */
static void test_kinds_of_memory(model *m, uint32_t expected)
{
    float mine[COUNT], found[COUNT];
    dvt_stream *stream;
    OK(dvt_stream_new(m->plugin, &stream, &error));
    uint32_t kinds = dvt_memory_kinds(m->plugin);
    EXPECT(kinds == expected, "other kinds of memory");
    for (uint32_t kind = 1; kind <= DVT_MEMORY_IMPORTED; kind *= 2) {
        dvt_buffer *x, *y;
        bool imports = kind == DVT_MEMORY_IMPORTED;
        dvt_status status = imports ? dvt_buffer_import(m->plugin, mine, BYTES, &x, &error)
                                    : dvt_buffer_new(m->plugin, kind, BYTES, &x, &error);
        if (status == DVT_ERROR_PLUGIN_FAILED && imports && (kinds & kind) != 0)
            continue; /* this system lets the device not reach the host's memory */
        expect_status(status, kinds & kind ? DVT_OK : DVT_ERROR_UNSUPPORTED, "new memory");
        if (status != DVT_OK)
            continue;
        OK(imports ? dvt_buffer_import(m->plugin, found, BYTES, &y, &error)
                   : dvt_buffer_new(m->plugin, kind, BYTES, &y, &error));
        float *given = dvt_buffer_host(x), *made = dvt_buffer_host(y);
        EXPECT((given == NULL) == (kind == DVT_MEMORY_DEVICE), "where the host sees it");
        EXPECT(!imports || (given == mine && made == found), "imported memory was copied");
        fill(mine, 3);
        if (given != NULL)
            fill(given, 3);
        else
            OK(dvt_buffer_write(x, stream, 0, mine, BYTES, &error));
        OK(dvt_state_reset(dvt_own_state(m->artifact), &error));
        OK(run(m, tensor_of(m, x, true), tensor_of(m, y, true), stream, NULL, NULL));
        OK(run(m, tensor_of(m, x, true), tensor_of(m, y, true), stream, NULL, NULL));
        if (made == NULL)
            OK(dvt_buffer_read(y, stream, 0, found, BYTES, &error));
        OK(dvt_stream_wait(stream, EVER, &error));
        EXPECT(is_all(made != NULL ? made : found, 6), "a run on this memory is wrong");
        if (given != NULL) { /* as the host's memory, too */
            OK(run(m, tensor_of(m, given, false), tensor_of(m, made, false), stream, NULL,
                   NULL));
            OK(dvt_stream_wait(stream, EVER, &error));
            EXPECT(is_all(made, 9), "a run on this memory of the host is wrong");
        }
        dvt_buffer_free(x);
        dvt_buffer_free(y);
    }
    dvt_buffer *none;
    FAILS(dvt_buffer_new(m->plugin, DVT_MEMORY_IMPORTED, BYTES, &none, &error),
          DVT_ERROR_ARGUMENT);
    FAILS(dvt_buffer_new(m->plugin, 0, BYTES, &none, &error), DVT_ERROR_UNSUPPORTED);
    FAILS(dvt_buffer_new(m->plugin, 3, BYTES, &none, &error), DVT_ERROR_UNSUPPORTED);
    FAILS(dvt_buffer_import(m->plugin, NULL, BYTES, &none, &error), DVT_ERROR_ARGUMENT);
    dvt_stream_free(stream);
}

/* ---- several threads, each with a stream and a sequence of its own ---- */

typedef struct {
    model *m;
    int runs;
    bool right;
} worker;

static void *work(void *context)
{
    worker *w = context;
    float values[COUNT], found[COUNT];
    dvt_error said;
    dvt_stream *stream;
    dvt_state *state;
    dvt_buffer *y;
    dvt_event *done;
    fill(values, 2);
    w->right = dvt_stream_new(w->m->plugin, &stream, &said) == DVT_OK &&
               dvt_state_new(w->m->artifact, NULL, &state, &said) == DVT_OK &&
               dvt_buffer_new(w->m->plugin, DVT_MEMORY_DEVICE, BYTES, &y, &said) == DVT_OK &&
               dvt_event_new(w->m->plugin, &done, &said) == DVT_OK;
    if (!w->right)
        return NULL;
    dvt_tensor x = tensor_of(w->m, values, false), to = tensor_of(w->m, y, true);
    dvt_run_options options = {.struct_size = sizeof options,
                               .results = &to,
                               .stream = stream,
                               .done = done,
                               .state = state};
    for (int i = 0; i < w->runs; i++) {
        dvt_managed *outputs[1];
        w->right &= dvt_run(w->m->artifact, &options, &x, 1, outputs, 1, &said) == DVT_OK;
        if (i % 7 == 6)
            w->right &= dvt_event_wait(done, EVER, &said) == DVT_OK;
    }
    w->right &= dvt_buffer_read(y, stream, 0, found, BYTES, &said) == DVT_OK &&
                dvt_stream_wait(stream, EVER, &said) == DVT_OK &&
                is_all(found, 2.0f * (float)w->runs);
    dvt_event_free(done);
    dvt_stream_free(stream);
    dvt_buffer_free(y);
    dvt_state_free(state);
    return NULL;
}

static void test_threads(model *m)
{
    pthread_t threads[4];
    worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){m, 20 + i, false};
        EXPECT(pthread_create(&threads[i], NULL, work, &workers[i]) == 0, "no thread");
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(workers[i].right, "a thread's runs are wrong");
    }
}

/* ---- what the simulator alone can tell and do ---- */

static void test_a_run_is_not_waited_for(model *m)
{
    float one[COUNT], found[COUNT];
    fill(one, 1);
    dvt_buffer *x, *y;
    dvt_stream *stream;
    dvt_event *done;
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, BYTES, &x, &error));
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, BYTES, &y, &error));
    OK(dvt_stream_new(m->plugin, &stream, &error));
    OK(dvt_event_new(m->plugin, &done, &error));
    OK(dvt_buffer_write(x, NULL, 0, one, BYTES, &error));
    OK(dvt_state_reset(dvt_own_state(m->artifact), &error));
    OK(run(m, tensor_of(m, x, true), tensor_of(m, y, true), stream, NULL, NULL));
    OK(dvt_stream_wait(stream, EVER, &error)); /* which sent the state */
    set(m, "reset", 0);
    set(m, "slow", 1);
    for (int i = 0; i < 5; i++)
        OK(run(m, tensor_of(m, x, true), tensor_of(m, y, true), stream, done, NULL));
    FAILS(dvt_event_wait(done, 0, &error), DVT_ERROR_NOT_YET);
    FAILS(dvt_stream_wait(stream, 1000, &error), DVT_ERROR_NOT_YET);
    OK(dvt_event_wait(done, EVER, &error));
    OK(dvt_event_wait(done, 0, &error));
    set(m, "slow", 0);
    EXPECT(attribute(m, "bytes.in") == 0 && attribute(m, "bytes.out") == 0,
           "tensors on the device were copied to the host");
    OK(dvt_buffer_read(y, NULL, 0, found, BYTES, &error));
    EXPECT(is_all(found, 6), "the runs do not add up");
    dvt_event_free(done);
    dvt_stream_free(stream);
    dvt_buffer_free(x);
    dvt_buffer_free(y);
}

/* An error of work that was not waited for is told to who waits, and to who needs the results.
 */
static void test_late_errors(model *m)
{
    float one[COUNT], found[COUNT];
    fill(one, 1);
    dvt_state *own = dvt_own_state(m->artifact);
    dvt_buffer *y;
    dvt_stream *stream;
    dvt_event *done;
    dvt_tensor x = tensor_of(m, one, false);
    OK(dvt_buffer_new(m->plugin, DVT_MEMORY_DEVICE, BYTES, &y, &error));
    OK(dvt_stream_new(m->plugin, &stream, &error));
    OK(dvt_event_new(m->plugin, &done, &error));
    OK(dvt_state_reset(own, &error));
    OK(run(m, x, tensor_of(m, found, false), stream, done, NULL));
    OK(dvt_event_wait(done, EVER, &error));
    set(m, "fault.kernel_fails", 1);
    OK(run(m, x, tensor_of(m, y, true), stream, done, NULL));
    FAILS(dvt_event_wait(done, EVER, &error), DVT_ERROR_PLUGIN_FAILED);
    FAILS(dvt_event_wait(done, 0, &error), DVT_ERROR_PLUGIN_FAILED);
    FAILS(dvt_buffer_read(y, stream, 0, found, BYTES, &error), DVT_ERROR_DEVICE_LOST);
    FAILS(run(m, x, tensor_of(m, found, false), NULL, NULL, NULL), DVT_ERROR_DEVICE_LOST);
    OK(dvt_state_reset(own, &error));
    OK(run(m, x, tensor_of(m, y, true), stream, done, NULL));
    OK(dvt_buffer_read(y, stream, 0, found, BYTES, &error));
    OK(dvt_stream_wait(stream, EVER, &error));
    EXPECT(is_all(found, 1), "wrong after an error");
    /* What builds on it, on another stream, is no better. */
    dvt_stream *second;
    OK(dvt_stream_new(m->plugin, &second, &error));
    set(m, "slow", 1);
    set(m, "fault.kernel_fails", 1);
    OK(run(m, x, tensor_of(m, y, true), stream, NULL, NULL));
    OK(run(m, x, tensor_of(m, found, false), second, done, NULL));
    set(m, "slow", 0);
    FAILS(dvt_event_wait(done, EVER, &error), DVT_ERROR_DEVICE_LOST);
    FAILS(dvt_event_wait(done, EVER, &error), DVT_ERROR_PLUGIN_FAILED);
    FAILS(run(m, x, tensor_of(m, found, false), NULL, NULL, NULL), DVT_ERROR_DEVICE_LOST);
    dvt_stream_free(second);
    OK(dvt_state_reset(own, &error));
    set(m, "fault.event_sync", 1);
    OK(run(m, x, tensor_of(m, found, false), stream, done, NULL));
    OK(dvt_event_wait(done, EVER, &error)); /* the stream has no error to tell */
    set(m, "kill", 1);
    dvt_status status = run(m, x, tensor_of(m, y, true), stream, done, NULL);
    if (status == DVT_OK)
        status = dvt_event_wait(done, EVER, &error);
    EXPECT(status == DVT_ERROR_DEVICE_LOST, "a device that was killed is not lost");
    FAILS(dvt_buffer_read(y, stream, 0, found, BYTES, &error), DVT_ERROR_DEVICE_LOST);
    FAILS(run(m, x, tensor_of(m, y, true), stream, done, NULL), DVT_ERROR_DEVICE_LOST);
    OK(dvt_state_reset(own, &error));
    OK(run(m, x, tensor_of(m, found, false), stream, done, NULL));
    OK(dvt_event_wait(done, EVER, &error));
    EXPECT(is_all(found, 1), "wrong after a loss");
    FAILS(run(m, x, tensor_of(m, y, true), stream, done, NULL), DVT_ERROR_DEVICE_LOST);
    FAILS(run(m, tensor_of(m, y, true), x, stream, done, NULL), DVT_ERROR_DEVICE_LOST);
    dvt_event_free(done);
    dvt_stream_free(stream);
    dvt_buffer_free(y);
}

/* ---- what the device says ---- */

static int begun, ended, said;

static uint64_t begin(void *context, const char *name)
{
    begun += context == &begun && strcmp(name, "accel_sim: waiting for a stream") == 0;
    return 7;
}

static void end(void *context, uint64_t span)
{
    ended += context == &begun && span == 7;
}

static void hear(void *context, int32_t level, const char *message)
{
    said += context == &said && level == DVT_LOG_DEBUG && strncmp(message, "device 0", 8) == 0;
}

static void test_what_it_says(void)
{
    dvt_listener none = {.struct_size = 0}, heard = {.struct_size = sizeof heard,
                                                     .context = &begun,
                                                     .span_begin = begin,
                                                     .span_end = end};
    FAILS(dvt_set_listener(&none, &error), DVT_ERROR_ARGUMENT);
    OK(dvt_set_listener(&heard, &error));
    dvt_set_log(hear, &said, DVT_LOG_DEBUG);
    model m = open_model(FOLDER "sim/libaccel_sim.so", FOLDER "sum_accel_sim.dvt");
    float values[COUNT];
    fill(values, 1);
    OK(run(&m, tensor_of(&m, values, false), tensor_of(&m, values, false), NULL, NULL, NULL));
    int before = begun;
    EXPECT(begun > 0 && begun == ended && said == 1, "spans or messages are not heard");
    OK(dvt_set_listener(NULL, &error));
    dvt_set_log(NULL, NULL, DVT_LOG_NONE);
    OK(run(&m, tensor_of(&m, values, false), tensor_of(&m, values, false), NULL, NULL, NULL));
    EXPECT(begun == before && ended == before, "a listener hears more when it is gone");
    close_model(&m);
}

/* The host computes its part while the device is at work: one wait for each of two streams, in
 * the end. */
static void test_a_part_that_needs_no_device(void)
{
    model m = open_model(FOLDER "sim/libaccel_sim.so", FOLDER "mixed.dvt");
    float values[COUNT], found[2][COUNT];
    fill(values, -3);
    dvt_tensor x = tensor_of(&m, values, false);
    dvt_tensor results[] = {tensor_of(&m, found[0], false), tensor_of(&m, found[1], false)};
    dvt_managed *outputs[2];
    dvt_run_options options = {.struct_size = sizeof options, .results = results};
    dvt_listener heard = {
        .struct_size = sizeof heard, .context = &begun, .span_begin = begin, .span_end = end};
    OK(dvt_run(m.artifact, &options, &x, 1, outputs, 2, &error));
    OK(dvt_set_listener(&heard, &error));
    begun = 0;
    OK(dvt_run(m.artifact, &options, &x, 1, outputs, 2, &error));
    OK(dvt_set_listener(NULL, &error));
    EXPECT(is_all(found[0], 3) && is_all(found[1], 0), "the parts are wrong");
    EXPECT(begun == 2, "the device is waited for before a step that does not need it");
    close_model(&m);
}

static void test_a_part_that_needs_the_device(float value)
{
    model m = open_model(FOLDER "sim/libaccel_sim.so", FOLDER "needed.dvt");
    float values[COUNT], found[3][COUNT], positive = value > 0 ? value : 0;
    fill(values, value);
    dvt_tensor x = tensor_of(&m, values, false), results[3];
    for (int i = 0; i < 3; i++)
        results[i] = tensor_of(&m, found[i], false);
    dvt_managed *outputs[3];
    dvt_run_options options = {.struct_size = sizeof options, .results = results};
    for (int i = 0; i < 3; i++) {
        memset(found, 0x7f, sizeof found);
        OK(dvt_run(m.artifact, &options, &x, 1, outputs, 3, &error));
        EXPECT(is_all(found[0], 2 * positive), "a kernel of the host's is wrong");
        EXPECT(is_all(found[1], -positive), "what was sent was written over before it arrived");
        EXPECT(is_all(found[2], positive - value), "a result was read before it was there");
    }
    close_model(&m);
}

static void test_the_hosts_part(void)
{
    model m = open_model(FOLDER "sim/libaccel_sim.so", FOLDER "mixed.dvt");
    float values[COUNT], found[2][COUNT];
    fill(values, 3);
    dvt_buffer *x;
    dvt_stream *stream;
    OK(dvt_buffer_new(m.plugin, DVT_MEMORY_DEVICE, BYTES, &x, &error));
    OK(dvt_stream_new(m.plugin, &stream, &error));
    dvt_tensor given = tensor_of(&m, x, true);
    dvt_tensor results[] = {tensor_of(&m, found[0], false), tensor_of(&m, found[1], false)};
    dvt_managed *outputs[2];
    dvt_run_options options = {
        .struct_size = sizeof options, .results = results, .stream = stream};
    FAILS(dvt_run(m.artifact, &options, &given, 1, outputs, 2, &error), DVT_ERROR_GUARD);
    given = tensor_of(&m, values, false);
    dvt_tensor there[] = {tensor_of(&m, x, true), results[1]};
    options.results = there;
    OK(dvt_run(m.artifact, &options, &given, 1, outputs, 2, &error));
    OK(dvt_buffer_read(x, stream, 0, found[0], BYTES, &error));
    OK(dvt_stream_wait(stream, EVER, &error));
    EXPECT(is_all(found[0], -3) && is_all(found[1], 3), "the host's part is wrong");
    there[1] = tensor_of(&m, x, true);
    FAILS(dvt_run(m.artifact, &options, &given, 1, outputs, 2, &error), DVT_ERROR_GUARD);
    dvt_stream_free(stream);
    dvt_buffer_free(x);
    close_model(&m);
}

int main(void)
{
    model sim = open_model(FOLDER "sim/libaccel_sim.so", FOLDER "sum_accel_sim.dvt");
    test_runs_of_one_stream(&sim);
    test_streams_share_state(&sim);
    test_mistakes(&sim);
    test_kinds_of_memory(&sim, 15);
    test_threads(&sim);
    test_a_run_is_not_waited_for(&sim);
    test_late_errors(&sim);
    close_model(&sim);
    test_the_hosts_part();
    test_what_it_says();
    test_a_part_that_needs_no_device();
    test_a_part_that_needs_the_device(3);
    test_a_part_that_needs_the_device(-3);
    model plain = open_model(FOLDER "libaccel_c.so", FOLDER "sum_accel_c.dvt");
    test_runs_of_one_stream(&plain);
    test_streams_share_state(&plain);
    test_mistakes(&plain);
    test_kinds_of_memory(&plain, DVT_MEMORY_DEVICE);
    test_threads(&plain);
    close_model(&plain);
    printf("native/tests/test_streams: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
