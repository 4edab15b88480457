/* Kernels on rows: softmax, layer norm, pooling. */
#include "device.h"

#include <math.h>

static void softmax_row(const sim_command *c, unsigned char *memory, int64_t in, int64_t out)
{
    const sim_tensor *x = sim_input(c, 0), *y = c->tensors;
    int64_t dim = c->ints[0], size = x->shape[dim];
    double most = -INFINITY, sum = 0;
    for (int64_t k = 0; k < size; k++) {
        double value = sim_load(x, memory, in + k * x->strides[dim]);
        most = value > most || isnan(value) ? value : most;
    }
    for (int64_t k = 0; k < size; k++)
        sum += exp(sim_load(x, memory, in + k * x->strides[dim]) - most);
    for (int64_t k = 0; k < size; k++) {
        double value = sim_load(x, memory, in + k * x->strides[dim]) - most;
        sim_store(y, memory, out + k * y->strides[dim],
                  c->variant ? value - log(sum) : exp(value) / sum);
    }
}

const char *sim_run_softmax(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *x = sim_input(c, 0), *y = c->tensors;
    if (!sim_same_shape(x, y) || c->ints[0] < 0 || c->ints[0] >= x->rank)
        return SIM_MISFIT;
    sim_tensor rows = *x;
    rows.shape[c->ints[0]] = 1;
    for (int64_t n = 0, count = sim_count(x) ? sim_count(&rows) : 0; n < count; n++)
        softmax_row(c, memory, sim_offset(n, x->rank, rows.shape, x),
                    sim_offset(n, x->rank, rows.shape, y));
    return NULL;
}

/* ---- layer norm over the last ints[0] dimensions: the result, each row's mean and 1 /
 * deviation
 */

typedef struct {
    sim_tensor rows, row; /* the input as two loops */
    int64_t size;
} split;

static const char *split_rows(const sim_command *c, split *s)
{
    const sim_tensor *x = sim_input(c, 0);
    int64_t dims = c->ints[0];
    if (c->outputs != 3 || dims < 0 || dims > x->rank || !sim_same_shape(x, c->tensors))
        return SIM_MISFIT;
    s->rows = s->row = *x;
    for (int32_t i = 0; i < x->rank; i++)
        (i < x->rank - dims ? &s->row : &s->rows)->shape[i] = 1;
    s->size = sim_count(&s->row);
    for (uint32_t i = 1; i < 3; i++)
        if ((sim_input(c, i)->rank >= 0 && sim_count(sim_input(c, i)) != s->size) ||
            sim_count(&c->tensors[i]) != sim_count(&s->rows))
            return SIM_MISFIT;
    return NULL;
}

const char *sim_run_layer_norm(const sim_command *c, unsigned char *memory)
{
    split s;
    const char *problem = split_rows(c, &s);
    if (problem != NULL)
        return problem;
    const sim_tensor *x = sim_input(c, 0), *y = c->tensors, *scale = sim_input(c, 1),
                     *shift = sim_input(c, 2);
    for (int64_t n = 0, count = sim_count(&s.rows); n < count; n++) {
        int64_t in = sim_offset(n, x->rank, s.rows.shape, x);
        int64_t out = sim_offset(n, x->rank, s.rows.shape, y);
        double sum = 0, squares = 0;
        for (int64_t k = 0; k < s.size; k++)
            sum += sim_load(x, memory, in + sim_offset(k, x->rank, s.row.shape, x));
        double mean = sum / (double)s.size;
        for (int64_t k = 0; k < s.size; k++) {
            double off =
                sim_load(x, memory, in + sim_offset(k, x->rank, s.row.shape, x)) - mean;
            squares += off * off;
        }
        double rstd = 1 / sqrt(squares / (double)s.size + c->floats[0]);
        for (int64_t k = 0; k < s.size; k++) {
            double value = sim_load(x, memory, in + sim_offset(k, x->rank, s.row.shape, x));
            value = (value - mean) * rstd;
            if (scale->rank >= 0)
                value *=
                    sim_load(scale, memory, sim_offset(k, scale->rank, scale->shape, scale));
            if (shift->rank >= 0)
                value +=
                    sim_load(shift, memory, sim_offset(k, shift->rank, shift->shape, shift));
            sim_store(y, memory, out + sim_offset(k, x->rank, s.row.shape, y), value);
        }
        for (uint32_t i = 1; i < 3; i++) {
            const sim_tensor *t = &c->tensors[i];
            sim_store(t, memory, sim_offset(n, t->rank, t->shape, t), i == 1 ? mean : rstd);
        }
    }
    return NULL;
}

/* ---- pooling: ints are kernel, stride, padding, dilation, whether padding counts ---- */

typedef struct {
    double sum, most;
    int64_t place, seen, padded; /* elements, and with the padding around them */
} pooled;

static pooled pool_at(const sim_command *c, unsigned char *memory, const int64_t *o)
{
    const sim_tensor *x = sim_input(c, 0);
    const int64_t *kernel = c->ints, *stride = c->ints + 2, *padding = c->ints + 4,
                  *dilation = c->ints + 6;
    pooled p = {0, -INFINITY, -1, 0, 0};
    for (int64_t r = 0; r < kernel[0]; r++)
        for (int64_t s = 0; s < kernel[1]; s++) {
            int64_t h = o[2] * stride[0] - padding[0] + r * dilation[0];
            int64_t v = o[3] * stride[1] - padding[1] + s * dilation[1];
            p.padded += h < x->shape[2] + padding[0] && v < x->shape[3] + padding[1];
            if (h < 0 || h >= x->shape[2] || v < 0 || v >= x->shape[3])
                continue;
            double value = sim_load(x, memory,
                                    o[0] * x->strides[0] + o[1] * x->strides[1] +
                                        h * x->strides[2] + v * x->strides[3]);
            p.sum += value;
            p.seen++;
            if (p.place < 0 || value > p.most || isnan(value)) {
                p.most = value;
                p.place = h * x->shape[3] + v;
            }
        }
    return p;
}

static const char *pool(const sim_command *c, unsigned char *memory, bool largest)
{
    const sim_tensor *x = sim_input(c, 0), *y = c->tensors;
    if (x->rank != 4 || y->rank != 4 || x->shape[0] != y->shape[0] ||
        x->shape[1] != y->shape[1] || c->outputs != (largest ? 2u : 1u) ||
        (largest && !sim_same_shape(y, &c->tensors[1])))
        return SIM_MISFIT;
    for (int64_t n = 0, count = sim_count(y); n < count; n++) {
        int64_t o[4], rest = n;
        for (int i = 3; i >= 0; i--) {
            o[i] = rest % y->shape[i];
            rest /= y->shape[i];
        }
        pooled p = pool_at(c, memory, o);
        double mean = p.sum / (double)(c->ints[8] ? p.padded : p.seen);
        sim_store(y, memory, sim_offset(n, 4, y->shape, y), largest ? p.most : mean);
        if (largest)
            sim_store(&c->tensors[1], memory, sim_offset(n, 4, y->shape, &c->tensors[1]),
                      (double)p.place);
    }
    return NULL;
}

const char *sim_run_max_pool(const sim_command *c, unsigned char *memory)
{
    return pool(c, memory, true);
}

const char *sim_run_avg_pool(const sim_command *c, unsigned char *memory)
{
    return pool(c, memory, false);
}
