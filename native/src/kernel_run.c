/* Runs kernel IR strip by strip; threads share the points of the kernel's own axes. */
#include "control.h"
#include "kernel_plan.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What a thread works with. */
#define TICKS 64u /* strips between two questions whether to stop */

typedef struct {
    const kernel_plan *plan;
    void **values;      /* where each value lies at present */
    char *slots;        /* strips of memory for values */
    char *accumulators; /* for each fold STRIP totals and STRIP positions */
    uint32_t flags;
    uint32_t ticks; /* strips since the run was last asked whether to stop */
    run_control *control;
    int64_t n; /* length of the strip, where it lies along an axis of the kernel */
    int64_t position[MAX_AXES];
    _Alignas(64) int64_t offsets[STRIP];
    _Alignas(64) unsigned char raw[STRIP * 8], converted[STRIP * 8];
} worker;

typedef struct {
    const kernel_plan *plan;
    run_control *control;
    atomic_uint flags;
} job;

static const uint8_t item_of[] = {4, 8, 8, 4, 2, 1, 1, 1, 2, 2};

static void *slot_of(const worker *w, uint32_t value)
{
    return w->slots + w->plan->slots[value] * w->plan->slot_size;
}

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

#define ITEMS(X) X(1, uint8_t) X(2, uint16_t) X(4, uint32_t) X(8, uint64_t)

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

static void load(worker *w, const plan_step *s, int64_t n)
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

static void store(worker *w, const plan_step *s, int64_t n)
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

static void position(worker *w, const plan_step *s, int64_t n)
{
    uint64_t base;
    int64_t *to = w->values[s->i->result] = slot_of(w, s->i->result);
    place(w, s, n, &base);
    for (int64_t i = 0; i < n; i++)
        to[i] = (int64_t)(base + (uint64_t)i * (uint64_t)s->step);
}

static void constant(worker *w, const plan_step *s)
{
    const ir_instruction *i = s->i;
    void *to = w->values[i->result] = slot_of(w, i->result);
    if (i->type == T_F64) {
        memcpy(to, &i->constant.f, 8);
    } else if (i->type == T_F32) {
        *(float *)to = (float)i->constant.f;
    } else {
        int64_t number = i->type == T_BOOL ? i->constant.i != 0 : i->constant.i;
        memcpy(to, &number, item_of[i->type]); /* little-endian: the low bytes */
    }
}

/* Spreads a value that is the same for a whole strip. */
static void spread(worker *w, uint32_t value)
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

/* ---- folds ---- */

static bool is_float(type_id type)
{
    return type == T_F32 || type == T_F64;
}

static type_id folded_type(const worker *w, const plan_step *s)
{
    bool is_place = s->i->op == F_argmax || s->i->op == F_argmin;
    return is_place ? w->plan->ir->values[s->i->args[0]].type : s->i->type;
}

static char *totals_of(const worker *w, const plan_step *s)
{
    return w->accumulators + (size_t)s->accumulator * 2 * 8 * STRIP;
}

/* Where a loop has no points, positions are 0; otherwise the first one comes before this. */
static void start_fold(const worker *w, const plan_step *s, bool empty)
{
    uint8_t op = s->i->op;
    type_id type = folded_type(w, s);
    bool one = op == F_prod || op == F_all, low = op == F_max || op == F_argmax;
    bool extreme = low || op == F_min || op == F_argmin;
    dvt_number start = {.i = extreme ? (low ? dvt_least[type] : dvt_most[type]) : one};
    if (is_float(type))
        start.f = extreme ? (double)(low ? -INFINITY : INFINITY) : one;
    char *totals = totals_of(w, s);
    int64_t n = w->plan->along ? 1 : w->n, *places = (int64_t *)(void *)totals + STRIP;
    for (int64_t i = 0; i < n; i++) {
        memcpy(totals + 8 * i, &start, 8);
        places[i] = empty ? 0 : INT64_MAX;
    }
}

static void fold(worker *w, const plan_step *s, int64_t n)
{
    const void *value = w->values[s->i->args[0]];
    const int64_t *places = s->i->arity > 1 ? w->values[s->i->args[1]] : NULL;
    if (s->cast != NULL) {
        s->cast(n, w->converted, &value, &w->flags);
        value = w->converted;
    }
    char *totals = totals_of(w, s);
    s->fold(n, value, places, totals, (int64_t *)(void *)totals + STRIP);
}

