/* Elements in order along a dimension: sort (of topk, the first of them) and select (one of
 * them: kthvalue, median).
 *
 * A NaN is greater than all else, and among equals the one that lies first comes first, also
 * where the order is descending. Places make every element different from any other, so that no
 * method need be stable. Nothing is allocated: a row is put in order where its results go. What
 * lies there may change under us in a file that lies, so no bound depends on it. */
#include "internal.h"

#include <string.h>

#define INLINE __attribute__((always_inline)) static inline
#define FEW    16 /* elements that are inserted one by one */

/* Loops for a type that the compiler knows. The rest share one set of them. */
#define SORTED(T, what)                                                                        \
    static void what##_##T(void *context, int64_t begin, int64_t end)                          \
    {                                                                                          \
        what##_rows(context, begin, end, T);                                                   \
    }
#define COMMON_TYPES(X, what) X(T_F32, what) X(T_F64, what) X(T_I32, what) X(T_I64, what)
#define BODY(T, what)         type == T ? what##_##T:
#define BODY_OF(what)         COMMON_TYPES(BODY, what) what##_any

/* Numbers of as many bits as the elements of a type have, and ordered as those are. The
 * greatest stands for NaN where there is one. */
#define KEY_OF_BITS(T, bits, infinity)                                                         \
    const T sign = (T)((T)1 << (8 * sizeof(T) - 1));                                           \
    if ((bits & (T)~sign) > (T)(infinity))                                                     \
        return (T) ~(T)0;                                                                      \
    bits = bits == sign ? 0 : bits;                                                            \
    return (T)(bits & sign ? (T)~bits : (T)(bits | sign))

INLINE uint64_t key_of_double(uint64_t bits)
{
    KEY_OF_BITS(uint64_t, bits, 0x7ffull << 52);
}

INLINE uint64_t key_of_float(uint32_t bits)
{
    KEY_OF_BITS(uint32_t, bits, 0xffu << 23);
}

INLINE uint64_t key_of_short(uint16_t bits, uint16_t infinity)
{
    KEY_OF_BITS(uint16_t, bits, infinity);
}

INLINE size_t size_of(type_id type)
{
    switch (type) {
    case T_F64:
    case T_I64:
        return 8;
    case T_F32:
    case T_I32:
        return 4;
    case T_F16:
    case T_BF16:
    case T_I16:
        return 2;
    default:
        return 1;
    }
}

static uint64_t key_of_rare(uint64_t bits, type_id type)
{
    switch (type) {
    case T_F16:
        return key_of_short((uint16_t)bits, 0x7c00);
    case T_BF16:
        return key_of_short((uint16_t)bits, 0x7f80);
    case T_BOOL:
        return bits != 0;
    case T_U8:
        return bits;
    default:
        return bits ^ 1ull << (8 * size_of(type) - 1);
    }
}

INLINE uint64_t key_of(uint64_t bits, type_id type)
{
    if (type == T_F32)
        return key_of_float((uint32_t)bits);
    if (type == T_F64)
        return key_of_double(bits);
    if (type == T_I32 || type == T_I64)
        return bits ^ 1ull << (8 * size_of(type) - 1);
    return key_of_rare(bits, type);
}

INLINE bool is_nan(uint64_t bits, type_id type)
{
    bool may_be = type == T_F32 || type == T_F64 || type == T_F16 || type == T_BF16;
    return may_be && key_of(bits, type) == UINT64_MAX >> (64 - 8 * size_of(type));
}

INLINE uint64_t read_bits(const char *at, type_id type)
{
    uint64_t eight = 0;
    uint32_t four = 0;
    uint16_t two = 0;
    switch (size_of(type)) {
    case 8:
        memcpy(&eight, at, sizeof eight);
        return eight;
    case 4:
        memcpy(&four, at, sizeof four);
        return four;
    case 2:
        memcpy(&two, at, sizeof two);
        return two;
    default:
        return (uint8_t)*at;
    }
}

