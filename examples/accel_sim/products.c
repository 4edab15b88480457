/* Matrix products, of plain matrices and of constant ones in tiles; convolutions. */
#include "device.h"

#include <string.h>

static int64_t tiles(int64_t size)
{
    return (size + SIM_TILE - 1) / SIM_TILE;
}

/* Where element (i, j) of a matrix with so many columns lies, if it is in tiles. */
static int64_t tiled(int64_t i, int64_t j, int64_t columns)
{
    int64_t tile = i / SIM_TILE * tiles(columns) + j / SIM_TILE;
    return (tile * SIM_TILE + i % SIM_TILE) * SIM_TILE + j % SIM_TILE;
}

const char *sim_run_prepare(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *x = sim_input(c, 0), *y = c->tensors;
    int64_t rows = x->shape[0], columns = x->shape[1];
    uint64_t bytes = (uint64_t)(tiles(rows) * tiles(columns)) * SIM_TILE * SIM_TILE * 4;
    if (x->rank != 2 || bytes > y->room)
        return SIM_MISFIT;
    float *to = sim_floats(y, memory);
    const float *from = sim_floats(x, memory);
    memset(to, 0, bytes);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[tiled(i, j, columns)] = from[i * x->strides[0] + j * x->strides[1]];
    return NULL;
}

/* y = alpha a b + beta c of the matrices in the last two dimensions. */
typedef struct {
    const float *a, *b, *added;
    float *y;
    const int64_t *a_strides, *b_strides, *y_strides;
    int64_t added_strides[2], rows, columns, inner;
    double alpha, beta;
    bool tiled;
} product;

static void multiply(const product *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++) {
            double sum = 0;
            for (int64_t k = 0; k < p->inner; k++) {
                int64_t place = p->tiled ? tiled(k, j, p->columns)
                                         : k * p->b_strides[0] + j * p->b_strides[1];
                sum += (double)p->a[i * p->a_strides[0] + k * p->a_strides[1]] *
                       (double)p->b[place];
            }
            sum *= p->alpha;
            if (p->added != NULL && p->beta != 0) /* 0 times NaN counts as 0 here */
                sum += p->beta *
                       (double)p->added[i * p->added_strides[0] + j * p->added_strides[1]];
            p->y[i * p->y_strides[0] + j * p->y_strides[1]] = (float)sum;
        }
}

static bool fits(const sim_tensor *a, const sim_tensor *b, const sim_tensor *y)
{
    int32_t last = a->rank - 1;
    if (a->rank < 2 || a->rank > 3 || b->rank != a->rank || y->rank != a->rank)
        return false;
    return (last == 1 || (a->shape[0] == b->shape[0] && a->shape[0] == y->shape[0])) &&
           a->shape[last] == b->shape[last - 1] && y->shape[last - 1] == a->shape[last - 1] &&
           y->shape[last] == b->shape[last];
}

const char *sim_run_matmul(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors, *a = sim_input(c, c->inputs - 2),
                     *b = sim_input(c, c->inputs - 1);
    const sim_tensor *added = c->inputs == 3 ? sim_input(c, 0) : NULL;
    if (!fits(a, b, y) || (added != NULL && !sim_broadcasts(added, y)))
        return SIM_MISFIT;
    int32_t last = a->rank - 1;
    int64_t batches = last == 2 ? a->shape[0] : 1;
    if (b->prepared && (last != 1 || (uint64_t)(tiles(b->shape[0]) * tiles(b->shape[1])) *
                                             SIM_TILE * SIM_TILE * 4 >
                                         b->room))
        return SIM_MISFIT;
    product p = {.a = sim_floats(a, memory),
                 .b = sim_floats(b, memory),
                 .added = added == NULL ? NULL : sim_floats(added, memory),
                 .y = sim_floats(y, memory),
                 .a_strides = a->strides + last - 1,
                 .b_strides = b->strides + last - 1,
                 .y_strides = y->strides + last - 1,
                 .rows = y->shape[last - 1],
                 .columns = y->shape[last],
                 .inner = a->shape[last],
                 .alpha = c->floats[0],
                 .beta = c->floats[1],
                 .tiled = b->prepared != 0};
    for (int32_t i = 0; added != NULL && i < 2; i++) {
        int32_t own = added->rank - 2 + i;
        p.added_strides[i] = own < 0 || added->shape[own] == 1 ? 0 : added->strides[own];
    }
    for (int64_t n = 0; n < batches; n++) {
        multiply(&p);
        p.a += last == 2 ? a->strides[0] : 0;
        p.b += last == 2 ? b->strides[0] : 0;
        p.y += last == 2 ? y->strides[0] : 0;
    }
    return NULL;
}

/* ---- convolutions: ints are kernel (not used), stride, padding, dilation, groups ---- */

static double at_output(const sim_command *c, unsigned char *memory, const int64_t *o)
{
    const sim_tensor *x = sim_input(c, 0), *w = sim_input(c, 1);
    const int64_t *stride = c->ints + 2, *padding = c->ints + 4, *dilation = c->ints + 6;
    const float *image = sim_floats(x, memory), *weight = sim_floats(w, memory);
    int64_t group = o[1] / (w->shape[0] / c->ints[8]);
    double sum = 0;
    for (int64_t i = 0; i < w->shape[1]; i++)
        for (int64_t r = 0; r < w->shape[2]; r++)
            for (int64_t s = 0; s < w->shape[3]; s++) {
                int64_t h = o[2] * stride[0] - padding[0] + r * dilation[0];
                int64_t v = o[3] * stride[1] - padding[1] + s * dilation[1];
                if (h < 0 || h >= x->shape[2] || v < 0 || v >= x->shape[3])
                    continue;
                int64_t channel = group * w->shape[1] + i;
                sum += (double)image[o[0] * x->strides[0] + channel * x->strides[1] +
                                     h * x->strides[2] + v * x->strides[3]] *
                       (double)weight[o[1] * w->strides[0] + i * w->strides[1] +
                                      r * w->strides[2] + s * w->strides[3]];
            }
    return sum;
}

const char *sim_run_convolution(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors, *x = sim_input(c, 0), *w = sim_input(c, 1),
                     *bias = sim_input(c, 2);
    if (x->rank != 4 || w->rank != 4 || y->rank != 4 || x->shape[0] != y->shape[0] ||
        w->shape[0] != y->shape[1] || c->ints[8] < 1 || w->shape[0] % c->ints[8] != 0 ||
        w->shape[1] * c->ints[8] != x->shape[1] ||
        (bias->rank >= 0 && (bias->rank != 1 || bias->shape[0] != y->shape[1])))
        return SIM_MISFIT;
    for (int64_t n = 0, count = sim_count(y); n < count; n++) {
        int64_t o[4], rest = n;
        for (int i = 3; i >= 0; i--) {
            o[i] = rest % y->shape[i];
            rest /= y->shape[i];
        }
        double value = at_output(c, memory, o);
        if (bias->rank >= 0)
            value += sim_load(bias, memory, o[1] * bias->strides[0]);
        sim_store(y, memory, sim_offset(n, 4, y->shape, y), value);
    }
    return NULL;
}
