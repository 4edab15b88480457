/* The smallest plug-in: one kernel, relu on contiguous float32, in memory of the host. Each
 * macro makes it break one rule of the interface, or use what a newer header has. */
#include "no_streams.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct dvp_device {
    int unused;
};
struct dvp_kernel {
    uint32_t version;
};

#ifdef COMPILES
static int64_t compiled; /* how many segments */
#endif
static dvp_device the_device;
static const dvp_kernel relu_kernel = {1};

static dvp_status get_info(dvp_info *info, dvp_error *error)
{
    (void)error;
    info->abi = DVP_ABI;
    info->name = "small";
    info->version = "1";
    info->device = "the host, pretending";
#ifdef NEWER_HEADER
    if (info->struct_size >= sizeof *info)
        info->future = "not for hosts of today";
#endif
#ifdef BAD_NAME
    info->name = "a name with spaces";
#endif
#ifdef NO_NAME
    info->name = NULL;
#endif
#ifdef OVERWRITES_INFO
    memset((char *)info + info->struct_size, 0, 16);
#endif
    return DVP_OK;
}

static dvp_status device_open(int32_t index, dvp_device **device, dvp_error *error)
{
#ifdef NO_DEVICE
    strcpy(error->message, "no device is plugged in");
    return DVP_FAILED;
#endif
    (void)index;
    (void)error;
    *device = &the_device;
    return DVP_OK;
}

static void device_close(dvp_device *device)
{
    (void)device;
}

static dvp_status device_get(dvp_device *device, const char *name, int64_t *value,
                             dvp_error *error)
{
    (void)device;
    (void)error;
#ifdef COMPILES
    if (strcmp(name, "compiled") == 0) {
        *value = compiled;
        return DVP_OK;
    }
#endif
    (void)name;
    (void)value;
    return DVP_UNSUPPORTED;
}

static dvp_status buffer_alloc(dvp_device *device, uint64_t bytes, void **memory,
                               dvp_error *error)
{
    (void)device;
    (void)error;
    *memory = malloc(bytes);
#ifdef NO_MEMORY
    free(*memory);
    *memory = NULL;
#endif
    return DVP_OK;
}

static void buffer_free(dvp_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static dvp_status buffer_copy(dvp_device *device, dvp_stream *stream, const dvp_copy *copy,
                              dvp_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    memcpy((char *)copy->destination + copy->destination_offset,
           (const char *)copy->source + copy->source_offset, copy->bytes);
    return DVP_OK;
}

static dvp_status query_op(dvp_device *device, const dvp_op *op, dvp_answer *answer,
                           dvp_error *error)
{
    (void)device;
    (void)error;
    answer->supported = strcmp(op->name, "aten.relu.default") == 0;
    answer->reason = "only relu";
    answer->kernel = "relu";
#ifdef NEWER_HEADER
    if (answer->struct_size >= sizeof *answer)
        answer->future = 1;
#endif
#ifdef NO_KERNEL
    answer->kernel = NULL;
#endif
#ifdef OVERWRITES_ANSWER
    memset((char *)answer + answer->struct_size, 0, 8);
#endif
#ifdef WRONG_ANSWER_SIZE
    answer->struct_size = 4096;
#endif
#ifdef QUERY_FAILS
    strcpy(error->message, "the compiler service does not answer");
    return DVP_FAILED;
#endif
    return DVP_OK;
}

static dvp_status find_kernel(dvp_device *device, const char *name, uint32_t min_version,
                              uint32_t max_version, const dvp_kernel **kernel,
                              uint32_t *version, dvp_error *error)
{
    (void)device;
    (void)name;
    (void)min_version;
    (void)max_version;
#ifdef KERNEL_GONE
    strcpy(error->message, "this build has no relu");
    return DVP_UNSUPPORTED;
#endif
    (void)error;
    *kernel = &relu_kernel;
    *version = relu_kernel.version;
    return DVP_OK;
}

/* Whether a tensor is contiguous and has this many elements: a file may say anything. */
static bool holds(const dvp_tensor *t, int64_t count)
{
    int64_t expected = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != expected)
            return false;
        expected *= t->shape[i];
    }
    return t->ndim >= 0 && t->dtype.bits == 32 && expected == count;
}

static dvp_status execute(dvp_device *device, dvp_stream *stream, const dvp_kernel *kernel,
                          const dvp_op *op, dvp_error *error)
{
    (void)device;
    (void)stream;
    (void)kernel;
#ifdef KERNEL_FAILS
    memset(error->message, 'x', sizeof error->message); /* and forgets the end */
    return 12345;                                       /* a status nobody knows */
#endif
    (void)error;
    const float *x = (const float *)((char *)op->inputs->data + op->inputs->byte_offset);
    float *y = (float *)((char *)op->outputs->data + op->outputs->byte_offset);
    int64_t count = 1;
    for (int32_t i = 0; i < op->outputs->ndim; i++)
        count *= op->outputs->shape[i];
    if (!holds(op->inputs, count) || !holds(op->outputs, count))
        return DVP_INVALID;
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] < 0 ? 0 : x[i];
    return DVP_OK;
}