INLINE void write_bits(char *at, uint64_t bits, type_id type)
{
    uint32_t four = (uint32_t)bits;
    uint16_t two = (uint16_t)bits;
    switch (size_of(type)) {
    case 8:
        memcpy(at, &bits, sizeof bits);
        break;
    case 4:
        memcpy(at, &four, sizeof four);
        break;
    case 2:
        memcpy(at, &two, sizeof two);
        break;
    default:
        *at = (char)bits;
        break;
    }
}

/* Rows of a tensor: all of its dimensions but one. */
typedef struct {
    int64_t count, length, step; /* step: between the elements of a row */
    int32_t rank;
    int64_t shape[DVT_MAX_RANK];
} rows;

static int64_t row_start(const rows *r, const int64_t *strides, int64_t row)
{
    int64_t at = 0;
    for (int32_t d = r->rank - 1; d >= 0; d--) {
        at += row % r->shape[d] * strides[d];
        row /= r->shape[d];
    }
    return at;
}

/* The strides of all dimensions but one, which is -1 where there is none to leave out. */
static void strides_beside(const dvt_tensor *t, int64_t axis, int64_t *strides)
{
    for (int32_t d = 0, n = 0; d < t->ndim; d++)
        if (d != axis)
            strides[n++] = t->strides[d];
}

static void rows_of(const dvt_tensor *t, int64_t axis, rows *r)
{
    *r = (rows){.count = 1, .length = t->shape[axis], .step = t->strides[axis]};
    for (int32_t d = 0; d < t->ndim; d++) {
        if (d == axis)
            continue;
        r->shape[r->rank++] = t->shape[d];
        r->count *= t->shape[d];
    }
}

static dvt_status unfit(dvt_error *error, const char *name)
{
    return dvt_fail(error, DVT_ERROR_MALFORMED, "%s: operands do not fit", name);
}

/* ---- sort: out, places = the first elements of each row in order ---- */

enum { AXIS, DESCENDING, SORT_ATTRIBUTES };

typedef struct {
    rows rows;
    int64_t kept; /* of the elements of a row */
    int64_t of_source[DVT_MAX_RANK], of_out[DVT_MAX_RANK], of_places[DVT_MAX_RANK];
    const char *source;
    char *out;
    int64_t *places;
    int64_t out_step, places_step;
    uint64_t flip;
    type_id type;
} sort;

/* One row, where its results go. */
typedef struct {
    char *out;
    int64_t *places;
    int64_t out_step, places_step; /* bytes, elements */
    uint64_t flip;
} list;

typedef struct {
    uint64_t bits, key;
    int64_t place;
} element;

INLINE element element_at(const list *l, int64_t i, type_id type)
{
    uint64_t bits = read_bits(l->out + i * l->out_step, type);
    return (element){bits, key_of(bits, type) ^ l->flip, l->places[i * l->places_step]};
}

INLINE void put_element(const list *l, int64_t i, element e, type_id type)
{
    write_bits(l->out + i * l->out_step, e.bits, type);
    l->places[i * l->places_step] = e.place;
}

INLINE bool comes_before(element a, element b)
{
    return a.key < b.key || (a.key == b.key && a.place < b.place);
}

/* Puts an element where `root` is, or below it: of a heap whose last comes first. */
INLINE void sift(const list *l, int64_t first, int64_t root, int64_t count, element e,
                 type_id type)
{
    for (int64_t child = 2 * root + 1; child < count; child = 2 * root + 1) {
        element c = element_at(l, first + child, type);
        if (child + 1 < count) {
            element other = element_at(l, first + child + 1, type);
            if (comes_before(c, other)) {
                c = other;
                child++;
            }
        }
        if (!comes_before(e, c))
            break;
        put_element(l, first + root, c, type);
        root = child;
    }
    put_element(l, first + root, e, type);
}

INLINE void heap_make(const list *l, int64_t first, int64_t count, type_id type)
{
    for (int64_t i = count / 2 - 1; i >= 0; i--)
        sift(l, first, i, count, element_at(l, first + i, type), type);
}

