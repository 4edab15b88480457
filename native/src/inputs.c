/* The inputs of one call: checked against what the program expects, used where they lie or
 * copied, and given back. */
#include "call.h"

#include <stdlib.h>
#include <string.h>

static dvt_status wrong(dvt_error *error, const buffer_record *b, const char *what,
                        long long got, long long expected)
{
    return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has %s %lld, expected %lld",
                    dvt_shown(b->name.size), (const char *)b->name.data, what, got, expected);
}

static const char *dtype_name(dvt_dtype dtype, char *text)
{
    static const char *const names[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
    char *at = text;
    const char *name = dtype.code == DVT_BOOL ? "bool"
                       : dtype.code < 6       ? names[dtype.code]
                                              : "float8-kind";
    while (*name)
        *at++ = *name++;
    if (dtype.code < 6) {
        if (dtype.bits >= 100)
            *at++ = (char)('0' + dtype.bits / 100);
        if (dtype.bits >= 10)
            *at++ = (char)('0' + dtype.bits / 10 % 10);
        *at++ = (char)('0' + dtype.bits % 10);
    }
    *at = 0;
    return text;
}

static dvt_status check_kind(const dvt_artifact *a, uint32_t n, const dvt_tensor *t,
                             dvt_error *error)
{
    const buffer_record *b = &a->program.buffers[a->program.inputs[n]];
    char got[24], expected[24];
    if (!dvt_same_dtype(t->dtype, b->dtype))
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' is %s, expected %s",
                        dvt_shown(b->name.size), (const char *)b->name.data,
                        dtype_name(t->dtype, got), dtype_name(b->dtype, expected));
    if (t->ndim != b->rank)
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has %d dimensions, expected %d",
                        dvt_shown(b->name.size), (const char *)b->name.data, t->ndim, b->rank);
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0)
            return wrong(error, b, "a negative size", t->shape[i], 0);
    return t->device.type == DVT_CPU
               ? DVT_OK
               : dvt_device_tensor_check(a, a->program.inputs[n], t, "input", n, error);
}

static dvt_status check_shape(const buffer_record *b, const dvt_tensor *t,
                              const int64_t *expected, dvt_error *error)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] != expected[i])
            return dvt_fail(error, DVT_ERROR_GUARD,
                            "input '%.*s' has size %lld in dimension %d, expected %lld",
                            dvt_shown(b->name.size), (const char *)b->name.data,
                            (long long)t->shape[i], i, (long long)expected[i]);
    return DVT_OK;
}

bool dvt_is_empty(const dvt_tensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return true;
    return false;
}

/* Whether an input lies as the program expects, so that it can be used where it is. */
bool dvt_fits_in_place(const dvt_tensor *t, const dvt_tensor *expected, uint32_t item)
{
    uintptr_t address = (uintptr_t)dvt_data(t);
    uint32_t align = item > 8 ? 8 : item;
    if (address % align != 0)
        return false;
    int64_t row = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        int64_t stride = t->strides != NULL ? t->strides[i] : row;
        if (t->shape[i] != 1 && stride != expected->strides[i])
            return false;
        row *= t->shape[i]; /* no overflow: the shape is the expected one, which was checked */
    }
    return true;
}

/* A strided tensor to or from memory of the expected layout; NULL strides mean row-major. */
void dvt_repack(const dvt_tensor *to, const dvt_tensor *from)
{
    int64_t rows[2][DVT_MAX_RANK];
    dvt_tensor sides[2] = {*to, *from};
    for (int side = 0; side < 2; side++) {
        dvt_tensor *t = &sides[side];
        int64_t step = 1;
        for (int32_t i = t->ndim - 1; t->strides == NULL && i >= 0; i--) {
            rows[side][i] = step;
            step *= t->shape[i];
        }
        if (t->strides == NULL)
            t->strides = rows[side];
    }
    dvt_copy_tensor(&sides[0], &sides[1]);
}

