/* A plug-in whose compiler takes whole segments of sizes that differ from call to call, and
 * puts constants into its code in a layout of its own: rows of float32 through relus and
 * products with a constant row. Kernels by themselves it has too. What its compiler was told of
 * sizes is an attribute: "least", "greatest" and "multiple" of the first. */
#include "no_streams.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct dvp_device {
    int64_t compiled, ran, sizes, least, greatest, multiple, absorbed, copied;
};
struct dvp_kernel {
    bool multiplies;
};
static dvp_device the_device;
static const dvp_kernel KERNELS[] = {{false}, {true}};

/* Code: the sizes that it is for; then for each step what it is, in 8 bytes, and the row that
 * it multiplies by, last column first. */
typedef struct {
    char magic[8];
    int64_t columns, least, greatest, multiple;
    int64_t steps;
} head;

struct dvp_program {
    head head; /* and the steps */
};

static dvp_status get_info(dvp_info *info, dvp_error *error)
{
    (void)error;
    info->abi = DVP_ABI;
    info->name = "whole";
    info->version = "1";
    info->device = "the host, in segments";
    info->flags = DVP_DYNAMIC_SEGMENTS | DVP_CONSTANT_DATA;
#ifdef IMPORTS
    info->flags |= DVP_IMPORTED_CONSTANTS;
#endif
    return DVP_OK;
}

static dvp_status device_open(int32_t index, dvp_device **device, dvp_error *error)
{
    (void)index;
    (void)error;
    *device = &the_device;
    return DVP_OK;
}

static void device_close(dvp_device *device)
{
    (void)device;
}

/* Imported memory is the host's own, known by its address. */
static void *imported[64];

static int64_t count_imported(void)
{
    int64_t count = 0;
    for (int i = 0; i < 64; i++)
        count += imported[i] != NULL;
    return count;
}

static dvp_status device_get(dvp_device *d, const char *name, int64_t *value, dvp_error *error)
{
    (void)error;
    const struct {
        const char *name;
        int64_t value;
    } known[] = {
        {"compiled", d->compiled}, {"ran", d->ran},           {"sizes", d->sizes},
        {"least", d->least},       {"greatest", d->greatest}, {"multiple", d->multiple},
        {"absorbed", d->absorbed}, {"copied", d->copied},     {"imported", count_imported()}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            *value = known[i].value;
            return DVP_OK;
        }
    return DVP_UNSUPPORTED;
}

static dvp_status device_set(dvp_device *device, const char *name, int64_t value,
                             dvp_error *error)
{
    (void)name;
    (void)value;
    (void)error;
    *device = (dvp_device){0};
    return DVP_OK;
}

static dvp_status buffer_alloc(dvp_device *device, uint64_t bytes, void **memory,
                               dvp_error *error)
{
    (void)device;
    (void)error;
    *memory = malloc(bytes + 1);
    return *memory == NULL ? DVP_NO_MEMORY : DVP_OK;
}

#ifndef IMPORTS
static void buffer_free(dvp_device *device, void *memory)
{
    (void)device;
    free(memory);
}
#else
static void buffer_free(dvp_device *device, void *memory)
{
    (void)device;
    for (int i = 0; i < 64; i++)
        if (memory != NULL && imported[i] == memory) {
            imported[i] = NULL;
            return;
        }
    free(memory);
}

static dvp_status memory_import(dvp_device *device, void *address, uint64_t bytes,
                                void **memory, dvp_error *error)
{
    (void)device;
    (void)bytes;
    (void)error;
    for (int i = 0; i < 64; i++)
        if (imported[i] == NULL) {
            *memory = imported[i] = address;
            return DVP_OK;
        }
    return DVP_UNSUPPORTED;
}

static dvp_status device_describe(int32_t index, dvp_device_info *info, dvp_error *error)
{
    (void)index;
    (void)error;
    info->name = "the host";
    info->alignment = 64;
    info->memory_kinds = DVP_MEMORY_DEVICE | DVP_MEMORY_IMPORTED;
    return DVP_OK;
}
#endif

static dvp_status buffer_copy(dvp_device *device, dvp_stream *stream, const dvp_copy *copy,
                              dvp_error *error)
{
    (void)stream;
    (void)error;
    if (copy->direction == DVP_HOST_TO_DEVICE)
        device->copied += (int64_t)copy->bytes;
    memcpy((char *)copy->destination + copy->destination_offset,
           (const char *)copy->source + copy->source_offset, copy->bytes);
    return DVP_OK;
}

