/* Kernels that move elements: copy (with conversion), where, take, cat, size; the kernel table.
 */
#include "internal.h"
#include "iterate.h"

#include <stdatomic.h>
#include <string.h>

static dvt_status unfit(dvt_error *error, const char *name)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "%s: operands do not fit", name);
}

static dvt_status check_copy(const dvt_call *c, dvt_error *error)
{
    bool fits = c->output_count == 1 && c->input_count == 1 && c->attribute_count == 0 &&
                dvt_broadcasts(c->inputs[0], c->outputs[0]) &&
                dvt_can_copy(c->outputs[0]->dtype, c->inputs[0]->dtype);
    return fits ? DVT_OK : unfit(error, "copy");
}

static dvt_status run_copy(const dvt_call *c, dvt_error *error)
{
    (void)error;
    dvt_copy_tensor(c->outputs[0], c->inputs[0]);
    return DVT_OK;
}

static dvt_status check_size(const dvt_call *c, dvt_error *error)
{
    bool fits = c->output_count == 1 && c->input_count == 0 && c->attribute_count == 1 &&
                c->outputs[0]->ndim == 0 && dvt_type_of(c->outputs[0]->dtype) != T_NONE;
    return fits ? DVT_OK : unfit(error, "size");
}

static dvt_status run_size(const dvt_call *c, dvt_error *error)
{
    (void)error;
    dvt_store_int(c->outputs[0], c->attributes[0].i);
    return DVT_OK;
}

static dvt_status check_arange(const dvt_call *c, dvt_error *error)
{
    bool fits = c->output_count == 1 && c->input_count == 0 && c->attribute_count == 2 &&
                c->outputs[0]->ndim == 1 && dvt_type_of(c->outputs[0]->dtype) == T_I64;
    return fits ? DVT_OK : unfit(error, "arange");
}

static dvt_status run_arange(const dvt_call *c, dvt_error *error)
{
    (void)error;
    const dvt_tensor *out = c->outputs[0];
    uint64_t value = (uint64_t)c->attributes[0].i, step = (uint64_t)c->attributes[1].i;
    int64_t *data = (int64_t *)(void *)dvt_data(out);
    for (int64_t i = 0; i < out->shape[0]; i++, value += step)
        data[i * out->strides[0]] = (int64_t)value;
    return DVT_OK;
}

#define WHERE(T)                                                                               \
    static void where_##T(int64_t n, char *const *p, const int64_t *s, const void *context)    \
    {                                                                                          \
        (void)context;                                                                         \
        for (int64_t i = 0; i < n; i++)                                                        \
            *(T *)(void *)(p[0] + i * s[0]) =                                                  \
                *(const uint8_t *)(p[1] + i * s[1])                                            \
                    ? *(const T *)(const void *)(p[2] + i * s[2])                              \
                    : *(const T *)(const void *)(p[3] + i * s[3]);                             \
    }
WHERE(uint8_t)
WHERE(uint16_t)
WHERE(uint32_t)
WHERE(uint64_t)

static dvt_status check_where(const dvt_call *c, dvt_error *error)
{
    bool fits = c->output_count == 1 && c->input_count == 3 && c->attribute_count == 0 &&
                dvt_type_of(c->inputs[0]->dtype) == T_BOOL &&
                dvt_type_of(c->outputs[0]->dtype) != T_NONE;
    for (uint32_t i = 0; fits && i < 3; i++)
        fits = dvt_broadcasts(c->inputs[i], c->outputs[0]) &&
               (i == 0 || dvt_same_dtype(c->inputs[i]->dtype, c->outputs[0]->dtype));
    return fits ? DVT_OK : unfit(error, "where");
}

static dvt_status run_where(const dvt_call *c, dvt_error *error)
{
    (void)error;
    const dvt_tensor *tensors[4] = {c->outputs[0], c->inputs[0], c->inputs[1], c->inputs[2]};
    uint8_t bits = c->outputs[0]->dtype.bits;
    dvt_loop loop = bits == 8    ? where_uint8_t
                    : bits == 16 ? where_uint16_t
                    : bits == 32 ? where_uint32_t
                                 : where_uint64_t;
    dvt_iterate(4, tensors, loop, NULL, 16384);
    return DVT_OK;
}

/* ---- take: out[a…, i…, b…] = table[a…, index[i…], b…]; the axis is an attribute ---- */

typedef struct {
    const dvt_tensor *out, *table, *index;
    int32_t axis;
    atomic_llong wrong; /* 1 + the position of a bad index, 0 when there is none */
} take;

static dvt_status check_take(const dvt_call *c, dvt_error *error)
{
    bool fits = c->output_count == 1 && c->input_count == 2 && c->attribute_count == 1 &&
                dvt_type_of(c->inputs[1]->dtype) == T_I64 &&
                dvt_same_dtype(c->inputs[0]->dtype, c->outputs[0]->dtype);
    if (fits) {
        const dvt_tensor *out = c->outputs[0], *table = c->inputs[0], *index = c->inputs[1];
        int64_t axis = c->attributes[0].i;
        fits = axis >= 0 && axis < table->ndim && out->ndim == table->ndim - 1 + index->ndim;
        for (int32_t d = 0; fits && d < out->ndim; d++) {
            int64_t expected = d < axis                 ? table->shape[d]
                               : d < axis + index->ndim ? index->shape[d - axis]
                                                        : table->shape[d - index->ndim + 1];
            fits = out->shape[d] == expected;
        }
    }
    return fits ? DVT_OK : unfit(error, "take");
}

