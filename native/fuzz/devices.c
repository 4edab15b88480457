/* Plug-ins that fail: their tables are replaced by ones that now and then refuse, run out of
 * memory or lose the device, and whose memory holds a known byte when it is handed out. */
#include "fuzz.h"
#include "plugin.h"

#include <stdlib.h>
#include <string.h>

static dvp_plugin real[8];
static bool failing;
static uint32_t rate; /* one call in so many fails */
static int fill_byte;

void devices_fail(bool now_and_then, int byte)
{
    failing = now_and_then;
    rate = failing && one_in(2) ? 6 : 24;
    fill_byte = byte;
}

static size_t index_of(const dvp_device *device)
{
    for (size_t i = 0; i < plugin_count; i++)
        if (plugins[i]->device == device)
            return i;
    finding("a call to a device that is not open");
    return 0;
}

static const dvp_plugin *of(const dvp_device *device)
{
    return &real[index_of(device)];
}

/* A device may be lost only where the plug-in frees what it held when it is closed. */
static bool fails(const dvp_device *device, dvp_status *status, dvp_error *error)
{
    static const dvp_status statuses[] = {DVP_FAILED,    DVP_INVALID, DVP_UNSUPPORTED,
                                          DVP_NO_MEMORY, 99,          DVP_DEVICE_LOST};
    bool loses = strcmp(plugins[index_of(device)]->info.name, "accel_c") == 0;
    if (!failing || !one_in(rate))
        return false;
    *status = statuses[below(loses ? 6 : 5)];
    if (error != NULL && one_in(2))
        snprintf(error->message, sizeof error->message, "a fault");
    return true;
}

#define FAILING(name, arguments, values)                                                       \
    static dvp_status failing_##name arguments                                                 \
    {                                                                                          \
        dvp_status status;                                                                     \
        return fails(device, &status, error) ? status : of(device)->name values;               \
    }

FAILING(device_get, (dvp_device * device, const char *name, int64_t *value, dvp_error *error),
        (device, name, value, error))
FAILING(buffer_copy,
        (dvp_device * device, dvp_stream *stream, const dvp_copy *copy, dvp_error *error),
        (device, stream, copy, error))
FAILING(stream_sync, (dvp_device * device, dvp_stream *stream, dvp_error *error),
        (device, stream, error))
FAILING(event_record,
        (dvp_device * device, dvp_event *event, dvp_stream *stream, dvp_error *error),
        (device, event, stream, error))
FAILING(event_wait,
        (dvp_device * device, dvp_stream *stream, dvp_event *event, dvp_error *error),
        (device, stream, event, error))
static void look_at_operands(const dvp_op *op);

/* An operation that no plug-in of the fuzzer knows: on quantised or prepared operands. */
static bool is_beyond(const dvp_op *op)
{
    bool prepared = false;
    for (uint32_t i = 0; op->input_flags != NULL && i < op->input_count; i++)
        prepared = prepared || (op->input_flags[i] & DVP_OPERAND_PREPARED);
    return prepared || (op->quantization != NULL && strncmp(op->name, "aten.mm.", 8) == 0);
}

static dvp_status failing_query_op(dvp_device *device, const dvp_op *op, dvp_answer *answer,
                                   dvp_error *error)
{
    dvp_status status;
    look_at_operands(op);
    if (fails(device, &status, error))
        return status;
    status = of(device)->query_op(device, op, answer, error);
    if (status == DVP_OK && !answer->supported && is_beyond(op)) {
        answer->supported = 1;
        answer->kernel = "matmul";
    }
    return status;
}

/* Zeros where a result lies. */
static dvp_status clear_result(dvp_device *device, dvp_stream *stream, const dvp_tensor *t,
                               dvp_error *error)
{
    static const uint8_t zeros[1 << 12];
    dvp_status status = DVP_OK;
    uint64_t end = t->byte_offset, elements = 0;
    if (t->ndim >= 0 && dvt_reach((const dvt_tensor *)t, &elements))
        end += elements * t->dtype.bits / 8;
    for (uint64_t at = t->byte_offset; status == DVP_OK && at < end; at += sizeof zeros) {
        uint64_t some = end - at < sizeof zeros ? end - at : sizeof zeros;
        dvp_copy copy = {sizeof copy, DVP_HOST_TO_DEVICE, t->data, at, zeros, 0, some};
        status = of(device)->buffer_copy(device, stream, &copy, error);
    }
    return status;
}

/* Kernels of such operations give zeros. */
static dvp_status failing_execute(dvp_device *device, dvp_stream *stream,
                                  const dvp_kernel *kernel, const dvp_op *op, dvp_error *error)
{
    dvp_status status = DVP_OK;
    if (fails(device, &status, error))
        return status;
    look_at_operands(op);
    if (!is_beyond(op))
        return of(device)->execute(device, stream, kernel, op, error);
    for (uint32_t i = 0; status == DVP_OK && i < op->output_count; i++)
        status = clear_result(device, stream, &op->outputs[i], error);
    return status;
}
FAILING(find_kernel,
        (dvp_device * device, const char *name, uint32_t least, uint32_t greatest,
         const dvp_kernel **kernel, uint32_t *version, dvp_error *error),
        (device, name, least, greatest, kernel, version, error))
