/* State of an open file, and memory of the caller's for its outputs. */
#include "fuzz.h"
#include "operands.h"

#include <stdlib.h>
#include <string.h>

#define LARGEST (1 << 20) /* bytes of a tensor that is worth trying */

/* Memory for a tensor of a dtype's elements, exactly; false: it would be too large. */
static bool make_memory(dvt_tensor *t)
{
    uint64_t size = (t->dtype.bits + 7u) / 8u;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(size, (uint64_t)t->shape[i], &size) ||
            size > LARGEST)
            return false;
    t->data = malloc((size_t)size);
    return t->data != NULL;
}

/* Reads each buffer and writes it back, which changes nothing. */
static uint64_t look_at(const dvt_artifact *a, dvt_state *state)
{
    uint64_t digest = 0;
    dvt_state_info info = {.struct_size = sizeof info};
    for (size_t i = 0; dvt_state_at(a, i, &info) == DVT_OK; i++) {
        dvt_tensor t = {.device = {DVT_CPU, 0},
                        .ndim = info.ndim,
                        .dtype = info.dtype,
                        .shape = (int64_t *)(uintptr_t)info.shape};
        dvt_error error = {0, ""};
        digest = digest * 31 + strlen(info.name);
        if (info.shape == NULL || !make_memory(&t))
            continue;
        if (dvt_state_read(state, i, &t, &error) == DVT_OK) {
            digest = digest * 31 + tensor_digest(&t);
            if (dvt_state_write(state, i, &t, &error) != DVT_OK)
                finding("what was read of a state cannot be written to it");
        } else if (error.message[0] == 0) {
            finding("an error of a state that says nothing");
        }
        free(t.data);
    }
    return digest;
}

dvt_state *fuzz_state(dvt_artifact *a, uint64_t *digest)
{
    dvt_error error = {0, ""};
    dvt_state *own = one_in(2) ? dvt_own_state(a) : NULL, *made = NULL;
    if (own != NULL && one_in(3) && dvt_state_reset(own, &error) == DVT_OK)
        *digest += look_at(a, own);
    dvt_status status = dvt_state_new(a, own, &made, &error);
    *digest = *digest * 31 + (uint64_t)(int64_t)status;
    if (status != DVT_OK && error.message[0] == 0)
        finding("an error of a new state that says nothing");
    if (status == DVT_OK)
        *digest += look_at(a, made);
    return status == DVT_OK ? made : NULL;
}

bool fuzz_results(dvt_artifact *a, const dvt_tensor *given, dvt_tensor *results,
                  int64_t (*shapes)[DVT_MAX_RANK])
{
    bool made = true;
    for (size_t i = 0; i < dvt_output_count(a); i++) {
        const dvt_tensor_info *info = dvt_output_info(a, i);
        results[i] = (dvt_tensor){.device = {DVT_CPU, 0},
                                  .ndim = info->ndim,
                                  .dtype = info->dtype,
                                  .shape = shapes[i]};
        made = made && dvt_output_shape(a, given, dvt_input_count(a), i, shapes[i],
                                        (size_t)info->ndim, NULL) == DVT_OK;
        if (made && !one_in(4) && make_memory(&results[i]) && one_in(20) && info->ndim > 0)
            shapes[i][0]++; /* not the output's */
    }
    return made;
}