/* One index at a time: the slices of table and out that belong to it. */
static void take_range(void *context, int64_t begin, int64_t end)
{
    take *t = context;
    int32_t fixed = t->index->ndim, rank = t->table->ndim - 1;
    int64_t shape[DVT_MAX_RANK], to_steps[DVT_MAX_RANK], from_steps[DVT_MAX_RANK];
    for (int32_t d = 0, n = 0; d < t->table->ndim; d++) {
        if (d == t->axis)
            continue;
        shape[n] = t->table->shape[d];
        from_steps[n] = t->table->strides[d];
        to_steps[n++] = t->out->strides[d < t->axis ? d : d - 1 + fixed];
    }
    int64_t item = t->out->dtype.bits / 8;
    for (int64_t i = begin; i < end; i++) {
        int64_t rest = i, at = 0, to = 0;
        for (int32_t d = fixed - 1; d >= 0; d--) {
            int64_t place = rest % t->index->shape[d];
            rest /= t->index->shape[d];
            at += place * t->index->strides[d];
            to += place * t->out->strides[t->axis + d];
        }
        int64_t chosen = ((const int64_t *)(const void *)dvt_data(t->index))[at];
        if (chosen < 0 || chosen >= t->table->shape[t->axis]) {
            atomic_store(&t->wrong, i + 1);
            return;
        }
        dvt_tensor target = {dvt_data(t->out) + to * item,
                             {DVT_CPU, 0},
                             rank,
                             t->out->dtype,
                             shape,
                             to_steps,
                             0};
        dvt_tensor source = target;
        source.data = dvt_data(t->table) + chosen * t->table->strides[t->axis] * item;
        source.strides = from_steps;
        dvt_copy_tensor(&target, &source);
    }
}

static dvt_status run_take(const dvt_call *c, dvt_error *error)
{
    take t = {c->outputs[0], c->inputs[0], c->inputs[1], (int32_t)c->attributes[0].i, 0};
    if (dvt_numel(t.out) == 0 && dvt_numel(t.index) == 0)
        return DVT_OK;
    int64_t count = dvt_numel(t.index);
    int64_t each = count > 0 ? dvt_numel(t.out) / count : 1;
    c->parallel(count, 16384 / (each + 1), take_range, &t);
    if (t.wrong == 0)
        return DVT_OK;
    return dvt_fail(
        error, DVT_ERROR_INDEX,
        "an index (element %lld of the index tensor) is out of range for a dimension "
        "of size %lld",
        (long long)t.wrong - 1, (long long)t.table->shape[t.axis]);
}

/* ---- cat: the inputs one after the other along the axis ---- */

static dvt_status check_cat(const dvt_call *c, dvt_error *error)
{
    bool fits = c->output_count == 1 && c->input_count >= 1 && c->attribute_count == 1;
    const dvt_tensor *out = fits ? c->outputs[0] : NULL;
    int64_t axis = fits ? c->attributes[0].i : 0, total = 0;
    fits = fits && axis >= 0 && axis < out->ndim;
    for (uint32_t i = 0; fits && i < c->input_count; i++) {
        const dvt_tensor *in = c->inputs[i];
        fits = in->ndim == out->ndim && dvt_same_dtype(in->dtype, out->dtype);
        for (int32_t d = 0; fits && d < out->ndim; d++)
            fits = d == axis || in->shape[d] == out->shape[d];
        if (fits)
            fits = !__builtin_add_overflow(total, in->shape[axis], &total);
    }
    return fits && total == out->shape[axis] ? DVT_OK : unfit(error, "cat");
}

static dvt_status run_cat(const dvt_call *c, dvt_error *error)
{
    (void)error;
    const dvt_tensor *out = c->outputs[0];
    int64_t axis = c->attributes[0].i, at = 0;
    for (uint32_t i = 0; i < c->input_count; at += c->inputs[i++]->shape[axis]) {
        const dvt_tensor *in = c->inputs[i];
        dvt_tensor part = *out;
        if (dvt_numel(in) == 0)
            continue; /* it may have no place in the output */
        part.shape = in->shape;
        part.data = dvt_data(out) + at * out->strides[axis] * (out->dtype.bits / 8);
        part.byte_offset = 0;
        dvt_copy_tensor(&part, in);
    }
    return DVT_OK;
}

const dvt_kernel dvt_move_kernels[] = {
    {sizeof(dvt_kernel), 1, "copy", check_copy, run_copy},
    {sizeof(dvt_kernel), 1, "size", check_size, run_size},
    {sizeof(dvt_kernel), 1, "arange", check_arange, run_arange},
    {sizeof(dvt_kernel), 1, "where", check_where, run_where},
    {sizeof(dvt_kernel), 1, "take", check_take, run_take},
    {sizeof(dvt_kernel), 1, "cat", check_cat, run_cat},
};
const size_t dvt_move_count = sizeof dvt_move_kernels / sizeof(dvt_kernel);