static bool is_float(const dvp_tensor *t)
{
    return t->dtype.code == DVP_FLOAT && t->dtype.bits == 32;
}

static dvp_status query_op(dvp_device *device, const dvp_op *op, dvp_answer *answer,
                           dvp_error *error)
{
    (void)device;
    (void)error;
    bool relu = strcmp(op->name, "aten.relu.default") == 0 && op->input_count == 1;
    bool mul = strcmp(op->name, "aten.mul.Tensor") == 0 && op->input_count == 2 &&
               op->inputs[0].ndim == 2 && op->inputs[1].ndim == 1 && is_float(op->inputs + 1);
    answer->supported = (relu || mul) && op->inputs[0].ndim == 2 && is_float(op->inputs);
    answer->reason = "rows of float32 alone";
    answer->kernel = mul ? "mul" : "relu";
    answer->min_version = 1;
    return DVP_OK;
}

static dvp_status find_kernel(dvp_device *device, const char *name, uint32_t least,
                              uint32_t greatest, const dvp_kernel **kernel, uint32_t *version,
                              dvp_error *error)
{
    (void)device;
    (void)least;
    (void)greatest;
    (void)error;
    *kernel = &KERNELS[strcmp(name, "mul") == 0];
    *version = 1;
    return DVP_OK;
}

static float *floats(const dvp_tensor *t)
{
    return (float *)(void *)((char *)t->data + t->byte_offset);
}

static dvp_status execute(dvp_device *device, dvp_stream *stream, const dvp_kernel *kernel,
                          const dvp_op *op, dvp_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    const dvp_tensor *x = op->inputs, *y = op->outputs;
    if (x->shape[0] != y->shape[0] || x->shape[1] != y->shape[1])
        return DVP_INVALID;
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < y->shape[1]; j++) {
            float value = floats(x)[i * x->strides[0] + j * x->strides[1]];
            if (kernel->multiplies)
                value *= floats(op->inputs + 1)[j * op->inputs[1].strides[0]];
            else
                value = value < 0 ? 0 : value;
            floats(y)[i * y->strides[0] + j * y->strides[1]] = value;
        }
    return DVP_OK;
}

/* ---- whole segments ---- */

enum { RELU, MULTIPLY };

static dvp_status segment_compile(dvp_device *device, const dvp_segment *segment,
                                  const void **blob, uint64_t *bytes, dvp_error *error)
{
    (void)error;
    const dvp_tensor *x = &segment->tensors[segment->inputs[0]];
    int32_t last = segment->inputs[0];
    int64_t columns = x->shape[1];
    if (segment->output_count != 1 || x->ndim != 2 || columns < 1)
        return DVP_UNSUPPORTED;
    for (uint32_t i = 0; i < segment->input_count; i++)
        if (segment->tensors[segment->inputs[i]].ndim == 2)
            last = segment->inputs[i];
    x = &segment->tensors[last];
    columns = x->shape[1];
    int32_t place = segment->dims[last][0];
    head h = {"wholexx", columns, x->shape[0], x->shape[0], 1, segment->op_count};
    if (place >= 0) {
        const dvp_size *s = &segment->sizes[place];
        h.least = device->least = s->least;
        h.greatest = device->greatest = s->greatest;
        h.multiple = device->multiple = s->multiple;
    }
    device->sizes = segment->size_count;
    uint64_t step = 8 + (uint64_t)columns * sizeof(float);
    char *made = calloc(1, sizeof h + segment->op_count * step);
    if (made == NULL)
        return DVP_NO_MEMORY;
    memcpy(made, &h, sizeof h);
    for (uint32_t i = 0; i < segment->op_count; i++) {
        const dvp_op *op = dvp_segment_op(segment, i);
        char *at = made + sizeof h + i * step;
        bool multiplies = strcmp(op->name, "aten.mul.Tensor") == 0;
        *at = multiplies ? MULTIPLY : RELU;
        bool known = true;
        if (multiplies) {
            int32_t row = segment->op_inputs[i][1];
            const float *values = segment->data[row];
            known = values != NULL && segment->tensors[row].strides[0] == 1;
            for (int64_t j = 0; known && j < columns; j++)
                memcpy(at + 8 + 4 * (columns - 1 - j), values + j, sizeof *values);
            if (known)
                segment->absorbed[row] = 1;
            device->absorbed += known;
        }
        if (!known || segment->op_inputs[i][0] != last) {
            free(made);
            return DVP_UNSUPPORTED;
        }
        last = segment->op_outputs[i][0];
    }
    device->compiled++;
    *blob = made;
    *bytes = sizeof h + segment->op_count * step;
    return DVP_OK;
}

