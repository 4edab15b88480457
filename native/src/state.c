/* State: what a program keeps from call to call. An artifact has one of its own; others share
 * everything with it but the memory of these buffers. */
#include "call.h"
#include "device_state.h"
#include "source.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static void free_data(const dvt_artifact *a, unsigned char **data)
{
    for (uint32_t i = 0; data != NULL && i < a->program.buffer_count; i++)
        dvt_release(&a->allocator, data[i], a->program.buffers[i].data_size);
    free(data);
}

static const unsigned char *initial(const dvt_artifact *a, uint32_t buffer)
{
    return a->file.sections[DVT_CONSTANTS].data + a->program.buffers[buffer].data_at;
}

/* Makes the buffers that are not there yet, each a copy of `like`'s or of what the file has. A
 * child that is forked meanwhile goes on from where its parent was. */
static dvt_status fill(dvt_artifact *a, unsigned char ***to, unsigned char *const *like,
                       dvt_error *error)
{
    const program *p = &a->program;
    uint64_t total = 0; /* buffers may share what they start as, but each has its own memory */
    if (*to == NULL)
        *to = calloc(p->buffer_count + 1u, sizeof **to);
    if (*to == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        const buffer_record *b = &p->buffers[i];
        if (b->kind != KIND_STATE)
            continue;
        dvt_status status =
            dvt_charge_memory(a, &total, b->data_size, "buffers of state", error);
        if (status != DVT_OK)
            return status;
        if ((*to)[i] != NULL)
            continue;
        unsigned char *copy = dvt_allocate(&a->allocator, b->data_size);
        if (copy == NULL)
            return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
        if (b->data_size > 0)
            memcpy(copy, like != NULL ? like[i] : initial(a, i), (size_t)b->data_size);
        atomic_thread_fence(memory_order_release); /* a child forked now takes it for whole */
        (*to)[i] = copy;
    }
    return DVT_OK;
}

dvt_status dvt_own_state_fill(dvt_artifact *a, dvt_error *error)
{
    dvt_status status = dvt_device_state_new(&a->own_state, error);
    return status == DVT_OK ? fill(a, &a->own_state.data, NULL, error) : status;
}

void dvt_own_state_free(dvt_artifact *a)
{
    dvt_device_state_free(&a->own_state);
    free_data(a, a->own_state.data);
}

void dvt_bind_state(const program *p, frame *f, const dvt_state *state)
{
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        uint32_t root = p->buffers[i].root;
        if (p->buffers[root].kind == KIND_STATE)
            f->tensors[i].data = state->data[root] + f->offsets[i];
    }
    f->state_number = state->number;
}

/* ---- the interface ---- */

dvt_state *dvt_own_state(dvt_artifact *a)
{
    return dvt_artifact_ready(a, NULL) == DVT_OK && !a->inspect_only ? &a->own_state : NULL;
}

static dvt_status make(dvt_artifact *a, dvt_state *like, dvt_state *made, dvt_error *error)
{
    if (like == NULL)
        return fill(a, &made->data, NULL, error);
    dvt_lock_take(&like->lock);
    dvt_status status = DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < a->program.buffer_count; i++)
        status = dvt_device_state_fetch(like, i, error);
    if (status == DVT_OK)
        status = fill(a, &made->data, like->data, error);
    dvt_lock_give(&like->lock);
    return status;
}

dvt_status dvt_state_new(dvt_artifact *a, dvt_state *like, dvt_state **state, dvt_error *error)
{
    static _Atomic(uint64_t) last;
    if (a->inspect_only || (like != NULL && like->artifact != a))
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "a state of another artifact, or of one opened to be looked at only");
    dvt_status status = dvt_artifact_ready(a, error);
    if (status != DVT_OK)
        return status;
    dvt_state *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    made->artifact = a;
    made->number = atomic_fetch_add(&last, 1) + 1;
    status = dvt_device_state_new(made, error);
    if (status == DVT_OK)
        status = make(a, like, made, error);
    if (status == DVT_OK && a->is_mapped) /* what was copied was read from the mapping */
        status = dvt_source_settle(a->file.source, status, error);
    if (status != DVT_OK) {
        free(made->held);
        free_data(a, made->data);
        free(made);
        return status;
    }
    dvt_lock_init_long(&made->lock, NULL, NULL);
    *state = made;
    return DVT_OK;
}

void dvt_state_free(dvt_state *state)
{
    if (state == NULL || state->number == 0)
        return;
    dvt_lock_destroy(&state->lock);
    dvt_device_state_free(state);
    free_data(state->artifact, state->data);
    free(state);
}

dvt_status dvt_state_reset(dvt_state *state, dvt_error *error)
{
    dvt_artifact *a = state->artifact;
    const program *p = &a->program;
    dvt_lock_take(&state->lock);
    for (uint32_t i = 0; i < p->buffer_count; i++) {
        if (p->buffers[i].kind == KIND_STATE && p->buffers[i].data_size > 0)
            memcpy(state->data[i], initial(a, i), (size_t)p->buffers[i].data_size);
        dvt_device_state_written(state, i);
    }
    dvt_lock_give(&state->lock);
    return a->is_mapped ? dvt_source_settle(a->file.source, DVT_OK, error) : DVT_OK;
}

