/* Native code for the fuzzer's seeds: a kernel with a call outside, a call inside and
 * constants, so that its object has relocations of every kind that is loaded.
 * tests/native/seeds.py has the same kernel as kernel IR. */
#include "dovetail.h"

#include <string.h>

static const float factors[4] = {1, 2, 3, 4};

static __attribute__((noinline)) void scale(float *y, int64_t count, int64_t which)
{
    for (int64_t i = 0; i < count; i++)
        y[i] *= factors[which & 3];
}

dvt_status twice(const dvt_call *call, dvt_error *error);
dvt_status twice(const dvt_call *call, dvt_error *error)
{
    const dvt_tensor *x = call->inputs[0], *y = call->outputs[0];
    int64_t count = call->attributes[0].i;
    (void)error;
    memcpy((char *)y->data + y->byte_offset, (const char *)x->data + x->byte_offset,
           (size_t)count * sizeof(float));
    scale((float *)(void *)((char *)y->data + y->byte_offset), count, 1);
    return DVT_OK;
}

/* Fails in as many ways as there are, without words. */
dvt_status moody(const dvt_call *call, dvt_error *error);
dvt_status moody(const dvt_call *call, dvt_error *error)
{
    static const dvt_status statuses[] = {DVT_OK, DVT_ERROR_INDEX, DVT_ERROR_BOUNDS,
                                          DVT_ERROR_DIVISOR, DVT_ERROR_HOST};
    dvt_status status = twice(call, error);
    return status != DVT_OK ? status : statuses[call->attributes[0].i % 5];
}

/* twice under the name by which dvt_use_code looks for it. */
dvt_status k0(const dvt_call *call, dvt_error *error) __attribute__((alias("twice")));
