/* Elements put or added into the places that one index for each of some dimensions names:
 * index_put, index_copy, index_fill. */
#include "internal.h"
#include "kernel_math.h"

#include <stdatomic.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

/* out = base, then for each position of the indices and of the dimensions that have none, out
 * at the place that they name meets the source. The dimensions with indices are those of MASK;
 * the indices' own, which broadcast, stand at FIRST among the positions. */
enum { ADDS, FIRST, MASK, FROM_END, ATTRIBUTES };
enum { BASE, SOURCE, INDICES }; /* operands */

typedef struct {
    int32_t rank; /* of the positions */
    int64_t shape[DVT_MAX_RANK];
    int64_t of_source[DVT_MAX_RANK], of_out[DVT_MAX_RANK];
    int64_t of_index[DVT_MAX_RANK][DVT_MAX_RANK]; /* one for each index */
    int32_t count;                                /* of the indices */
    int64_t sizes[DVT_MAX_RANK], steps[DVT_MAX_RANK];
    const int64_t *indices[DVT_MAX_RANK];
    const char *source;
    char *out;
    int64_t rows; /* positions along all dimensions but the last */
    int64_t item; /* bytes of an element */
    type_id type;
    bool adds, from_end;
    atomic_llong wrong; /* 1 + the size that an index goes beyond; 0: none does */
} put;

static dvt_status run_put(const dvt_call *c, dvt_error *error);

static dvt_status unfit(dvt_error *error)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "put: operands do not fit");
}

/* What indices of these shapes broadcast to; false: they do not. */
static bool common_shape(const dvt_call *c, int32_t *rank, int64_t *shape)
{
    *rank = 0;
    for (uint32_t i = INDICES; i < c->input_count; i++)
        *rank = c->inputs[i]->ndim > *rank ? c->inputs[i]->ndim : *rank;
    for (int32_t d = 0; d < *rank; d++)
        shape[d] = 1;
    for (uint32_t i = INDICES; i < c->input_count; i++) {
        const dvt_tensor *index = c->inputs[i];
        for (int32_t d = 0; d < index->ndim; d++) {
            int64_t *size = &shape[*rank - index->ndim + d];
            if (*size != 1 && index->shape[d] != 1 && index->shape[d] != *size)
                return false;
            *size = index->shape[d] != 1 ? index->shape[d] : *size;
        }
    }
    return true;
}

/* The positions of a call that `check_put` has seen the counts of; false: they do not fit. */
static bool set_positions(put *p, const dvt_call *c)
{
    const dvt_tensor *out = c->outputs[0], *source = c->inputs[SOURCE];
    int64_t mask = c->attributes[MASK].i, first = c->attributes[FIRST].i;
    int64_t shape[DVT_MAX_RANK];
    int32_t rank, own = 0;
    memset(p, 0, sizeof *p);
    if (!common_shape(c, &rank, shape))
        return false;
    for (int32_t d = 0; d < out->ndim; d++)
        own += !(mask >> d & 1);
    if (first < 0 || first > own || own + rank > DVT_MAX_RANK)
        return false;
    p->rank = own + rank;
    for (int32_t d = 0, n = 0; d < out->ndim; d++) {
        if (mask >> d & 1) {
            p->sizes[p->count] = out->shape[d];
            p->steps[p->count++] = out->strides[d];
            continue;
        }
        int32_t at = n < first ? n : n + rank;
        p->shape[at] = out->shape[d];
        p->of_out[at] = out->strides[d];
        n++;
    }
    for (int32_t d = 0; d < rank; d++)
        p->shape[first + d] = shape[d];
    for (int32_t i = 0; i < p->count; i++) {
        const dvt_tensor *index = c->inputs[INDICES + i];
        for (int32_t d = 0; d < index->ndim; d++)
            p->of_index[i][first + rank - index->ndim + d] =
                index->shape[d] == 1 ? 0 : index->strides[d];
    }
    bool fits = source->ndim <= p->rank;
    for (int32_t d = 0; fits && d < source->ndim; d++) {
        int32_t at = p->rank - source->ndim + d;
        fits = source->shape[d] == 1 || source->shape[d] == p->shape[at];
        p->of_source[at] = source->shape[d] == 1 ? 0 : source->strides[d];
    }
    return fits;
}

