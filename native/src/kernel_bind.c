/* A kernel's sizes and buffers for one call. Every access that is not masked or gathered is
 * shown to stay within its buffer for the whole iteration space before anything runs; the
 * others are checked while they run. */
#include "kernel_plan.h"

#include <string.h>

static int64_t resolve(const kernel_plan *plan, ir_dim dim)
{
    return dim.size == 0 ? dim.value : plan->call->attributes[dim.size - 1].i;
}

/* The elements a tensor reaches; false where that does not fit. */
static bool reach_of(const dvt_tensor *t, uint64_t *reach)
{
    int64_t total = 1, row = 1;
    bool empty = false;
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        int64_t size = t->shape[d], stride = t->strides != NULL ? t->strides[d] : row, step;
        if (size < 0 || stride < 0 || __builtin_mul_overflow(row, size ? size : 1, &row) ||
            __builtin_mul_overflow(size > 0 ? size - 1 : 0, stride, &step) ||
            __builtin_add_overflow(total, step, &total) || total > INT64_MAX / 16)
            return false;
        empty = empty || size == 0;
    }
    *reach = empty ? 0 : (uint64_t)total;
    return true;
}

static bool overlap(const plan_buffer *a, const plan_buffer *b)
{
    uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    return x < y + b->reach * b->item && y < x + a->reach * a->item;
}

static dvt_status bind_buffers(kernel_plan *plan, dvt_error *error)
{
    const kernel_ir *k = plan->ir;
    for (uint32_t n = 0; n < k->buffer_count; n++) {
        const ir_buffer *b = &k->buffers[n];
        const dvt_tensor *t =
            b->role == ROLE_IN ? plan->call->inputs[b->place] : plan->call->outputs[b->place];
        plan_buffer *p = &plan->buffers[n];
        if (dvt_type_of(t->dtype) != b->type)
            return dvt_fail(error, DVT_ERROR_MALFORMED,
                            "generated kernel: a buffer of another dtype than its code has");
        if (!reach_of(t, &p->reach))
            return dvt_fail(error, DVT_ERROR_OVERFLOW,
                            "generated kernel: a buffer does not fit 64 bits");
        p->type = b->type;
        p->item = t->dtype.bits / 8u;
        p->data = t->data != NULL ? dvt_data(t) : NULL;
        p->aligned = (uintptr_t)p->data % p->item == 0;
        p->direct = p->aligned && b->role == ROLE_IN && plan->strips->widen[b->type] == NULL;
    }
    /* What may change while it is used is copied first. */
    for (uint32_t n = 0; n < k->buffer_count; n++)
        for (uint32_t m = 0; m < k->buffer_count && plan->buffers[n].direct; m++)
            if (k->buffers[m].role != ROLE_IN)
                plan->buffers[n].direct = !overlap(&plan->buffers[n], &plan->buffers[m]);
    return DVT_OK;
}

/* Whether offset + Σ axis * stride stays within [0, reach) for all positions. */
static bool stays_inside(const kernel_plan *plan, const ir_index *index, uint64_t reach)
{
    int64_t low = resolve(plan, index->offset), high = low;
    for (uint32_t n = index->first; n < index->first + index->axis_count; n++) {
        int64_t stride = plan->strides[n], span_of;
        int64_t last = plan->extents[plan->ir->terms[n].place] - 1;
        if (__builtin_mul_overflow(stride, last, &span_of) ||
            __builtin_add_overflow(stride < 0 ? low : high, span_of, stride < 0 ? &low : &high))
            return false;
    }
    return low >= 0 && (uint64_t)high < reach;
}

static dvt_status check_bounds(const kernel_plan *plan, const ir_loop *loop, dvt_error *error)
{
    for (uint32_t n = loop->first; n < loop->first + loop->count; n++) {
        const ir_instruction *i = &plan->ir->instructions[n];
        bool known = i->kind == IR_STORE || (i->kind == IR_LOAD && i->mask == 0);
        if (known && i->index.value_count == 0 &&
            !stays_inside(plan, &i->index, plan->buffers[i->buffer].reach))
            return dvt_fail(
                error, DVT_ERROR_MALFORMED, "generated kernel %.*s: reaches outside buffer %u",
                dvt_shown(plan->ir->name.size), (const char *)plan->ir->name.data, i->buffer);
    }
    return DVT_OK;
}

/* ---- what is written ---- */

/* Whether a store writes every element of its buffer: dense along axes of its own. */
static bool covers(const kernel_plan *plan, const ir_index *index, uint64_t reach)
{
    uint64_t total = 1, axes = 0, left = ((uint64_t)1 << index->axis_count) - 1;
    if (index->value_count != 0 || resolve(plan, index->offset) != 0)
        return false;
    for (bool found = true; found;) {
        found = false;
        for (uint32_t t = 0; t < index->axis_count; t++) {
            uint32_t axis = plan->ir->terms[index->first + t].place;
            uint64_t extent = (uint64_t)plan->extents[axis];
            bool next = extent == 1 || plan->strides[index->first + t] == (int64_t)total;
            if (!(left >> t & 1) || !next)
                continue;
            if (axes >> axis & 1 || __builtin_mul_overflow(total, extent, &total))
                return false;
            axes |= (uint64_t)1 << axis;
            left &= ~((uint64_t)1 << t);
            found = true;
        }
    }
    return left == 0 && total == reach;
}

