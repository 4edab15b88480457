/* Matrix products: out[b] = left[b] @ right[b] (+ bias). Any strides; ranks 2 and 3.
 *
 * Columns are taken in panels of NR; a panel's right-hand side is packed for KC steps at a time
 * and each block of MR rows runs through it with its sums in vector registers. With few rows
 * and a right-hand side that lies along k (a transposed weight), packing would cost more than
 * the product, and each result is a dot product instead. The order of additions depends on
 * shapes and strides alone, never on the number of threads. */
#include "internal.h"
#include "processor.h"

#include <string.h>

#define KC 256

typedef float vec_f32 __attribute__((vector_size(64)));
typedef double vec_f64 __attribute__((vector_size(64)));
enum { NR_f32 = 2 * 16, NR_f64 = 2 * 8 }; /* a panel's columns: two vectors */

/* The innermost loops, for each type and each level of processor. */
#define LOOPS(T, suffix, level)                                                                \
    static void tile_##suffix##_##level(int64_t depth, const T *const a[4], int64_t step,      \
                                        const T *panel, T(*sums)[NR_##suffix])                 \
    {                                                                                          \
        vec_##suffix s[4][2];                                                                  \
        memcpy(s, sums, sizeof s);                                                             \
        vec_##suffix s00 = s[0][0], s01 = s[0][1], s10 = s[1][0], s11 = s[1][1];               \
        vec_##suffix s20 = s[2][0], s21 = s[2][1], s30 = s[3][0], s31 = s[3][1];               \
        const T *a0 = a[0], *a1 = a[1], *a2 = a[2], *a3 = a[3];                                \
        for (int64_t k = 0; k < depth; k++) {                                                  \
            vec_##suffix b[2];                                                                 \
            memcpy(b, panel + k * NR_##suffix, sizeof b);                                      \
            s00 += a0[k * step] * b[0];                                                        \
            s01 += a0[k * step] * b[1];                                                        \
            s10 += a1[k * step] * b[0];                                                        \
            s11 += a1[k * step] * b[1];                                                        \
            s20 += a2[k * step] * b[0];                                                        \
            s21 += a2[k * step] * b[1];                                                        \
            s30 += a3[k * step] * b[0];                                                        \
            s31 += a3[k * step] * b[1];                                                        \
        }                                                                                      \
        vec_##suffix made[4][2] = {{s00, s01}, {s10, s11}, {s20, s21}, {s30, s31}};            \
        memcpy(sums, made, sizeof made);                                                       \
    }                                                                                          \
                                                                                               \
    static T dot_##suffix##_##level(int64_t depth, const T *a, const T *b)                     \
    {                                                                                          \
        vec_##suffix sums[2] = {{0}, {0}};                                                     \
        int64_t k = 0;                                                                         \
        for (; k + NR_##suffix <= depth; k += NR_##suffix) {                                   \
            vec_##suffix x[2], y[2];                                                           \
            memcpy(x, a + k, sizeof x);                                                        \
            memcpy(y, b + k, sizeof y);                                                        \
            sums[0] += x[0] * y[0];                                                            \
            sums[1] += x[1] * y[1];                                                            \
        }                                                                                      \
        sums[0] += sums[1];                                                                    \
        T total = 0;                                                                           \
        for (int i = 0; i < NR_##suffix / 2; i++)                                              \
            total += sums[0][i];                                                               \
        for (; k < depth; k++)                                                                 \
            total += a[k] * b[k];                                                              \
        return total;                                                                          \
    }

/* Those for one level. */
typedef struct {
    void (*tile_f32)(int64_t, const float *const[4], int64_t, const float *, float (*)[NR_f32]);
    void (*tile_f64)(int64_t, const double *const[4], int64_t, const double *,
                     double (*)[NR_f64]);
    float (*dot_f32)(int64_t, const float *, const float *);
    double (*dot_f64)(int64_t, const double *, const double *);
} loop_table;

#define TABLE(level)                                                                           \
    LOOPS(float, f32, level)                                                                   \
    LOOPS(double, f64, level)                                                                  \
    static const loop_table loops_##level = {tile_f32_##level, tile_f64_##level,               \
                                             dot_f32_##level, dot_f64_##level};

TABLE(default)
#ifdef DVT_SEVERAL_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
TABLE(v3)
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
TABLE(v4)
#pragma GCC pop_options
#endif

static const loop_table *choose_loops(void)
{
#ifdef DVT_SEVERAL_LEVELS
    int level = dvt_processor_level();
    if (level >= 3)
        return level >= 4 ? &loops_v4 : &loops_v3;
#endif
    return &loops_default;
}

typedef struct {
    int64_t batch, rows, columns, inner;
    const char *left, *right, *bias;
    char *out;
    int64_t left_b, left_m, left_k, right_b, right_k, right_n; /* strides in elements */
    int64_t out_b, out_m, out_n, bias_b, bias_m, bias_n;
    int64_t panels, blocks; /* how columns and rows are split into pieces of work */
    int64_t rows_each;
    const loop_table *loops;
} product;

/* What surrounds them, once for each type. MR is four rows. */
#define PRODUCT(T, suffix)                                                                     \
    static void pack_##suffix(const product *p, const T *right, int64_t k0, int64_t depth,     \
                              int64_t width, T *panel)                                         \
    {                                                                                          \
        memset(panel, 0, (size_t)depth * NR_##suffix * sizeof(T));                             \
        if (p->right_n == 1) {                                                                 \
            for (int64_t k = 0; k < depth; k++)                                                \
                memcpy(panel + k * NR_##suffix, right + (k0 + k) * p->right_k,                 \
                       (size_t)width * sizeof(T));                                             \
            return;                                                                            \
        }                                                                                      \
        for (int64_t n = 0; n < width; n++)                                                    \
            for (int64_t k = 0; k < depth; k++)                                                \
                panel[k * NR_##suffix + n] = right[(k0 + k) * p->right_k + n * p->right_n];    \
    }                                                                                          \
                                                                                               \
    static void start_##suffix(const product *p, int64_t b, int64_t m, int64_t n,              \
                               int64_t high, int64_t width, T(*sums)[NR_##suffix])             \
    {                                                                                          \
        memset(sums, 0, 4 * sizeof *sums);                                                     \
        const T *bias = (const T *)(const void *)p->bias;                                      \
        for (int64_t i = 0; bias != NULL && i < high; i++)                                     \
            for (int64_t j = 0; j < width; j++)                                                \
                sums[i][j] = bias[b * p->bias_b + (m + i) * p->bias_m + (n + j) * p->bias_n];  \
    }                                                                                          \
                                                                                               \
    static void panel_##suffix(const product *p, int64_t b, int64_t n, int64_t width,          \
                               int64_t m0, int64_t m1)                                         \
    {                                                                                          \
        T panel[KC * NR_##suffix] __attribute__((aligned(64)));                                \
        T sums[4][NR_##suffix] __attribute__((aligned(64)));                                   \
        const T *left = (const T *)(const void *)p->left + b * p->left_b;                      \
        const T *right = (const T *)(const void *)p->right + b * p->right_b + n * p->right_n;  \
        T *out = (T *)(void *)p->out + b * p->out_b + n * p->out_n;                            \
        for (int64_t k = 0; k == 0 || k < p->inner; k += KC) {                                 \
            int64_t depth = p->inner - k < KC ? p->inner - k : KC;                             \
            pack_##suffix(p, right, k, depth, width, panel);                                   \
            for (int64_t m = m0; m < m1; m += 4) {                                             \
                int64_t high = m1 - m < 4 ? m1 - m : 4;                                        \
                const T *a[4];                                                                 \
                for (int64_t i = 0; i < 4; i++)                                                \
                    a[i] = left + (m + (i < high ? i : 0)) * p->left_m + k * p->left_k;        \
                if (k == 0)                                                                    \
                    start_##suffix(p, b, m, n, high, width, sums);                             \
                else                                                                           \
                    for (int64_t i = 0; i < high; i++)                                         \
                        for (int64_t j = 0; j < width; j++)                                    \
                            sums[i][j] = out[(m + i) * p->out_m + j * p->out_n];               \
                p->loops->tile_##suffix(depth, a, p->left_k, panel, sums);                     \
                for (int64_t i = 0; i < high; i++)                                             \
                    for (int64_t j = 0; j < width; j++)                                        \
                        out[(m + i) * p->out_m + j * p->out_n] = sums[i][j];                   \
            }                                                                                  \
        }                                                                                      \
    }                                                                                          \
                                                                                               \
    static void dots_##suffix(const product *p, int64_t b, int64_t n0, int64_t width,          \
                              int64_t m0, int64_t m1)                                          \
    {                                                                                          \
        const T *left = (const T *)(const void *)p->left + b * p->left_b;                      \
        const T *right = (const T *)(const void *)p->right + b * p->right_b;                   \
        const T *bias = (const T *)(const void *)p->bias;                                      \
        T *out = (T *)(void *)p->out + b * p->out_b;                                           \
        for (int64_t n = n0; n < n0 + width; n++)                                              \
            for (int64_t m = m0; m < m1; m++) {                                                \
                T sum = p->loops->dot_##suffix(p->inner, left + m * p->left_m,                 \
                                               right + n * p->right_n);                        \
                if (bias != NULL)                                                              \
                    sum += bias[b * p->bias_b + m * p->bias_m + n * p->bias_n];                \
                out[m * p->out_m + n * p->out_n] = sum;                                        \
            }                                                                                  \
    }                                                                                          \
                                                                                               \
    static void pieces_##suffix(void *context, int64_t begin, int64_t end)                     \
    {                                                                                          \
        const product *p = context;                                                            \
        bool by_dots = p->rows < 8 && p->left_k == 1 && p->right_k == 1;                       \
        for (int64_t piece = begin; piece < end; piece++) {                                    \
            int64_t n = piece % p->panels * NR_##suffix;                                       \
            int64_t block = piece / p->panels % p->blocks, b = piece / p->panels / p->blocks;  \
            int64_t width = p->columns - n < NR_##suffix ? p->columns - n : NR_##suffix;       \
            int64_t m0 = block * p->rows_each, m1 = m0 + p->rows_each;                         \
            if (m1 > p->rows)                                                                  \
                m1 = p->rows;                                                                  \
            if (by_dots)                                                                       \
                dots_##suffix(p, b, n, width, m0, m1);                                         \
            else                                                                               \
                panel_##suffix(p, b, n, width, m0, m1);                                        \
        }                                                                                      \
    }

PRODUCT(float, f32)
PRODUCT(double, f64)

static bool agrees(const dvt_tensor *t, int32_t rank, int64_t b, int64_t m, int64_t n)
{
    return t->ndim == rank && (rank == 2 || t->shape[0] == b) && t->shape[rank - 2] == m &&
           t->shape[rank - 1] == n;
}

static dvt_status check_matmul(const dvt_call *c, dvt_error *error)
{
    if (c->output_count != 1 || c->input_count < 2 || c->input_count > 3 ||
        c->attribute_count != 0)
        return dvt_fail(error, DVT_ERROR_MALFORMED, "matmul: wrong number of operands");
    const dvt_tensor *out = c->outputs[0], *left = c->inputs[0], *right = c->inputs[1];
    int32_t rank = out->ndim;
    type_id type = dvt_type_of(out->dtype);
    if (type != T_F32 && type != T_F64)
        return dvt_fail(error, DVT_ERROR_UNSUPPORTED, "matmul: no code for this dtype");
    bool fits = rank == 2 || rank == 3;
    for (uint32_t i = 0; i < c->input_count; i++)
        fits = fits && dvt_same_dtype(c->inputs[i]->dtype, out->dtype);
    if (fits && left->ndim == rank) {
        int64_t b = rank == 3 ? out->shape[0] : 1, k = left->shape[rank - 1];
        fits = agrees(left, rank, b, out->shape[rank - 2], k) &&
               agrees(right, rank, b, k, out->shape[rank - 1]) &&
               (c->input_count == 2 || dvt_broadcasts(c->inputs[2], out));
    } else {
        fits = false;
    }
    return fits ? DVT_OK
                : dvt_fail(error, DVT_ERROR_MALFORMED, "matmul: shapes or dtypes do not fit");
}

/* The stride of a dimension counted from the last, 0 where the tensor is broadcast. */
static int64_t step(const dvt_tensor *t, int32_t from_last)
{
    int32_t d = t->ndim - 1 - from_last;
    return d < 0 || t->shape[d] == 1 ? 0 : t->strides[d];
}

static dvt_status run_matmul(const dvt_call *c, dvt_error *error)
{
    (void)error;
    const dvt_tensor *out = c->outputs[0], *left = c->inputs[0], *right = c->inputs[1];
    const dvt_tensor *bias = c->input_count == 3 ? c->inputs[2] : NULL;
    int32_t last = out->ndim - 1;
    product p = {
        .batch = last == 2 ? out->shape[0] : 1,
        .rows = out->shape[last - 1],
        .columns = out->shape[last],
        .inner = left->shape[last],
        .left = dvt_data(left),
        .right = dvt_data(right),
        .bias = bias != NULL ? dvt_data(bias) : NULL,
        .out = dvt_data(out),
        .left_b = step(left, 2),
        .left_m = step(left, 1),
        .left_k = left->strides[last],
        .right_b = step(right, 2),
        .right_k = right->strides[last - 1],
        .right_n = right->strides[last],
        .out_b = step(out, 2),
        .out_m = step(out, 1),
        .out_n = step(out, 0),
        .loops = choose_loops(),
    };
    if (bias != NULL) {
        p.bias_b = step(bias, 2);
        p.bias_m = step(bias, 1);
        p.bias_n = step(bias, 0);
    }
    if (dvt_numel(out) == 0)
        return DVT_OK;
    bool single = dvt_type_of(out->dtype) == T_F32;
    int64_t width = single ? NR_f32 : NR_f64;
    p.panels = (p.columns - 1) / width + 1;
    p.rows_each = 128;
    p.blocks = (p.rows - 1) / p.rows_each + 1;
    int64_t each = (p.rows < p.rows_each ? p.rows : p.rows_each) * width * (p.inner + 1);
    c->parallel(p.batch * p.panels * p.blocks, (1 << 20) / each,
                single ? pieces_f32 : pieces_f64, &p);
    return DVT_OK;
}

const dvt_kernel dvt_product_kernels[] = {
    {sizeof(dvt_kernel), 1, "matmul", check_matmul, run_matmul},
};
const size_t dvt_product_count = 1;

bool dvt_is_product(const dvt_kernel *kernel)
{
    return kernel->run == run_matmul;
}
