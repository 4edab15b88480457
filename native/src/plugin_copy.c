/* Device memory, copies, and waiting. */
#define _POSIX_C_SOURCE 200809L
#include "plugin.h"

#include "control.h"

#include <stdio.h>
#include <time.h>

/* How long a stream is waited for before the host looks whether it should go on. */
#define SLICE 50000000u

/* ---- memory ---- */

static dvp_status allocate(plugin *p, uint64_t bytes, void **memory, dvp_error *said)
{
    *memory = NULL;
    dvt_lock_take(&p->memory);
    dvp_status status = p->api.buffer_alloc(p->device, bytes ? bytes : 1, memory, said);
    dvt_lock_give(&p->memory);
    return status == DVP_OK && *memory == NULL ? DVP_NO_MEMORY : status;
}

plugin_buffer plugin_own(plugin *p, void *memory, uint64_t bytes)
{
    return (plugin_buffer){.memory = memory,
                           .lane = -1,
                           .bytes = bytes,
                           .generation = p->generation,
                           .number = __atomic_add_fetch(&p->buffer_count, 1, __ATOMIC_RELAXED),
                           .addressed = p->info.flags & DVP_ADDRESS_HANDLES};
}

plugin_buffer plugin_borrow(plugin *p, void *memory, uint64_t bytes)
{
    plugin_buffer made = plugin_own(p, memory, bytes);
    made.addressed = true;
    return made;
}

static int keep(plugin *p, dvp_status status, void *memory, uint64_t bytes,
                plugin_buffer *buffer, const dvp_error *said, plugin_error *error)
{
    if (status != DVP_OK) {
        plugin_unreserve(p);
        return plugin_fail(p, status, "buffer_alloc", said, error);
    }
    *buffer = plugin_own(p, memory, bytes);
    plugin_counted(&p->counters.buffers, 1);
    return 0;
}

int plugin_alloc(plugin *p, uint64_t bytes, plugin_buffer *buffer, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    void *memory = NULL;
    if (plugin_reserve(p, error) != 0)
        return -1;
    dvp_status status = allocate(p, bytes, &memory, &said);
    if (status == DVP_NO_MEMORY && p->retired != NULL) { /* some may be due by now */
        plugin_sweep(p);
        plugin_clear(&said);
        status = allocate(p, bytes, &memory, &said);
    }
    return keep(p, status, memory, bytes, buffer, &said, error);
}

int plugin_alloc_kind(plugin *p, uint32_t kind, uint64_t bytes, plugin_buffer *buffer,
                      void **address, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    void *memory = NULL;
    bool imports = kind == DVP_MEMORY_IMPORTED;
    dvp_status status = DVP_UNSUPPORTED;
    if (plugin_reserve(p, error) != 0)
        return -1;
    dvt_lock_take(&p->memory);
    if (imports && p->api.memory_import != NULL)
        status = p->api.memory_import(p->device, *address, bytes, &memory, &said);
    else if (!imports && p->api.memory_alloc != NULL)
        status = p->api.memory_alloc(p->device, kind, bytes > 0 ? bytes : 1, &memory, address,
                                     &said);
    dvt_lock_give(&p->memory);
    if (status == DVP_OK && (memory == NULL || *address == NULL))
        status = DVP_NO_MEMORY;
    if (status == DVP_UNSUPPORTED && said.message[0] == 0)
        snprintf(said.message, sizeof said.message, "it has no memory of this kind");
    return keep(p, status, memory, bytes, buffer, &said, error);
}

/* ---- copies ---- */

static int copy(plugin_lane *lane, dvp_stream *stream, const dvp_copy *c, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    if (c->bytes == 0)
        return 0;
    dvp_status status = p->api.buffer_copy(p->device, stream, c, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "buffer_copy", &said, error);
}

int plugin_upload(plugin_lane *lane, const plugin_buffer *to, uint64_t offset, const void *from,
                  uint64_t bytes, plugin_error *error)
{
    plugin_counted(&lane->plugin->counters.uploads, 1);
    plugin_counted(&lane->plugin->counters.upload_bytes, bytes);
    return copy(lane, lane->transfer,
                &(dvp_copy){.struct_size = sizeof(dvp_copy),
                            .direction = DVP_HOST_TO_DEVICE,
                            .destination = to->memory,
                            .destination_offset = offset,
                            .source = from,
                            .bytes = bytes},
                error);
}

int plugin_download(plugin_lane *lane, void *to, const plugin_buffer *from, uint64_t offset,
                    uint64_t bytes, plugin_error *error)
{
    plugin_counted(&lane->plugin->counters.downloads, 1);
    plugin_counted(&lane->plugin->counters.download_bytes, bytes);
    return copy(lane, lane->compute,
                &(dvp_copy){.struct_size = sizeof(dvp_copy),
                            .direction = DVP_DEVICE_TO_HOST,
                            .destination = to,
                            .source = from->memory,
                            .source_offset = offset,
                            .bytes = bytes},
                error);
}

