/* Memory, streams and events of a device, for the callers of the library. A caller's stream is
 * a lane of the plug-in (plugin.h). */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

static dvt_status no_memory(dvt_error *error)
{
    return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
}

dvt_status dvt_plugin_attribute(dvt_plugin *p, const char *name, int64_t *value,
                                dvt_error *error)
{
    plugin_error problem = {0};
    dvt_lock_take(&p->lock);
    int failed = plugin_get(p, name, value, &problem);
    dvt_lock_give(&p->lock);
    return failed ? dvt_plugin_failed(&problem, error) : DVT_OK;
}

/* ---- buffers ---- */

uint32_t dvt_memory_kinds(dvt_plugin *p)
{
    plugin_error unread;
    dvp_device_info info = {0};
    uint32_t kinds = plugin_describe(p, &info, &unread) == 0 ? info.memory_kinds : 0;
    uint32_t all = DVT_MEMORY_PINNED | DVT_MEMORY_UNIFIED | DVT_MEMORY_IMPORTED;
    return DVT_MEMORY_DEVICE | (kinds & all);
}

static int allocate(dvt_buffer *buffer, uint64_t bytes, plugin_error *error)
{
    plugin *p = buffer->plugin;
    plugin_lane *lane;
    if (plugin_enter(p, NULL, 0, &lane, error) != 0)
        return -1;
    int failed =
        buffer->kind == DVT_MEMORY_DEVICE
            ? plugin_alloc(p, bytes, &buffer->memory, error)
            : plugin_alloc_kind(p, buffer->kind, bytes, &buffer->memory, &buffer->host, error);
    lane->given--; /* it was given nothing to wait for */
    plugin_leave(lane);
    return failed;
}

static dvt_status make_buffer(plugin *p, uint32_t kind, void *host, uint64_t bytes,
                              dvt_buffer **made, dvt_error *error)
{
    plugin_error problem = {0};
    if ((dvt_memory_kinds(p) & kind) == 0 || (kind & (kind - 1)) != 0)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "the device of plug-in '%.60s' has no memory of kind %u", p->info.name,
                        kind);
    dvt_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL)
        return no_memory(error);
    *buffer = (dvt_buffer){.plugin = p, .kind = kind, .host = host};
    if (allocate(buffer, bytes, &problem) != 0) {
        free(buffer);
        return dvt_plugin_failed(&problem, error);
    }
    *made = buffer;
    return DVT_OK;
}

dvt_status dvt_buffer_new(dvt_plugin *p, uint32_t kind, uint64_t bytes, dvt_buffer **made,
                          dvt_error *error)
{
    if (kind == DVT_MEMORY_IMPORTED)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "memory is imported by dvt_buffer_import");
    return make_buffer(p, kind, NULL, bytes, made, error);
}

dvt_status dvt_buffer_import(dvt_plugin *p, void *memory, uint64_t bytes, dvt_buffer **made,
                             dvt_error *error)
{
    if (memory == NULL || bytes == 0)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "there is no memory to import");
    return make_buffer(p, DVT_MEMORY_IMPORTED, memory, bytes, made, error);
}

dvt_status dvt_buffer_borrow(dvt_plugin *p, void *handle, uint64_t bytes, dvt_buffer **made,
                             dvt_error *error)
{
    plugin_error problem = {0};
    if (handle == NULL)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "there is no memory to borrow");
    dvt_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL)
        return no_memory(error);
    dvt_lock_take(&p->lock);
    int failed = plugin_ready(p, &problem);
    buffer->plugin = p;
    buffer->memory = plugin_borrow(p, handle, bytes);
    dvt_lock_give(&p->lock);
    if (failed) {
        free(buffer);
        return dvt_plugin_failed(&problem, error);
    }
    *made = buffer;
    return DVT_OK;
}

void *dvt_buffer_handle(const dvt_buffer *buffer)
{
    const plugin *p = buffer->plugin;
    bool there = buffer->memory.generation == p->generation && !p->lost;
    return there ? buffer->memory.memory : NULL;
}

static void delete_output(dvt_managed *managed)
{
    dvt_buffer_free(managed->tensor.data);
    free(managed);
}

