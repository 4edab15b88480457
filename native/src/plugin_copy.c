/* Device memory, copies, and waiting. */
#include "plugin.h"

#include "control.h"

#include <stdio.h>

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
    if (status != DVP_OK) {
        plugin_unreserve(p);
        return plugin_fail(p, status, "buffer_alloc", &said, error);
    }
    *buffer =
        (plugin_buffer){.memory = memory,
                        .lane = -1,
                        .bytes = bytes,
                        .generation = p->generation,
                        .number = __atomic_add_fetch(&p->buffer_count, 1, __ATOMIC_RELAXED)};
    plugin_counted(&p->counters.buffers, 1);
    return 0;
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
 * taken longer than anything may. */
static dvp_status wait_for(plugin *p, dvp_stream *stream, dvp_error *said)
{
    if (p->api.stream_wait == NULL)
        return p->api.stream_sync(p->device, stream, said);
    uint64_t start = dvt_now();
    for (;;) {
        dvp_status status = p->api.stream_wait(p->device, stream, SLICE, said);
        if (status != DVP_TIMEOUT)
            return status;
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

int plugin_sync(plugin_lane *lane, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said, also_said;
    plugin_clear(&said);
    plugin_clear(&also_said);
    uint64_t given = lane->given;
    /* Both, whatever the first one says: a stream that was not waited for may still write to
     * memory that the caller is about to free. A device that is lost writes nowhere any more.
     */
    dvp_status status = wait_for(p, lane->transfer, &said), other = DVP_OK;
    if (status != DVP_DEVICE_LOST && status != DVP_TIMEOUT)
        other = wait_for(p, lane->compute, &also_said);
    if (status != DVP_OK || other != DVP_OK) { /* what it computed since is not to be read */
        lane->bad_first = lane->bad_first == 0 ? lane->finished + 1 : lane->bad_first;
        lane->bad_last = given;
    }
    lane->finished = given;
    if (other == DVP_DEVICE_LOST || other == DVP_TIMEOUT || status == DVP_OK)
        return other == DVP_OK ? 0 : plugin_fail(p, other, "stream_sync", &also_said, error);
    return plugin_fail(p, status, "stream_sync", &said, error);
}

int plugin_sync_uploads(plugin_lane *lane, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    dvp_status status = wait_for(lane->plugin, lane->transfer, &said);
    return status == DVP_OK ? 0
                            : plugin_fail(lane->plugin, status, "stream_sync", &said, error);
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
