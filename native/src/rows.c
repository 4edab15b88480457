/* Kernels along dimensions: softmax, layer norm, reductions. Results are split among threads by
 * output, so the order of additions never depends on how many there are; sums are kept in
 * double. */
#include "internal.h"

#include <math.h>
#include <string.h>

/* ---- an index space of some dimensions of a tensor ---- */

typedef struct {
    int rank;
    int64_t shape[DVT_MAX_RANK];
    int64_t strides[2][DVT_MAX_RANK]; /* of two tensors, in elements */
    int64_t count;
} space;

static void add_dimension(space *s, int64_t size, int64_t first, int64_t second)
{
    s->shape[s->rank] = size;
    s->strides[0][s->rank] = first;
    s->strides[1][s->rank++] = second;
    s->count *= size;
}

static int64_t offset_of(const space *s, int which, int64_t index)
{
    int64_t offset = 0;
    for (int d = s->rank - 1; d > 0; d--) {
        offset += index % s->shape[d] * s->strides[which][d];
        index /= s->shape[d];
    }
    return s->rank > 0 ? offset + index * s->strides[which][0] : 0;
}

static double get(type_id type, const char *data, int64_t at)
{
    return type == T_F32   ? (double)((const float *)(const void *)data)[at]
           : type == T_F64 ? ((const double *)(const void *)data)[at]
           : type == T_I64 ? (double)((const int64_t *)(const void *)data)[at]
                           : (double)((const int32_t *)(const void *)data)[at];
}

static void put(type_id type, char *data, int64_t at, double value)
{
    if (type == T_F32)
        ((float *)(void *)data)[at] = (float)value;
    else
        ((double *)(void *)data)[at] = value;
}

static bool is_float(const dvt_tensor *t)
{
    type_id type = dvt_type_of(t->dtype);
    return type == T_F32 || type == T_F64;
}

static bool same_shape(const dvt_tensor *a, const dvt_tensor *b)
{
    return a->ndim == b->ndim &&
           (a->ndim == 0 ||
            memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0);
}

/* ---- softmax ---- */

typedef enum {
    SOFTMAX_PLAIN,
    SOFTMAX_LOG,
    SOFTMAX_SAFE, /* a row of nothing but -inf, one that is masked wholly, gives zeros */
} softmax_kind;

typedef struct {
    space outer;
    int64_t length, in_step, out_step;
    const char *in;
    char *out;
    type_id type;
    softmax_kind kind;
} softmax;

#define SOFTMAX(T, suffix, EXP, LOG)                                                           \
    static void softmax_row_##suffix(const softmax *s, const T *in, T *out)                    \
    {                                                                                          \
        T most = (T) - INFINITY;                                                               \
        double sum = 0;                                                                        \
        for (int64_t i = 0; i < s->length; i++) {                                              \
            T x = in[i * s->in_step];                                                          \
            most = x > most || x != x ? x : most;                                              \
        }                                                                                      \
        bool masked = s->kind == SOFTMAX_SAFE && most == (T) - INFINITY;                       \
        for (int64_t i = 0; i < s->length; i++) {                                              \
            T e = masked ? 0 : EXP(in[i * s->in_step] - most);                                 \
            sum += (double)e;                                                                  \
            if (s->kind != SOFTMAX_LOG)                                                        \
                out[i * s->out_step] = e;                                                      \
        }                                                                                      \
        if (masked)                                                                            \
            return;                                                                            \
        T scale = (T)(s->kind == SOFTMAX_LOG ? LOG(sum) : 1 / sum);                            \
        for (int64_t i = 0; i < s->length; i++)                                                \
            out[i * s->out_step] = s->kind == SOFTMAX_LOG ? in[i * s->in_step] - most - scale  \
                                                          : out[i * s->out_step] * scale;      \
    }
SOFTMAX(float, f32, expf, log)
SOFTMAX(double, f64, exp, log)

static void softmax_rows(void *context, int64_t begin, int64_t end)
{
    const softmax *s = context;
    for (int64_t row = begin; row < end; row++) {
        int64_t from = offset_of(&s->outer, 0, row), to = offset_of(&s->outer, 1, row);
        if (s->type == T_F32)
            softmax_row_f32(s, (const float *)(const void *)s->in + from,
                            (float *)(void *)s->out + to);
        else
            softmax_row_f64(s, (const double *)(const void *)s->in + from,
                            (double *)(void *)s->out + to);
    }
}

