/* Device memory, copies, and the loop that runs a program's kernels. */
#include "plugin.h"

#include <stdio.h>
#include <string.h>

static void clear(dvp_error *said)
{
    said->struct_size = sizeof *said;
    said->message[0] = 0;
}

int plugin_alloc(plugin *p, uint64_t bytes, plugin_buffer *buffer, plugin_error *error)
{
    dvp_error said;
    clear(&said);
    if (plugin_ready(p, error) != 0)
        return -1;
    void *memory = NULL;
    dvp_status status = p->api.buffer_alloc(p->device, bytes ? bytes : 1, &memory, &said);
    if (status == DVP_OK && memory == NULL)
        status = DVP_NO_MEMORY;
    if (status != DVP_OK)
        return plugin_fail(p, status, "buffer_alloc", &said, error);
    *buffer = (plugin_buffer){memory, bytes, p->generation};
    p->counters.buffers++;
    return 0;
}

void plugin_free(plugin *p, plugin_buffer *buffer)
{
    if (buffer->memory != NULL && buffer->generation == p->generation && p->device != NULL) {
        p->api.buffer_free(p->device, buffer->memory);
        p->counters.buffers--;
    }
    buffer->memory = NULL;
}

static int copy(plugin *p, dvp_stream *stream, const dvp_copy *c, plugin_error *error)
{
    dvp_error said;
    clear(&said);
    if (c->bytes == 0)
        return 0;
    dvp_status status = p->api.buffer_copy(p->device, stream, c, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "buffer_copy", &said, error);
}

int plugin_upload(plugin *p, const plugin_buffer *to, uint64_t offset, const void *from,
                  uint64_t bytes, plugin_error *error)
{
    p->counters.uploads++;
    p->counters.upload_bytes += bytes;
    return copy(p, p->transfer,
                &(dvp_copy){.struct_size = sizeof(dvp_copy),
                            .direction = DVP_HOST_TO_DEVICE,
                            .destination = to->memory,
                            .destination_offset = offset,
                            .source = from,
                            .bytes = bytes},
                error);
}

int plugin_download(plugin *p, void *to, const plugin_buffer *from, uint64_t offset,
                    uint64_t bytes, plugin_error *error)
{
    p->counters.downloads++;
    p->counters.download_bytes += bytes;
    return copy(p, p->compute,
                &(dvp_copy){.struct_size = sizeof(dvp_copy),
                            .direction = DVP_DEVICE_TO_HOST,
                            .destination = to,
                            .source = from->memory,
                            .source_offset = offset,
                            .bytes = bytes},
                error);
}

int plugin_sync(plugin *p, plugin_error *error)
{
    dvp_error said, also_said;
    clear(&said);
    clear(&also_said);
    /* Both, whatever the first one says: a stream that was not waited for may still write to
     * memory that the caller is about to free. */
    dvp_status status = p->api.stream_sync(p->device, p->transfer, &said);
    dvp_status other = p->api.stream_sync(p->device, p->compute, &also_said);
    if (status != DVP_OK)
        return plugin_fail(p, status, "stream_sync", &said, error);
    return other == DVP_OK ? 0 : plugin_fail(p, other, "stream_sync", &also_said, error);
}

static int await(plugin *p, dvp_event *event, dvp_stream *done, dvp_stream *waiting,
                 const char *what, plugin_error *error)
{
    dvp_error said;
    clear(&said);
    dvp_status status = p->api.event_record(p->device, event, done, &said);
    if (status == DVP_OK)
        status = p->api.event_wait(p->device, waiting, event, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, what, &said, error);
}

int plugin_await_uploads(plugin *p, plugin_error *error)
{
    return await(p, p->uploaded, p->transfer, p->compute, "waiting for copies", error);
}

int plugin_await_kernels(plugin *p, plugin_error *error)
{
    return await(p, p->computed, p->compute, p->transfer, "waiting for kernels", error);
}

/* ---- programs ---- */