dvt_status dvt_new_device_output(plugin *p, const dvt_tensor *like, uint64_t bytes,
                                 dvt_managed **made, dvt_error *error)
{
    size_t rank = (size_t)like->ndim;
    dvt_buffer *buffer = NULL;
    dvt_managed *output = calloc(1, sizeof *output + 2 * rank * sizeof(int64_t));
    if (output == NULL)
        return no_memory(error);
    dvt_status status = dvt_buffer_new(p, DVT_MEMORY_DEVICE, bytes, &buffer, error);
    if (status != DVT_OK) {
        free(output);
        return status;
    }
    int64_t *numbers = (int64_t *)(void *)(output + 1);
    output->version.major = 1;
    output->deleter = delete_output;
    output->tensor = *like;
    output->tensor.data = buffer;
    output->tensor.device = (dvt_device){DVT_DEVICE_BUFFER, 0};
    output->tensor.byte_offset = 0;
    output->tensor.shape = numbers;
    output->tensor.strides = numbers + rank;
    if (rank > 0) {
        memcpy(numbers, like->shape, rank * sizeof *numbers);
        memcpy(numbers + rank, like->strides, rank * sizeof *numbers);
    }
    *made = output;
    return DVT_OK;
}

void *dvt_buffer_host(const dvt_buffer *buffer)
{
    const plugin *p = buffer->plugin;
    bool there = buffer->kind == DVT_MEMORY_IMPORTED ||
                 (buffer->memory.generation == p->generation && !p->lost);
    return there ? buffer->host : NULL;
}

static dvt_status wait_for(plugin *p, plugin_lane *wanted, uint64_t nanoseconds,
                           dvt_error *error);

void dvt_wait_for_lane(plugin_lane *lane)
{
    if (lane->made && lane->finished < lane->given)
        wait_for(lane->plugin, lane, UINT64_MAX, NULL);
}

void dvt_wait_for_lanes(plugin *p)
{
    for (int i = 0; i < PLUGIN_LANES; i++)
        dvt_wait_for_lane(&p->lanes[i]);
}

void dvt_buffer_free(dvt_buffer *buffer)
{
    if (buffer == NULL)
        return;
    plugin *p = buffer->plugin;
    if (buffer->kind == DVT_MEMORY_IMPORTED || buffer->kind == 0)
        dvt_wait_for_lanes(p);
    dvt_lock_take(&p->lock);
    if (buffer->kind == DVT_MEMORY_IMPORTED)
        plugin_free_idle(p, &buffer->memory);
    else if (buffer->kind != 0)
        plugin_free(p, &buffer->memory);
    plugin_sweep(p);
    dvt_lock_give(&p->lock);
    free(buffer);
}

uint64_t dvt_buffer_bytes(const dvt_buffer *buffer)
{
    return buffer->memory.bytes;
}

int dvt_buffer_is_lost(const dvt_buffer *buffer, plugin_error *error)
{
    plugin *p = buffer->plugin;
    if (plugin_is_alive(p, &buffer->memory))
        return 0;
    return plugin_problem_is(error, PLUGIN_LOST,
                             "a buffer on the device of plug-in '%s' is lost: the device was, "
                             "or what computed it failed",
                             p->info.name);
}

static int move(dvt_buffer *buffer, plugin_lane *lane, uint64_t offset, const void *from,
                void *to, uint64_t bytes, plugin_error *error)
{
    if (from == NULL)
        return dvt_buffer_is_lost(buffer, error) ||
                       plugin_download(lane, to, &buffer->memory, offset, bytes, error)
                   ? -1
                   : 0;
    if (buffer->memory.generation != buffer->plugin->generation)
        return dvt_buffer_is_lost(buffer, error);
    /* Kernels of this stream may still read what is there, and those to come read this. */
    if (plugin_await_kernels(lane, error) != 0 ||
        plugin_upload(lane, &buffer->memory, offset, from, bytes, error) != 0)
        return -1;
    plugin_computed_on(&buffer->memory, lane);
    return plugin_await_uploads(lane, error);
}

static dvt_status move_on(dvt_buffer *buffer, dvt_stream *stream, uint64_t offset,
                          const void *from, void *to, uint64_t bytes, dvt_error *error)
{
    plugin *p = buffer->plugin;
    plugin_error problem = {0};
    plugin_buffer *memory = &buffer->memory;
    plugin_lane *lane;
    if (stream != NULL && stream->plugin != p)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "the stream is another device's");
    if (offset > memory->bytes || bytes > memory->bytes - offset)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "%llu bytes at %llu of a buffer of %llu",
                        (unsigned long long)bytes, (unsigned long long)offset,
                        (unsigned long long)memory->bytes);
    if (plugin_enter_on(p, stream != NULL ? stream->lane : NULL, &memory, 1, &lane, &problem) !=
        0)
        return dvt_plugin_failed(&problem, error);
    int failed = move(buffer, lane, offset, from, to, bytes, &problem);
    plugin_error unread;
    if ((failed || stream == NULL) && p->device != NULL && !p->lost &&
        plugin_sync(lane, failed ? &unread : &problem) != 0)
        failed = -1; /* the host's memory is the caller's again */
    plugin_leave(lane);
    return failed ? dvt_plugin_failed(&problem, error) : DVT_OK;
}