static dvt_status check_softmax(const dvt_call *c, dvt_error *error)
{
    if (c->output_count != 1 || c->input_count != 1 || c->attribute_count != 1)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "softmax: wrong number of operands");
    const dvt_tensor *out = c->outputs[0], *in = c->inputs[0];
    if (!is_float(out) || !dvt_same_dtype(in->dtype, out->dtype) || !same_shape(in, out) ||
        c->attributes[0].i < 0 || c->attributes[0].i >= in->ndim)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "softmax: operands do not fit");
    return DVT_OK;
}

static dvt_status softmax_of(const dvt_call *c, softmax_kind kind)
{
    const dvt_tensor *out = c->outputs[0], *in = c->inputs[0];
    int32_t axis = (int32_t)c->attributes[0].i;
    softmax s = {.outer = {.count = 1},
                 .length = in->shape[axis],
                 .in_step = in->strides[axis],
                 .out_step = out->strides[axis],
                 .in = dvt_data(in),
                 .out = dvt_data(out),
                 .type = dvt_type_of(in->dtype),
                 .kind = kind};
    for (int32_t d = 0; d < in->ndim; d++)
        if (d != axis)
            add_dimension(&s.outer, in->shape[d], in->strides[d], out->strides[d]);
    c->parallel(s.outer.count, 16384 / (s.length + 1), softmax_rows, &s);
    return DVT_OK;
}

static dvt_status run_softmax(const dvt_call *c, dvt_error *error)
{
    (void)error;
    return softmax_of(c, SOFTMAX_PLAIN);
}

static dvt_status run_log_softmax(const dvt_call *c, dvt_error *error)
{
    (void)error;
    return softmax_of(c, SOFTMAX_LOG);
}

static dvt_status run_safe_softmax(const dvt_call *c, dvt_error *error)
{
    (void)error;
    return softmax_of(c, SOFTMAX_SAFE);
}

/* ---- layer norm: out, mean, 1/deviation = f(in, weight?, bias?; dims, eps, weight?, bias?)
 * ---- */

typedef struct {
    space outer, inner;
    const dvt_tensor *in, *out, *mean, *scale, *weight, *bias;
    space factors; /* weight and bias over the inner dimensions */
    double eps;
} layer_norm;

#define LAYER_NORM(T, suffix)                                                                  \
    static void layer_norm_row_##suffix(const layer_norm *l, const T *in, T *out,              \
                                        double *mean, double *scale)                           \
    {                                                                                          \
        int64_t n = l->inner.count;                                                            \
        bool flat = l->inner.rank == 1;                                                        \
        int64_t in_step = flat ? l->inner.strides[0][0] : 0;                                   \
        int64_t out_step = flat ? l->inner.strides[1][0] : 0;                                  \
        double sum = 0, squares = 0;                                                           \
        for (int64_t i = 0; i < n; i++)                                                        \
            sum += (double)in[flat ? i * in_step : offset_of(&l->inner, 0, i)];                \
        *mean = sum / (double)n;                                                               \
        for (int64_t i = 0; i < n; i++) {                                                      \
            double d = (double)in[flat ? i * in_step : offset_of(&l->inner, 0, i)] - *mean;    \
            squares += d * d;                                                                  \
        }                                                                                      \
        *scale = 1 / sqrt(squares / (double)n + l->eps);                                       \
        const T *weight = l->weight ? (const T *)(const void *)dvt_data(l->weight) : NULL;     \
        const T *bias = l->bias ? (const T *)(const void *)dvt_data(l->bias) : NULL;           \
        int64_t w_step = flat ? l->factors.strides[0][0] : 0;                                  \
        int64_t b_step = flat ? l->factors.strides[1][0] : 0;                                  \
        T shift = (T) * mean, factor = (T) * scale;                                            \
        for (int64_t i = 0; i < n; i++) {                                                      \
            T x = (in[flat ? i * in_step : offset_of(&l->inner, 0, i)] - shift) * factor;      \
            if (weight != NULL)                                                                \
                x *= weight[flat ? i * w_step : offset_of(&l->factors, 0, i)];                 \
            if (bias != NULL)                                                                  \
                x += bias[flat ? i * b_step : offset_of(&l->factors, 1, i)];                   \
            out[flat ? i * out_step : offset_of(&l->inner, 1, i)] = x;                         \
        }                                                                                      \
    }
