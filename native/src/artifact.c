/* Opening an artifact: read, verify, decode, find kernels, decide on trust. */
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

static dvt_status copy_state(dvt_artifact *a, dvt_error *error)
{
    const program *p = &a->program;
    uint64_t total = 0; /* buffers may share what they start as, but each has its own memory */
    if (a->state == NULL)
        a->state = calloc(p->buffer_count + 1u, sizeof *a->state);
    if (a->state == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        const buffer_record *b = &p->buffers[i];
        if (b->kind != KIND_STATE)
            continue;
        dvt_status status =
            dvt_charge_memory(a, &total, b->data_size, "buffers of state", error);
        if (status != DVT_OK)
            return status;
        if (a->state[i] != NULL)
            continue;
        unsigned char *copy =
            aligned_alloc(DVT_ALIGN, (b->data_size + DVT_ALIGN) / DVT_ALIGN * DVT_ALIGN);
        if (copy == NULL)
            return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
        if (b->data_size > 0)
            memcpy(copy, a->file.sections[DVT_CONSTANTS].data + b->data_at,
                   (size_t)b->data_size);
        atomic_thread_fence(memory_order_release); /* a child forked now takes it for whole */
        a->state[i] = copy;
    }
    return DVT_OK;
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
        status = copy_state(a, error);
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

static dvt_status describe(dvt_artifact *a, dvt_error *error)
{
    const program *p = &a->program;
    uint32_t count = p->input_count + p->output_count;
    size_t dims = 0, letters = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = i < p->input_count ? p->inputs[i] : p->outputs[i - p->input_count];
        dims += p->buffers[index].rank;
        letters += p->buffers[index].name.size + 1;
    }
    int64_t *values = calloc(p->size_count + 1u, sizeof *values);
    a->infos = calloc(count + 1u, sizeof *a->infos);
    a->info_shapes = calloc(dims + 1, sizeof *a->info_shapes);
    a->info_names = calloc(letters + 1, 1);
    if (values == NULL || a->infos == NULL || a->info_shapes == NULL || a->info_names == NULL) {
        free(values);
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    }
    static_sizes(p, values);
    int64_t *shape = a->info_shapes;
    char *name = a->info_names;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = i < p->input_count ? p->inputs[i] : p->outputs[i - p->input_count];
        const buffer_record *b = &p->buffers[index];
        a->infos[i] = (dvt_tensor_info){name, b->dtype, b->rank, shape};
        for (uint32_t d = 0; d < b->rank; d++)
            *shape++ = values[b->dims[d]];
        if (b->name.size > 0)
            memcpy(name, b->name.data, b->name.size);
        name += b->name.size + 1;
    }
    free(values);
    return DVT_OK;
}

static dvt_status prepare(dvt_artifact *a, const dvt_open_options *options, dvt_error *error)
{
    a->host_free = options->host_free;
    dvt_status status = check_signature(a, options, error);
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
        status = check_constants(a, options->flags, error);
    if (status == DVT_OK)
        status = describe(a, error);
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
    dvt_lock_init_long(&a->state_lock, NULL, NULL);
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
    while (a->frames != NULL) {
        frame *f = a->frames;
        a->frames = f->next;
        dvt_frame_free(f);
    }
    for (uint32_t i = 0; a->state != NULL && i < a->program.buffer_count; i++)
        free(a->state[i]);
    free(a->state);
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
    dvt_lock_destroy(&a->state_lock);
    dvt_lock_destroy(&a->ready_lock);
    free(a);
}

int dvt_writes_inputs(const dvt_artifact *a)
{
    return a->program.writes_inputs;
}

size_t dvt_input_count(const dvt_artifact *a)
{
    return a->program.input_count;
}

size_t dvt_output_count(const dvt_artifact *a)
{
    return a->program.output_count;
}

const dvt_tensor_info *dvt_input_info(const dvt_artifact *a, size_t index)
{
    return index < a->program.input_count ? &a->infos[index] : NULL;
}

const dvt_tensor_info *dvt_output_info(const dvt_artifact *a, size_t index)
{
    return index < a->program.output_count ? &a->infos[a->program.input_count + index] : NULL;
}

