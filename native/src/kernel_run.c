/* Runs kernel IR strip by strip; threads share the points of the kernel's own axes. */
#include "kernel_worker.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TICKS 64u /* strips between two questions whether to stop */

typedef struct {
    const kernel_plan *plan;
    run_control *control;
    atomic_uint flags;
} job;

/* ---- loops ---- */

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

static void run_steps(worker *w, const plan_loop *loop, uint32_t level, int64_t strip)
{
    for (uint32_t at = loop->levels[level]; at < loop->levels[level + 1]; at++) {
        const plan_step *s = &w->plan->steps[at];
        const ir_instruction *i = s->i;
        int64_t n = s->varies ? strip : 1;
        switch (i->kind) {
        case IR_LOAD:
            dvt_strip_load(w, s, n);
            break;
        case IR_CONST:
            constant(w, s);
            break;
        case IR_POSITION:
            dvt_strip_position(w, s, n);
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
            dvt_reduction_add(w, s, strip);
            continue;
        case IR_SCAN:
            dvt_scan_strip(w, s, strip);
            continue;
        default:
            dvt_strip_store(w, s, n);
            continue;
        }
        if (!s->varies && w->plan->fill[i->result])
            dvt_strip_spread(w, i->result);
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
            dvt_reduction_start(w, &steps[at], loop->empty);
    if (!loop->empty)
        run_nest(w, loop);
    for (uint32_t at = first; at < end; at++)
        if (steps[at].i->kind == IR_REDUCE)
            dvt_reduction_finish(w, &steps[at]);
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