uint64_t dvt_put_positions(const dvt_call *call)
{
    put p;
    uint64_t count = 1;
    if (call->kernel->run != run_put || !set_positions(&p, call))
        return 0;
    for (int32_t d = 0; d < p.rank; d++)
        if (p.shape[d] == 0)
            return 0;
    for (int32_t d = 0; d < p.rank; d++)
        if (__builtin_mul_overflow(count, (uint64_t)p.shape[d], &count))
            return UINT64_MAX;
    return count;
}

static dvt_status check_put(const dvt_call *c, dvt_error *error)
{
    if (c->output_count != 1 || c->input_count <= INDICES || c->attribute_count != ATTRIBUTES)
        return unfit(error);
    const dvt_tensor *out = c->outputs[0], *base = c->inputs[BASE];
    type_id type = dvt_type_of(out->dtype);
    int64_t mask = c->attributes[MASK].i;
    bool fits = type != T_NONE && dvt_same_dtype(base->dtype, out->dtype) &&
                dvt_same_dtype(c->inputs[SOURCE]->dtype, out->dtype) &&
                base->ndim == out->ndim && mask >= 0 && mask >> out->ndim == 0 &&
                (uint32_t)__builtin_popcountll((uint64_t)mask) == c->input_count - INDICES;
    for (int32_t d = 0; fits && d < out->ndim; d++)
        fits = base->shape[d] == out->shape[d];
    for (uint32_t i = INDICES; fits && i < c->input_count; i++)
        fits = dvt_type_of(c->inputs[i]->dtype) == T_I64;
    put p;
    return fits && set_positions(&p, c) && dvt_put_positions(c) <= INT64_MAX ? DVT_OK
                                                                             : unfit(error);
}

/* One element set; the type is known to the compiler. */
#define SET(T, at, from) *(T *)(void *)(at) = *(const T *)(const void *)(from)
#define ADD(T, U, at, from)                                                                    \
    *(T *)(void *)(at) =                                                                       \
        (T)((U) * (const T *)(void *)(at) + (U) * (const T *)(const void *)(from))

INLINE void meet(char *at, const char *from, type_id type, const bool adds)
{
    uint16_t *half = (uint16_t *)(void *)at;
    uint16_t given;
    switch (type) {
    case T_F64:
    case T_I64:
        if (!adds)
            SET(uint64_t, at, from);
        else if (type == T_F64)
            ADD(double, double, at, from);
        else
            ADD(int64_t, uint64_t, at, from);
        break;
    case T_F32:
    case T_I32:
        if (!adds)
            SET(uint32_t, at, from);
        else if (type == T_F32)
            ADD(float, float, at, from);
        else
            ADD(int32_t, uint32_t, at, from);
        break;
    case T_F16:
    case T_BF16:
    case T_I16:
        memcpy(&given, from, sizeof given);
        if (!adds)
            *half = given;
        else if (type == T_F16)
            *half = narrow_half(widen_half(*half) + widen_half(given));
        else if (type == T_BF16)
            *half = narrow_bfloat16(widen_bfloat16(*half) + widen_bfloat16(given));
        else
            *half = (uint16_t)(*half + given);
        break;
    default:
        if (!adds)
            *at = *from;
        else if (type == T_BOOL)
            *at = *at || *from;
        else
            *at = (char)((unsigned char)*at + (unsigned char)*from);
        break;
    }
}