const void *dvt_section(const dvt_artifact *a, uint32_t kind, size_t *size)
{
    if (kind == DVT_CONSTANTS &&
        dvt_artifact_ready((dvt_artifact *)(uintptr_t)a, NULL) != DVT_OK)
        return NULL;
    if (kind >= DVT_KINDS || a->file.sections[kind].data == NULL)
        return NULL;
    *size = a->file.sections[kind].size;
    return a->file.sections[kind].data;
}

size_t dvt_host_call_count(const dvt_artifact *a)
{
    return a->program.host_call_count;
}

dvt_status dvt_host_call_at(const dvt_artifact *a, size_t index, dvt_host_call *call)
{
    if (index >= a->program.host_call_count)
        return DVT_ERROR_ARGUMENT;
    *call = a->program.host_calls[index];
    return DVT_OK;
}

void dvt_content_digest(const dvt_artifact *a, uint8_t digest[32])
{
    dvt_file_content_digest(&a->file, digest);
}

int dvt_signature_state(const dvt_artifact *a)
{
    return a->signature;
}

int dvt_trusted(const dvt_artifact *a)
{
    return a->trusted;
}

int dvt_code_refusal(const dvt_artifact *a)
{
    return a->code_refusal;
}

int dvt_code_state(const dvt_artifact *a)
{
    return a->code_state;
}

void dvt_memory_used(dvt_artifact *a, dvt_memory *memory)
{
    dvt_lock_take(&a->lock);
    *memory = a->memory;
    dvt_lock_give(&a->lock);
}

dvt_status dvt_measure(dvt_artifact *a, dvt_error *error)
{
    if (a->times == NULL) /* a program may be empty */
        a->times = calloc((size_t)a->program.instruction_count + 1, TIMES * sizeof *a->times);
    return a->times != NULL ? DVT_OK : dvt_fail(error, DVT_ERROR_MEMORY, "no memory for times");
}

uint64_t dvt_least_time(const dvt_artifact *a, uint32_t number)
{
    if (a->times == NULL || number >= a->program.instruction_count)
        return 0;
    return atomic_load_explicit(&a->times[number * (size_t)TIMES], memory_order_relaxed);
}

void dvt_last_time(const dvt_artifact *a, uint32_t number, uint64_t *start, uint64_t *taken)
{
    *start = *taken = 0;
    if (a->times == NULL || number >= a->program.instruction_count)
        return;
    const _Atomic(uint64_t) *kept = &a->times[number * (size_t)TIMES];
    *start = atomic_load_explicit(&kept[TIME_START], memory_order_relaxed);
    *taken = atomic_load_explicit(&kept[TIME_TAKEN], memory_order_relaxed);
}

const char *dvt_instruction_name(const dvt_artifact *a, uint32_t number, size_t *length)
{
    span name = {(const uint8_t *)"", 0};
    if (number < a->program.instruction_count) {
        const instruction *in = &a->program.instructions[number];
        if (in->opcode == OP_KERNEL)
            name = dvt_kernel_name(a, in->index);
        else if (in->opcode == OP_HOST)
            name = (span){(const uint8_t *)a->program.host_calls[in->index].op,
                          a->program.host_calls[in->index].op_length};
        else if (in->opcode == OP_BLOB)
            name = dvt_blob_owner(&a->program, in->index);
        else if (in->opcode == OP_LAUNCH)
            name = dvt_launch_name(&a->program, in->index);
        else if (in->opcode == OP_COPY)
            name = (span){(const uint8_t *)"copy", 4};
    }
    *length = name.size;
    return (const char *)name.data;
}

uint32_t dvt_instruction_count(const dvt_artifact *a)
{
    return a->program.instruction_count;
}

static uint64_t read_locked(dvt_artifact *a, const uint64_t *number)
{
    dvt_lock_take(&a->lock);
    uint64_t found = *number;
    dvt_lock_give(&a->lock);
    return found;
}

uint64_t dvt_cleared_bytes(dvt_artifact *a)
{
    return read_locked(a, &a->cleared);
}

uint64_t dvt_padding_bytes(dvt_artifact *a)
{
    return read_locked(a, &a->padding);
}