static int fail_kernel(plugin *p, dvp_status status, const char *kernel, const char *op,
                       const dvp_error *said, plugin_error *error)
{
    char what[300];
    snprintf(what, sizeof what, "the kernel '%s' of %s", kernel, op);
    return plugin_fail(p, status, what, said, error);
}

int plugin_find_kernel(plugin *p, const char *name, uint32_t least, uint32_t greatest,
                       const char *op, const dvp_kernel **kernel, plugin_error *error)
{
    dvp_error said;
    clear(&said);
    uint32_t version = 0;
    *kernel = NULL;
    dvp_status status =
        p->api.find_kernel(p->device, name, least, greatest, kernel, &version, &said);
    if (status == DVP_OK &&
        (*kernel == NULL || version < least || (greatest != 0 && version > greatest))) {
        snprintf(said.message, sizeof said.message, "it found version %u, not %u to %u",
                 version, least, greatest);
        status = DVP_FAILED;
    }
    return status == DVP_OK ? 0 : fail_kernel(p, status, name, op, &said, error);
}

static int find_kernels(plugin *p, plugin_program *program, plugin_error *error)
{
    for (size_t i = 0; i < program->step_count; i++) {
        plugin_step *step = &program->steps[i];
        if (plugin_find_kernel(p, step->kernel_name, step->min_version, step->max_version,
                               step->op.name, &step->kernel, error) != 0)
            return -1;
    }
    return 0;
}

int plugin_execute(plugin *p, const dvp_kernel *kernel, const char *name, const dvp_op *op,
                   plugin_error *error)
{
    dvp_error said;
    clear(&said);
    p->counters.kernels++;
    dvp_status status = p->api.execute(p->device, p->compute, kernel, op, &said);
    return status == DVP_OK ? 0 : fail_kernel(p, status, name, op->name, &said, error);
}

static void place_in_arena(plugin_program *program)
{
    for (size_t i = 0; i < program->step_count; i++) {
        plugin_step *step = &program->steps[i];
        for (uint32_t k = 0; k < step->op.input_count; k++)
            if (step->input_slots[k] < 0 && step->inputs[k].ndim >= 0)
                step->inputs[k].data = program->arena.memory;
        for (uint32_t k = 0; k < step->op.output_count; k++)
            if (step->outputs[k].ndim >= 0)
                step->outputs[k].data = program->arena.memory;
    }
}

int plugin_load_blob(plugin *p, const void *blob, uint64_t bytes, dvp_program **compiled,
                     plugin_error *error)
{
    dvp_error said;
    clear(&said);
    *compiled = NULL;
    dvp_status status = DVP_UNSUPPORTED;
    if (p->api.segment_compile != NULL)
        status = p->api.program_load(p->device, blob, bytes, compiled, &said);
    if (status == DVP_OK && *compiled == NULL)
        status = DVP_FAILED;
    return status == DVP_OK ? 0 : plugin_fail(p, status, "program_load", &said, error);
}

/* Kernels and memory belong to a device as it was opened; find them again in a new one. */
static int prepare(plugin *p, plugin_program *program, plugin_error *error)
{
    if (plugin_ready(p, error) != 0)
        return -1;
    if (program->arena.memory != NULL && program->arena.generation == p->generation)
        return 0;
    program->arena.memory = NULL;
    int failed = program->blob ? plugin_load_blob(p, program->blob, program->blob_bytes,
                                                  &program->compiled, error)
                               : find_kernels(p, program, error);
    if (failed || plugin_alloc(p, program->arena_bytes, &program->arena, error) != 0)
        return -1;
    place_in_arena(program);
    return 0;
}

static int send(plugin *p, const plugin_program *program, const void *const *uploads,
                plugin_error *error)
{
    for (size_t i = 0; i < program->upload_count; i++)
        if (plugin_upload(p, &program->arena, program->uploads[i].offset, uploads[i],
                          program->uploads[i].bytes, error) != 0)
            return -1;
    return plugin_await_uploads(p, error);
}

