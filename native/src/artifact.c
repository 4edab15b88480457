/* Opening an artifact: read, verify, decode, find kernels, decide on trust. */
#include "call.h"
#include "device_state.h"
#include "log.h"
#include "source.h"

#include <stdlib.h>
#include <string.h>

/* What a signature signs starts with this text and its zero byte, so that a key's signature of
 * something else is never taken for one of a file. */
static const char CONTEXT[] = "dovetail artifact signature v1";

/* Whether the section's signature is its key's, of the digest after `context` bytes of CONTEXT.
 */
static bool signs(span section, const uint8_t digest[32], size_t context)
{
    uint8_t message[sizeof CONTEXT + 32];
    memcpy(message, CONTEXT, context);
    memcpy(message + context, digest, 32);
    return dvt_ed25519_verify(section.data + 32, section.data, message, context + 32);
}

/* A signature section: 32 bytes of key and 64 of signature, of the contents' digest (see
 * SPEC.md). Before 1.3 the context was missing: such a file can be looked at, to be signed
 * again, but not run. */
static dvt_status check_signature(dvt_artifact *a, const dvt_open_options *options,
                                  dvt_error *error)
{
    span s = a->file.sections[DVT_SIGNATURE];
    if (s.data == NULL)
        return DVT_OK;
    if (s.size != 96)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "signature section: not a key and a signature");
    a->signature = -1;
    uint8_t digest[32];
    dvt_file_content_digest(&a->file, digest);
    if (!signs(s, digest, sizeof CONTEXT)) {
        if (!signs(s, digest, 0))
            return dvt_fail(error, DVT_ERROR_MALFORMED,
                            "the signature does not match the contents");
        a->signature = -2;
        if ((options->flags & DVT_OPEN_INSPECT) == 0)
            return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                            "the artifact was signed by a version of dovetail whose signatures "
                            "no longer count: sign it again (dovetail sign)");
        return DVT_OK;
    }
    for (size_t i = 0; i < options->key_count; i++)
        if (memcmp(options->keys[i], s.data, 32) == 0)
            a->signature = 1;
    return DVT_OK;
}

static dvt_status check_host(const dvt_artifact *a, const dvt_open_options *options,
                             dvt_error *error)
{
    const program *p = &a->program;
    if (p->host_call_count == 0 || options->host_available)
        return DVT_OK;
    dvt_names names = {.length = 0};
    for (uint32_t i = 0; i < p->host_call_count && !names.cut; i++)
        dvt_names_add(&names,
                      (span){(const uint8_t *)p->host_calls[i].op, p->host_calls[i].op_length});
    return dvt_fail(
        error, DVT_ERROR_UNSUPPORTED,
        "the artifact calls PyTorch for %s: import torch, or export with kernels for "
        "all of it",
        names.text);
}

/* Copies or maps the constants and makes the state, which starts as some of them. */
static dvt_status make_ready(dvt_artifact *a, dvt_error *error)
{
    dvt_status status = DVT_OK;
    uint64_t total = 0;
    bool copies = !a->may_map && a->file.source->memory == NULL;
    if (copies) /* a file may have holes: its size is no promise that memory has room */
        status = dvt_charge_memory(a, &total, a->file.sections[DVT_CONSTANTS].size,
                                   "copies of constants", error);
    if (status == DVT_OK && a->file.source->constants.at != UINT64_MAX)
        status =
            dvt_source_constants(a->file.source, a->may_map,
                                 &a->file.sections[DVT_CONSTANTS].data, &a->is_mapped, error);
    if (status == DVT_OK)
        status = dvt_own_state_fill(a, error);
    if (status == DVT_OK && a->is_mapped) /* what was copied was read from the mapping */
        status = dvt_source_settle(a->file.source, status, error);
    return status;
}

dvt_status dvt_artifact_ready(dvt_artifact *a, dvt_error *error)
{
    dvt_status status = DVT_OK;
    if (atomic_load_explicit(&a->is_ready, memory_order_acquire))
        return status;
    dvt_lock_take(&a->ready_lock);
    if (!atomic_load(&a->is_ready)) {
        status = make_ready(a, error);
        atomic_store_explicit(&a->is_ready, status == DVT_OK, memory_order_release);
    }
    dvt_lock_give(&a->ready_lock);
    return status;
}

/* Constants of an untrusted file are large to check: that waits for the first run, unless they
 * are few, or somebody relies on a signature, which must not be half good. */
