/* The outputs of one call: in memory of their own, or in the caller's. */
#include "call.h"
#include "defined.h"
#include "stream.h"

#include <string.h>

static bool wants(const dvt_tensor *results, uint32_t output)
{
    return results != NULL && results[output].data != NULL;
}

static dvt_status check_result(const dvt_tensor *given, const dvt_tensor *expected,
                               uint32_t output, dvt_error *error)
{
    bool same = dvt_same_dtype(given->dtype, expected->dtype) && given->ndim == expected->ndim;
    for (int32_t i = 0; same && i < given->ndim; i++)
        same = given->shape[i] == expected->shape[i];
    return same ? DVT_OK
                : dvt_fail(error, DVT_ERROR_ARGUMENT,
                           "the memory given for output %u is of another shape, dtype or "
                           "device than the output",
                           output);
}

/* Whether an output is to be made on its device. */
static bool is_made_there(const dvt_tensor *results, uint32_t output)
{
    return results != NULL && results[output].data == NULL &&
           results[output].device.type == DVT_DEVICE_BUFFER;
}

static bool share_memory(const dvt_tensor *one, const dvt_tensor *other)
{
    uintptr_t low[2], high[2];
    if (dvt_is_empty(one) || dvt_is_empty(other) || dvt_on_other_devices(one, other))
        return false;
    dvt_bounds(one, &low[0], &high[0]);
    dvt_bounds(other, &low[1], &high[1]);
    return low[0] < high[1] && low[1] < high[0];
}

/* All that is wrong with the caller's memory, before anything runs. */
static dvt_status check_results(const dvt_artifact *a, const frame *f,
                                const dvt_tensor *results, dvt_error *error)
{
    const program *p = &a->program;
    for (uint32_t i = 0; i < p->output_count; i++) {
        if (is_made_there(results, i) && dvt_output_plugin(a, i) == NULL)
            return dvt_fail(error, DVT_ERROR_ARGUMENT,
                            "output %u cannot be made on a device: the host makes it, or uses "
                            "it itself",
                            i);
        if (!wants(results, i))
            continue;
        dvt_status status = check_result(&results[i], &f->tensors[p->outputs[i]], i, error);
        if (status == DVT_OK && results[i].device.type != DVT_CPU)
            status = dvt_device_tensor_check(a, p->outputs[i], &results[i], "output", i, error);
        if (status != DVT_OK)
            return status;
        for (uint32_t j = 0; j < i; j++)
            if (wants(results, j) && share_memory(&results[i], &results[j]))
                return dvt_fail(error, DVT_ERROR_ARGUMENT,
                                "the memory given for outputs %u and %u overlaps", j, i);
    }
    return DVT_OK;
}

/* Whether the program can write an output where the caller wants it: all of it is the output's,
 * it lies as the program writes it, and no input that is still read lies there. */
static bool fits(const program *p, const frame *f, uint32_t output, const dvt_tensor *inputs,
                 const dvt_tensor *given)
{
    uint32_t shown = p->outputs[output];
    const buffer_record *b = &p->buffers[shown];
    if (b->kind != KIND_OUTPUT || b->owner != shown || f->gaps[shown] ||
        !dvt_fits_in_place(given, &f->tensors[shown], b->item))
        return false;
    for (uint32_t i = 0; i < p->input_count; i++)
        if (share_memory(given, &inputs[i]))
            return false;
    return true;
}

dvt_status dvt_make_outputs(const dvt_artifact *a, frame *f, const dvt_tensor *inputs,
                            const dvt_tensor *results, dvt_managed **outputs, dvt_error *error)
{
    const program *p = &a->program;
    dvt_status status = results != NULL ? check_results(a, f, results, error) : DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < p->output_count; i++) {
        uint32_t shown = p->outputs[i], owner = p->buffers[shown].owner;
        if (p->buffers[shown].handed_out)
            continue; /* the host will make it */
        if (is_made_there(results, i)) {
            status = dvt_new_device_output(dvt_output_plugin(a, i), &f->tensors[shown],
                                           f->extents[owner], &outputs[i], error);
            if (status != DVT_OK)
                continue;
            f->tensors[owner].data = f;
            status = dvt_device_output(a, f, i, &outputs[i]->tensor, error);
            continue;
        }
        if (wants(results, i) && results[i].device.type != DVT_CPU) {
            f->tensors[owner].data = f; /* the device alone writes it */
            status = dvt_device_output(a, f, i, &results[i], error);
            continue;
        }
        if (wants(results, i) && fits(p, f, i, inputs, &results[i])) {
            f->tensors[owner].data = dvt_data(&results[i]);
            dvt_bind_views(p, f, owner);
            continue;
        }
        outputs[i] = dvt_new_output(&a->allocator, &f->tensors[shown], f->extents[owner]);
        if (outputs[i] == NULL)
            return dvt_fail(error, DVT_ERROR_MEMORY, "no memory for output %u", i);
        f->tensors[owner].data = outputs[i]->tensor.data;
        dvt_bind_views(p, f, owner);
        outputs[i]->tensor.data = (char *)outputs[i]->tensor.data + f->offsets[shown];
    }
    return status;
}

static void drop(dvt_managed **output)
{
    if (*output != NULL && (*output)->deleter != NULL)
        (*output)->deleter(*output);
    *output = NULL;
}

bool dvt_outputs_wait(const program *p, const dvt_tensor *results, dvt_managed *const *outputs)
{
    for (uint32_t i = 0; i < p->output_count; i++)
        if (wants(results, i) && outputs[i] != NULL)
            return true;
    return false;
}

void dvt_finish_outputs(const program *p, frame *f, const dvt_tensor *results,
                        dvt_managed **outputs)
{
    for (uint32_t i = 0; i < p->output_count; i++) {
        if (p->buffers[p->outputs[i]].handed_out) {
            outputs[i] = f->held[p->outputs[i]];
            f->held[p->outputs[i]] = NULL;
        }
        if (!wants(results, i) || outputs[i] == NULL)
            continue;
        if (!dvt_is_empty(&results[i]))
            dvt_repack(&results[i], &outputs[i]->tensor);
        drop(&outputs[i]);
    }
}

void dvt_drop_outputs(const program *p, dvt_managed **outputs)
{
    for (uint32_t i = 0; i < p->output_count; i++)
        drop(&outputs[i]);
}
