/* Elements put, added or compared into the places that an index names: scatter.
 *
 * Each place meets its elements in the order in which they lie, whatever the number of threads:
 * a thread has some columns of all rows. */
#include "internal.h"
#include "kernel_math.h"

#include <stdatomic.h>
#include <string.h>

typedef enum { SET, ADD, MULTIPLY, MOST, LEAST, MODES } scatter_mode;

/* out = base, then for each position of the source:
 * by elements, out[a…, index[a…, i, b…], b…] meets source[a…, i, b…];
 * by slices, out[a…, index[i…], b…] meets source[a…, i…, b…]. */
enum { AXIS, MODE, BY_SLICES, WITHOUT_BASE, FROM_END, ATTRIBUTES };

typedef struct {
    int32_t rank; /* of the positions */
    int64_t shape[DVT_MAX_RANK];
    int64_t of_source[DVT_MAX_RANK], of_index[DVT_MAX_RANK], of_out[DVT_MAX_RANK];
    int64_t size, step; /* of the dimension that is indexed, of the result */
    char *out;
    const char *source;
    const int64_t *index;
    scatter_mode mode;
    bool from_end;      /* an index may count from the end */
    atomic_llong wrong; /* 1 + a bad index's position, 0 when there is none */
} scatter;

static dvt_status unfit(dvt_error *error)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "scatter: operands do not fit");
}

static bool fits_elements(const dvt_call *c, int64_t axis)
{
    const dvt_tensor *out = c->outputs[0], *index = c->inputs[1], *source = c->inputs[2];
    bool fits = index->ndim == out->ndim && (source->ndim == 0 || source->ndim == out->ndim);
    for (int32_t d = 0; fits && d < out->ndim; d++)
        fits = (source->ndim == 0 || index->shape[d] <= source->shape[d]) &&
               (d == axis || index->shape[d] <= out->shape[d]);
    return fits;
}

static bool fits_slices(const dvt_call *c, int64_t axis)
{
    const dvt_tensor *out = c->outputs[0], *index = c->inputs[1], *source = c->inputs[2];
    bool fits = source->ndim == out->ndim - 1 + index->ndim;
    for (int32_t d = 0; fits && d < source->ndim; d++) {
        int64_t expected = d < axis                 ? out->shape[d]
                           : d < axis + index->ndim ? index->shape[d - axis]
                                                    : out->shape[d - index->ndim + 1];
        fits = source->shape[d] == expected;
    }
    return fits;
}

static dvt_status check_scatter(const dvt_call *c, dvt_error *error)
{
    if (c->output_count != 1 || c->input_count != 3 || c->attribute_count != ATTRIBUTES)
        return unfit(error);
    const dvt_tensor *out = c->outputs[0], *base = c->inputs[0];
    type_id type = dvt_type_of(out->dtype);
    int64_t axis = c->attributes[AXIS].i, mode = c->attributes[MODE].i;
    bool fits = type != T_NONE && axis >= 0 && axis < out->ndim && mode >= SET &&
                mode < MODES && dvt_type_of(c->inputs[1]->dtype) == T_I64 &&
                base->ndim == out->ndim && dvt_broadcasts(base, out) &&
                dvt_same_dtype(base->dtype, out->dtype) &&
                dvt_same_dtype(c->inputs[2]->dtype, out->dtype);
    for (int32_t d = 0; fits && d < out->ndim; d++)
        fits = base->shape[d] == out->shape[d];
    if (fits)
        fits = c->attributes[BY_SLICES].i != 0 ? fits_slices(c, axis) : fits_elements(c, axis);
    return fits ? DVT_OK : unfit(error);
}

/* The place that an index names, or -1. */
static int64_t place_of(const scatter *s, int64_t index)
{
    if (s->from_end && index < 0)
        index += s->size;
    return index >= 0 && index < s->size ? index : -1;
}

/* The places of one row of positions, by how far each is from its neighbour. */
typedef struct {
    int64_t count, source, index, out; /* where the row begins */
    bool one_place;
} row;

/* The next row's beginning: the last dimension but one steps, and those before it carry. */
static void next_row(const scatter *s, int64_t *at, row *r)
{
    for (int32_t d = s->rank - 2; d >= 0; d--) {
        r->source += s->of_source[d];
        r->index += s->of_index[d];
        r->out += s->of_out[d];
        if (++at[d] < s->shape[d])
            return;
        at[d] = 0;
        r->source -= s->shape[d] * s->of_source[d];
        r->index -= s->shape[d] * s->of_index[d];
        r->out -= s->shape[d] * s->of_out[d];
    }
}

