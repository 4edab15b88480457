/* What can be asked of an open artifact. */
#include "source.h"

#include <stdlib.h>
#include <string.h>

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

static size_t find(const dvt_tensor_info *infos, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(infos[i].name, name) == 0)
            return i;
    return SIZE_MAX;
}

size_t dvt_find_input(const dvt_artifact *a, const char *name)
{
    return find(a->infos, a->program.input_count, name);
}

size_t dvt_find_output(const dvt_artifact *a, const char *name)
{
    return find(a->infos + a->program.input_count, a->program.output_count, name);
}

size_t dvt_symbol_count(const dvt_artifact *a)
{
    return a->program.symbol_count;
}

dvt_status dvt_symbol_at(const dvt_artifact *a, size_t index, dvt_symbol_info *info)
{
    if (index >= a->program.symbol_count)
        return DVT_ERROR_ARGUMENT;
    const symbol_record *s = &a->program.symbols[index];
    dvt_symbol_info made = {.struct_size = sizeof made,
                            .input = s->input,
                            .axis = s->axis == DVT_NONE ? -1 : (int32_t)s->axis,
                            .name_length = (uint32_t)s->name.size,
                            .name = (const char *)s->name.data,
                            .low = s->low,
                            .high = s->high};
    return dvt_fill(info, &made, sizeof made);
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
    return dvt_fill(call, &a->program.host_calls[index], sizeof *call);
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

dvt_status dvt_memory_used(dvt_artifact *a, dvt_memory *memory)
{
    dvt_lock_take(&a->lock);
    dvt_memory used = a->memory;
    dvt_lock_give(&a->lock);
    used.struct_size = sizeof used;
    return dvt_fill(memory, &used, sizeof used);
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