static size_t copy_bytes(const frame *f, uint32_t index)
{
    return (f->extents[index] + 63) / 64 * 64;
}

/* What lies between an input's elements is the caller's: a file that is not trusted gets a copy
 * with nothing there. */
static dvt_status bind_input(const dvt_artifact *a, frame *f, uint32_t n,
                             const dvt_tensor *given, dvt_error *error)
{
    const program *p = &a->program;
    uint32_t index = p->inputs[n];
    dvt_tensor *t = &f->tensors[index];
    if (dvt_is_empty(t)) {
        t->data = f; /* any address will do: nothing is read */
        return DVT_OK;
    }
    if (given->data == NULL)
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has no data",
                        dvt_shown(p->buffers[index].name.size),
                        (const char *)p->buffers[index].name.data);
    if (given->device.type != DVT_CPU) {
        t->data = f; /* the device alone uses it */
        return dvt_device_input(a, f, n, given, error);
    }
    bool hides = f->gaps[index] && !a->trusted;
    if (!hides && dvt_fits_in_place(given, t, p->buffers[index].item)) {
        t->data = dvt_data(given);
        return DVT_OK;
    }
    size_t bytes = copy_bytes(f, index);
    f->copies[n] = dvt_allocate(&a->allocator, bytes);
    if (f->copies[n] == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    if (f->gaps[index])
        memset(f->copies[n], 0, bytes);
    t->data = f->copies[n];
    dvt_repack(t, given);
    return DVT_OK;
}

bool dvt_on_other_devices(const dvt_tensor *one, const dvt_tensor *other)
{
    bool on_device = one->device.type != DVT_CPU || other->device.type != DVT_CPU;
    return on_device && (one->device.type != other->device.type || one->data != other->data);
}

/* The bytes a tensor may touch, for telling whether two overlap: all there are where its
 * strides lead out of any memory. */
void dvt_bounds(const dvt_tensor *t, uintptr_t *low, uintptr_t *high)
{
    int64_t down = 0, up = 1, row = 1, item = t->dtype.bits / 8;
    bool fits = true;
    for (int32_t i = t->ndim - 1; fits && i >= 0; i--) {
        int64_t reach, stride = t->strides != NULL ? t->strides[i] : row;
        fits = !__builtin_mul_overflow(t->shape[i] - 1, stride, &reach);
        int64_t *end = fits && reach < 0 ? &down : &up;
        fits = fits && !__builtin_add_overflow(*end, reach, end);
        row *= t->shape[i]; /* no overflow: the shape is the expected one, which was checked */
    }
    fits = fits && !__builtin_mul_overflow(down, item, &down);
    fits = fits && !__builtin_mul_overflow(up, item, &up);
    *low = fits ? (uintptr_t)dvt_data(t) + (uintptr_t)down : 0;
    *high = fits ? (uintptr_t)dvt_data(t) + (uintptr_t)up : UINTPTR_MAX;
}

/* A model that writes to its inputs was exported with inputs that do not overlap. */
static dvt_status check_overlap(const program *p, const dvt_tensor *given, dvt_error *error)
{
    for (uint32_t i = 0; i < p->input_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uintptr_t a, b, c, d;
            if (dvt_is_empty(&given[i]) || dvt_is_empty(&given[j]) ||
                dvt_on_other_devices(&given[i], &given[j]))
                continue;
            dvt_bounds(&given[i], &a, &b);
            dvt_bounds(&given[j], &c, &d);
            if (a < d && c < b)
                return dvt_fail(
                    error, DVT_ERROR_GUARD,
                    "inputs %u and %u share memory, and the model writes to its inputs", j, i);
        }
    return DVT_OK;
}

/* Point the views of a buffer at its memory. */
void dvt_bind_views(const program *p, frame *f, uint32_t owner)
{
    for (uint32_t i = p->buffers[owner].first_view; i != DVT_NONE; i = p->buffers[i].next_view)
        f->tensors[i].data = (char *)f->tensors[owner].data + f->offsets[i];
}

