/* Streams and events. Commands go into a queue in shared memory; copies meet the host's memory
 * whenever a thread of the host gives or waits for something of the device: whoever waits moves
 * the chunks of every stream, so that no stream waits for a thread that waits for another.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FULL 60000000000u /* nanoseconds: how long a full queue is waited for */
#define TICK                                                                                   \
    20000000u /* nanoseconds: how often who waits looks whether the process still is           \
               */

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- the host's side of copies ---- */

static void pop(dvp_device *device, uint32_t stream)
{
    sim_pending *first = device->first[stream];
    device->first[stream] = first->next;
    if (first->next == NULL)
        device->last[stream] = NULL;
    free(first);
}

void sim_drop_pending(dvp_device *device, uint32_t stream)
{
    while (device->first[stream] != NULL)
        pop(device, stream);
}

/* One chunk, if the device has asked for it. The lock is held. */
static void move_chunk(dvp_device *device, uint32_t number)
{
    sim_stream *wire = &device->shared->streams[number];
    while (device->first[number] != NULL &&
           sim_reached(atomic_load(&wire->done), device->first[number]->number))
        pop(device, number);
    sim_pending *p = device->first[number];
    uint32_t state = atomic_load(&wire->window);
    if (p == NULL || atomic_load(&wire->done) + 1 != p->number)
        return; /* the device is not there yet */
    uint64_t bytes = atomic_load(&wire->window_bytes);
    if (bytes > p->bytes - p->moved)
        return;
    if (p->in && state == SIM_WINDOW_WANTED) {
        memcpy(wire->bytes, p->host + p->moved, bytes);
        p->moved += bytes;
        atomic_store(&wire->window, SIM_WINDOW_FULL);
        sim_wake(&wire->window);
    } else if (!p->in && state == SIM_WINDOW_FULL) {
        memcpy(p->host + p->moved, wire->bytes, bytes);
        p->moved += bytes;
        atomic_store(&wire->window, SIM_WINDOW_IDLE);
        sim_wake(&wire->window);
    }
}

static void move_chunks(dvp_device *device)
{
    pthread_mutex_lock(&device->lock);
    for (uint32_t i = 0; i < SIM_STREAMS; i++)
        if (device->first[i] != NULL)
            move_chunk(device, i);
    pthread_mutex_unlock(&device->lock);
}

/* Wait until a stream has done so many commands. */
static dvp_status wait_for(dvp_stream *stream, uint32_t count, uint64_t deadline,
                           dvp_error *error)
{
    dvp_device *device = stream->device;
    for (;;) {
        uint32_t bell = atomic_load(&device->shared->bell);
        move_chunks(device);
        if (sim_reached(atomic_load(&stream->wire->done), count))
            return DVP_OK;
        uint64_t time = now();
        if (time >= deadline)
            return sim_fail(error, DVP_TIMEOUT, "a kernel or a copy has not ended in time");
        sim_sleep(&device->shared->bell, bell, deadline - time < TICK ? deadline - time : TICK);
        dvp_status status = sim_alive(device, error);
        if (status != DVP_OK)
            return status;
    }
}

/* What is only noted goes wrong when it is done, if ever. */
static int32_t fault_of(const sim_command *command)
{
    switch (command->kind) {
    case SIM_KERNEL:
        return command->graph == 0 ? sim_command_fault(true) : SIM_SOUND;
    case SIM_COPY_IN:
    case SIM_COPY_OUT:
    case SIM_COPY:
    case SIM_READ_HOST:
    case SIM_WRITE_HOST:
        return command->graph == 0 ? sim_command_fault(false) : SIM_SOUND;
    default:
        return command->fault;
    }
}

dvp_status sim_submit(dvp_stream *stream, const sim_command *command, sim_pending *pending,
                      dvp_error *error)
{
    dvp_device *device = stream->device;
    sim_stream *wire = stream->wire;
    uint32_t number = atomic_load(&wire->given) + 1;
    if (stream->capture != NULL)
        return sim_note(stream, command, pending, error);
    dvp_status status = wait_for(stream, number - SIM_SLOTS, now() + FULL, error);
    if (status == DVP_TIMEOUT)
        status = sim_fail(error, DVP_DEVICE_LOST, "a stream's queue stays full");
    if (status != DVP_OK) {
        free(pending);
        return status;
    }
    sim_command *slot = &wire->slots[number % SIM_SLOTS];
    *slot = *command;
    slot->fault = fault_of(command);
    if (pending != NULL) {
        pending->number = number;
        pthread_mutex_lock(&device->lock);
        if (device->last[stream->number] != NULL)
            device->last[stream->number]->next = pending;
        else
            device->first[stream->number] = pending;
        device->last[stream->number] = pending;
        pthread_mutex_unlock(&device->lock);
    }
    atomic_store(&wire->given, number);
    sim_wake(&wire->given);
    move_chunks(device);
    return DVP_OK;
}

/* ---- the interface ---- */

dvp_status sim_stream_create(dvp_device *device, dvp_stream **stream, dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_stream_create, error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    uint32_t number = 0;
    pthread_mutex_lock(&device->lock);
    while (number < SIM_STREAMS && device->taken[number])
        number++;
    *stream = number < SIM_STREAMS ? sim_stream_of(device, number) : NULL;
    if (*stream != NULL)
        device->taken[number] = true;
    pthread_mutex_unlock(&device->lock);
    return *stream != NULL
               ? DVP_OK
               : sim_fail(error, DVP_NO_MEMORY, "there are %d streams", SIM_STREAMS);
}

