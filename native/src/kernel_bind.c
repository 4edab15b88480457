/* A kernel's sizes and buffers for one call. Every access that is not masked or gathered is
 * shown to stay within its buffer for the whole iteration space before anything runs; the
 * others are checked while they run. */
#include "kernel_plan.h"

#include <stdlib.h>

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

/* ---- what is read and written ---- */

/* The elements that an access reaches over all positions; false where values choose them. */
static bool access_region(const kernel_plan *plan, const ir_instruction *i, region *made)
{
    region_dim dims[MAX_TERMS];
    uint32_t axes[MAX_TERMS], rank = 0;
    if (i->mask != 0 || i->index.value_count != 0)
        return false;
    for (uint32_t t = 0; t < i->index.axis_count; t++) {
        uint32_t axis = plan->ir->terms[i->index.first + t].place, n = 0;
        int64_t stride = plan->strides[i->index.first + t];
        while (n < rank && axes[n] != axis)
            n++;
        if (n < rank) { /* format 1.2 allows an axis twice: one walk, both strides at once */
            if (__builtin_add_overflow(dims[n].stride, stride, &dims[n].stride))
                return false;
            continue;
        }
        axes[rank] = axis;
        dims[rank++] = (region_dim){plan->extents[axis], stride};
    }
    return dvt_region_make(resolve(plan, i->index.offset), dims, rank, made);
}

static bool same_index(const kernel_plan *plan, const ir_index *a, const ir_index *b)
{
    if (a->axis_count != b->axis_count || a->value_count != 0 || b->value_count != 0 ||
        resolve(plan, a->offset) != resolve(plan, b->offset))
        return false;
    for (uint32_t t = 0; t < a->axis_count; t++)
        if (plan->ir->terms[a->first + t].place != plan->ir->terms[b->first + t].place ||
            plan->strides[a->first + t] != plan->strides[b->first + t])
            return false;
    return true;
}

#define MOST_STORES 256u /* of one kernel, that are looked at */

typedef struct {
    const ir_instruction *i;
    uint32_t loop;
    bool known; /* whether `reached` is what it writes */
    region reached;
} known_store;

typedef struct {
    const kernel_plan *plan;
    known_store *stores;
    uint32_t count;
} kernel_stores;

static uint32_t count_stores(const kernel_ir *k)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < k->instruction_count && count < MOST_STORES; n++)
        count += k->instructions[n].kind == IR_STORE;
    return count;
}

/* The stores of loops that run. */
static void list_stores(kernel_stores *s)
{
    const kernel_ir *k = s->plan->ir;
    for (uint32_t n = 0; n < k->loop_count; n++)
        for (uint32_t at = 0; at < k->loops[n].count && !s->plan->loops[n].empty; at++) {
            const ir_instruction *i = &k->instructions[k->loops[n].first + at];
            if (i->kind != IR_STORE || s->count == MOST_STORES)
                continue;
            known_store *made = &s->stores[s->count++];
            made->i = i;
            made->loop = n;
            made->known = access_region(s->plan, i, &made->reached);
        }
}

/* Whether an earlier loop has stored where this load reads, at the same point. */
static bool is_stored_before(const kernel_stores *s, uint32_t loop, const ir_instruction *load)
{
    for (uint32_t n = 0; n < s->count && s->stores[n].loop < loop; n++) {
        const ir_instruction *i = s->stores[n].i;
        if (i->buffer == load->buffer && i->mask == 0 && load->mask == 0 &&
            same_index(s->plan, &i->index, &load->index))
            return true;
    }
    return false;
}

static void elements_of(const kernel_plan *plan, uint32_t buffer, region *made)
{
    const ir_buffer *b = &plan->ir->buffers[buffer];
    dvt_region_of(b->role == ROLE_IN ? plan->call->inputs[b->place]
                                     : plan->call->outputs[b->place],
                  0, made);
}

static void note_load(const kernel_stores *s, uint32_t loop, const ir_instruction *i,
                      operand_use *use)
{
    region elements, reached;
    if (s->plan->ir->buffers[i->buffer].role != ROLE_IN && is_stored_before(s, loop, i))
        return;
    use->reads = true;
    if (use->gaps || s->plan->loops[loop].empty) /* nobody has bounded what does not run */
        return;
    elements_of(s->plan, i->buffer, &elements);
    use->gaps = elements.rank > 0 && (!access_region(s->plan, i, &reached) ||
                                      !dvt_region_covered(&reached, &elements, 1));
}

static bool fills(const kernel_stores *s, uint32_t buffer, region *stored)
{
    region elements;
    size_t count = 0;
    elements_of(s->plan, buffer, &elements);
    for (uint32_t n = 0; n < s->count; n++)
        if (s->stores[n].i->buffer == buffer && s->stores[n].known)
            stored[count++] = s->stores[n].reached;
    return dvt_region_covered(&elements, stored, count);
}

bool dvt_kernel_uses(const kernel_plan *plan, operand_use *uses)
{
    const kernel_ir *k = plan->ir;
    uint32_t most = count_stores(k) + 1;
    kernel_stores s = {plan, malloc(most * sizeof *s.stores), 0};
    region *stored = malloc(most * sizeof *stored);
    bool made = s.stores != NULL && stored != NULL;
    if (made)
        list_stores(&s);
    for (uint32_t n = 0; made && n < k->output_count + k->input_count; n++)
        uses[n] = (operand_use){0};
    for (uint32_t n = 0; made && n < k->loop_count; n++)
        for (uint32_t at = 0; at < k->loops[n].count; at++) {
            const ir_instruction *i = &k->instructions[k->loops[n].first + at];
            const ir_buffer *b = &k->buffers[i->buffer];
            if (i->kind == IR_LOAD)
                note_load(&s, n, i,
                          &uses[b->place + (b->role == ROLE_IN ? k->output_count : 0)]);
        }
    for (uint32_t n = 0; made && n < k->buffer_count; n++)
        if (k->buffers[n].role != ROLE_IN)
            uses[k->buffers[n].place].fills = fills(&s, n, stored);
    free(s.stores);
    free(stored);
    return made;
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
    for (uint32_t n = 0; status == DVT_OK && n < k->instruction_count; n++)
        plan->steps[n].offset = resolve(plan, k->instructions[n].index.offset);
    return status;
}
