/* Kernels that move elements: lookups, concatenation, writes to a place. */
#include "device.h"

static int64_t product_of(const int64_t *shape, int32_t from, int32_t to)
{
    int64_t count = 1;
    for (int32_t i = from; i < to; i++)
        count *= shape[i];
    return count;
}

static float *element(const sim_tensor *t, unsigned char *memory, int64_t offset)
{
    return sim_floats(t, memory) + offset;
}

/* Rows of a table, one an index. */
const char *sim_run_embedding(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *table = sim_input(c, 0), *index = sim_input(c, 1), *y = c->tensors;
    if (table->rank != 2 || y->rank != index->rank + 1 ||
        y->shape[y->rank - 1] != table->shape[1])
        return SIM_MISFIT;
    int64_t width = table->shape[1];
    for (int64_t n = 0, count = sim_count(index); n < count; n++) {
        int64_t row =
            sim_integers(index, memory)[sim_offset(n, index->rank, index->shape, index)];
        if (row < 0 || row >= table->shape[0])
            return "index out of range in self";
        for (int64_t k = 0; k < width; k++)
            *element(y, memory, sim_offset(n * width + k, y->rank, y->shape, y)) =
                *element(table, memory, row * table->strides[0] + k * table->strides[1]);
    }
    return NULL;
}

/* Each element of `y` in row-major order, seen as (outer, dim, inner) around a dimension. */
static bool has_dim(const sim_command *c, const sim_tensor *t)
{
    return c->ints[0] >= 0 && c->ints[0] < t->rank;
}

const char *sim_run_gather(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *x = sim_input(c, 0), *index = sim_input(c, 1), *y = c->tensors;
    if (!has_dim(c, x) || y->rank != x->rank || index->rank > 1 ||
        y->shape[c->ints[0]] != sim_count(index))
        return SIM_MISFIT;
    int32_t dim = (int32_t)c->ints[0];
    for (int32_t i = 0; i < x->rank; i++)
        if (i != dim && x->shape[i] != y->shape[i])
            return SIM_MISFIT;
    int64_t inner = product_of(y->shape, dim + 1, y->rank);
    for (int64_t n = 0, count = sim_count(y); n < count; n++) {
        int64_t at = n / inner % y->shape[dim];
        int64_t row = sim_integers(index, memory)[index->rank ? at * index->strides[0] : 0];
        if (row < 0 || row >= x->shape[dim])
            return "index out of range in self";
        int64_t from =
            n / inner / y->shape[dim] * x->shape[dim] * inner + row * inner + n % inner;
        *element(y, memory, sim_offset(n, y->rank, y->shape, y)) =
            *element(x, memory, sim_offset(from, x->rank, x->shape, x));
    }
    return NULL;
}

/* The reverse of cat. */
const char *sim_run_split(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *x = sim_input(c, 0);
    if (!has_dim(c, x))
        return SIM_MISFIT;
    int32_t dim = (int32_t)c->ints[0];
    int64_t inner = product_of(x->shape, dim + 1, x->rank), start = 0;
    for (uint32_t k = 0; k < c->outputs; k++) {
        const sim_tensor *y = &c->tensors[k];
        for (int32_t i = 0; i < x->rank; i++)
            if (x->rank != y->rank || (i != dim && x->shape[i] != y->shape[i]))
                return SIM_MISFIT;
        if (y->shape[dim] > x->shape[dim] - start)
            return SIM_MISFIT;
        for (int64_t n = 0, count = sim_count(y); n < count; n++) {
            int64_t row = n / inner % y->shape[dim], outer = n / inner / y->shape[dim];
            int64_t from = (outer * x->shape[dim] + start + row) * inner + n % inner;
            *element(y, memory, sim_offset(n, y->rank, y->shape, y)) =
                *element(x, memory, sim_offset(from, x->rank, x->shape, x));
        }
        start += y->shape[dim];
    }
    return NULL;
}

const char *sim_run_cat(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors;
    if (!has_dim(c, y))
        return SIM_MISFIT;
    int32_t dim = (int32_t)c->ints[0];
    int64_t inner = product_of(y->shape, dim + 1, y->rank), start = 0;
    for (uint32_t k = 0; k < c->inputs; k++) {
        const sim_tensor *x = sim_input(c, k);
        for (int32_t i = 0; i < y->rank; i++)
            if (x->rank != y->rank || (i != dim && x->shape[i] != y->shape[i]))
                return SIM_MISFIT;
        if (x->shape[dim] > y->shape[dim] - start)
            return SIM_MISFIT;
        for (int64_t n = 0, count = sim_count(x); n < count; n++) {
            int64_t row = n / inner % x->shape[dim], outer = n / inner / x->shape[dim];
            int64_t to = (outer * y->shape[dim] + start + row) * inner + n % inner;
            *element(y, memory, sim_offset(to, y->rank, y->shape, y)) =
                *element(x, memory, sim_offset(n, x->rank, x->shape, x));
        }
        start += x->shape[dim];
    }
    return start == y->shape[dim] ? NULL : SIM_MISFIT;
}

/* ---- a tensor with some rows replaced ---- */

static void copy_all(const sim_tensor *from, const sim_tensor *to, unsigned char *memory)
{
    for (int64_t n = 0, count = sim_count(to); n < count; n++)
        *element(to, memory, sim_offset(n, to->rank, to->shape, to)) =
            *element(from, memory, sim_offset(n, to->rank, to->shape, from));
}

/* Row k of `from` goes to row rows[k], or first + k * step where there are no rows. */
static const char *replace(const sim_command *c, unsigned char *memory, const sim_tensor *from,
                           const sim_tensor *rows, int64_t first, int64_t step)
{
    const sim_tensor *x = sim_input(c, 0), *y = c->tensors;
    if (!has_dim(c, x) || !sim_same_shape(x, y) || from->rank != x->rank)
        return SIM_MISFIT;
    int32_t dim = (int32_t)c->ints[0];
    for (int32_t i = 0; i < x->rank; i++)
        if (i != dim && from->shape[i] != x->shape[i])
            return SIM_MISFIT;
    copy_all(x, y, memory);
    int64_t inner = product_of(from->shape, dim + 1, from->rank);
    for (int64_t n = 0, count = sim_count(from); n < count; n++) {
        int64_t k = n / inner % from->shape[dim], outer = n / inner / from->shape[dim];
        int64_t row = rows == NULL
                          ? first + k * step
                          : sim_integers(rows, memory)[rows->rank ? k * rows->strides[0] : 0];
        if (row < 0 || row >= y->shape[dim])
            return "index out of range in self";
        int64_t to = (outer * y->shape[dim] + row) * inner + n % inner;
        *element(y, memory, sim_offset(to, y->rank, y->shape, y)) =
            *element(from, memory, sim_offset(n, from->rank, from->shape, from));
    }
    return NULL;
}

const char *sim_run_index_copy(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *rows = sim_input(c, 1), *from = sim_input(c, 2);
    if (rows->rank > 1 || !has_dim(c, from) || sim_count(rows) != from->shape[c->ints[0]])
        return SIM_MISFIT;
    return replace(c, memory, from, rows, 0, 0);
}

const char *sim_run_slice_scatter(const sim_command *c, unsigned char *memory)
{
    return replace(c, memory, sim_input(c, 1), NULL, c->ints[1], c->ints[2]);
}