static void finish_fold(worker *w, const plan_step *s)
{
    uint32_t result = s->i->result;
    bool is_place = s->i->arity > 1;
    const void *totals = totals_of(w, s) + (is_place ? 8 * STRIP : 0);
    type_id from = !is_place && is_float(s->i->type) ? T_F64 : T_I64;
    w->values[result] = slot_of(w, result);
    w->plan->strips->cast[s->i->type][from](w->plan->along ? 1 : w->n, w->values[result],
                                            &totals, &w->flags);
    if (w->plan->fill[result] && w->plan->along)
        spread(w, result);
}

/* Scans go on in doubles or int64s, as folds do; what comes out is of the scan's own type. */
static void scan(worker *w, const plan_step *s, int64_t n)
{
    const ir_instruction *i = s->i;
    const strip_table *t = w->plan->strips;
    const void *value = w->values[i->args[0]], *result = w->raw;
    type_id wide = is_float(i->type) ? T_F64 : T_I64;
    if (s->cast != NULL) {
        s->cast(n, w->raw, &value, &w->flags);
        value = w->raw;
    }
    t->cast[wide][i->type](n, w->converted, &value, &w->flags);
    s->scan(n, w->converted, w->raw, totals_of(w, s));
    w->values[i->result] = slot_of(w, i->result);
    t->cast[i->type][wide](n, w->values[i->result], &result, &w->flags);
}

/* ---- loops ---- */

static void run_steps(worker *w, const plan_loop *loop, uint32_t level, int64_t strip)
{
    for (uint32_t at = loop->levels[level]; at < loop->levels[level + 1]; at++) {
        const plan_step *s = &w->plan->steps[at];
        const ir_instruction *i = s->i;
        int64_t n = s->varies ? strip : 1;
        switch (i->kind) {
        case IR_LOAD:
            load(w, s, n);
            break;
        case IR_CONST:
            constant(w, s);
            break;
        case IR_POSITION:
            position(w, s, n);
            break;
        case IR_APPLY: {
            const void *given[3];
            for (uint8_t a = 0; a < i->arity; a++)
                given[a] = w->values[i->args[a]];
            w->values[i->result] = slot_of(w, i->result);
            s->apply(n, w->values[i->result], given, &w->flags);
            break;
        }
        case IR_REDUCE:
            fold(w, s, strip);
            continue;
        case IR_SCAN:
            scan(w, s, strip);
            continue;
        default:
            store(w, s, n);
            continue;
        }
        if (!s->varies && w->plan->fill[i->result])
            spread(w, i->result);
    }
}

/* Whether the run is to stop; asked now and then, for a single point may take for ever. */
static bool stops(worker *w)
{
    if (++w->ticks < TICKS)
        return false;
    w->ticks = 0;
    if (!dvt_control_goes_on(w->control))
        w->flags |= FLAG_STOPPED;
    return (w->flags & FLAG_STOPPED) != 0;
}

/* The innermost level: once, or in strips along its axis. */
static void run_innermost(worker *w, const plan_loop *loop, uint32_t level)
{
    if (loop->walked == loop->ir->axis_count) {
        run_steps(w, loop, level, w->n);
        return;
    }
    uint32_t axis = loop->strip_axis;
    int64_t extent = w->plan->extents[axis];
    for (int64_t start = 0; start < extent && !stops(w); start += STRIP) {
        w->position[axis] = start;
        run_steps(w, loop, level, extent - start < STRIP ? extent - start : STRIP);
    }
}

/* The next position of a loop's walked axes: the outermost axis that changed, or -1 at the end.
 */
static int advance(worker *w, const plan_loop *loop)
{
    for (int axis = (int)loop->walked - 1; axis >= 0; axis--) {
        uint32_t name = loop->axes[axis];
        if (++w->position[name] < w->plan->extents[name])
            return axis;
        w->position[name] = 0;
    }
    return -1;
}

static void run_nest(worker *w, const plan_loop *loop)
{
    uint32_t deepest = LEVEL_POINT + loop->ir->axis_count;
    for (uint32_t a = 0; a < loop->ir->axis_count; a++)
        w->position[loop->axes[a]] = 0;
    run_steps(w, loop, LEVEL_POINT, w->n);
    for (int changed = 0; changed >= 0 && !stops(w); changed = advance(w, loop)) {
        for (uint32_t level = LEVEL_LOOP + (uint32_t)changed; level < deepest; level++)
            run_steps(w, loop, level, w->n);
        run_innermost(w, loop, deepest);
    }
}

static void run_loop(worker *w, const plan_loop *loop)
{
    const plan_step *steps = w->plan->steps;
    uint32_t first = loop->first, end = first + loop->ir->count;
    if (loop->ir->axis_count == 0) {
        run_steps(w, loop, LEVEL_POINT, w->n);
        return;
    }
    for (uint32_t at = first; at < end; at++)
        if (steps[at].i->kind == IR_REDUCE || steps[at].i->kind == IR_SCAN)
            start_fold(w, &steps[at], loop->empty);
    if (!loop->empty)
        run_nest(w, loop);
    for (uint32_t at = first; at < end; at++)
        if (steps[at].i->kind == IR_REDUCE)
            finish_fold(w, &steps[at]);
}

