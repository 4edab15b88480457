/* device_model.h: a model of one input on a device, for the C tests of streams and graphs. The
 * files are those of tests/native/streams_file.py. */
#ifndef DVT_DEVICE_MODEL_H
#define DVT_DEVICE_MODEL_H

#include "plugin.h"

#include "dovetail.h"

#include "check.h"

#include <pthread.h>
#include <string.h>

#ifndef FOLDER
#define FOLDER "native/build/"
#endif

enum { COUNT = 256, BYTES = COUNT * 4 };
#define EVER UINT64_MAX

static dvt_error error;

static void expect_status(dvt_status got, dvt_status expected, const char *what)
{
    if (got != expected)
        fprintf(stderr, "%s: %d (%s), expected %d\n", what, got, error.message, expected);
    EXPECT(got == expected, what);
}
#define OK(call)            expect_status(call, DVT_OK, #call)
#define FAILS(call, wanted) expect_status(call, wanted, #call)

typedef struct {
    dvt_plugin *plugin;
    dvt_artifact *artifact;
    int64_t shape[1];
} model;

static model open_model(const char *library, const char *file)
{
    model m = {.shape = {COUNT}};
    OK(dvt_load_plugin(library, &m.plugin, &error));
    dvt_open_options options = {
        .struct_size = sizeof options, .plugins = &m.plugin, .plugin_count = 1};
    OK(dvt_open(file, &options, &m.artifact, &error));
    return m;
}

static void close_model(model *m)
{
    dvt_close(m->artifact);
    EXPECT(dvt_close_plugin(m->plugin) == 0, "memory is left on the device");
}

static dvt_tensor tensor_of(model *m, void *data, bool on_device)
{
    return (dvt_tensor){.data = data,
                        .device = {on_device ? DVT_DEVICE_BUFFER : DVT_CPU, 0},
                        .ndim = 1,
                        .dtype = {DVT_FLOAT, 32, 1},
                        .shape = m->shape};
}

static void fill(float *to, float value)
{
    for (int i = 0; i < COUNT; i++)
        to[i] = value;
}

static bool is_all(const float *values, float value)
{
    for (int i = 0; i < COUNT; i++)
        if (values[i] != value)
            return false;
    return true;
}

static dvt_status run(model *m, dvt_tensor x, dvt_tensor y, dvt_stream *stream, dvt_event *done,
                      dvt_state *state)
{
    dvt_managed *outputs[1];
    dvt_run_options options = {.struct_size = sizeof options,
                               .results = &y,
                               .stream = stream,
                               .done = done,
                               .state = state};
    return dvt_run(m->artifact, &options, &x, 1, outputs, 1, &error);
}

static int64_t attribute(model *m, const char *name)
{
    int64_t value = -1;
    OK(dvt_plugin_attribute(m->plugin, name, &value, &error));
    return value;
}

static void set(model *m, const char *name, int64_t value)
{
    plugin_error problem;
    dvt_lock_take(&m->plugin->lock);
    EXPECT(plugin_set(m->plugin, name, value, &problem) == 0, name);
    dvt_lock_give(&m->plugin->lock);
}

#endif