int plugin_move(plugin_lane *lane, const plugin_buffer *to, uint64_t to_offset,
                const plugin_buffer *from, uint64_t from_offset, uint64_t bytes,
                plugin_error *error)
{
    return copy(lane, lane->compute,
                &(dvp_copy){.struct_size = sizeof(dvp_copy),
                            .direction = DVP_DEVICE_TO_DEVICE,
                            .destination = to->memory,
                            .destination_offset = to_offset,
                            .source = from->memory,
                            .source_offset = from_offset,
                            .bytes = bytes},
                error);
}

int plugin_copy_peer(plugin_lane *lane, const plugin_buffer *to, plugin *from,
                     const plugin_buffer *source, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    if (p->api.buffer_copy_peer == NULL ||
        p->api.buffer_copy_peer != from->api.buffer_copy_peer)
        return 1;
    dvp_copy c = {.struct_size = sizeof(dvp_copy),
                  .direction = DVP_DEVICE_TO_DEVICE,
                  .destination = to->memory,
                  .source = source->memory,
                  .bytes = source->bytes};
    dvt_lock_take(&from->memory);
    dvp_status status =
        p->api.buffer_copy_peer(p->device, lane->compute, from->device, &c, &said);
    dvt_lock_give(&from->memory);
    plugin_counted(&p->counters.peer_copies, 1);
    plugin_counted(&p->counters.peer_bytes, source->bytes);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "buffer_copy_peer", &said, error);
}

/* ---- waiting ---- */

/* A stream that can be waited for in slices is given up when the run is to stop, or when it has
 * taken longer than anything may. NOT_YET where that takes longer than `limit`. */
enum { NOT_YET = -1 };

static dvp_status wait_for(plugin *p, dvp_stream *stream, dvp_event *event, uint64_t limit,
                           dvp_error *said)
{
    if (event == NULL && p->api.stream_wait == NULL)
        return p->api.stream_sync(p->device, stream, said);
    uint64_t start = dvt_now();
    for (;;) {
        uint64_t waited = dvt_now() - start, left = waited < limit ? limit - waited : 0;
        uint64_t slice = left < SLICE ? left : SLICE;
        dvp_status status = event != NULL ? p->api.event_sync(p->device, event, slice, said)
                                          : p->api.stream_wait(p->device, stream, slice, said);
        if (status != DVP_TIMEOUT)
            return status;
        if (left <= SLICE)
            return NOT_YET;
        if (p->lost) {
            snprintf(said->message, sizeof said->message, "another run found it lost");
            return DVP_DEVICE_LOST;
        }
        if (dvt_control_poll(dvt_control())) {
            snprintf(said->message, sizeof said->message,
                     "it was to stop while the device was at work");
            return DVP_DEVICE_LOST;
        }
        if (p->timeout != 0 && dvt_now() - start > p->timeout) {
            snprintf(said->message, sizeof said->message,
                     "it has not finished after %.3g s (DOVETAIL_DEVICE_TIMEOUT)",
                     (double)p->timeout * 1e-9);
            return DVP_TIMEOUT;
        }
        plugin_clear(said);
    }
}

dvp_status plugin_wait_event(plugin *p, dvp_event *event, uint64_t nanoseconds, dvp_error *said)
{
    uint64_t start = dvt_now();
    for (;;) {
        uint64_t waited = dvt_now() - start;
        uint64_t left = waited < nanoseconds ? nanoseconds - waited : 0;
        dvp_status status =
            p->api.event_sync(p->device, event, left < SLICE ? left : SLICE, said);
        if (status != DVP_TIMEOUT || left <= SLICE || p->lost)
            return status;
        plugin_clear(said);
    }
}

void plugin_builds_on(plugin_lane *lane, const plugin_lane *other, uint64_t turn)
{
    ptrdiff_t i = other - other->plugin->lanes;
    if (other == lane)
        return;
    if (lane->after[i] == 0)
        lane->seen[i] = other->bad_last;
    if (lane->after[i] < turn)
        lane->after[i] = turn;
}

bool plugin_builds_on_others(const plugin_lane *lane)
{
    for (int i = 0; i < PLUGIN_LANES; i++)
        if (lane->after[i] != 0)
            return true;
    return false;
}

/* Waits for turns of a lane that another thread may be using: that one says when they are done,
 * or lets go of it. 1: they are not done within the limit. */
