/* Kernel IR: instructions on a strip that compute places, in memory above all. */
#include "kernel_worker.h"

#include <string.h>

/* ---- places in memory ---- */

/* The place of a strip's first element, in elements; true where values that differ along the
 * strip are gathered, and every place stands in `offsets`. Arithmetic wraps: what comes out is
 * checked. */
static bool place(worker *w, const plan_step *s, int64_t n, uint64_t *base)
{
    const ir_index *index = &s->i->index;
    const ir_term *terms = w->plan->ir->terms + index->first;
    const int64_t *strides = w->plan->strides + index->first;
    uint64_t at = (uint64_t)s->offset;
    bool scattered = false;
    for (uint32_t t = 0; t < index->axis_count; t++)
        at += (uint64_t)w->position[terms[t].place] * (uint64_t)strides[t];
    uint32_t end = index->axis_count + index->value_count;
    for (uint32_t t = index->axis_count; t < end; t++) {
        const int64_t *value = w->values[terms[t].place];
        if (w->plan->varies[terms[t].place])
            scattered = true;
        else
            at += (uint64_t)*value * (uint64_t)strides[t];
    }
    *base = at;
    if (!scattered)
        return false;
    for (int64_t i = 0; i < n; i++)
        w->offsets[i] = (int64_t)(at + (uint64_t)i * (uint64_t)s->step);
    for (uint32_t t = index->axis_count; t < end; t++) {
        const int64_t *value = w->values[terms[t].place];
        uint64_t stride = (uint64_t)strides[t];
        for (int64_t i = 0; w->plan->varies[terms[t].place] && i < n; i++)
            w->offsets[i] = (int64_t)((uint64_t)w->offsets[i] + (uint64_t)value[i] * stride);
    }
    return true;
}

/* Whether base, base + step, … n times lie below reach. */
static bool inside(uint64_t base, int64_t step, int64_t n, uint64_t reach)
{
    int64_t last;
    if (base >= reach || __builtin_mul_overflow(n - 1, step, &last) ||
        __builtin_add_overflow((int64_t)base, last, &last))
        return false;
    return last >= 0 && (uint64_t)last < reach;
}

static void load_strided(uint32_t item, void *to, const char *from, int64_t step, int64_t n)
{
    switch (item) {
#define X(size, T)                                                                             \
    case size:                                                                                 \
        for (int64_t i = 0; i < n; i++)                                                        \
            memcpy((T *)to + i, from + i * step * size, size);                                 \
        break;
        ITEMS(X)
#undef X
    }
}

static void store_strided(uint32_t item, char *to, const void *from, int64_t step, int64_t n)
{
    switch (item) {
#define X(size, T)                                                                             \
    case size:                                                                                 \
        for (int64_t i = 0; i < n; i++)                                                        \
            memcpy(to + i * step * size, (const T *)from + i, size);                           \
        break;
        ITEMS(X)
#undef X
    }
}

/* Each element by its own place; one outside the buffer that is meant to be read is reported.
 */
static void load_scattered(worker *w, const plan_buffer *b, void *to, const uint8_t *mask,
                           int64_t n)
{
    bool outside = false;
    switch (b->item) {
#define X(size, T)                                                                             \
    case size:                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                      \
            T value = 0;                                                                       \
            if (mask == NULL || mask[i]) {                                                     \
                if ((uint64_t)w->offsets[i] < b->reach)                                        \
                    memcpy(&value, b->data + w->offsets[i] * size, size);                      \
                else                                                                           \
                    outside = true;                                                            \
            }                                                                                  \
            ((T *)to)[i] = value;                                                              \
        }                                                                                      \
        break;
        ITEMS(X)
#undef X
    }
    w->flags |= outside ? FLAG_OUTSIDE : 0u;
}

static void store_scattered(worker *w, const plan_buffer *b, const void *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if ((uint64_t)w->offsets[i] < b->reach)
            memcpy(b->data + w->offsets[i] * (int64_t)b->item,
                   (const char *)from + i * (int64_t)b->item, b->item);
        else
            w->flags |= FLAG_OUTSIDE;
    }
}

static void clear_unmasked(uint32_t item, void *values, const uint8_t *mask, int64_t n)
{
    switch (item) {
#define X(size, T)                                                                             \
    case size:                                                                                 \
        for (int64_t i = 0; i < n; i++)                                                        \
            ((T *)values)[i] = (T)(mask[i] ? ((T *)values)[i] : 0);                            \
        break;
        ITEMS(X)
#undef X
    }
}