static dvt_status check_constants(dvt_artifact *a, uint32_t flags, dvt_error *error)
{
    bool ready = a->may_map || a->signature == 1 || dvt_source_is_small(a->file.source);
    dvt_status status = DVT_OK;
    if ((flags & DVT_OPEN_CHECK_CONSTANTS) != 0 && (a->inspect_only || a->may_map))
        status = dvt_source_check(a->file.source, error);
    if (status != DVT_OK || a->inspect_only)
        return status;
    ready = ready || (flags & (DVT_OPEN_CHECK_CONSTANTS | DVT_OPEN_COPY)) != 0;
    return ready ? dvt_artifact_ready(a, error) : DVT_OK;
}

/* The value of a size that is a plain number, or -1. Sizes are stored in order, so the code of
 * a plain one is a push right before its store. */
static void static_sizes(const program *p, int64_t *values)
{
    for (size_t i = 0; i < p->code_count; i++)
        if (p->code[i].opcode == DVT_SIZE_STORE)
            values[p->code[i].operand] =
                i > 0 && p->code[i - 1].opcode == DVT_SIZE_PUSH &&
                        (i == 1 || p->code[i - 2].opcode == DVT_SIZE_STORE)
                    ? p->code[i - 1].operand
                    : -1;
}

/* The buffers that can be asked about: inputs, outputs, then those of state. Room for all. */
static uint32_t list_shown(const program *p, uint32_t *shown)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->input_count; i++)
        shown[count++] = p->inputs[i];
    for (uint32_t i = 0; i < p->output_count; i++)
        shown[count++] = p->outputs[i];
    for (uint32_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].kind == KIND_STATE)
            shown[count++] = i;
    return count;
}

static dvt_status describe_shown(dvt_artifact *a, const uint32_t *shown, uint32_t count,
                                 dvt_error *error)
{
    const program *p = &a->program;
    size_t dims = 0, letters = 0;
    for (uint32_t i = 0; i < count; i++) {
        dims += p->buffers[shown[i]].rank;
        letters += p->buffers[shown[i]].name.size + 1;
    }
    a->fixed_sizes = calloc(p->size_count + 1u, sizeof *a->fixed_sizes);
    a->infos = calloc(count + 1u, sizeof *a->infos);
    a->info_shapes = calloc(dims + 1, sizeof *a->info_shapes);
    a->info_names = calloc(letters + 1, 1);
    if (!a->fixed_sizes || !a->infos || !a->info_shapes || !a->info_names)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    static_sizes(p, a->fixed_sizes);
    int64_t *shape = a->info_shapes;
    char *name = a->info_names;
    for (uint32_t i = 0; i < count; i++) {
        const buffer_record *b = &p->buffers[shown[i]];
        a->infos[i] = (dvt_tensor_info){name, b->dtype, b->rank, shape};
        for (uint32_t d = 0; d < b->rank; d++)
            *shape++ = a->fixed_sizes[b->dims[d]];
        if (b->name.size > 0)
            memcpy(name, b->name.data, b->name.size);
        name += b->name.size + 1;
    }
    a->state_count = count - p->input_count - p->output_count;
    return DVT_OK;
}