INLINE void put_rows(put *p, int64_t begin, int64_t end, type_id type, const bool adds)
{
    const int32_t last = p->rank - 1;
    int64_t at[DVT_MAX_RANK] = {0}, size = p->item;
    for (int64_t row = 0; row < p->rows; row++) {
        int64_t source = 0, out = 0, found[DVT_MAX_RANK] = {0};
        for (int32_t d = 0; d < last; d++) {
            source += at[d] * p->of_source[d];
            out += at[d] * p->of_out[d];
            for (int32_t i = 0; i < p->count; i++)
                found[i] += at[d] * p->of_index[i][d];
        }
        for (int64_t n = begin; n < end; n++) {
            int64_t place = out + n * p->of_out[last];
            for (int32_t i = 0; i < p->count; i++) {
                int64_t index = p->indices[i][found[i] + n * p->of_index[i][last]];
                index += p->from_end && index < 0 ? p->sizes[i] : 0;
                if (index < 0 || index >= p->sizes[i]) {
                    atomic_store(&p->wrong, p->sizes[i] + 1);
                    return;
                }
                place += index * p->steps[i];
            }
            meet(p->out + place * size, p->source + (source + n * p->of_source[last]) * size,
                 type, adds);
        }
        for (int32_t d = last - 1; d >= 0 && ++at[d] == p->shape[d]; d--)
            at[d] = 0;
    }
}

/* Columns from begin to end of all rows: positions along the last dimension. */
static void put_any(void *context, int64_t begin, int64_t end)
{
    put *p = context;
    put_rows(p, begin, end, p->type, p->adds);
}

static void add_floats(void *context, int64_t begin, int64_t end)
{
    put_rows(context, begin, end, T_F32, true);
}

static void set_floats(void *context, int64_t begin, int64_t end)
{
    put_rows(context, begin, end, T_F32, false);
}

static dvt_status run_put(const dvt_call *c, dvt_error *error)
{
    const dvt_tensor *out = c->outputs[0];
    put p;
    if (out != c->inputs[BASE]) /* else the base's own memory is written to */
        dvt_copy_tensor(out, c->inputs[BASE]);
    if (!set_positions(&p, c))
        return unfit(error);
    p.source = dvt_data(c->inputs[SOURCE]);
    p.out = dvt_data(out);
    p.item = out->dtype.bits / 8;
    p.type = dvt_type_of(out->dtype);
    p.adds = c->attributes[ADDS].i != 0;
    p.from_end = c->attributes[FROM_END].i != 0;
    for (int32_t i = 0; i < p.count; i++)
        p.indices[i] = (const int64_t *)(const void *)dvt_data(c->inputs[INDICES + i]);
    if (p.rank == 0) /* one element, as a row of one */
        p.shape[p.rank++] = 1;
    int64_t columns = p.shape[p.rank - 1];
    p.rows = 1;
    for (int32_t d = 0; d < p.rank - 1; d++)
        p.rows *= p.shape[d];
    if (p.rows == 0 || columns == 0)
        return DVT_OK;
    bool apart = p.of_out[p.rank - 1] != 0; /* no two columns have a place in common */
    for (int32_t i = 0; i < p.count; i++)
        apart = apart && p.of_index[i][p.rank - 1] == 0;
    dvt_body body = p.type != T_F32 ? put_any : p.adds ? add_floats : set_floats;
    c->parallel(columns, apart ? 8192 / p.rows + 16 : columns, body, &p);
    if (p.wrong == 0)
        return DVT_OK;
    return dvt_fail(error, DVT_ERROR_INDEX,
                    "an index is out of bounds for a dimension of size %lld",
                    (long long)p.wrong - 1);
}

bool dvt_is_put(const dvt_kernel *kernel)
{
    return kernel->run == run_put;
}

const dvt_kernel dvt_put_kernels[] = {
    {sizeof(dvt_kernel), 1, "put", check_put, run_put},
};
const size_t dvt_put_count = sizeof dvt_put_kernels / sizeof(dvt_kernel);