INLINE void heap_order(const list *l, int64_t first, int64_t count, type_id type)
{
    for (int64_t i = count - 1; i > 0; i--) {
        element last = element_at(l, first + i, type);
        put_element(l, first + i, element_at(l, first, type), type);
        sift(l, first, 0, i, last, type);
    }
}

INLINE void insert_each(const list *l, int64_t first, int64_t end, type_id type)
{
    for (int64_t i = first + 1; i < end; i++) {
        element e = element_at(l, i, type);
        int64_t at = i;
        for (; at > first; at--) {
            element before = element_at(l, at - 1, type);
            if (!comes_before(e, before))
                break;
            put_element(l, at, before, type);
        }
        put_element(l, at, e, type);
    }
}

/* Moves elements so that none before the position that it returns comes after one behind. */
INLINE int64_t part(const list *l, int64_t first, int64_t end, type_id type)
{
    element a = element_at(l, first, type), b = element_at(l, (first + end) / 2, type);
    element c = element_at(l, end - 1, type), middle = b;
    if (comes_before(b, a) != comes_before(c, a))
        middle = a;
    else if (comes_before(a, c) != comes_before(b, c))
        middle = c;
    int64_t i = first, j = end - 1;
    for (;;) {
        element low = element_at(l, i, type), high = element_at(l, j, type);
        while (i < end - 1 && comes_before(low, middle))
            low = element_at(l, ++i, type);
        while (j > first && comes_before(middle, high))
            high = element_at(l, --j, type);
        if (i >= j)
            return i > first ? i : first + 1;
        put_element(l, i++, high, type);
        put_element(l, j--, low, type);
    }
}

/* Quicksort; parts that do not become small soon are put in order by a heap. */
INLINE void order(const list *l, int64_t count, type_id type)
{
    struct {
        int64_t first, end;
        int depth;
    } waiting[64], now = {0, count, 0};
    int many = 0, deepest = 2 * (64 - __builtin_clzll((uint64_t)count | 1));
    for (;;) {
        if (now.end - now.first > FEW && now.depth < deepest && many < 64) {
            int64_t at = part(l, now.first, now.end, type);
            bool left = at - now.first > now.end - at; /* the larger part waits */
            waiting[many] = now;
            waiting[many].depth = ++now.depth;
            if (left)
                waiting[many].end = now.first = at;
            else
                waiting[many].first = now.end = at;
            many++;
            continue;
        }
        if (now.end - now.first > FEW) {
            heap_make(l, now.first, now.end - now.first, type);
            heap_order(l, now.first, now.end - now.first, type);
        } else {
            insert_each(l, now.first, now.end, type);
        }
        if (many == 0)
            return;
        now = waiting[--many];
    }
}

INLINE void sort_rows(const sort *s, int64_t begin, int64_t end, type_id type)
{
    const int64_t size = (int64_t)size_of(type), step = s->rows.step * size;
    for (int64_t row = begin; row < end; row++) {
        const char *source = s->source + row_start(&s->rows, s->of_source, row) * size;
        list l = {s->out + row_start(&s->rows, s->of_out, row) * size,
                  s->places + row_start(&s->rows, s->of_places, row), s->out_step * size,
                  s->places_step, s->flip};
        for (int64_t i = 0; i < s->kept; i++)
            put_element(&l, i, (element){read_bits(source + i * step, type), 0, i}, type);
        if (s->kept == s->rows.length) {
            order(&l, s->kept, type);
            continue;
        }
        heap_make(&l, 0, s->kept, type);
        uint64_t last = s->kept > 0 ? element_at(&l, 0, type).key : 0;
        for (int64_t i = s->kept; s->kept > 0 && i < s->rows.length; i++) {
            uint64_t bits = read_bits(source + i * step, type);
            element e = {bits, key_of(bits, type) ^ s->flip, i};
            if (e.key < last) { /* what is equal lies behind */
                sift(&l, 0, 0, s->kept, e, type);
                last = element_at(&l, 0, type).key;
            }
        }
        heap_order(&l, 0, s->kept, type);
    }
}