dvt_status dvt_buffer_write(dvt_buffer *buffer, dvt_stream *stream, uint64_t offset,
                            const void *from, uint64_t bytes, dvt_error *error)
{
    return bytes == 0 ? DVT_OK : move_on(buffer, stream, offset, from, NULL, bytes, error);
}

dvt_status dvt_buffer_read(dvt_buffer *buffer, dvt_stream *stream, uint64_t offset, void *to,
                           uint64_t bytes, dvt_error *error)
{
    return bytes == 0 ? DVT_OK : move_on(buffer, stream, offset, NULL, to, bytes, error);
}

/* ---- streams ---- */

dvt_status dvt_stream_new(dvt_plugin *p, dvt_stream **made, dvt_error *error)
{
    dvt_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return no_memory(error);
    stream->plugin = p;
    stream->lane = plugin_keep_lane(p);
    if (stream->lane == NULL) {
        free(stream);
        return dvt_fail(error, DVT_ERROR_LIMIT, "the plug-in '%.60s' has %d streams already",
                        p->info.name, PLUGIN_LANES - PLUGIN_OWN_LANES);
    }
    *made = stream;
    return DVT_OK;
}

dvt_status dvt_stream_import(dvt_plugin *p, void *native, dvt_stream **made, dvt_error *error)
{
    plugin_error problem = {0};
    if (p->api.stream_import == NULL)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "the plug-in '%.60s' takes no streams of its vendor's own library: "
                        "it has no stream_import",
                        p->info.name);
    dvt_status status = dvt_stream_new(p, made, error);
    if (status != DVT_OK)
        return status;
    if (plugin_import_lane(p, (*made)->lane, native, &problem) == 0)
        return DVT_OK;
    dvt_stream_free(*made);
    *made = NULL;
    return dvt_plugin_failed(&problem, error);
}