/* ---- points ---- */

static void go_to(worker *w, int64_t unit)
{
    const kernel_plan *plan = w->plan;
    w->n = 1;
    if (!plan->along) {
        int64_t start = unit % plan->blocks * plan->length;
        int64_t left = plan->extents[plan->axis] - start;
        unit /= plan->blocks;
        w->position[plan->axis] = start;
        w->n = left < plan->length ? left : plan->length;
    }
    for (uint32_t axis = plan->ir->kernel_axis_count; axis-- > 0;) {
        if (axis == plan->axis)
            continue;
        w->position[axis] = unit % plan->extents[axis];
        unit /= plan->extents[axis];
    }
}

/* A worker, then its values, slots and accumulators: where each of these ends. */
typedef struct {
    size_t head, values, slots, all;
} worker_layout;

static worker_layout layout_of(const kernel_plan *plan)
{
    worker_layout l = {.head = (sizeof(worker) + 63) / 64 * 64};
    l.values = l.head + (plan->ir->value_count * sizeof(void *) + 63) / 64 * 64;
    l.slots = l.values + plan->slot_count * plan->slot_size;
    l.all = l.slots + (size_t)plan->accumulator_count * 2 * 8 * STRIP;
    return l;
}

size_t dvt_kernel_scratch(const kernel_plan *plan)
{
    return layout_of(plan).all;
}

static worker *new_worker(const kernel_plan *plan, run_control *control)
{
    worker_layout l = layout_of(plan);
    char *at = aligned_alloc(64, l.all);
    if (at == NULL)
        return NULL;
    worker *w = (worker *)(void *)at;
    w->plan = plan;
    w->flags = w->ticks = 0;
    w->control = control;
    w->n = 1;
    w->values = (void **)(void *)(at + l.head);
    w->slots = at + l.values;
    w->accumulators = at + l.slots;
    return w;
}

static void run_units(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    const kernel_plan *plan = j->plan;
    worker *w = new_worker(plan, j->control);
    if (w == NULL) {
        atomic_fetch_or(&j->flags, (unsigned)FLAG_MEMORY);
        return;
    }
    for (uint32_t n = 0; n < plan->ir->loop_count; n++)
        run_steps(w, &plan->loops[n], LEVEL_ONCE, plan->widest);
    for (int64_t unit = begin; unit < end && w->flags == 0; unit++) {
        go_to(w, unit);
        for (uint32_t n = 0; n < plan->ir->loop_count && w->flags == 0; n++)
            run_loop(w, &plan->loops[n]);
    }
    if (w->flags != 0)
        atomic_fetch_or(&j->flags, w->flags);
    free(w);
}

static dvt_status report(const kernel_plan *plan, unsigned flags, dvt_error *error)
{
    if (flags & FLAG_STOPPED)
        return DVT_ERROR_CANCELLED;
    if (flags & FLAG_MEMORY)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    if (flags & (FLAG_CHECK | FLAG_CHECK_INDEX))
        return dvt_fail(error, DVT_ERROR_INDEX, "index out of range in self");
    if (flags & FLAG_CHECK_BOUNDS)
        return dvt_fail(error, DVT_ERROR_BOUNDS,
                        "index is out of bounds for the dimension it selects from");
    if (flags & FLAG_DIVISOR)
        return dvt_fail(error, DVT_ERROR_DIVISOR, "ZeroDivisionError");
    if (flags & FLAG_DIVIDE)
        return dvt_fail(error, DVT_ERROR_DIVIDE_BY_ZERO, "an integer was divided by zero");
    return dvt_fail(error, DVT_ERROR_MALFORMED,
                    "generated kernel %.*s: reaches outside a buffer",
                    dvt_shown(plan->ir->name.size), (const char *)plan->ir->name.data);
}

dvt_status dvt_kernel_ir_run(const dvt_call *call, dvt_error *error)
{
    kernel_plan *plan;
    dvt_status status = dvt_kernel_plan(call, &plan, error);
    if (status != DVT_OK)
        return status;
    job j = {plan, dvt_control(), 0};
    if (plan->units > 0)
        call->parallel(plan->units, plan->grain, run_units, &j);
    unsigned flags = atomic_load(&j.flags);
    if (flags != 0)
        status = report(plan, flags, error);
    free(plan);
    return status;
}