static int execute(plugin *p, plugin_program *program, const plugin_buffer *const *slots,
                   plugin_error *error)
{
    dvp_error said;
    clear(&said);
    for (size_t i = 0; i < program->step_count; i++) {
        plugin_step *step = &program->steps[i];
        for (uint32_t k = 0; k < step->op.input_count; k++)
            if (step->input_slots[k] >= 0)
                step->inputs[k].data = slots[step->input_slots[k]]->memory;
        p->counters.kernels++;
        dvp_status status =
            program->blob
                ? p->api.program_run(p->device, p->compute, program->compiled, step->inputs,
                                     step->op.input_count, step->outputs, step->op.output_count,
                                     &said)
                : p->api.execute(p->device, p->compute, step->kernel, &step->op, &said);
        if (status != DVP_OK)
            return fail_kernel(p, status, step->kernel_name, step->op.name, &said, error);
    }
    return 0;
}

static int receive(plugin *p, const plugin_program *program, void *const *downloads,
                   plugin_error *error)
{
    for (size_t i = 0; i < program->download_count; i++)
        if (plugin_download(p, downloads[i], &program->arena, program->downloads[i].offset,
                            program->downloads[i].bytes, error) != 0)
            return -1;
    return plugin_sync(p, error);
}

int plugin_run(plugin *p, plugin_program *program, const plugin_buffer *const *slots,
               const void *const *uploads, void *const *downloads, plugin_error *error)
{
    if (prepare(p, program, error) != 0)
        return -1;
    for (size_t i = 0; i < program->slot_count; i++)
        if (slots[i]->generation != p->generation) {
            snprintf(error->message, sizeof error->message,
                     "the device of plug-in '%s' was lost since a constant was sent to it; "
                     "the next call sends it again",
                     p->info.name);
            error->problem = PLUGIN_LOST;
            return -1;
        }
    int failed = send(p, program, uploads, error) || execute(p, program, slots, error) ||
                 receive(p, program, downloads, error);
    plugin_error ignored;
    if (failed && p->device != NULL)
        plugin_sync(p, &ignored); /* nothing may still use the caller's memory */
    return failed ? -1 : 0;
}

void plugin_free_program(plugin *p, plugin_program *program)
{
    if (program->compiled != NULL && program->arena.generation == p->generation &&
        p->device != NULL)
        p->api.program_free(p->device, program->compiled);
    program->compiled = NULL;
    plugin_free(p, &program->arena);
}

/* ---- whole segments ---- */

int plugin_compile(plugin *p, const dvp_segment *segment, const void **blob, uint64_t *bytes,
                   plugin_error *error)
{
    dvp_error said;
    clear(&said);
    *blob = NULL;
    if (p->api.segment_compile == NULL)
        return 1;
    if (plugin_ready(p, error) != 0)
        return -1;
    dvp_status status = p->api.segment_compile(p->device, segment, blob, bytes, &said);
    if (status == DVP_UNSUPPORTED)
        return 1;
    if (status == DVP_OK && *blob == NULL)
        status = DVP_FAILED;
    return status == DVP_OK ? 0 : plugin_fail(p, status, "segment_compile", &said, error);
}

void plugin_free_blob(plugin *p, const void *blob)
{
    if (p->device != NULL)
        p->api.blob_free(p->device, blob);
}

int plugin_check_blob(plugin *p, const void *blob, uint64_t bytes, int32_t *state,
                      plugin_error *error)
{
    dvp_error said;
    clear(&said);
    if (p->api.segment_compile == NULL)
        return 1;
    if (plugin_ready(p, error) != 0)
        return -1;
    dvp_status status = p->api.blob_check(p->device, blob, bytes, state, &said);
    if (status != DVP_OK)
        return plugin_fail(p, status, "blob_check", &said, error);
    if (*state < DVP_BLOB_OPTIMAL || *state > DVP_BLOB_UNSUPPORTED)
        *state = DVP_BLOB_UNSUPPORTED; /* an answer of a later version */
    return 0;
}
