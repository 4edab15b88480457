/* Inputs of a call: row-major or not, with gaps, broadcast, backwards, at odd addresses. */
#include "operands.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ELEMENTS 4096
#define GAP          0xc3

typedef void (*element_body)(char *element, size_t item, void *context);

static void each_along(const dvt_tensor *t, char *at, int32_t axis, int64_t row,
                       element_body body, void *context)
{
    size_t item = t->dtype.bits / 8u;
    if (axis == t->ndim) {
        body(at, item, context);
        return;
    }
    int64_t inner = t->shape[axis] > 0 ? row / t->shape[axis] : 0;
    int64_t stride = t->strides != NULL ? t->strides[axis] : inner;
    for (int64_t i = 0; i < t->shape[axis]; i++)
        each_along(t, at + i * stride * (int64_t)item, axis + 1, inner, body, context);
}

static void each_element(const dvt_tensor *t, element_body body, void *context)
{
    int64_t count = dvt_numel(t);
    if (count > 0)
        each_along(t, dvt_data(t), 0, count, body, context);
}

/* ---- contents ---- */

static void put_small(char *element, size_t item, void *context)
{
    const dvt_dtype *dtype = context;
    uint64_t value = below(4);
    float single = (float)value - 1.5f;
    double wide = (double)value - 1.5;
    memset(element, 0, item);
    if (dtype->code == DVT_FLOAT && item == 4)
        memcpy(element, &single, 4);
    else if (dtype->code == DVT_FLOAT && item == 8)
        memcpy(element, &wide, 8);
    else if (dtype->code == DVT_BOOL)
        *element = (char)(value & 1);
    else if (item <= 8)
        memcpy(element, &value, item);
}

static void put_any(char *element, size_t item, void *context)
{
    const dvt_dtype *dtype = context;
    for (size_t i = 0; i < item; i++)
        element[i] = (char)(dtype->code == DVT_BOOL ? below(2) : random_word());
}

static void put_zero(char *element, size_t item, void *context)
{
    (void)context;
    memset(element, 0, item);
}

static void put_gap(char *element, size_t item, void *context)
{
    (void)context;
    memset(element, GAP, item);
}

static void add_digest(char *element, size_t item, void *context)
{
    uint64_t *digest = context;
    for (size_t i = 0; i < item; i++)
        *digest = (*digest ^ (uint8_t)element[i]) * 0x100000001b3u;
}

uint64_t tensor_digest(const dvt_tensor *t)
{
    uint64_t digest = 0xcbf29ce484222325u;
    each_element(t, add_digest, &digest);
    return digest;
}

void tensor_clear(const dvt_tensor *t)
{
    each_element(t, put_zero, NULL);
}

/* ---- layouts ---- */

static void choose_strides(operand *o)
{
    dvt_tensor *t = &o->tensor;
    int64_t step = 1;
    uint32_t style = below(8);
    for (int32_t n = 0; n < t->ndim; n++) {
        int32_t d = style == 1 ? n : t->ndim - 1 - n; /* columns first */
        o->strides[d] = step;
        step *= t->shape[d] > 0 ? t->shape[d] : 1;
        if (style == 2)
            step += below(3); /* gaps between rows */
    }
    for (int32_t d = 0; d < t->ndim; d++) {
        if (style == 3)
            o->strides[d] *= 2; /* every other element */
        if (style == 4 && one_in(2))
            o->strides[d] = 0; /* broadcast */
        if (style == 5 && one_in(2))
            o->strides[d] = -o->strides[d];
    }
    t->strides = style >= 6 ? NULL : o->strides;
}

/* How many elements lie before the first one and how many it reaches in all. */
static void reach(const operand *o, int64_t *before, int64_t *all)
{
    const dvt_tensor *t = &o->tensor;
    int64_t down = 0, up = 0, row = 1;
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        int64_t step = (t->shape[d] - 1) * (t->strides != NULL ? t->strides[d] : row);
        row *= t->shape[d];
        *(step < 0 ? &down : &up) += step;
    }
    *before = -down;
    *all = row == 0 ? 0 : up - down + 1;
}

bool operand_fill(operand *o)
{
    static const element_body styles[] = {put_small, put_small, put_zero, put_any};
    dvt_tensor *t = &o->tensor;
    int64_t elements = 1, before, all;
    size_t item = t->dtype.bits / 8u;
    t->shape = o->shape;
    for (int32_t d = 0; d < t->ndim; d++) {
        int64_t size = o->shape[d] > 0 ? o->shape[d] : 1;
        if (size > MAX_ELEMENTS || (elements *= size) > MAX_ELEMENTS)
            return false;
        if (o->shape[d] < 0) { /* to be refused before anything is read */
            t->strides = NULL;
            t->data = o->shape;
            return true;
        }
    }
    choose_strides(o);
    reach(o, &before, &all);
    size_t offset = one_in(4) ? item * below(3) : one_in(8) ? below(16) : 0;
    o->block_size = offset + (size_t)all * item;
    o->block = malloc(o->block_size + (o->block_size == 0));
    if (o->block == NULL)
        return false;
    memset(o->block, GAP, o->block_size);
    t->data = o->block + (all > 0 ? (size_t)before * item : 0);
    t->byte_offset = offset;
    each_element(t, styles[below(4)], &t->dtype);
    o->before = tensor_digest(t);
    return true;
}

void operand_drop(operand *o)
{
    free(o->block);
    o->block = NULL;
}

bool operand_gaps_kept(operand *o)
{
    if (o->block == NULL)
        return true;
    each_element(&o->tensor, put_gap, NULL);
    for (size_t i = 0; i < o->block_size; i++)
        if (o->block[i] != GAP)
            return false;
    return true;
}
