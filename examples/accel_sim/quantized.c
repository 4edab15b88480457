/* Products of quantised matrices, and conversions between quantised and real numbers. */
#include "device.h"

#include "dovetail_plugin.h"

#include <math.h>

/* Where the scale (or zero point) of an element lies. */
static int64_t block_of(const sim_tensor *t, const sim_tensor *scales, const int64_t *index)
{
    int64_t offset = 0;
    for (int32_t d = 0; d < t->rank; d++)
        if (t->block[d] != 0)
            offset += index[d] / t->block[d] * scales->strides[d];
    return offset;
}

static int64_t place_of(const sim_tensor *t, const int64_t *index)
{
    int64_t offset = 0;
    for (int32_t d = 0; d < t->rank; d++)
        offset += index[d] * t->strides[d];
    return offset;
}

static double scale_of(const sim_command *c, const unsigned char *memory, const sim_tensor *t,
                       const int64_t *index)
{
    const sim_tensor *scales = t->scales < 0 ? NULL : &c->tensors[t->scales];
    return scales == NULL ? t->scale : sim_load(scales, memory, block_of(t, scales, index));
}

static double zero_of(const sim_command *c, const unsigned char *memory, const sim_tensor *t,
                      const int64_t *index)
{
    const sim_tensor *zeros = t->zeros < 0 ? NULL : &c->tensors[t->zeros];
    return zeros == NULL ? (double)t->zero : sim_load(zeros, memory, block_of(t, zeros, index));
}

/* What an element stands for. */
static double real_at(const sim_command *c, const unsigned char *memory, const sim_tensor *t,
                      const int64_t *index)
{
    double number = sim_load(t, memory, place_of(t, index));
    if (!t->quantized)
        return number;
    return (number - zero_of(c, memory, t, index)) * scale_of(c, memory, t, index);
}

/* The nearest number that an element can hold; `exactly` as PyTorch's operators round. */
static void put(const sim_command *c, unsigned char *memory, const sim_tensor *t,
                const int64_t *index, double value, bool exactly)
{
    double number = value;
    if (t->quantized) {
        double scale = scale_of(c, memory, t, index), zero = zero_of(c, memory, t, index);
        bool single = t->scales < 0 || c->tensors[t->scales].bits == 32;
        if (exactly && single) {
            float inverse = t->scales < 0 ? (float)(1.0 / scale) : 1.0f / (float)scale;
            number = (double)nearbyintf((float)value * inverse) + zero;
        } else
            number = nearbyint(value * (1.0 / scale)) + zero;
        number = number<(double)t->least ? (double)t->least : number>(double) t->greatest
                     ? (double)t->greatest
                     : number;
        if (isnan(number))
            number = (double)t->least;
    }
    sim_store(t, memory, place_of(t, index), number);
}

/* Whether blocks divide a tensor, and there is a scale for each. */
static bool has_scales(const sim_command *c, const sim_tensor *t)
{
    const int32_t places[] = {t->scales, t->zeros};
    for (int32_t d = 0; t->quantized && d < t->rank; d++)
        if (t->block[d] < 0 || (t->block[d] > 0 && t->shape[d] % t->block[d] != 0))
            return false;
    for (int n = 0; t->quantized && n < 2; n++) {
        if (places[n] < 0)
            continue;
        const sim_tensor *s = &c->tensors[places[n]];
        for (int32_t d = 0; d < t->rank; d++)
            if (s->rank != t->rank ||
                s->shape[d] < (t->block[d] > 0 ? t->shape[d] / t->block[d] : 1))
                return false;
    }
    return true;
}

static bool all_have_scales(const sim_command *c)
{
    for (uint32_t i = 0; i < c->outputs + c->inputs; i++)
        if (!has_scales(c, &c->tensors[i]))
            return false;
    return true;
}

const char *sim_run_convert(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors, *x = sim_input(c, 0);
    if (!sim_same_shape(x, y) || !all_have_scales(c))
        return SIM_MISFIT;
    for (int64_t n = 0, count = sim_count(y); n < count; n++) {
        int64_t index[SIM_RANK] = {0}, rest = n;
        for (int32_t d = y->rank - 1; d >= 0; d--) {
            index[d] = rest % y->shape[d];
            rest /= y->shape[d];
        }
        put(c, memory, y, index, real_at(c, memory, x, index), true);
    }
    return NULL;
}

static double added_at(const sim_command *c, const unsigned char *memory, const sim_tensor *t,
                       const int64_t *at)
{
    int64_t index[SIM_RANK] = {0};
    for (int32_t d = 0; d < t->rank; d++)
        index[d] = t->shape[d] == 1 ? 0 : at[2 - t->rank + d];
    return real_at(c, memory, t, index);
}

const char *sim_run_quantized_matmul(const sim_command *c, unsigned char *memory)
{
    const sim_tensor *y = c->tensors, *a = sim_input(c, c->inputs - 2),
                     *b = sim_input(c, c->inputs - 1);
    const sim_tensor *added = c->inputs == 3 ? sim_input(c, 0) : NULL;
    if (a->rank != 2 || b->rank != 2 || y->rank != 2 || a->shape[1] != b->shape[0] ||
        y->shape[0] != a->shape[0] || y->shape[1] != b->shape[1] || !all_have_scales(c) ||
        (added != NULL && !sim_broadcasts(added, y)))
        return SIM_MISFIT;
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < y->shape[1]; j++) {
            double sum = 0;
            for (int64_t k = 0; k < a->shape[1]; k++)
                sum += real_at(c, memory, a, (int64_t[SIM_RANK]){i, k}) *
                       real_at(c, memory, b, (int64_t[SIM_RANK]){k, j});
            sum *= c->floats[0];
            if (added != NULL && c->floats[1] != 0)
                sum += c->floats[1] * added_at(c, memory, added, (int64_t[2]){i, j});
            put(c, memory, y, (int64_t[SIM_RANK]){i, j}, sum, false);
        }
    return NULL;
}