/* ---- one buffer as a tensor ---- */

size_t dvt_state_count(const dvt_artifact *a)
{
    return a->state_count;
}

/* The buffer of a state's `index`-th, or DVT_NONE. */
static uint32_t buffer_at(const dvt_artifact *a, size_t index)
{
    for (uint32_t i = 0; i < a->program.buffer_count; i++)
        if (a->program.buffers[i].kind == KIND_STATE && index-- == 0)
            return i;
    return DVT_NONE;
}

dvt_status dvt_state_at(const dvt_artifact *a, size_t index, dvt_state_info *info)
{
    if (index >= a->state_count)
        return DVT_ERROR_ARGUMENT;
    const dvt_tensor_info *known =
        &a->infos[(size_t)a->program.input_count + a->program.output_count + index];
    bool varies = false;
    for (int32_t i = 0; i < known->ndim; i++)
        varies = varies || known->shape[i] < 0;
    dvt_state_info made = {.struct_size = sizeof made,
                           .ndim = known->ndim,
                           .name = known->name,
                           .shape = varies ? NULL : known->shape,
                           .dtype = known->dtype};
    return dvt_fill(info, &made, sizeof made);
}

typedef struct {
    dvt_tensor tensor;
    int64_t strides[DVT_MAX_RANK];
} state_tensor;

/* A buffer of a state, laid out as the program has it, which no run has looked at yet. */
static dvt_status tensor_of(const dvt_state *state, size_t index, state_tensor *made,
                            dvt_error *error)
{
    const dvt_artifact *a = state->artifact;
    dvt_state_info info = {.struct_size = sizeof info};
    if (dvt_state_at(a, index, &info) != DVT_OK)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "there is no buffer %zu of state", index);
    if (info.shape == NULL)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "the shape of '%.200s' varies",
                        info.name);
    uint32_t buffer = buffer_at(a, index);
    const buffer_record *b = &a->program.buffers[buffer];
    made->tensor = (dvt_tensor){.data = state->data[buffer],
                                .device = {DVT_CPU, 0},
                                .ndim = info.ndim,
                                .dtype = info.dtype,
                                .shape = (int64_t *)(uintptr_t)info.shape,
                                .strides = made->strides};
    bool sound = true, overlaps = false;
    for (uint32_t i = 0; i < b->rank; i++) {
        made->strides[i] = a->fixed_sizes[b->dims[b->rank + i]];
        sound = sound && made->strides[i] >= 0;
        overlaps = overlaps || (made->strides[i] == 0 && info.shape[i] > 1);
    }
    uint64_t elements = 0;
    if (!sound || overlaps || !dvt_reach(&made->tensor, &elements) ||
        elements > b->data_size / b->item ||
        (uint64_t)dvt_numel(&made->tensor) > b->data_size / b->item)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED,
                        "'%.200s' is laid out in a way that only the program knows", info.name);
    return DVT_OK;
}

static dvt_status check_given(const dvt_tensor *held, const dvt_tensor *given, dvt_error *error)
{
    bool same = given->ndim == held->ndim && dvt_same_dtype(given->dtype, held->dtype) &&
                given->device.type == DVT_CPU;
    for (int32_t i = 0; same && i < held->ndim; i++)
        same = given->shape[i] == held->shape[i];
    if (!same)
        return dvt_fail(error, DVT_ERROR_ARGUMENT,
                        "a tensor of another shape, dtype or device than the state's");
    if (given->data == NULL && !dvt_is_empty(held))
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "a tensor without data");
    return DVT_OK;
}

static dvt_status move(dvt_state *state, size_t index, const dvt_tensor *given, bool writes,
                       dvt_error *error)
{
    state_tensor held;
    dvt_status status = tensor_of(state, index, &held, error);
    if (status == DVT_OK)
        status = check_given(&held.tensor, given, error);
    if (status != DVT_OK || dvt_is_empty(&held.tensor))
        return status;
    uint32_t buffer = buffer_at(state->artifact, index);
    dvt_lock_take(&state->lock);
    if (writes)
        dvt_device_state_written(state, buffer);
    else
        status = dvt_device_state_fetch(state, buffer, error);
    if (status == DVT_OK)
        dvt_repack(writes ? &held.tensor : given, writes ? given : &held.tensor);
    dvt_lock_give(&state->lock);
    return status;
}

dvt_status dvt_state_read(dvt_state *state, size_t index, const dvt_tensor *to,
                          dvt_error *error)
{
    return move(state, index, to, false, error);
}

dvt_status dvt_state_write(dvt_state *state, size_t index, const dvt_tensor *from,
                           dvt_error *error)
{
    return move(state, index, from, true, error);
}