static int wait_for_other(plugin *p, plugin_lane *other, uint64_t turn, uint64_t limit)
{
    plugin_error unread;
    while (other->finished < turn) {
        bool mine = true;
        if (p->parallel) {
            dvt_lock_take(&p->lock);
            mine = !other->taken;
            other->taken = true;
            dvt_lock_give(&p->lock);
        }
        int waited = mine ? plugin_wait(other, limit, &unread) : 0;
        if (mine && p->parallel) {
            dvt_lock_take(&p->lock);
            other->taken = false;
            dvt_lock_give(&p->lock);
        }
        if (waited > 0 || p->lost || p->device == NULL)
            return waited > 0;
        if (!mine)
            nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    return 0;
}

/* What a lane's work was built on: an error there is one here too. */
static int check_others(plugin_lane *lane, uint64_t first, uint64_t limit, plugin_error *error)
{
    plugin *p = lane->plugin;
    for (int i = 0; i < PLUGIN_LANES; i++) {
        uint64_t turn = lane->after[i];
        plugin_lane *other = &p->lanes[i];
        if (turn == 0)
            continue;
        if (wait_for_other(p, other, turn, limit) > 0)
            return 1;
        lane->after[i] = 0;
        if (other->bad_last == lane->seen[i])
            continue;
        lane->bad_first = lane->bad_first == 0 ? first : lane->bad_first;
        lane->bad_last = lane->finished;
        return plugin_problem_is(error, PLUGIN_LOST,
                                 "what was computed on the device of plug-in '%s' builds on "
                                 "work of another stream that failed",
                                 p->info.name);
    }
    return 0;
}

int plugin_wait(plugin_lane *lane, uint64_t limit, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said, also_said;
    plugin_clear(&said);
    plugin_clear(&also_said);
    uint64_t given = lane->given;
    /* Both, whatever the first one says: a stream that was not waited for may still write to
     * memory that the caller is about to free. A device that is lost writes nowhere any more.
     */
    dvp_status status = wait_for(p, lane->transfer, NULL, limit, &said), other = DVP_OK;
    if (status != DVP_DEVICE_LOST && status != DVP_TIMEOUT && status != NOT_YET)
        other = wait_for(p, lane->compute, NULL, limit, &also_said);
    if (status == NOT_YET || (status == DVP_OK && other == NOT_YET))
        return 1;
    other = other == NOT_YET ? DVP_OK : other; /* what failed before it is told now */
    if (status != DVP_OK || other != DVP_OK) { /* what it computed since is not to be read */
        lane->bad_first = lane->bad_first == 0 ? lane->finished + 1 : lane->bad_first;
        lane->bad_last = given;
    }
    uint64_t first = lane->finished + 1;
    lane->finished = given;
    if (status == DVP_OK && other == DVP_OK)
        return check_others(lane, first, limit, error);
    if (other == DVP_DEVICE_LOST || other == DVP_TIMEOUT || status == DVP_OK)
        return other == DVP_OK ? 0 : plugin_fail(p, other, "stream_sync", &also_said, error);
    return plugin_fail(p, status, "stream_sync", &said, error);
}

int plugin_sync(plugin_lane *lane, plugin_error *error)
{
    return plugin_wait(lane, UINT64_MAX, error);
}

int plugin_sync_uploads(plugin_lane *lane, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    dvp_status status = wait_for(lane->plugin, lane->transfer, NULL, UINT64_MAX, &said);
    return status == DVP_OK ? 0
                            : plugin_fail(lane->plugin, status, "stream_sync", &said, error);
}

int plugin_mark(plugin_lane *lane, int32_t number)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    if (number >= PLUGIN_MARKS || p->api.event_sync == NULL)
        return -1;
    dvp_event **mark = &lane->marks[number];
    dvt_lock_take(&p->memory);
    dvp_status status = *mark != NULL ? DVP_OK : p->api.event_create(p->device, mark, &said);
    dvt_lock_give(&p->memory);
    if (status == DVP_OK)
        status = p->api.event_record(p->device, *mark, lane->compute, &said);
    return status == DVP_OK ? 0 : -1;
}

int plugin_wait_mark(plugin_lane *lane, int32_t number)
{
    dvp_error said;
    plugin_clear(&said);
    plugin *p = lane->plugin;
    return wait_for(p, NULL, lane->marks[number], UINT64_MAX, &said) == DVP_OK ? 0 : -1;
}

static int await(plugin_lane *lane, dvp_event *event, dvp_stream *done, dvp_stream *waiting,
                 const char *what, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    dvp_status status = p->api.event_record(p->device, event, done, &said);
    if (status == DVP_OK)
        status = p->api.event_wait(p->device, waiting, event, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, what, &said, error);
}

int plugin_follow(plugin_lane *lane, plugin_lane *other, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    dvp_status status = p->api.event_record(p->device, other->computed, other->compute, &said);
    if (status == DVP_OK)
        status = p->api.event_wait(p->device, lane->compute, other->computed, &said);
    if (status == DVP_OK)
        status = p->api.event_wait(p->device, lane->transfer, other->computed, &said);
    plugin_builds_on(lane, other, other->given);
    return status == DVP_OK
               ? 0
               : plugin_fail(p, status, "waiting for another stream", &said, error);
}

int plugin_await_uploads(plugin_lane *lane, plugin_error *error)
{
    return await(lane, lane->uploaded, lane->transfer, lane->compute, "waiting for copies",
                 error);
}

int plugin_await_kernels(plugin_lane *lane, plugin_error *error)
{
    return await(lane, lane->computed, lane->compute, lane->transfer, "waiting for kernels",
                 error);
}