LAYER_NORM(float, f32)
LAYER_NORM(double, f64)

static int64_t row_offset(const dvt_tensor *t, const space *outer, int64_t row)
{
    int64_t offset = 0;
    for (int d = outer->rank - 1; d >= 0; d--) {
        offset += row % outer->shape[d] * t->strides[d];
        row /= outer->shape[d];
    }
    return offset;
}

static void layer_norm_rows(void *context, int64_t begin, int64_t end)
{
    const layer_norm *l = context;
    type_id type = dvt_type_of(l->in->dtype);
    for (int64_t row = begin; row < end; row++) {
        int64_t from = offset_of(&l->outer, 0, row), to = offset_of(&l->outer, 1, row);
        double mean = 0, scale = 0;
        if (type == T_F32)
            layer_norm_row_f32(l, (const float *)(const void *)dvt_data(l->in) + from,
                               (float *)(void *)dvt_data(l->out) + to, &mean, &scale);
        else
            layer_norm_row_f64(l, (const double *)(const void *)dvt_data(l->in) + from,
                               (double *)(void *)dvt_data(l->out) + to, &mean, &scale);
        put(type, dvt_data(l->mean), row_offset(l->mean, &l->outer, row), mean);
        put(type, dvt_data(l->scale), row_offset(l->scale, &l->outer, row), scale);
    }
}

/* Whether `t` has `from`'s leading dimensions and then only ones. */
static bool leads(const dvt_tensor *t, const dvt_tensor *from, int64_t inner)
{
    if (t->ndim != from->ndim)
        return false;
    for (int32_t d = 0; d < t->ndim; d++)
        if (t->shape[d] != (d < from->ndim - inner ? from->shape[d] : 1))
            return false;
    return true;
}

static bool trails(const dvt_tensor *t, const dvt_tensor *from, int64_t inner)
{
    if (t->ndim != inner)
        return false;
    for (int32_t d = 0; d < t->ndim; d++)
        if (t->shape[d] != from->shape[from->ndim - t->ndim + d])
            return false;
    return true;
}

static dvt_status check_layer_norm(const dvt_call *c, dvt_error *error)
{
    bool fits = c->output_count == 3 && c->attribute_count == 4 && c->input_count >= 1;
    int64_t inner = fits ? c->attributes[0].i : 0;
    fits = fits && (c->attributes[2].i | 1) == 1 && (c->attributes[3].i | 1) == 1 &&
           c->input_count == 1 + c->attributes[2].i + c->attributes[3].i;
    if (fits) {
        const dvt_tensor *in = c->inputs[0];
        fits = is_float(in) && inner >= 1 && inner <= in->ndim &&
               same_shape(in, c->outputs[0]) && leads(c->outputs[1], in, inner) &&
               leads(c->outputs[2], in, inner);
        for (uint32_t i = 0; fits && i < 3; i++)
            fits = dvt_same_dtype(c->outputs[i]->dtype, in->dtype);
        for (uint32_t i = 1; fits && i < c->input_count; i++)
            fits = dvt_same_dtype(c->inputs[i]->dtype, in->dtype) &&
                   trails(c->inputs[i], in, inner);
    }
    return fits ? DVT_OK
                : dvt_fail(error, DVT_ERROR_MALFORMED, "layer_norm: operands do not fit");
}

static dvt_status run_layer_norm(const dvt_call *c, dvt_error *error)
{
    (void)error;
    const dvt_tensor *in = c->inputs[0], *out = c->outputs[0];
    bool weighted = c->attributes[2].i != 0;
    layer_norm l = {.outer = {.count = 1},
                    .inner = {.count = 1},
                    .factors = {.count = 1},
                    .in = in,
                    .out = out,
                    .mean = c->outputs[1],
                    .scale = c->outputs[2],
                    .weight = weighted ? c->inputs[1] : NULL,
                    .bias = c->attributes[3].i ? c->inputs[weighted ? 2 : 1] : NULL,
                    .eps = c->attributes[1].f};
    int32_t outer = in->ndim - (int32_t)c->attributes[0].i;
    for (int32_t d = 0; d < in->ndim; d++)
        add_dimension(d < outer ? &l.outer : &l.inner, in->shape[d], in->strides[d],
                      out->strides[d]);
    for (int32_t d = outer; d < in->ndim; d++)
        add_dimension(&l.factors, in->shape[d], l.weight ? l.weight->strides[d - outer] : 0,
                      l.bias ? l.bias->strides[d - outer] : 0);
    c->parallel(l.outer.count, 16384 / (l.inner.count + 1), layer_norm_rows, &l);
    return DVT_OK;
}