static bool same_index(const kernel_plan *plan, const ir_index *a, const ir_index *b)
{
    if (a->axis_count != b->axis_count || a->value_count != 0 ||
        resolve(plan, a->offset) != resolve(plan, b->offset))
        return false;
    for (uint32_t t = 0; t < a->axis_count; t++)
        if (plan->ir->terms[a->first + t].place != plan->ir->terms[b->first + t].place ||
            plan->strides[a->first + t] != plan->strides[b->first + t])
            return false;
    return true;
}

/* The first store that covers a buffer, and whether all loads follow it, loop by loop, at the
 * place where it wrote. */
static bool is_whole(const kernel_plan *plan, uint32_t buffer)
{
    const kernel_ir *k = plan->ir;
    const ir_index *stored = NULL;
    for (uint32_t n = 0; n < k->loop_count; n++) {
        const ir_loop *loop = &k->loops[n];
        const ir_index *before = stored;
        for (uint32_t at = loop->first; at < loop->first + loop->count; at++) {
            const ir_instruction *i = &k->instructions[at];
            bool touches = i->buffer == buffer && (i->kind == IR_LOAD || i->kind == IR_STORE);
            if (touches && i->kind == IR_LOAD &&
                (before == NULL || !same_index(plan, &i->index, before)))
                return false;
            if (touches && i->kind == IR_STORE && stored == NULL && !plan->loops[n].empty &&
                covers(plan, &i->index, plan->buffers[buffer].reach))
                stored = &i->index;
        }
    }
    return stored != NULL;
}

void dvt_kernel_clear(const kernel_plan *plan)
{
    const kernel_ir *k = plan->ir;
    for (uint32_t n = 0; n < k->buffer_count; n++) {
        const ir_buffer *b = &k->buffers[n];
        if (b->role != ROLE_IN && !plan->buffers[n].whole && plan->call->fresh[b->place])
            dvt_clear_output(plan->call, b->place);
    }
}

/* The memory of an operand whose reach is known to fit. */
static plan_buffer memory_of(const dvt_tensor *t)
{
    plan_buffer b = {.data = t->data != NULL ? dvt_data(t) : NULL, .item = t->dtype.bits / 8u};
    if (!reach_of(t, &b.reach))
        b.reach = 0;
    return b;
}

void dvt_clear_output(const dvt_call *call, uint32_t output)
{
    plan_buffer b = memory_of(call->outputs[output]);
    uint64_t kept = 0, bytes = b.reach * b.item;
    /* What lies in the place of an operand is the program's own up to the operand's end. */
    for (uint32_t n = 0; n < call->input_count; n++) {
        plan_buffer other = memory_of(call->inputs[n]);
        if (!overlap(&b, &other))
            continue;
        uint64_t end = (uint64_t)(other.data - b.data) + other.reach * other.item;
        kept = end > kept ? end : kept;
    }
    if (kept < bytes)
        memset(b.data + kept, 0, bytes - kept);
}

/* How often a loop is entered and how often its body runs; false where that does not fit. */
static bool count_points(const kernel_plan *plan, const ir_loop *loop, int64_t *entered,
                         int64_t *points)
{
    *entered = 1;
    for (uint32_t n = 0; n < plan->ir->kernel_axis_count; n++)
        if (__builtin_mul_overflow(*entered, plan->extents[n], entered))
            return false;
    *points = *entered;
    for (uint32_t n = 0; n < loop->axis_count; n++)
        if (__builtin_mul_overflow(*points, plan->extents[loop->axes[n]], points))
            return false;
    return true;
}

static dvt_status bind_extents(kernel_plan *plan, dvt_error *error)
{
    const kernel_ir *k = plan->ir;
    for (uint32_t n = 0; n < k->axis_count; n++) {
        plan->extents[n] = resolve(plan, k->extents[n]);
        if (plan->extents[n] < 0 || plan->extents[n] > INT64_MAX / 2)
            return dvt_fail(error, DVT_ERROR_GUARD,
                            "generated kernel: an axis of negative or immense size");
    }
    for (uint32_t n = 0; n < k->term_count; n++)
        plan->strides[n] = resolve(plan, k->terms[n].stride);
    return DVT_OK;
}

dvt_status dvt_kernel_bind(kernel_plan *plan, dvt_error *error)
{
    const kernel_ir *k = plan->ir;
    dvt_status status = bind_extents(plan, error);
    if (status == DVT_OK)
        status = bind_buffers(plan, error);
    for (uint32_t n = 0; status == DVT_OK && n < k->loop_count; n++) {
        int64_t entered, points;
        if (!count_points(plan, &k->loops[n], &entered, &points) ||
            __builtin_add_overflow(plan->work, entered, &plan->work) ||
            __builtin_add_overflow(plan->work, points, &plan->work))
            return dvt_fail(error, DVT_ERROR_OVERFLOW,
                            "generated kernel: its iteration space does not fit 64 bits");
        plan->loops[n].empty = points == 0;
        if (points > 0)
            status = check_bounds(plan, &k->loops[n], error);
    }
    for (uint32_t n = 0; status == DVT_OK && n < k->buffer_count; n++)
        plan->buffers[n].whole = k->buffers[n].role != ROLE_IN && is_whole(plan, n);
    for (uint32_t n = 0; status == DVT_OK && n < k->instruction_count; n++)
        plan->steps[n].offset = resolve(plan, k->instructions[n].index.offset);
    return status;
}