#ifdef COMPILES
/* Relus in a row are one relu: the code of such a segment is its number of elements. */
typedef struct {
    char magic[8];
    int64_t count;
} code;

struct dvp_program {
    code code;
};

static dvp_status segment_compile(dvp_device *device, const dvp_segment *segment,
                                  const void **blob, uint64_t *bytes, dvp_error *error)
{
    (void)device;
    (void)error;
    if (segment->input_count != 1 || segment->output_count != 1)
        return DVP_UNSUPPORTED;
    const dvp_tensor *x = &segment->tensors[segment->inputs[0]];
    int32_t last = segment->inputs[0];
    code made = {"smallxx", 1};
    for (int32_t i = 0; i < x->ndim; i++)
        made.count *= x->shape[i];
    for (uint32_t i = 0; i < segment->op_count; i++) {
#if DVP_ABI_MINOR == 0
        const dvp_op *op = &segment->ops[i];
#else
        const dvp_op *op = dvp_segment_op(segment, i);
#endif
        if (strcmp(op->name, "aten.relu.default") != 0)
            return DVP_FAILED;
        int32_t from = segment->op_inputs[i][0];
        if (from != last && segment->bases[from] != last)
            return DVP_UNSUPPORTED;
        last = segment->op_outputs[i][0];
    }
    if (last != segment->outputs[0])
        return DVP_UNSUPPORTED;
    code *copy = malloc(sizeof *copy);
    *copy = made;
    *blob = copy;
    *bytes = sizeof *copy;
    compiled++;
    return DVP_OK;
}

static void blob_free(dvp_device *device, const void *blob)
{
    (void)device;
    free((void *)(uintptr_t)blob);
}

static dvp_status blob_check(dvp_device *device, const void *blob, uint64_t bytes,
                             int32_t *state, dvp_error *error)
{
    (void)device;
    (void)error;
    const char *wanted = getenv("SMALL_BLOB_STATE");
    bool sound = bytes == sizeof(code) && memcmp(blob, "smallxx", 8) == 0;
    *state = !sound ? DVP_BLOB_UNSUPPORTED : wanted != NULL ? *wanted - '0' : DVP_BLOB_OPTIMAL;
    return DVP_OK;
}

static dvp_status program_load(dvp_device *device, const void *blob, uint64_t bytes,
                               dvp_program **program, dvp_error *error)
{
    (void)device;
    if (bytes != sizeof(code)) {
        strcpy(error->message, "damaged code");
        return DVP_INVALID;
    }
    *program = malloc(sizeof **program);
    memcpy(&(*program)->code, blob, sizeof(code));
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
    (void)device;
    (void)stream;
    if (input_count != 1 || output_count != 1 || !holds(inputs, program->code.count) ||
        !holds(outputs, program->code.count)) {
        strcpy(error->message, "one input and one output of the size it was compiled for");
        return DVP_INVALID;
    }
    const float *x = (const float *)((char *)inputs->data + inputs->byte_offset);
    float *y = (float *)((char *)outputs->data + outputs->byte_offset);
    for (int64_t i = 0; i < program->code.count; i++)
        y[i] = x[i] < 0 ? 0 : x[i];
    return DVP_OK;
}
#endif

static const dvp_plugin TABLE = {
#if defined(SMALL_TABLE)
    .struct_size = 24,
#elif defined(HUGE_TABLE)
    .struct_size = UINT32_MAX - 7,
#else
    .struct_size = sizeof(dvp_plugin),
#endif
#if defined(TOO_OLD)
    .abi = 0,
#elif defined(TOO_NEW)
    .abi = (DVP_ABI_MAJOR + 1) << 16,
#else
    .abi = DVP_ABI,
#endif
    .get_info = get_info,
    .device_open = device_open,
    .device_close = device_close,
    .device_get = device_get,
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
#ifndef NO_EXECUTE
    .execute = execute,
#endif
#ifdef COMPILES
    .segment_compile = segment_compile,
    .blob_free = blob_free,
    .blob_check = blob_check,
    .program_load = program_load,
    .program_free = program_free,
    .program_run = program_run,
#endif
#ifdef NEWER_HEADER
    .future = "a function of tomorrow",
#endif
};

#ifdef NO_SYMBOL
const dvp_plugin *not_the_symbol(void)
{
    (void)execute;
    return &TABLE;
}
#else
dvp_status dovetail_plugin_query(uint32_t host_abi, const dvp_host *host,
                                 const dvp_plugin **plugin)
{
    (void)host;
    (void)host_abi;
    (void)execute;
    (void)plugin;
    (void)&TABLE;
#ifdef WANTS_NEWER_HOST
    return DVP_VERSION;
#endif
#ifndef NO_TABLE
    *plugin = &TABLE;
#endif
    return DVP_OK;
}
#endif