/* Loops for one element type and one mode, which the compiler knows. */
#define MEETING(T, suffix, SUM, WIDE, NARROW)                                                  \
    __attribute__((always_inline)) static inline T meet_##suffix(const int mode, T a, T b)     \
    {                                                                                          \
        switch (mode) {                                                                        \
        case ADD:                                                                              \
            return NARROW((SUM)WIDE(a) + (SUM)WIDE(b));                                        \
        case MULTIPLY:                                                                         \
            return NARROW((SUM)WIDE(a) * (SUM)WIDE(b));                                        \
        case MOST:                                                                             \
            return (WIDE(b) > WIDE(a)) | (WIDE(b) != WIDE(b)) ? b : a;                         \
        case LEAST:                                                                            \
            return (WIDE(b) < WIDE(a)) | (WIDE(b) != WIDE(b)) ? b : a;                         \
        default:                                                                               \
            return b;                                                                          \
        }                                                                                      \
    }
MEETING(float, f32, float, , )
MEETING(double, f64, double, , )
MEETING(int64_t, i64, uint64_t, , (int64_t))
MEETING(int32_t, i32, uint32_t, , (int32_t))
MEETING(int16_t, i16, uint16_t, , (int16_t))
MEETING(int8_t, i8, uint8_t, , (int8_t))
MEETING(uint8_t, u8, uint8_t, , (uint8_t))
MEETING(uint16_t, f16, float, widen_half, narrow_half)
MEETING(uint16_t, bf16, float, widen_bfloat16, narrow_bfloat16)

#define SCATTER(T, suffix, ONE, LOWEST, HIGHEST)                                               \
    __attribute__((always_inline)) static inline int64_t row_##suffix(                         \
        const scatter *s, const row *r, const int mode)                                        \
    {                                                                                          \
        T *out = (T *)(void *)s->out + r->out;                                                 \
        const T *in = (const T *)(const void *)s->source + r->source;                          \
        const int64_t *index = s->index + r->index;                                            \
        const int64_t to = s->of_out[s->rank - 1], from = s->of_source[s->rank - 1];           \
        const int64_t step = s->of_index[s->rank - 1];                                         \
        if (r->one_place) {                                                                    \
            int64_t place = place_of(s, *index);                                               \
            if (place < 0)                                                                     \
                return r->index + 1;                                                           \
            out += place * s->step;                                                            \
            if (to == 1 && from == 1)                                                          \
                for (int64_t i = 0; i < r->count; i++)                                         \
                    out[i] = meet_##suffix(mode, out[i], in[i]);                               \
            else                                                                               \
                for (int64_t i = 0; i < r->count; i++)                                         \
                    out[i * to] = meet_##suffix(mode, out[i * to], in[i * from]);              \
            return 0;                                                                          \
        }                                                                                      \
        for (int64_t i = 0; i < r->count; i++) {                                               \
            int64_t place = place_of(s, index[i * step]);                                      \
            if (place < 0)                                                                     \
                return r->index + i * step + 1;                                                \
            T *met = &out[i * to + place * s->step];                                           \
            *met = meet_##suffix(mode, *met, in[i * from]);                                    \
        }                                                                                      \
        return 0;                                                                              \
    }                                                                                          \
    __attribute__((always_inline)) static inline void rows_##suffix(                           \
        scatter *s, int64_t begin, int64_t end, const int mode)                                \
    {                                                                                          \
        int32_t last = s->rank - 1;                                                            \
        int64_t at[DVT_MAX_RANK] = {0}, rows = 1, wrong = 0;                                   \
        for (int32_t d = 0; d < last; d++)                                                     \
            rows *= s->shape[d];                                                               \
        row r = {end - begin, begin * s->of_source[last], begin * s->of_index[last],           \
                 begin * s->of_out[last], s->of_index[last] == 0};                             \
        for (int64_t n = 0; n < rows && wrong == 0; n++, next_row(s, at, &r))                  \
            wrong = row_##suffix(s, &r, mode);                                                 \
        if (wrong != 0)                                                                        \
            atomic_store(&s->wrong, wrong);                                                    \
    }                                                                                          \
    static const T neutral_##suffix[MODES] = {0, 0, ONE, LOWEST, HIGHEST};                     \
    static void columns_##suffix(void *context, int64_t begin, int64_t end)                    \
    {                                                                                          \
        scatter *s = context;                                                                  \
        switch (s->mode) {                                                                     \
        case ADD:                                                                              \
            rows_##suffix(s, begin, end, ADD);                                                 \
            break;                                                                             \
        case MULTIPLY:                                                                         \
            rows_##suffix(s, begin, end, MULTIPLY);                                            \
            break;                                                                             \
        case MOST:                                                                             \
            rows_##suffix(s, begin, end, MOST);                                                \
            break;                                                                             \
        case LEAST:                                                                            \
            rows_##suffix(s, begin, end, LEAST);                                               \
            break;                                                                             \
        default:                                                                               \
            rows_##suffix(s, begin, end, SET);                                                 \
            break;                                                                             \
        }                                                                                      \
    }