static dvt_status check_sort(const dvt_call *c, dvt_error *error)
{
    if (c->output_count != 2 || c->input_count != 1 || c->attribute_count != SORT_ATTRIBUTES)
        return unfit(error, "sort");
    const dvt_tensor *out = c->outputs[0], *places = c->outputs[1], *source = c->inputs[0];
    int64_t axis = c->attributes[AXIS].i;
    bool fits = dvt_type_of(out->dtype) != T_NONE && dvt_type_of(places->dtype) == T_I64 &&
                dvt_same_dtype(out->dtype, source->dtype) && out->ndim == source->ndim &&
                places->ndim == source->ndim && axis >= 0 && axis < source->ndim;
    for (int32_t d = 0; fits && d < source->ndim; d++)
        fits =
            out->shape[d] == places->shape[d] &&
            (d == axis ? out->shape[d] <= source->shape[d] : out->shape[d] == source->shape[d]);
    return fits ? DVT_OK : unfit(error, "sort");
}

static void sort_any(void *context, int64_t begin, int64_t end)
{
    sort_rows(context, begin, end, ((const sort *)context)->type);
}
COMMON_TYPES(SORTED, sort)

static dvt_status run_sort(const dvt_call *c, dvt_error *error)
{
    (void)error;
    const dvt_tensor *out = c->outputs[0], *places = c->outputs[1], *source = c->inputs[0];
    int64_t axis = c->attributes[AXIS].i;
    type_id type = dvt_type_of(out->dtype);
    sort s = {.kept = out->shape[axis],
              .source = dvt_data(source),
              .out = dvt_data(out),
              .places = (int64_t *)(void *)dvt_data(places),
              .out_step = out->strides[axis],
              .places_step = places->strides[axis],
              .flip = c->attributes[DESCENDING].i != 0 ? UINT64_MAX : 0,
              .type = type};
    rows_of(source, axis, &s.rows);
    strides_beside(source, axis, s.of_source);
    strides_beside(out, axis, s.of_out);
    strides_beside(places, axis, s.of_places);
    if (s.rows.count > 0 && s.kept > 0)
        c->parallel(s.rows.count, 2048 / s.rows.length + 1, BODY_OF(sort), &s);
    return DVT_OK;
}

/* ---- select: out, place = one element of each row, by its number in their order ---- */

enum { SELECT_AXIS, WHICH, SELECT_ATTRIBUTES };
enum { MEDIAN = -1, MEDIAN_OF_NUMBERS = -2 }; /* of WHICH; from 0 on: a number */

typedef struct {
    rows rows;
    int64_t of_source[DVT_MAX_RANK], of_out[DVT_MAX_RANK], of_place[DVT_MAX_RANK];
    const char *source;
    char *out;
    int64_t *place;
    int64_t which;
    type_id type;
} selection;

/* The key of one element's number, a byte of it at a time from the highest: elements are
 * counted by that byte, of those alone that have the same bytes above. */
INLINE uint64_t select_key(const selection *s, const char *row, int64_t which, type_id type)
{
    const int64_t step = s->rows.step * (int64_t)size_of(type);
    uint64_t key = 0, above = 0;
    for (int shift = 8 * (int)size_of(type) - 8; shift >= 0; shift -= 8) {
        int64_t counts[256] = {0};
        for (int64_t i = 0; i < s->rows.length; i++) {
            uint64_t other = key_of(read_bits(row + i * step, type), type);
            if ((other & above) == key)
                counts[other >> shift & 255]++;
        }
        uint64_t byte = 0;
        while (byte < 255 && which >= counts[byte])
            which -= counts[byte++];
        key |= byte << shift;
        above |= 255ull << shift;
    }
    return key;
}