dvt_status dvt_stream_native(dvt_stream *stream, void **native, dvt_error *error)
{
    plugin *p = stream->plugin;
    plugin_error problem = {0};
    dvp_error said;
    plugin_clear(&said);
    plugin_lane *lane;
    if (!stream->lane->imported && p->api.stream_native == NULL)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "the plug-in '%.60s' does not tell what its vendor's library calls a "
                        "stream: it has no stream_native",
                        p->info.name);
    if (plugin_enter_on(p, stream->lane, NULL, 0, &lane, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    lane->given--; /* it was given nothing to wait for */
    dvp_status status = DVP_OK;
    *native = lane->native;
    if (!lane->imported)
        status = p->api.stream_native(p->device, lane->compute, native, &said);
    int failed =
        status == DVP_OK ? 0 : plugin_fail(p, status, "stream_native", &said, &problem);
    plugin_leave(lane);
    return failed ? dvt_plugin_failed(&problem, error) : DVT_OK;
}

/* Waits for a lane that nothing new is given to. */
static dvt_status wait_for(plugin *p, plugin_lane *wanted, uint64_t nanoseconds,
                           dvt_error *error)
{
    plugin_error problem = {0};
    plugin_lane *lane;
    if (plugin_enter_on(p, wanted, NULL, 0, &lane, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    lane->given--; /* it was given nothing to wait for */
    int waited = plugin_wait(lane, nanoseconds, &problem);
    plugin_leave(lane);
    if (waited > 0)
        return dvt_fail(error, DVT_ERROR_NOT_YET, "the stream is still at work");
    return waited < 0 ? dvt_plugin_failed(&problem, error) : DVT_OK;
}

dvt_status dvt_stream_wait(dvt_stream *stream, uint64_t nanoseconds, dvt_error *error)
{
    return wait_for(stream->plugin, stream->lane, nanoseconds, error);
}

dvt_status dvt_stream_follow(dvt_stream *stream, const dvt_event *event, dvt_error *error)
{
    plugin *p = stream->plugin;
    plugin_error problem = {0};
    plugin_lane *lane;
    if (event->plugin != p)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "the event is another device's");
    if (plugin_enter_on(p, stream->lane, NULL, 0, &lane, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    dvp_error said;
    plugin_clear(&said);
    dvp_status status = DVP_OK;
    if (event->lane != NULL && event->generation == p->generation) {
        status = p->api.event_wait(p->device, lane->compute, event->event.handle, &said);
        if (status == DVP_OK)
            status = p->api.event_wait(p->device, lane->transfer, event->event.handle, &said);
        plugin_builds_on(lane, event->lane, event->turn);
    }
    int failed = status == DVP_OK ? 0 : plugin_fail(p, status, "event_wait", &said, &problem);
    plugin_leave(lane);
    return failed ? dvt_plugin_failed(&problem, error) : DVT_OK;
}

void dvt_stream_free(dvt_stream *stream)
{
    if (stream == NULL)
        return;
    if (stream->lane->made && stream->lane->finished < stream->lane->given)
        dvt_stream_wait(stream, UINT64_MAX, NULL);
    plugin_give_lane(stream->plugin, stream->lane);
    free(stream);
}

/* ---- events ---- */

dvt_status dvt_event_new(dvt_plugin *p, dvt_event **made, dvt_error *error)
{
    *made = calloc(1, sizeof **made);
    if (*made == NULL)
        return no_memory(error);
    (*made)->plugin = p;
    plugin_keep_event(p, &(*made)->event);
    return DVT_OK;
}

int dvt_event_set(dvt_event *event, plugin_lane *lane, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    dvp_status status = DVP_OK;
    if (event->event.handle == NULL) {
        dvt_lock_take(&p->memory);
        status = p->api.event_create(p->device, &event->event.handle, &said);
        dvt_lock_give(&p->memory);
    }
    if (status == DVP_OK)
        status = p->api.event_record(p->device, event->event.handle, lane->compute, &said);
    if (status != DVP_OK)
        return plugin_fail(p, status, "event_record", &said, error);
    event->lane = lane;
    event->turn = lane->given;
    event->generation = p->generation;
    return 0;
}

void dvt_event_unset(dvt_event *event)
{
    event->lane = NULL;
}

dvt_status dvt_event_record(dvt_event *event, dvt_stream *stream, dvt_error *error)
{
    plugin_error problem = {0};
    plugin_lane *lane;
    if (event->plugin != stream->plugin)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "the stream is another device's");
    if (plugin_enter_on(stream->plugin, stream->lane, NULL, 0, &lane, &problem) != 0)
        return dvt_plugin_failed(&problem, error);
    int failed = plugin_await_uploads(lane, &problem) || dvt_event_set(event, lane, &problem);
    plugin_leave(lane);
    return failed ? dvt_plugin_failed(&problem, error) : DVT_OK;
}

static dvt_status happened(const dvt_event *event, dvt_error *error)
{
    const plugin_lane *lane = event->lane;
    bool failed = event->turn >= lane->bad_first && event->turn <= lane->bad_last;
    return failed ? dvt_fail(error, DVT_ERROR_PLUGIN_FAILED,
                             "the work before the event failed; whoever waited for its stream "
                             "was told how")
                  : DVT_OK;
}

static void note_finished(plugin_lane *lane, uint64_t turn)
{
    uint64_t before = lane->finished;
    while (before < turn && !atomic_compare_exchange_weak(&lane->finished, &before, turn))
        continue;
}

dvt_status dvt_event_wait(dvt_event *event, uint64_t nanoseconds, dvt_error *error)
{
    plugin *p = event->plugin;
    if (event->lane == NULL)
        return DVT_OK;
    if (event->generation != p->generation)
        return dvt_fail(error, DVT_ERROR_DEVICE_LOST,
                        "the device of plug-in '%.60s' was closed or lost before the event",
                        p->info.name);
    if (event->lane->finished >= event->turn)
        return happened(event, error);
    if (p->api.event_sync == NULL || !p->parallel || plugin_builds_on_others(event->lane))
        return wait_for(p, event->lane, nanoseconds, error);
    dvp_error said;
    plugin_clear(&said);
    if (!plugin_visit(p, event->generation))
        return wait_for(p, event->lane, nanoseconds, error);
    dvp_status status = plugin_wait_event(p, event->event.handle, nanoseconds, &said);
    bool lost = p->lost;
    if (status == DVP_OK)
        note_finished(event->lane, event->turn);
    plugin_depart(p);
    if (status == DVP_TIMEOUT && !lost)
        return dvt_fail(error, DVT_ERROR_NOT_YET, "the event has not happened yet");
    if (status != DVP_OK) { /* the stream says more, and then it stands in who was affected */
        dvt_status waited = wait_for(p, event->lane, UINT64_MAX, error);
        return waited != DVT_OK ? waited : happened(event, error);
    }
    return happened(event, error);
}

void dvt_event_free(dvt_event *event)
{
    if (event == NULL)
        return;
    plugin_drop_event(event->plugin, &event->event);
    free(event);
}
