/* Kernels and programs: the loop that runs them. */
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- programs ---- */

/* "float32[2, 3]" and so on, as far as there is room. */
static size_t show_shape(char *text, size_t size, const dvp_tensor *t)
{
    size_t used = 0;
    for (int32_t i = 0; i <= t->ndim && used < size; i++) {
        int wrote = i == t->ndim ? snprintf(text + used, size - used, i == 0 ? "[]" : "]")
                                 : snprintf(text + used, size - used, "%s%lld", i ? ", " : "[",
                                            (long long)t->shape[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return used < size ? used : size;
}

static int fail_kernel(plugin *p, dvp_status status, const char *kernel, const dvp_op *op,
                       const dvp_error *said, plugin_error *error)
{
    char what[500];
    size_t used =
        (size_t)snprintf(what, 300, "the kernel '%.100s' of %.150s", kernel, op->name);
    for (uint32_t i = 0; i < op->input_count && used < sizeof what - 100; i++) {
        if (op->inputs[i].ndim < 0)
            continue;
        used += (size_t)snprintf(what + used, sizeof what - used, i == 0 ? " on " : " and ");
        used += show_shape(what + used, sizeof what - used, &op->inputs[i]);
    }
    return plugin_fail(p, status, what, said, error);
}

int plugin_find_kernel(plugin *p, const char *name, uint32_t least, uint32_t greatest,
                       const char *op, const dvp_kernel **kernel, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
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
    return status == DVP_OK ? 0
                            : fail_kernel(p, status, name, &(dvp_op){.name = op}, &said, error);
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

int plugin_execute(plugin_lane *lane, const dvp_kernel *kernel, const char *name,
                   const dvp_op *op, plugin_error *error)
{
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    plugin_counted(&p->counters.kernels, 1);
    dvp_status status = p->api.execute(p->device, lane->compute, kernel, op, &said);
    return status == DVP_OK ? 0 : fail_kernel(p, status, name, op, &said, error);
}

static void place_in_arena(plugin_program *program)
{
    for (size_t i = 0; i < program->step_count; i++) {
        plugin_step *step = &program->steps[i];
        for (uint32_t k = 0; k < plugin_reads(step); k++)
            if (step->input_slots[k] < 0 && step->inputs[k].ndim >= 0)
                step->inputs[k].data = program->arena.memory;
        for (uint32_t k = 0; k < step->op.output_count; k++)
            if (step->output_slots[k] < 0 && step->outputs[k].ndim >= 0)
                step->outputs[k].data = program->arena.memory;
    }
}

int plugin_load_blob(plugin *p, const void *blob, uint64_t bytes, dvp_program **compiled,
                     plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    *compiled = NULL;
    dvp_status status = DVP_UNSUPPORTED;
    if (plugin_reserve(p, error) != 0)
        return -1;
    dvt_lock_take(&p->memory);
    if (p->api.segment_compile != NULL)
        status = p->api.program_load(p->device, blob, bytes, compiled, &said);
    dvt_lock_give(&p->memory);
    if (status == DVP_OK && *compiled == NULL)
        status = DVP_FAILED;
    if (status == DVP_OK)
        return 0;
    plugin_unreserve(p);
    return plugin_fail(p, status, "program_load", &said, error);
}

/* Kernels and memory belong to a device as it was opened; find them again in a new one. */
static int prepare(plugin *p, plugin_program *program, plugin_error *error)
{
    if (program->arena.memory != NULL && program->arena.generation == p->generation)
        return 0;
    program->arena.memory = NULL;
    for (size_t i = 0; i < program->step_count; i++)
        for (uint32_t k = 0; k < plugin_reads(&program->steps[i]); k++)
            program->steps[i].prepared[k] = (plugin_prepared){0};
    int failed = program->blob ? plugin_load_blob(p, program->blob, program->blob_bytes,
                                                  &program->compiled, error)
                               : find_kernels(p, program, error);
    if (failed)
        return -1;
    uint64_t generation = p->generation;
    if (plugin_alloc(p, program->arena_bytes, &program->arena, error) != 0) {
        plugin_free_compiled(p, program->compiled, generation);
        program->compiled = NULL;
        return -1;
    }
    place_in_arena(program);
    return 0;
}

static int send(plugin_lane *lane, const plugin_program *program, const void *const *uploads,
                plugin_error *error)
{
    for (size_t i = 0; i < program->upload_count; i++)
        if (plugin_upload(lane, &program->arena, program->uploads[i].offset, uploads[i],
                          program->uploads[i].bytes, error) != 0)
            return -1;
    return program->upload_count == 0 ? 0 : plugin_await_uploads(lane, error);
}

/* The plug-in's own layout of a constant operand, made once for each buffer it comes in. */
static int prepare_constant(plugin_lane *lane, plugin_step *step, uint32_t input,
                            const plugin_buffer *from, plugin_error *error)
{
    plugin *p = lane->plugin;
    plugin_prepared *held = &step->prepared[input];
    dvp_error said;
    plugin_clear(&said);
    step->input_flags[input] = DVP_OPERAND_CONSTANT;
    if (p->api.constant_prepare == NULL)
        return 0;
    if (held->number != from->number) {
        plugin_free(p, &held->buffer);
        void *memory = NULL;
        held->number = 0;
        if (plugin_reserve(p, error) != 0)
            return -1;
        dvt_lock_take(&p->memory);
        dvp_status status =
            p->api.constant_prepare(p->device, lane->compute, &step->op, input, &memory, &said);
        dvt_lock_give(&p->memory);
        if (status != DVP_OK || memory == NULL)
            plugin_unreserve(p);
        if (status != DVP_OK)
            return plugin_fail(p, status, "constant_prepare", &said, error);
        *held = (plugin_prepared){from->number, plugin_own(p, memory, 0)};
        if (memory != NULL)
            plugin_counted(&p->counters.buffers, 1);
    }
    if (held->buffer.memory != NULL) {
        step->inputs[input].data = held->buffer.memory;
        step->input_flags[input] |= DVP_OPERAND_PREPARED;
    }
    return 0;
}

static int place_slots(plugin_lane *lane, plugin_program *program, plugin_step *step,
                       plugin_buffer *const *slots, plugin_error *error)
{
    for (uint32_t k = 0; k < step->op.output_count; k++)
        if (step->output_slots[k] >= 0)
            step->outputs[k].data = slots[step->output_slots[k]]->memory;
    for (uint32_t k = 0; k < plugin_reads(step); k++) {
        if (step->input_slots[k] < 0)
            continue;
        const plugin_buffer *from = slots[step->input_slots[k]];
        step->inputs[k].data = from->memory;
        step->input_flags[k] = 0;
        if (from->constant && program->blob == NULL && k < step->op.input_count &&
            prepare_constant(lane, step, k, from, error) != 0)
            return -1;
    }
    return 0;
}

typedef struct {
    plugin_lane *lane;
    plugin_program *program;
} launches;

static int give(void *context, plugin_error *error)
{
    const launches *all = context;
    plugin_lane *lane = all->lane;
    plugin_program *program = all->program;
    plugin *p = lane->plugin;
    dvp_error said;
    plugin_clear(&said);
    for (size_t i = 0; i < program->step_count; i++) {
        plugin_step *step = &program->steps[i];
        plugin_counted(&p->counters.kernels, 1);
        dvp_status status =
            program->blob
                ? p->api.program_run(p->device, lane->compute, program->compiled, step->inputs,
                                     step->op.input_count, step->outputs, step->op.output_count,
                                     &said)
                : p->api.execute(p->device, lane->compute, step->kernel, &step->op, &said);
        if (status != DVP_OK)
            return fail_kernel(p, status, step->kernel_name, &step->op, &said, error);
    }
    return 0;
}

static const plugin_buffer *memory_of(const plugin_program *program,
                                      plugin_buffer *const *slots, int32_t slot)
{
    return slot < 0 ? &program->arena : slots[slot];
}

static const plugin_buffer *read_by(const plugin_program *program, const plugin_step *step,
                                    plugin_buffer *const *slots, uint32_t input)
{
    bool prepared =
        input < step->op.input_count && (step->input_flags[input] & DVP_OPERAND_PREPARED) != 0;
    return prepared ? &step->prepared[input].buffer
                    : memory_of(program, slots, step->input_slots[input]);
}

static size_t add_memory(uint64_t *key, size_t count, const plugin_buffer *buffer)
{
    key[count++] = (uint64_t)(uintptr_t)buffer->memory;
    key[count++] = plugin_identity(buffer);
    return count;
}

/* The memory of every operand, which tells one call's kernels from another's. */
static size_t write_key(const plugin_program *program, plugin_buffer *const *slots,
                        uint64_t *key)
{
    size_t count = 0;
    for (size_t i = 0; i < program->step_count; i++) {
        const plugin_step *step = &program->steps[i];
        for (uint32_t k = 0; k < step->op.output_count; k++)
            count = add_memory(key, count, memory_of(program, slots, step->output_slots[k]));
        for (uint32_t k = 0; k < plugin_reads(step); k++)
            count = add_memory(key, count, read_by(program, step, slots, k));
    }
    return count;
}

static uint64_t *new_key(const plugin_program *program)
{
    size_t operands = 0;
    for (size_t i = 0; i < program->step_count; i++)
        operands += program->steps[i].op.output_count + plugin_reads(&program->steps[i]);
    return malloc((2 * operands + 1) * sizeof(uint64_t));
}

static int execute(plugin_lane *lane, plugin_program *program, plugin_buffer *const *slots,
                   plugin_error *error)
{
    launches all = {lane, program};
    for (size_t i = 0; i < program->step_count; i++)
        if (place_slots(lane, program, &program->steps[i], slots, error) != 0)
            return -1;
    if (program->step_count < 2 || lane->plugin->api.capture_begin == NULL)
        return give(&all, error);
    if (program->key == NULL)
        program->key = new_key(program);
    if (program->key == NULL)
        return give(&all, error);
    size_t count = write_key(program, slots, program->key);
    return plugin_replay(lane, &program->graphs, program->key, count, give, &all, error);
}

/* Results that stay on the device are not waited for; what was sent is, for the caller may free
 * it. */
static int receive(plugin_lane *lane, const plugin_program *program,
                   plugin_buffer *const *slots, void *const *downloads, plugin_error *error)
{
    for (size_t i = program->kept_at; i < program->slot_count; i++) {
        slots[i]->lane = (int32_t)(lane - lane->plugin->lanes);
        slots[i]->given = lane->given;
    }
    for (size_t i = 0; i < program->download_count; i++) {
        const plugin_range *from = &program->downloads[i];
        const plugin_buffer *held = from->slot < 0 ? &program->arena : slots[from->slot];
        if (plugin_download(lane, downloads[i], held, from->offset, from->bytes, error) != 0)
            return -1;
    }
    if (program->download_count > 0 || program->kept_at == program->slot_count)
        return plugin_sync(lane, error);
    return program->upload_count == 0 ? 0 : plugin_sync_uploads(lane, error);
}

static int check_slots(plugin *p, const plugin_program *program, plugin_buffer *const *slots,
                       plugin_error *error)
{
    for (size_t i = 0; i < program->slot_count; i++)
        if (!plugin_is_alive(p, slots[i]))
            return plugin_problem_is(
                error, PLUGIN_LOST,
                "the device of plug-in '%s' was lost since a value was sent to it; the next "
                "call sends it again",
                p->info.name);
    return 0;
}

int plugin_run(plugin_lane *lane, plugin_program *program, plugin_buffer *const *slots,
               const void *const *uploads, void *const *downloads, plugin_error *error)
{
    plugin *p = lane->plugin;
    if (prepare(p, program, error) != 0 || check_slots(p, program, slots, error) != 0)
        return -1;
    int failed = send(lane, program, uploads, error) || execute(lane, program, slots, error) ||
                 receive(lane, program, slots, downloads, error);
    plugin_error ignored;
    if (failed && p->device != NULL && !p->lost)
        plugin_sync(lane, &ignored); /* nothing may still use the caller's memory */
    return failed ? -1 : 0;
}

void plugin_free_program(plugin *p, plugin_program *program)
{
    plugin_free_compiled(p, program->compiled, program->arena.generation);
    program->compiled = NULL;
    plugin_free_graphs(p, &program->graphs);
    free(program->key);
    program->key = NULL;
    for (size_t i = 0; program->steps != NULL && i < program->step_count; i++) {
        plugin_step *step = &program->steps[i]; /* half read where the program was refused */
        for (uint32_t k = 0; step->prepared != NULL && k < plugin_reads(step); k++)
            plugin_free(p, &step->prepared[k].buffer);
    }
    plugin_free(p, &program->arena);
}

/* ---- whole segments ---- */

int plugin_compile(plugin *p, const dvp_segment *segment, const void **blob, uint64_t *bytes,
                   plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    *blob = NULL;
    if (p->api.segment_compile == NULL)
        return 1;
    if (plugin_ready(p, error) != 0)
        return -1;
    dvt_lock_take(&p->memory);
    dvp_status status = p->api.segment_compile(p->device, segment, blob, bytes, &said);
    dvt_lock_give(&p->memory);
    if (status == DVP_UNSUPPORTED)
        return 1;
    if (status == DVP_OK && *blob == NULL)
        status = DVP_FAILED;
    return status == DVP_OK ? 0 : plugin_fail(p, status, "segment_compile", &said, error);
}

void plugin_free_blob(plugin *p, const void *blob)
{
    dvt_lock_take(&p->memory);
    if (p->device != NULL)
        p->api.blob_free(p->device, blob);
    dvt_lock_give(&p->memory);
}

int plugin_check_blob(plugin *p, const void *blob, uint64_t bytes, int32_t *state,
                      plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    if (p->api.segment_compile == NULL)
        return 1;
    if (plugin_ready(p, error) != 0)
        return -1;
    dvt_lock_take(&p->memory);
    dvp_status status = p->api.blob_check(p->device, blob, bytes, state, &said);
    dvt_lock_give(&p->memory);
    if (status != DVP_OK)
        return plugin_fail(p, status, "blob_check", &said, error);
    if (*state < DVP_BLOB_OPTIMAL || *state > DVP_BLOB_UNSUPPORTED)
        *state = DVP_BLOB_UNSUPPORTED; /* an answer of a later version */
    return 0;
}

/* ---- constants in the plug-in's own layout, as bytes ---- */

int plugin_pack(plugin *p, const dvp_op *op, uint32_t input, const void **packed,
                uint64_t *bytes, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    *packed = NULL;
    *bytes = 0;
    if (p->api.constant_pack == NULL)
        return 1;
    if (plugin_ready(p, error) != 0)
        return -1;
    dvt_lock_take(&p->memory);
    dvp_status status = p->api.constant_pack(p->device, op, input, packed, bytes, &said);
    dvt_lock_give(&p->memory);
    if (status == DVP_OK)
        return *packed == NULL;
    return plugin_fail(p, status, "constant_pack", &said, error);
}

void plugin_free_packed(plugin *p, const void *packed)
{
    dvt_lock_take(&p->memory);
    if (p->device != NULL)
        p->api.packed_free(p->device, packed);
    dvt_lock_give(&p->memory);
}

int plugin_accept(plugin *p, const dvp_op *op, uint32_t input, const void *packed,
                  uint64_t bytes, plugin_error *error)
{
    dvp_error said;
    plugin_clear(&said);
    if (p->api.constant_accept == NULL)
        return plugin_problem_is(error, PLUGIN_INCOMPATIBLE,
                                 "the plug-in '%s' (version '%s') has no layout of its own for "
                                 "constants, and the artifact holds one for %s: export the "
                                 "model again, or use the plug-in that it was made with",
                                 p->info.name, p->info.version, op->name);
    if (plugin_ready(p, error) != 0)
        return -1;
    dvp_status status = p->api.constant_accept(p->device, op, input, packed, bytes, &said);
    return status == DVP_OK ? 0 : plugin_fail(p, status, "constant_accept", &said, error);
}