dvp_stream *sim_stream_of(dvp_device *device, uint32_t number)
{
    dvp_stream *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (dvp_stream){.device = device,
                         .number = number,
                         .wire = &device->shared->streams[number],
                         .next = device->streams};
    device->streams = made;
    return made;
}

void sim_stream_destroy(dvp_device *device, dvp_stream *stream)
{
    pthread_mutex_lock(&device->lock);
    for (dvp_stream **at = &device->streams; *at != NULL; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    if (!stream->imported) {
        sim_drop_pending(device, stream->number);
        /* One that still has work, which nobody waits for any more, is not given out again. */
        device->taken[stream->number] =
            !sim_reached(atomic_load(&stream->wire->done), atomic_load(&stream->wire->given));
    }
    pthread_mutex_unlock(&device->lock);
    free(stream);
}

static dvp_status finish(dvp_stream *stream, uint64_t deadline, dvp_error *error)
{
    sim_stream *wire = stream->wire;
    dvp_status status = sim_fault(SIM_AT_stream_sync, error);
    if (status != DVP_OK)
        return status;
    bool spans = sim_host->struct_size > offsetof(dvp_host, span_end);
    uint64_t span =
        spans ? sim_host->span_begin(sim_host->context, "accel_sim: waiting for a stream") : 0;
    status = wait_for(stream, atomic_load(&wire->given), deadline, error);
    if (spans)
        sim_host->span_end(sim_host->context, span);
    if (status != DVP_OK)
        return status;
    pthread_mutex_lock(&stream->device->lock);
    sim_drop_pending(stream->device, stream->number); /* of copies that were passed over */
    pthread_mutex_unlock(&stream->device->lock);
    uint32_t failed = atomic_load(&wire->failed);
    if (failed == DVP_OK)
        return DVP_OK;
    sim_fail(error, DVP_FAILED, "%.*s", (int)sizeof wire->message - 1, wire->message);
    atomic_store(&wire->failed, DVP_OK);
    return (dvp_status)failed;
}

dvp_status sim_stream_sync(dvp_device *device, dvp_stream *stream, dvp_error *error)
{
    (void)device;
    return finish(stream, UINT64_MAX, error);
}

dvp_status sim_stream_wait(dvp_device *device, dvp_stream *stream, uint64_t nanoseconds,
                           dvp_error *error)
{
    (void)device;
    return finish(stream, now() + nanoseconds, error);
}

dvp_status sim_event_create(dvp_device *device, dvp_event **event, dvp_error *error)
{
    (void)device;
    dvp_status status = sim_fault(SIM_AT_event_create, error);
    if (status != DVP_OK)
        return status;
    *event = calloc(1, sizeof **event);
    return *event == NULL ? sim_fail(error, DVP_NO_MEMORY, "no memory for an event") : DVP_OK;
}

void sim_event_destroy(dvp_device *device, dvp_event *event)
{
    (void)device;
    free(event);
}

dvp_status sim_event_record(dvp_device *device, dvp_event *event, dvp_stream *stream,
                            dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_event_record, error);
    if (status == DVP_OK && stream->capture != NULL)
        status = sim_fail(error, DVP_UNSUPPORTED, "events cannot be noted");
    if (status != DVP_OK)
        return status;
    event->stream = stream;
    event->upto = atomic_load(&stream->wire->given);
    return sim_alive(device, error);
}

dvp_status sim_event_sync(dvp_device *device, dvp_event *event, uint64_t nanoseconds,
                          dvp_error *error)
{
    (void)device;
    dvp_status status = sim_fault(SIM_AT_event_sync, error);
    if (status != DVP_OK)
        return status;
    if (event->stream == NULL)
        return sim_fail(error, DVP_INVALID, "waiting for an event that was never recorded");
    sim_stream *wire = event->stream->wire;
    uint64_t start = now();
    bool forever = nanoseconds > UINT64_MAX - start;
    status =
        wait_for(event->stream, event->upto, forever ? UINT64_MAX : start + nanoseconds, error);
    if (status == DVP_OK &&
        atomic_load(&wire->failed) != DVP_OK) /* stream_sync takes it back */
        status =
            sim_fail(error, DVP_FAILED, "%.*s", (int)sizeof wire->message - 1, wire->message);
    return status;
}

dvp_status sim_event_wait(dvp_device *device, dvp_stream *stream, dvp_event *event,
                          dvp_error *error)
{
    dvp_status status = sim_fault(SIM_AT_event_wait, error);
    if (status == DVP_OK)
        status = sim_alive(device, error);
    if (status != DVP_OK)
        return status;
    if (event->stream == NULL)
        return sim_fail(error, DVP_INVALID, "waiting for an event that was never recorded");
    if (event->stream == stream ||
        sim_reached(atomic_load(&event->stream->wire->done), event->upto))
        return DVP_OK;
    sim_command command = {
        .kind = SIM_WAIT, .stream = event->stream->number, .upto = event->upto};
    return sim_submit(stream, &command, NULL, error);
}