static dvt_status read_number(const buffer_record *b, const symbol_record *s,
                              const dvt_tensor *input, int64_t *value, dvt_error *error)
{
    if (input->data == NULL)
        return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' has no data",
                        dvt_shown(b->name.size), (const char *)b->name.data);
    memcpy(value, dvt_data(input), sizeof *value);
    if (*value >= s->low && *value <= s->high)
        return DVT_OK;
    return dvt_fail(error, DVT_ERROR_GUARD, "input '%.*s' is %lld, expected %lld to %lld",
                    dvt_shown(b->name.size), (const char *)b->name.data, (long long)*value,
                    (long long)s->low, (long long)s->high);
}

dvt_status dvt_read_symbols(const program *p, const dvt_tensor *inputs, int64_t *values,
                            dvt_error *error)
{
    for (uint32_t i = 0; i < p->symbol_count; i++) {
        const symbol_record *s = &p->symbols[i];
        const buffer_record *b = &p->buffers[p->inputs[s->input]];
        if (s->axis == DVT_NONE) {
            dvt_status status = read_number(b, s, &inputs[s->input], &values[i], error);
            if (status != DVT_OK)
                return status;
            continue;
        }
        values[i] = inputs[s->input].shape[s->axis];
        if (values[i] >= s->low && values[i] <= s->high)
            continue;
        if (s->high == INT64_MAX)
            return dvt_fail(error, DVT_ERROR_GUARD,
                            "input '%.*s' has size %lld in dimension %u; the dynamic size %.*s "
                            "must be at least %lld",
                            dvt_shown(b->name.size), (const char *)b->name.data,
                            (long long)values[i], s->axis, dvt_shown(s->name.size),
                            (const char *)s->name.data, (long long)s->low);
        return dvt_fail(
            error, DVT_ERROR_GUARD,
            "input '%.*s' has size %lld in dimension %u; the dynamic size %.*s must be "
            "%lld to %lld",
            dvt_shown(b->name.size), (const char *)b->name.data, (long long)values[i], s->axis,
            dvt_shown(s->name.size), (const char *)s->name.data, (long long)s->low,
            (long long)s->high);
    }
    return DVT_OK;
}

/* Inputs that were repacked and written to are copied back. */
void dvt_return_inputs(const dvt_artifact *a, frame *f, const dvt_tensor *inputs,
                       bool write_back)
{
    const program *p = &a->program;
    for (uint32_t i = 0; i < p->input_count; i++) {
        if (f->copies[i] != NULL && write_back && p->writes_inputs)
            dvt_repack(&inputs[i], &f->tensors[p->inputs[i]]);
        dvt_release(&a->allocator, f->copies[i], copy_bytes(f, p->inputs[i]));
        f->copies[i] = NULL;
    }
}

dvt_status dvt_check_inputs(const dvt_artifact *a, const dvt_tensor *inputs, dvt_error *error)
{
    dvt_status status = DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < a->program.input_count; i++)
        status = check_kind(a, i, &inputs[i], error);
    return status;
}

dvt_status dvt_bind_inputs(const dvt_artifact *a, frame *f, const dvt_tensor *inputs,
                           dvt_error *error)
{
    const program *p = &a->program;
    dvt_status status = DVT_OK;
    for (uint32_t i = 0; status == DVT_OK && i < p->input_count; i++)
        status = check_shape(&p->buffers[p->inputs[i]], &inputs[i],
                             f->tensors[p->inputs[i]].shape, error);
    dvt_device_tensors_clear(a, f);
    if (status == DVT_OK && p->writes_inputs && !a->may_overlap)
        status = check_overlap(p, inputs, error);
    for (uint32_t i = 0; status == DVT_OK && i < p->input_count; i++) {
        status = bind_input(a, f, i, &inputs[i], error);
        dvt_bind_views(p, f, p->inputs[i]);
    }
    return status;
}