/* ---- reductions: out = f(in; mask of dimensions, whether they are kept as ones) ---- */

typedef struct {
    space kept, gone;
    const char *in;
    char *out;
    type_id type;
    double correction;
} reduction;

typedef void (*reducer)(const reduction *r, int64_t from, int64_t to);

/* Runs `statement` with `at` on every element that one result is made of. */
#define EACH(statement)                                                                        \
    do {                                                                                       \
        int last = r->gone.rank - 1;                                                           \
        int64_t run = last >= 0 ? r->gone.shape[last] : 1;                                     \
        int64_t hop = last >= 0 ? r->gone.strides[0][last] : 0;                                \
        for (int64_t first = 0; first < r->gone.count; first += run) {                         \
            int64_t at = from + offset_of(&r->gone, 0, first);                                 \
            for (int64_t step = 0; step < run; step++, at += hop)                              \
                statement;                                                                     \
        }                                                                                      \
    } while (0)

static int64_t whole(const reduction *r, int64_t at)
{
    return r->type == T_I64 ? ((const int64_t *)(const void *)r->in)[at]
                            : ((const int32_t *)(const void *)r->in)[at];
}

static void put_whole(const reduction *r, int64_t to, int64_t value)
{
    if (r->type == T_I64)
        ((int64_t *)(void *)r->out)[to] = value;
    else
        ((int32_t *)(void *)r->out)[to] = (int32_t)value;
}

static double sum_of(const reduction *r, int64_t from)
{
    double sum = 0;
    if (r->type == T_F32)
        EACH(sum += (double)((const float *)(const void *)r->in)[at]);
    else
        EACH(sum += ((const double *)(const void *)r->in)[at]);
    return sum;
}

static void reduce_sum(const reduction *r, int64_t from, int64_t to)
{
    if (r->type == T_F32 || r->type == T_F64) {
        put(r->type, r->out, to, sum_of(r, from));
        return;
    }
    uint64_t sum = 0;
    EACH(sum += (uint64_t)whole(r, at));
    put_whole(r, to, (int64_t)sum);
}

static void reduce_mean(const reduction *r, int64_t from, int64_t to)
{
    put(r->type, r->out, to, sum_of(r, from) / (double)r->gone.count);
}

static void reduce_var(const reduction *r, int64_t from, int64_t to)
{
    double mean = sum_of(r, from) / (double)r->gone.count, squares = 0;
    EACH({
        double d = get(r->type, r->in, at) - mean;
        squares += d * d;
    });
    double free_count = (double)r->gone.count - r->correction;
    put(r->type, r->out, to, squares / (free_count > 0 ? free_count : 0));
}

static void reduce_extreme(const reduction *r, int64_t from, int64_t to, int sign)
{
    if (r->type != T_F32 && r->type != T_F64) {
        int64_t most = sign > 0 ? INT64_MIN : INT64_MAX;
        EACH({
            int64_t x = whole(r, at);
            most = (sign > 0 ? x > most : x < most) ? x : most;
        });
        put_whole(r, to, most);
        return;
    }
    double best = sign > 0 ? -INFINITY : INFINITY;
    EACH({
        double x = get(r->type, r->in, at);
        best = x != x || (sign > 0 ? x > best : x < best) ? x : best;
    });
    put(r->type, r->out, to, best);
}

static void reduce_amax(const reduction *r, int64_t from, int64_t to)
{
    reduce_extreme(r, from, to, 1);
}

static void reduce_amin(const reduction *r, int64_t from, int64_t to)
{
    reduce_extreme(r, from, to, -1);
}

/* The dimension of the result that the input's dimension `d` becomes, or -1 where it goes. */
static int32_t kept_as(const dvt_call *c, int32_t d)
{
    int64_t mask = c->attributes[0].i;
    if (mask >> d & 1)
        return -1;
    int32_t place = 0;
    for (int32_t i = 0; i < d; i++)
        place += c->attributes[1].i || !(mask >> i & 1);
    return place;
}