SCATTER(float, f32, 1, -__builtin_inff(), __builtin_inff())
SCATTER(double, f64, 1, -__builtin_inf(), __builtin_inf())
SCATTER(int64_t, i64, 1, INT64_MIN, INT64_MAX)
SCATTER(int32_t, i32, 1, INT32_MIN, INT32_MAX)
SCATTER(int16_t, i16, 1, INT16_MIN, INT16_MAX)
SCATTER(int8_t, i8, 1, INT8_MIN, INT8_MAX)
SCATTER(uint8_t, u8, 1, 0, UINT8_MAX)
SCATTER(uint16_t, f16, 0x3c00, 0xfc00, 0x7c00)
SCATTER(uint16_t, bf16, 0x3f80, 0xff80, 0x7f80)

typedef struct {
    dvt_body columns;    /* from begin to end of all rows: positions along the last dimension */
    const void *neutral; /* what leaves any other as it is where they meet, for each mode */
    size_t size;
} loops;
#define LOOPS(suffix) {columns_##suffix, neutral_##suffix, sizeof *neutral_##suffix}
static const loops of_type[T_COUNT] = {
    [T_F32] = LOOPS(f32), [T_F64] = LOOPS(f64),   [T_I64] = LOOPS(i64), [T_I32] = LOOPS(i32),
    [T_I16] = LOOPS(i16), [T_I8] = LOOPS(i8),     [T_U8] = LOOPS(u8),   [T_BOOL] = LOOPS(u8),
    [T_F16] = LOOPS(f16), [T_BF16] = LOOPS(bf16),
};

/* How positions reach source, index and result. */
static void set_positions(scatter *s, const dvt_call *c, int32_t axis)
{
    const dvt_tensor *out = c->outputs[0], *index = c->inputs[1], *source = c->inputs[2];
    bool slices = c->attributes[BY_SLICES].i != 0;
    int32_t fixed = slices ? index->ndim : 1;
    s->rank = slices ? source->ndim : index->ndim;
    for (int32_t d = 0; d < s->rank; d++) {
        bool indexed = d >= axis && d < axis + fixed;
        int32_t kept = d < axis ? d : d - fixed + 1;
        s->shape[d] = slices ? source->shape[d] : index->shape[d];
        s->of_source[d] = source->ndim == 0 ? 0 : source->strides[d];
        s->of_out[d] = indexed ? 0 : out->strides[kept];
        s->of_index[d] = !slices ? index->strides[d] : indexed ? index->strides[d - axis] : 0;
    }
}

static dvt_status run_scatter(const dvt_call *c, dvt_error *error)
{
    const dvt_tensor *out = c->outputs[0];
    int32_t axis = (int32_t)c->attributes[AXIS].i;
    const loops *type = &of_type[dvt_type_of(out->dtype)];
    dvt_copy_tensor(out, c->inputs[0]);
    scatter s = {.size = out->shape[axis],
                 .step = out->strides[axis],
                 .out = dvt_data(out),
                 .source = dvt_data(c->inputs[2]),
                 .index = (const int64_t *)(const void *)dvt_data(c->inputs[1]),
                 .mode = (scatter_mode)c->attributes[MODE].i,
                 .from_end = c->attributes[FROM_END].i != 0};
    set_positions(&s, c, axis);
    int64_t count = 1, columns = s.rank > 0 ? s.shape[s.rank - 1] : 1;
    for (int32_t d = 0; d < s.rank; d++)
        count *= s.shape[d];
    if (count == 0)
        return DVT_OK;
    if (s.rank == 0) { /* one element, as a row of one */
        s.rank = 1;
        s.shape[0] = 1;
    }
    bool parts = s.of_index[s.rank - 1] == 0 && s.of_out[s.rank - 1] != 0;
    int64_t grain = parts ? 16384 / (count / columns) + 16 : columns;
    if (c->attributes[WITHOUT_BASE].i != 0) {
        scatter first = s; /* what is there does not count: it becomes neutral */
        memset(first.of_source, 0, sizeof first.of_source);
        first.source = (const char *)type->neutral + (size_t)s.mode * type->size;
        first.mode = SET;
        c->parallel(columns, grain, type->columns, &first);
        s.wrong = first.wrong;
    }
    if (s.wrong == 0)
        c->parallel(columns, grain, type->columns, &s);
    if (s.wrong == 0)
        return DVT_OK;
    dvt_status code = s.from_end ? DVT_ERROR_INDEX : DVT_ERROR_BOUNDS;
    return dvt_fail(error, code, "an index is out of bounds for a dimension of size %lld",
                    (long long)s.size);
}

const dvt_kernel dvt_scatter_kernels[] = {
    {sizeof(dvt_kernel), 1, "scatter", check_scatter, run_scatter},
};
const size_t dvt_scatter_count = sizeof dvt_scatter_kernels / sizeof(dvt_kernel);