FAILING(blob_check,
        (dvp_device * device, const void *blob, uint64_t size, int32_t *state,
         dvp_error *error),
        (device, blob, size, state, error))
FAILING(program_load,
        (dvp_device * device, const void *blob, uint64_t size, dvp_program **made,
         dvp_error *error),
        (device, blob, size, made, error))
FAILING(program_run,
        (dvp_device * device, dvp_stream *stream, dvp_program *made, const dvp_tensor *inputs,
         uint32_t input_count, const dvp_tensor *outputs, uint32_t output_count,
         dvp_error *error),
        (device, stream, made, inputs, input_count, outputs, output_count, error))

/* Which plug-in is being opened is not said, so each has a function of its own. */
static dvp_status open_device(size_t which, int32_t index, dvp_device **device,
                              dvp_error *error)
{
    if (failing && one_in(rate))
        return DVP_FAILED;
    return real[which].device_open(index, device, error);
}

static dvp_status open_first(int32_t index, dvp_device **device, dvp_error *error)
{
    return open_device(0, index, device, error);
}

static dvp_status open_second(int32_t index, dvp_device **device, dvp_error *error)
{
    return open_device(1, index, device, error);
}

static dvp_status failing_buffer_alloc(dvp_device *device, uint64_t size, void **memory,
                                       dvp_error *error)
{
    static uint8_t pattern[1 << 16];
    dvp_status status;
    if (fails(device, &status, error))
        return status;
    status = of(device)->buffer_alloc(device, size, memory, error);
    memset(pattern, fill_byte, sizeof pattern);
    for (uint64_t at = 0; status == DVP_OK && *memory != NULL && at < size;) {
        uint64_t some = size - at < sizeof pattern ? size - at : sizeof pattern;
        dvp_copy copy = {sizeof copy, DVP_HOST_TO_DEVICE, *memory, at, pattern, 0, some};
        dvp_stream *stream = plugins[index_of(device)]->lanes[0].transfer;
        if (of(device)->buffer_copy(device, stream, &copy, error) != DVP_OK)
            break;
        at += some;
    }
    return status;
}

/* What no plug-in of the fuzzer has: it says yes to what others packed. */
static dvp_status failing_constant_accept(dvp_device *device, const dvp_op *op, uint32_t input,
                                          const void *packed, uint64_t size, dvp_error *error)
{
    dvp_status status;
    const uint8_t *at = packed;
    uint8_t sum = 0;
    for (uint64_t i = 0; i < size; i++) /* all of it can be read */
        sum ^= at[i];
    if (op->input_flags == NULL || !(op->input_flags[input] & DVP_OPERAND_PREPARED))
        finding("a packed constant is not marked");
    (void)sum;
    return fails(device, &status, error) ? status : DVP_OK;
}

/* What a plug-in is told of quantised operands holds together. */
static void look_at_operands(const dvp_op *op)
{
    if (op->quantization == NULL)
        return;
    for (uint32_t i = 0; i < op->input_count + op->output_count; i++) {
        const dvp_quantization *q = op->quantization[i];
        const dvp_tensor *t =
            i < op->input_count ? &op->inputs[i] : &op->outputs[i - op->input_count];
        if (q == NULL)
            continue;
        if (t->ndim < 0 || q->least > q->greatest || (q->scales == NULL && !(q->scale > 0)))
            finding("a quantised operand makes no sense");
        for (int32_t d = 0; d < t->ndim; d++)
            if (q->block[d] < 0 || (q->block[d] > 0 && t->shape[d] % q->block[d] != 0) ||
                (q->scales != NULL &&
                 q->scales->shape[d] != (q->block[d] > 0 ? t->shape[d] / q->block[d] : 1)))
                finding("a quantised operand has not a scale for each block");
    }
}

void devices_wrap(void)
{
    for (size_t i = 0; i < plugin_count; i++) {
        dvp_plugin *api = &plugins[i]->api;
        real[i] = *api;
        if (i < 2)
            api->device_open = i == 0 ? open_first : open_second;
        api->device_get = failing_device_get;
        api->buffer_alloc = failing_buffer_alloc;
        api->buffer_copy = failing_buffer_copy;
        api->stream_sync = failing_stream_sync;
        api->event_record = failing_event_record;
        api->event_wait = failing_event_wait;
        api->query_op = failing_query_op;
        api->find_kernel = failing_find_kernel;
        api->execute = failing_execute;
        api->constant_accept = failing_constant_accept;
        plugins[i]->info.flags |= DVP_QUANTIZED_OPERATIONS;
        if (api->blob_check == NULL)
            continue;
        api->blob_check = failing_blob_check;
        api->program_load = failing_program_load;
        api->program_run = failing_program_run;
    }
}

void devices_close(void)
{
    failing = false;
    for (size_t i = 0; i < plugin_count; i++) {
        int64_t leaked = 0;
        dvt_lock_take(&plugins[i]->lock);
        plugin_close(plugins[i], &leaked);
        dvt_lock_give(&plugins[i]->lock);
        if (leaked != 0)
            finding("an artifact left memory on a device");
    }
}