/* ---- instructions ---- */

static void load_dense(worker *w, const plan_step *s, const char *from, void *slot, int64_t n)
{
    const plan_buffer *b = &w->plan->buffers[s->i->buffer];
    strip_function widen = w->plan->strips->widen[b->type];
    const void *raw = from;
    if (widen == NULL || s->step != 1 || !b->aligned) {
        void *to = widen == NULL ? slot : (void *)w->raw;
        if (s->step == 1)
            memcpy(to, from, (size_t)n * b->item);
        else
            load_strided(b->item, to, from, s->step, n);
        raw = to;
    }
    if (widen != NULL)
        widen(n, slot, &raw, &w->flags);
}

void dvt_strip_load(worker *w, const plan_step *s, int64_t n)
{
    const ir_instruction *i = s->i;
    const plan_buffer *b = &w->plan->buffers[i->buffer];
    void *slot = w->values[i->result] = slot_of(w, i->result);
    const uint8_t *mask = i->mask != 0 ? w->values[i->mask - 1] : NULL;
    if (mask != NULL && !w->plan->varies[i->mask - 1]) {
        if (!*mask) {
            memset(slot, 0, (size_t)n * item_of[i->type]);
            return;
        }
        mask = NULL;
    }
    uint64_t base;
    bool scattered = place(w, s, n, &base);
    if (!scattered && inside(base, s->step, n, b->reach)) {
        const char *from = b->data + base * b->item;
        if (b->direct && mask == NULL && (s->step == 1 || n == 1)) {
            w->values[i->result] = (void *)(uintptr_t)from; /* read only */
            return;
        }
        load_dense(w, s, from, slot, n);
        if (mask != NULL)
            clear_unmasked(item_of[i->type], slot, mask, n);
        return;
    }
    for (int64_t e = 0; !scattered && e < n; e++)
        w->offsets[e] = (int64_t)(base + (uint64_t)e * (uint64_t)s->step);
    strip_function widen = w->plan->strips->widen[b->type];
    const void *raw = widen != NULL ? (void *)w->raw : slot;
    load_scattered(w, b, widen != NULL ? (void *)w->raw : slot, mask, n);
    if (widen != NULL)
        widen(n, slot, &raw, &w->flags);
}

void dvt_strip_store(worker *w, const plan_step *s, int64_t n)
{
    const plan_buffer *b = &w->plan->buffers[s->i->buffer];
    const void *value = w->values[s->i->args[0]];
    strip_function narrow = w->plan->strips->narrow[b->type];
    if (s->cast != NULL) {
        s->cast(n, w->converted, &value, &w->flags);
        value = w->converted;
    }
    if (narrow != NULL) {
        narrow(n, w->raw, &value, &w->flags);
        value = w->raw;
    }
    uint64_t base;
    if (place(w, s, n, &base)) {
        store_scattered(w, b, value, n);
        return;
    }
    if (!inside(base, s->step, n, b->reach)) {
        w->flags |= FLAG_OUTSIDE;
        return;
    }
    char *to = b->data + base * b->item;
    if (s->step == 1 || n == 1)
        memcpy(to, value, (size_t)n * b->item);
    else
        store_strided(b->item, to, value, s->step, n);
}

void dvt_strip_position(worker *w, const plan_step *s, int64_t n)
{
    uint64_t base;
    int64_t *to = w->values[s->i->result] = slot_of(w, s->i->result);
    place(w, s, n, &base);
    for (int64_t i = 0; i < n; i++)
        to[i] = (int64_t)(base + (uint64_t)i * (uint64_t)s->step);
}

void dvt_strip_spread(worker *w, uint32_t value)
{
    void *to = slot_of(w, value);
    int64_t n = w->plan->widest;
    switch (item_of[w->plan->ir->values[value].type]) {
#define X(size, T)                                                                             \
    case size: {                                                                               \
        T one = *(const T *)w->values[value];                                                  \
        for (int64_t i = 0; i < n; i++)                                                        \
            ((T *)to)[i] = one;                                                                \
        break;                                                                                 \
    }
        ITEMS(X)
#undef X
    }
    w->values[value] = to;
}