static void blob_free(dvp_device *device, const void *blob)
{
    (void)device;
    free((void *)(uintptr_t)blob);
}

static bool is_sound(const void *blob, uint64_t bytes)
{
    head h;
    if (bytes < sizeof h)
        return false;
    memcpy(&h, blob, sizeof h);
    return memcmp(h.magic, "wholexx", 8) == 0 && h.columns > 0 && h.columns < 1 << 20 &&
           h.steps >= 0 && h.steps < 1 << 10 && h.least <= h.greatest && h.multiple > 0 &&
           bytes == sizeof h + (uint64_t)h.steps * (8 + (uint64_t)h.columns * sizeof(float));
}

static dvp_status blob_check(dvp_device *device, const void *blob, uint64_t bytes,
                             int32_t *state, dvp_error *error)
{
    (void)device;
    (void)error;
    *state = is_sound(blob, bytes) ? DVP_BLOB_OPTIMAL : DVP_BLOB_UNSUPPORTED;
    return DVP_OK;
}

static dvp_status program_load(dvp_device *device, const void *blob, uint64_t bytes,
                               dvp_program **program, dvp_error *error)
{
    (void)device;
    (void)error;
    if (!is_sound(blob, bytes))
        return DVP_INVALID;
    char *copy = malloc(bytes);
    if (copy == NULL)
        return DVP_NO_MEMORY;
    memcpy(copy, blob, bytes);
    *program = (dvp_program *)(void *)copy;
    return DVP_OK;
}

static void program_free(dvp_device *device, dvp_program *program)
{
    (void)device;
    free(program);
}

static dvp_status program_run(dvp_device *device, dvp_stream *stream, dvp_program *program,
                              const dvp_tensor *inputs, uint32_t input_count,
                              const dvp_tensor *outputs, uint32_t output_count,
                              dvp_error *error)
{
    (void)stream;
    const head *h = &program->head;
    const dvp_tensor *x = NULL, *y = outputs;
    for (uint32_t i = 0; i < input_count; i++)
        x = inputs[i].ndim == 2 ? &inputs[i] : x;
    if (x == NULL || output_count != 1 || x->shape[1] != h->columns || y->ndim != 2 ||
        x->shape[0] < h->least || x->shape[0] > h->greatest || x->shape[0] % h->multiple != 0 ||
        y->shape[0] != x->shape[0] || y->shape[1] != x->shape[1]) {
        strcpy(error->message, "sizes that it was not compiled for");
        return DVP_INVALID;
    }
    uint64_t step = 8 + (uint64_t)h->columns * sizeof(float);
    for (int64_t i = 0; i < x->shape[0]; i++)
        for (int64_t j = 0; j < h->columns; j++) {
            float value = floats(x)[i * x->strides[0] + j * x->strides[1]];
            for (int64_t s = 0; s < h->steps; s++) {
                const char *at = (const char *)program + sizeof *h + (uint64_t)s * step;
                float factor;
                memcpy(&factor, at + 8 + 4 * (h->columns - 1 - j), sizeof factor);
                value = *at == MULTIPLY ? value * factor : value < 0 ? 0 : value;
            }
            floats(y)[i * y->strides[0] + j * y->strides[1]] = value;
        }
    device->ran++;
    return DVP_OK;
}

static const dvp_plugin TABLE = {
    .struct_size = sizeof(dvp_plugin),
    .abi = DVP_ABI,
    .get_info = get_info,
    .device_open = device_open,
    .device_close = device_close,
    .device_get = device_get,
    .device_set = device_set,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_copy = buffer_copy,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_sync = stream_sync,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .query_op = query_op,
    .find_kernel = find_kernel,
    .execute = execute,
#ifdef IMPORTS
    .device_describe = device_describe,
    .memory_import = memory_import,
#else
    .segment_compile = segment_compile,
    .blob_free = blob_free,
    .blob_check = blob_check,
    .program_load = program_load,
    .program_free = program_free,
    .program_run = program_run,
#endif
};

dvp_status dovetail_plugin_query(uint32_t host_abi, const dvp_host *host,
                                 const dvp_plugin **plugin)
{
    (void)host;
    (void)segment_compile;
    (void)blob_free;
    (void)blob_check;
    (void)program_load;
    (void)program_free;
    (void)program_run;
    if (host_abi >> 16 != DVP_ABI_MAJOR)
        return DVP_VERSION;
    *plugin = &TABLE;
    return DVP_OK;
}
