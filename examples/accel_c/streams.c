/* Streams and events. Work is done when it is given, or, with ACCEL_ASYNC=1, as late as a
 * device may: when somebody waits for it. Then a host that forgets to wait gets wrong results.
 */
#include "accel.h"

#include <stdlib.h>
#include <string.h>

/* ---- an operation that outlives the call: all of it in one block ---- */

typedef struct {
    char *at; /* NULL: only counting */
    size_t used;
} block;

static void *take(block *b, const void *from, size_t bytes)
{
    void *place = b->at == NULL ? NULL : b->at + b->used;
    if (place != NULL && bytes > 0)
        memcpy(place, from, bytes);
    b->used += (bytes + 7) / 8 * 8;
    return place;
}

static dvp_tensor *take_tensors(block *b, const dvp_tensor *from, uint32_t count)
{
    dvp_tensor *made = take(b, from, count * sizeof *from);
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = from[i].ndim > 0 ? (size_t)from[i].ndim * sizeof(int64_t) : 0;
        int64_t *shape = take(b, from[i].shape, bytes);
        int64_t *strides = take(b, from[i].strides, bytes);
        if (made != NULL) {
            made[i].shape = shape;
            made[i].strides = strides;
        }
    }
    return made;
}

static dvp_attribute *take_attributes(block *b, const dvp_attribute *from, uint32_t count)
{
    dvp_attribute *made = take(b, from, count * sizeof *from);
    for (uint32_t i = 0; i < count; i++) {
        const char *name = take(b, from[i].name, strlen(from[i].name) + 1);
        const void *value = NULL;
        if (from[i].kind == DVP_ATTR_TEXT)
            value = take(b, from[i].value.text, strlen(from[i].value.text) + 1);
        else if (from[i].kind == DVP_ATTR_INTS || from[i].kind == DVP_ATTR_FLOATS)
            value = take(b, from[i].value.ints, from[i].count * sizeof(int64_t));
        if (made == NULL)
            continue;
        made[i].name = name;
        if (value != NULL)
            made[i].value.text = value; /* all pointers of the union are alike */
    }
    return made;
}

static void take_op(block *b, const dvp_op *from, dvp_op *made)
{
    *made = *from;
    made->struct_size = sizeof *made;
    made->name = take(b, from->name, strlen(from->name) + 1);
    made->inputs = take_tensors(b, from->inputs, from->input_count);
    made->outputs = take_tensors(b, from->outputs, from->output_count);
    made->attributes = take_attributes(b, from->attributes, from->attribute_count);
}

/* ---- work ---- */

struct accel_work {
    accel_work *next;
    enum { COPY, KERNEL, WAIT } kind;
    dvp_copy copy;
    const dvp_kernel *kernel;
    dvp_op op;
    dvp_stream *stream; /* WAIT: for this one, up to `upto` */
    uint64_t upto;
};

static dvp_status drain(dvp_stream *stream, uint64_t upto, dvp_error *error)
{
    dvp_status status = DVP_OK;
    while (stream->done < upto && stream->first != NULL) {
        accel_work *work = stream->first;
        stream->first = work->next;
        stream->done++;
        dvp_status now = DVP_OK;
        if (work->kind == COPY)
            now = accel_copy(stream->device, &work->copy, error);
        else if (work->kind == KERNEL)
            now = accel_run(stream->device, work->kernel, &work->op, error);
        else
            now = drain(work->stream, work->upto, error);
        free(work);
        status = status == DVP_OK ? now : status;
    }
    return status;
}

static dvp_status submit(dvp_stream *stream, const accel_work *given, size_t extra,
                         accel_work **made, dvp_error *error)
{
    accel_work *work = malloc(sizeof *work + extra);
    if (work == NULL)
        return accel_fail(error, DVP_NO_MEMORY, "no memory for work that waits");
    *work = *given;
    work->next = NULL;
    accel_work **end = &stream->first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = work;
    stream->issued++;
    if (made != NULL)
        *made = work;
    return DVP_OK;
}

dvp_status accel_submit_copy(dvp_stream *stream, const dvp_copy *copy, dvp_error *error)
{
    if (!stream->device->waits)
        return accel_copy(stream->device, copy, error);
    accel_work work = {.kind = COPY};
    memcpy(&work.copy, copy, sizeof work.copy);
    return submit(stream, &work, 0, NULL, error);
}

dvp_status accel_submit_kernel(dvp_stream *stream, const dvp_kernel *kernel, const dvp_op *op,
                               dvp_error *error)
{
    if (!stream->device->waits)
        return accel_run(stream->device, kernel, op, error);
    accel_work work = {.kind = KERNEL, .kernel = kernel}, *made = NULL;
    block room = {NULL, 0};
    take_op(&room, op, &work.op);
    dvp_status status = submit(stream, &work, room.used, &made, error);
    if (status != DVP_OK)
        return status;
    block held = {(char *)(made + 1), 0};
    take_op(&held, op, &made->op);
    return DVP_OK;
}

/* ---- the interface ---- */

dvp_status accel_stream_create(dvp_device *device, dvp_stream **stream, dvp_error *error)
{
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL)
        return accel_fail(error, DVP_NO_MEMORY, "no memory for a stream");
    (*stream)->device = device;
    return DVP_OK;
}

void accel_stream_destroy(dvp_device *device, dvp_stream *stream)
{
    (void)device;
    while (stream->first != NULL) { /* nobody will wait for it any more */
        accel_work *work = stream->first;
        stream->first = work->next;
        free(work);
    }
    free(stream);
}

dvp_status accel_stream_sync(dvp_device *device, dvp_stream *stream, dvp_error *error)
{
    if (stream->device != device)
        return accel_fail(error, DVP_INVALID, "a stream of another device");
    dvp_status status = drain(stream, stream->issued, error);
    return status == DVP_OK ? accel_alive(device, error) : status;
}

dvp_status accel_event_create(dvp_device *device, dvp_event **event, dvp_error *error)
{
    *event = calloc(1, sizeof **event);
    if (*event == NULL)
        return accel_fail(error, DVP_NO_MEMORY, "no memory for an event");
    (*event)->device = device;
    return DVP_OK;
}

void accel_event_destroy(dvp_device *device, dvp_event *event)
{
    (void)device;
    free(event);
}

dvp_status accel_event_record(dvp_device *device, dvp_event *event, dvp_stream *stream,
                              dvp_error *error)
{
    if (stream->device != device || event->device != device)
        return accel_fail(error, DVP_INVALID, "a stream or an event of another device");
    event->recorded = stream;
    event->upto = stream->issued;
    return accel_alive(device, error);
}

dvp_status accel_event_wait(dvp_device *device, dvp_stream *stream, dvp_event *event,
                            dvp_error *error)
{
    if (stream->device != device || event->recorded == NULL)
        return accel_fail(error, DVP_INVALID, "waiting for an event that was never recorded");
    if (!device->waits)
        return accel_alive(device, error);
    accel_work work = {.kind = WAIT, .stream = event->recorded, .upto = event->upto};
    return submit(stream, &work, 0, NULL, error);
}