INLINE void select_rows(const selection *s, int64_t begin, int64_t end, type_id type)
{
    const int64_t size = (int64_t)size_of(type), step = s->rows.step * size;
    for (int64_t r = begin; r < end; r++) {
        const char *row = s->source + row_start(&s->rows, s->of_source, r) * size;
        int64_t which = s->which, numbers = 0, place = 0;
        if (which < 0) {
            for (int64_t i = 0; i < s->rows.length; i++)
                numbers += !is_nan(read_bits(row + i * step, type), type);
            bool beside = which == MEDIAN && numbers < s->rows.length; /* a NaN is the median */
            which = beside ? s->rows.length - 1 : (numbers - 1) / 2;
        }
        uint64_t key = select_key(s, row, which, type);
        while (place < s->rows.length - 1 &&
               key_of(read_bits(row + place * step, type), type) != key)
            place++;
        write_bits(s->out + row_start(&s->rows, s->of_out, r) * size,
                   read_bits(row + place * step, type), type);
        s->place[row_start(&s->rows, s->of_place, r)] = place;
    }
}

/* Whether a tensor has the shape of another's rows, with or without a dimension of one. */
static bool fits_rows(const dvt_tensor *t, const dvt_tensor *source, int64_t axis)
{
    bool kept = t->ndim == source->ndim, fits = kept || t->ndim == source->ndim - 1;
    for (int32_t d = 0; fits && d < source->ndim; d++) {
        if (d != axis)
            fits = t->shape[kept || d < axis ? d : d - 1] == source->shape[d];
        else if (kept)
            fits = t->shape[d] == 1;
    }
    return fits;
}

static dvt_status check_select(const dvt_call *c, dvt_error *error)
{
    if (c->output_count != 2 || c->input_count != 1 || c->attribute_count != SELECT_ATTRIBUTES)
        return unfit(error, "select");
    const dvt_tensor *out = c->outputs[0], *place = c->outputs[1], *source = c->inputs[0];
    int64_t axis = c->attributes[SELECT_AXIS].i, which = c->attributes[WHICH].i;
    bool fits = dvt_type_of(out->dtype) != T_NONE && dvt_type_of(place->dtype) == T_I64 &&
                dvt_same_dtype(out->dtype, source->dtype) && axis >= 0 && axis < source->ndim &&
                fits_rows(out, source, axis) && fits_rows(place, source, axis) &&
                which >= MEDIAN_OF_NUMBERS && source->shape[axis] > 0 &&
                which < source->shape[axis];
    return fits ? DVT_OK : unfit(error, "select");
}

static void select_any(void *context, int64_t begin, int64_t end)
{
    select_rows(context, begin, end, ((const selection *)context)->type);
}
COMMON_TYPES(SORTED, select)

static dvt_status run_select(const dvt_call *c, dvt_error *error)
{
    (void)error;
    const dvt_tensor *out = c->outputs[0], *place = c->outputs[1], *source = c->inputs[0];
    int64_t axis = c->attributes[SELECT_AXIS].i;
    type_id type = dvt_type_of(out->dtype);
    selection s = {.source = dvt_data(source),
                   .out = dvt_data(out),
                   .place = (int64_t *)(void *)dvt_data(place),
                   .which = c->attributes[WHICH].i,
                   .type = type};
    rows_of(source, axis, &s.rows);
    strides_beside(source, axis, s.of_source);
    strides_beside(out, out->ndim == source->ndim ? axis : -1, s.of_out);
    strides_beside(place, place->ndim == source->ndim ? axis : -1, s.of_place);
    if (s.rows.count > 0)
        c->parallel(s.rows.count, 2048 / s.rows.length + 1, BODY_OF(select), &s);
    return DVT_OK;
}

bool dvt_is_sort(const dvt_kernel *kernel)
{
    return kernel->run == run_sort || kernel->run == run_select;
}

const dvt_kernel dvt_sort_kernels[] = {
    {sizeof(dvt_kernel), 1, "sort", check_sort, run_sort},
    {sizeof(dvt_kernel), 1, "select", check_select, run_select},
};
const size_t dvt_sort_count = sizeof dvt_sort_kernels / sizeof(dvt_kernel);