static dvt_status describe(dvt_artifact *a, dvt_error *error)
{
    const program *p = &a->program;
    size_t most = (size_t)p->input_count + p->output_count + p->buffer_count;
    uint32_t *shown = calloc(most + 1, sizeof *shown);
    if (shown == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    dvt_status status = describe_shown(a, shown, list_shown(p, shown), error);
    free(shown);
    return status;
}

static void log_opened(const dvt_artifact *a)
{
    static const char *const refusals[] = {
        "it has none for them", "no trusted key signed it", "it is for another processor",
        "this system does not let a process make memory executable"};
    dvt_log(DVT_LOG_DEBUG, "opened an artifact: %u inputs, %u outputs, %u instructions",
            a->program.input_count, a->program.output_count, a->program.instruction_count);
    if (a->code_state < 0)
        dvt_log(DVT_LOG_WARNING, "an artifact's native code does not run (%s): %s",
                refusals[a->code_refusal],
                a->code_state == -2 ? "its kernels are interpreted, which is slow"
                                    : "built-in kernels serve instead");
}

static dvt_status prepare(dvt_artifact *a, const dvt_open_options *options, dvt_error *error)
{
    a->host_free = options->host_free;
    dvt_status status = dvt_allocator_set(&a->allocator, options->allocator, error);
    if (status == DVT_OK)
        status = check_signature(a, options, error);
    a->trusted = a->signature == 1 || (options->flags & DVT_OPEN_TRUST) != 0;
    dvt_limits_set(a, options);
    if (status == DVT_OK)
        status = dvt_program_decode(&a->file, &a->program, error);
    if (status == DVT_OK && a->file.sections[DVT_KERNEL_IR].data != NULL &&
        (options->flags & DVT_OPEN_CODE_ONLY) == 0)
        status = dvt_kernels_decode(a->file.sections[DVT_KERNEL_IR], &a->kernel_set, error);
    a->inspect_only = (options->flags & DVT_OPEN_INSPECT) != 0;
    a->may_overlap = (options->flags & DVT_OPEN_MAY_OVERLAP) != 0;
    a->may_map = (options->flags & (DVT_OPEN_TRUST | DVT_OPEN_COPY)) == DVT_OPEN_TRUST;
    if (status == DVT_OK && !a->inspect_only)
        status = check_host(a, options, error);
    if (status == DVT_OK && !a->inspect_only)
        status = dvt_devices_open(a, options, error);
    if (status == DVT_OK && !a->inspect_only)
        status = dvt_kernels_bind(a, error);
    if (status == DVT_OK)
        status = describe(a, error);
    if (status == DVT_OK && !a->inspect_only)
        status = dvt_residents_plan(a, error);
    if (status == DVT_OK && !a->inspect_only)
        status = dvt_device_tensors_plan(a, error);
    if (status == DVT_OK && !a->inspect_only)
        status = dvt_device_shown_plan(a, error);
    if (status == DVT_OK && !a->inspect_only)
        status = dvt_device_marks_plan(a, error);
    if (status == DVT_OK)
        status = check_constants(a, options->flags, error);
    if (status == DVT_OK && !a->inspect_only)
        log_opened(a);
    return status;
}

dvt_status dvt_open_source(dvt_source *source, const dvt_open_options *options,
                           dvt_artifact **artifact, dvt_error *error)
{
    dvt_open_options known = {.struct_size = sizeof known};
    dvt_error unread;
    bool sized = options == NULL || options->struct_size >= sizeof options->struct_size;
    dvt_artifact *a = calloc(1, sizeof *a);
    if (a == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    if (options != NULL) /* of an older caller it is shorter: the rest is zero */
        memcpy(&known, options,
               options->struct_size < sizeof known ? options->struct_size : sizeof known);
    a->file = source->file;
    dvt_source_keep(source);
    dvt_lock_init_brief(&a->lock);
    a->own_state.artifact = a;
    dvt_lock_init_long(&a->own_state.lock, NULL, NULL);
    dvt_lock_init_long(&a->ready_lock, NULL, NULL);
    dvt_status status =
        sized ? prepare(a, &known, error != NULL ? error : &unread)
              : dvt_fail(error, DVT_ERROR_ARGUMENT, "dvt_open_options: set struct_size");
    if (status != DVT_OK) {
        dvt_close(a);
        return status;
    }
    *artifact = a;
    return DVT_OK;
}

static dvt_status open_and_let_go(dvt_source *source, const dvt_open_options *options,
                                  dvt_artifact **artifact, dvt_error *error)
{
    dvt_status status = dvt_open_source(source, options, artifact, error);
    dvt_source_close(source);
    return status;
}

dvt_status dvt_open(const char *path, const dvt_open_options *options, dvt_artifact **artifact,
                    dvt_error *error)
{
    dvt_source *source;
    dvt_status status = dvt_source_open(path, &source, error);
    return status == DVT_OK ? open_and_let_go(source, options, artifact, error) : status;
}

dvt_status dvt_open_memory(const void *data, size_t size, const dvt_open_options *options,
                           dvt_artifact **artifact, dvt_error *error)
{
    dvt_source *source;
    dvt_status status = dvt_source_memory(data, size, NULL, &source, error);
    return status == DVT_OK ? open_and_let_go(source, options, artifact, error) : status;
}

void dvt_close(dvt_artifact *a)
{
    if (a == NULL)
        return;
    dvt_devices_settle(a);
    while (a->frames != NULL) {
        frame *f = a->frames;
        a->frames = f->next;
        dvt_frame_free(f);
    }
    dvt_own_state_free(a);
    free(a->residents);
    free(a->tensor_devices);
    free(a->shown);
    free(a->marked);
    free(a->fixed_sizes);
    free(a->times);
    free(a->infos);
    free(a->info_shapes);
    free(a->info_names);
    dvt_generated_free(a);
    dvt_devices_close(a);
    dvt_kernels_free(a->kernel_set);
    dvt_program_free(&a->program);
    dvt_source_close(a->file.source);
    dvt_lock_destroy(&a->lock);
    dvt_lock_destroy(&a->own_state.lock);
    dvt_lock_destroy(&a->ready_lock);
    free(a);
}