static dvt_status check_reduction(const dvt_call *c, uint32_t attributes, bool ints,
                                  bool may_be_empty, dvt_error *error)
{
    bool fits = c->output_count == 1 && c->input_count == 1 && c->attribute_count == attributes;
    if (fits) {
        const dvt_tensor *in = c->inputs[0], *out = c->outputs[0];
        int64_t mask = c->attributes[0].i;
        type_id type = dvt_type_of(in->dtype);
        fits = dvt_same_dtype(in->dtype, out->dtype) && mask >= 0 && (mask >> in->ndim) == 0 &&
               (c->attributes[1].i | 1) == 1 &&
               (is_float(in) || (ints && (type == T_I64 || type == T_I32)));
        int32_t rank = 0;
        for (int32_t d = 0; fits && d < in->ndim; d++) {
            bool gone = mask >> d & 1;
            rank += !gone || c->attributes[1].i;
            if (gone && in->shape[d] == 0 && !may_be_empty)
                return dvt_fail(error, DVT_ERROR_GUARD,
                                "a reduction over no elements has no result");
        }
        fits = fits && out->ndim == rank;
        for (int32_t d = 0; fits && d < in->ndim; d++) {
            int32_t place = kept_as(c, d);
            fits = place < 0 || out->shape[place] == in->shape[d];
        }
        for (int32_t d = 0; fits && c->attributes[1].i && d < in->ndim; d++)
            fits = kept_as(c, d) >= 0 || out->shape[d] == 1;
    }
    return fits ? DVT_OK
                : dvt_fail(error, DVT_ERROR_MALFORMED, "reduction: operands do not fit");
}

typedef struct {
    reduction r;
    reducer reduce;
} reduce_work;

static void reduce_range(void *context, int64_t begin, int64_t end)
{
    const reduce_work *w = context;
    for (int64_t i = begin; i < end; i++)
        w->reduce(&w->r, offset_of(&w->r.kept, 0, i), offset_of(&w->r.kept, 1, i));
}

static dvt_status run_reduction(const dvt_call *c, reducer reduce, double correction)
{
    const dvt_tensor *in = c->inputs[0], *out = c->outputs[0];
    reduce_work w = {.r = {.kept = {.count = 1},
                           .gone = {.count = 1},
                           .in = dvt_data(in),
                           .out = dvt_data(out),
                           .type = dvt_type_of(in->dtype),
                           .correction = correction},
                     .reduce = reduce};
    for (int32_t d = 0; d < in->ndim; d++) {
        int32_t place = kept_as(c, d);
        if (place < 0)
            add_dimension(&w.r.gone, in->shape[d], in->strides[d], 0);
        else
            add_dimension(&w.r.kept, in->shape[d], in->strides[d], out->strides[place]);
    }
    c->parallel(w.r.kept.count, 32768 / (w.r.gone.count + 1), reduce_range, &w);
    return DVT_OK;
}

#define REDUCTION(name, attributes, ints, may_be_empty, correction)                            \
    static dvt_status check_##name(const dvt_call *c, dvt_error *error)                        \
    {                                                                                          \
        return check_reduction(c, attributes, ints, may_be_empty, error);                      \
    }                                                                                          \
    static dvt_status run_##name(const dvt_call *c, dvt_error *error)                          \
    {                                                                                          \
        (void)error;                                                                           \
        return run_reduction(c, reduce_##name, correction);                                    \
    }
REDUCTION(sum, 2, true, true, 0)
REDUCTION(mean, 2, false, true, 0)
REDUCTION(var, 3, false, true, c->attributes[2].f)
REDUCTION(amax, 2, true, false, 0)
REDUCTION(amin, 2, true, false, 0)

const dvt_kernel dvt_row_kernels[] = {
    {sizeof(dvt_kernel), 1, "softmax", check_softmax, run_softmax},
    {sizeof(dvt_kernel), 1, "log_softmax", check_softmax, run_log_softmax},
    {sizeof(dvt_kernel), 1, "safe_softmax", check_softmax, run_safe_softmax},
    {sizeof(dvt_kernel), 1, "layer_norm", check_layer_norm, run_layer_norm},
    {sizeof(dvt_kernel), 1, "sum", check_sum, run_sum},
    {sizeof(dvt_kernel), 1, "mean", check_mean, run_mean},
    {sizeof(dvt_kernel), 1, "var", check_var, run_var},
    {sizeof(dvt_kernel), 1, "amax", check_amax, run_amax},
    {sizeof(dvt_kernel), 1, "amin", check_amin, run_amin},
};
const size_t dvt_row_count = sizeof dvt_row_kernels / sizeof(dvt_kernel);
