/* What one call of a file may take: steps and bytes, counted before anything runs. A view of
 * stride 0 makes a file of a few bytes describe work for centuries. */
#include "internal.h"

#include <unistd.h>

#define DEFAULT_WORK (1ull << 46) /* some hours of one core; large models take 2^43 */

/* Built-in kernels cannot be stopped within a row. So many elements are more than memory is
 * likely to hold, and take seconds. */
#define LONGEST_ROW (1ull << 34)

uint64_t dvt_default_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages / 4 * 3 * (uint64_t)size : 1ull << 32;
}

void dvt_limits_set(dvt_artifact *a, const dvt_open_options *options)
{
    a->max_work = options->max_work != 0 ? options->max_work
                  : a->trusted           ? UINT64_MAX
                                         : DEFAULT_WORK;
    a->max_memory = options->max_memory != 0 ? options->max_memory
                    : a->trusted             ? UINT64_MAX
                                             : dvt_default_memory();
}

dvt_status dvt_charge_memory(const dvt_artifact *a, uint64_t *total, uint64_t bytes,
                             const char *what, dvt_error *error)
{
    if (!__builtin_add_overflow(*total, bytes, total) && *total <= a->max_memory)
        return DVT_OK;
    return dvt_fail(
        error, DVT_ERROR_LIMIT,
        "%s need %llu bytes, and go beyond the limit of %llu bytes for this file; if "
        "that is right, raise the limit (dovetail.load(path, max_memory=...), "
        "dvt_open_options.max_memory) or trust the file",
        what, (unsigned long long)bytes, (unsigned long long)a->max_memory);
}

dvt_status dvt_charge_work(const dvt_artifact *a, uint64_t *total, uint64_t steps, uint32_t at,
                           dvt_error *error)
{
    if (!__builtin_add_overflow(*total, steps, total) && *total <= a->max_work)
        return DVT_OK;
    return dvt_fail(
        error, DVT_ERROR_LIMIT,
        "instruction %u takes %llu steps, and goes beyond the limit of %llu steps of "
        "a call for this file; if that is right, raise the limit "
        "(dovetail.load(path, max_work=...), dvt_open_options.max_work) or trust "
        "the file",
        at, (unsigned long long)steps, (unsigned long long)a->max_work);
}

static uint64_t largest(const dvt_tensor *const *tensors, uint32_t count)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t elements = tensors[i] != NULL ? (uint64_t)dvt_numel(tensors[i]) : 0;
        most = elements > most ? elements : most;
    }
    return most;
}

uint64_t dvt_work_of(const dvt_call *call)
{
    uint64_t written = largest(call->outputs, call->output_count);
    uint64_t read = largest(call->inputs, call->input_count);
    uint64_t steps = written > read ? written : read, row = 1;
    bool is_product = call->kernel != NULL && dvt_is_product(call->kernel);
    if (is_product)
        row = (uint64_t)call->inputs[0]->shape[call->inputs[0]->ndim - 1];
    else if (call->kernel != NULL && dvt_is_sort(call->kernel))
        row = (uint64_t)call->inputs[0]->shape[call->attributes[0].i];
    else if (written > 0)
        row = read / written;
    if (is_product && __builtin_mul_overflow(written, row, &steps))
        return UINT64_MAX;
    if (call->kernel != NULL && dvt_is_sort(call->kernel) &&
        __builtin_mul_overflow(steps, 64 - __builtin_clzll(row | 1), &steps))
        return UINT64_MAX;
    uint64_t put = call->kernel != NULL ? dvt_put_positions(call) : 0;
    steps = put > steps ? put : steps;
    return call->kernel != NULL && row > LONGEST_ROW ? UINT64_MAX : steps;
}
