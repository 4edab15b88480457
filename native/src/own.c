/* Instructions that run nobody's code but ours: kernels, and copies between buffers. */
#include "call.h"

#include <stdlib.h>
#include <string.h>

bool dvt_is_own(const instruction *in)
{
    return in->device == 0 && (in->opcode == OP_KERNEL || in->opcode == OP_COPY);
}

static dvt_status run_copy(const program *p, const dvt_call *call, const instruction *in,
                           dvt_error *error)
{
    const dvt_tensor *to = call->outputs[0], *from = call->inputs[0];
    if (p->buffers[in->outputs[0]].root != p->buffers[in->inputs[0]].root) {
        dvt_copy_tensor(to, from);
        return DVT_OK;
    }
    if (dvt_is_empty(from))
        return DVT_OK;
    /* Both may share elements: go through a copy of the source. */
    int64_t rows[DVT_MAX_RANK], step = p->buffers[in->inputs[0]].item;
    dvt_tensor between = *from;
    between.strides = rows;
    between.data = malloc((size_t)(dvt_numel(from) * step));
    if (between.data == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    step = 1;
    for (int32_t i = from->ndim - 1; i >= 0; i--) {
        rows[i] = step;
        step *= from->shape[i];
    }
    dvt_copy_tensor(&between, from);
    dvt_copy_tensor(to, &between);
    free(between.data);
    return DVT_OK;
}

/* Generated kernels return a status and leave the words to us. */
static dvt_status run_kernel(const dvt_call *call, dvt_error *error)
{
    dvt_status status = call->kernel->run(call, error);
    if (status == DVT_OK || status == DVT_ERROR_CANCELLED ||
        (error != NULL && error->message[0] != 0))
        return status;
    const char *text = "a kernel failed";
    if (status == DVT_ERROR_INDEX)
        text = "index out of range in self";
    if (status == DVT_ERROR_BOUNDS)
        text = "index is out of bounds for the dimension it selects from";
    if (status == DVT_ERROR_DIVISOR)
        text = "ZeroDivisionError";
    if (status == DVT_ERROR_DIVIDE_BY_ZERO)
        text = "an integer was divided by zero";
    if (status == DVT_ERROR_MALFORMED)
        text = "generated kernel: reaches outside a buffer";
    return dvt_fail(error, status, "%s", text);
}

dvt_status dvt_run_own(const program *p, const frame *f, uint32_t index, dvt_error *error)
{
    const instruction *in = &p->instructions[index];
    if (in->opcode == OP_KERNEL)
        return run_kernel(&f->calls[index], error);
    return run_copy(p, &f->calls[index], in, error);
}

/* Keeps the least, 0: none yet, and the last. Several runs may end at once. */
void dvt_note_time(const dvt_artifact *a, uint32_t index, uint64_t start, uint64_t end)
{
    _Atomic(uint64_t) *kept = &a->times[index * (size_t)TIMES];
    uint64_t before = atomic_load_explicit(&kept[TIME_LEAST], memory_order_relaxed);
    uint64_t taken = end > start ? end - start : 1;
    while ((before == 0 || taken < before) &&
           !atomic_compare_exchange_weak_explicit(&kept[TIME_LEAST], &before, taken,
                                                  memory_order_relaxed, memory_order_relaxed))
        continue;
    atomic_store_explicit(&kept[TIME_START], start, memory_order_relaxed);
    atomic_store_explicit(&kept[TIME_TAKEN], taken, memory_order_relaxed);
}
