/* How a kernel is going to be run: along which axis the strips lie, at which level each
 * instruction runs, and which strip of memory holds each value. */
#include "kernel_plan.h"

#include <stdlib.h>
#include <string.h>

#define OVERHEAD 12.0  /* of an instruction on a strip; times are nanoseconds, roughly */
#define GRAIN    30000 /* what is worth a thread of its own */
#define FOREVER  UINT32_MAX
#define CACHE    16384 /* bytes that stay close to the processor, and of one piece of it */
#define LINE     64

/* ---- memory ---- */

static size_t room(size_t count, size_t size)
{
    return (count * size + 15) / 16 * 16;
}

static void *carve(char **at, size_t count, size_t size)
{
    void *start = *at;
    *at += room(count, size);
    return start;
}

static kernel_plan *allocate(const kernel_ir *k)
{
    size_t total = room(1, sizeof(kernel_plan)) + room(k->axis_count, 8) +
                   room(k->term_count, 8) + room(k->buffer_count, sizeof(plan_buffer)) +
                   room(k->instruction_count, sizeof(plan_step)) +
                   room(k->loop_count, sizeof(plan_loop)) + 2 * room(k->value_count, 4) +
                   3 * room(k->value_count, 1);
    char *at = calloc(1, total);
    if (at == NULL)
        return NULL;
    kernel_plan *plan = carve(&at, 1, sizeof *plan);
    plan->extents = carve(&at, k->axis_count, 8);
    plan->strides = carve(&at, k->term_count, 8);
    plan->buffers = carve(&at, k->buffer_count, sizeof(plan_buffer));
    plan->steps = carve(&at, k->instruction_count, sizeof(plan_step));
    plan->loops = carve(&at, k->loop_count, sizeof(plan_loop));
    plan->slots = carve(&at, k->value_count, 4);
    plan->uses = carve(&at, k->value_count, 4);
    plan->fill = carve(&at, k->value_count, 1);
    plan->varies = carve(&at, k->value_count, 1);
    plan->levels = carve(&at, k->value_count, 1);
    return plan;
}

/* ---- the axis of the strips ---- */

static int64_t stride_along(const kernel_plan *plan, const ir_index *index, uint32_t axis)
{
    uint64_t stride = 0;
    for (uint32_t n = index->first; n < index->first + index->axis_count; n++)
        if (plan->ir->terms[n].place == axis)
            stride += (uint64_t)plan->strides[n];
    return (int64_t)stride;
}

/* What one walk along an axis takes, all instructions of a loop together. */
static double walk_cost(const kernel_plan *plan, const ir_loop *loop, uint32_t axis)
{
    double length = axis == DVT_NONE ? 1 : (double)plan->extents[axis];
    double strips = (double)(int64_t)((length + STRIP - 1) / STRIP), total = 0;
    for (uint32_t n = loop->first; n < loop->first + loop->count; n++) {
        const ir_instruction *i = &plan->ir->instructions[n];
        bool memory = i->kind == IR_LOAD || i->kind == IR_STORE;
        int64_t stride = memory ? stride_along(plan, &i->index, axis) : 1;
        double each = stride == 1                ? 0.2
                      : stride == 0              ? 0.05
                      : stride > 0 && stride < 8 ? 0.5
                                                 : 0.7;
        total += strips * OVERHEAD + length * each;
    }
    return total;
}

static double points_but(const kernel_plan *plan, const ir_loop *loop, uint32_t axis)
{
    double points = 1;
    for (uint32_t n = 0; n < plan->ir->kernel_axis_count; n++)
        points *= n == axis ? 1 : (double)plan->extents[n];
    for (uint32_t n = 0; n < loop->axis_count; n++)
        points *= loop->axes[n] == axis ? 1 : (double)plan->extents[loop->axes[n]];
    return points;
}

static double cost_across(const kernel_plan *plan, uint32_t axis)
{
    double total = 0;
    for (uint32_t n = 0; n < plan->ir->loop_count; n++) {
        const ir_loop *loop = &plan->ir->loops[n];
        total += points_but(plan, loop, axis) * walk_cost(plan, loop, axis);
    }
    return total;
}

/* Strips along the loops; each loop's best axis is chosen on the way. */
static double cost_along(kernel_plan *plan)
{
    double total = 0;
    for (uint32_t n = 0; n < plan->ir->loop_count; n++) {
        const ir_loop *loop = &plan->ir->loops[n];
        double best = points_but(plan, loop, DVT_NONE) * walk_cost(plan, loop, DVT_NONE);
        plan->loops[n].strip_axis = DVT_NONE;
        for (uint32_t a = 0; a < loop->axis_count; a++) {
            uint32_t axis = loop->axes[a];
            double cost = points_but(plan, loop, axis) * walk_cost(plan, loop, axis);
            if (cost < best || plan->loops[n].strip_axis == DVT_NONE) {
                best = cost;
                plan->loops[n].strip_axis = axis;
            }
        }
        total += best;
    }
    return total;
}

/* Strips that step over memory are kept short, so that the cache lines they touch are still
 * there when the loops come to their next elements. */
static int64_t strip_length(const kernel_plan *plan, uint32_t axis)
{
    int64_t length = STRIP, bytes = 0;
    for (uint32_t n = 0; n < plan->ir->instruction_count; n++) {
        const ir_instruction *i = &plan->ir->instructions[n];
        if (i->kind != IR_LOAD && i->kind != IR_STORE)
            continue;
        int64_t stride = stride_along(plan, &i->index, axis);
        if (stride < 0 || stride > 1)
            bytes += stride > 1 && stride < 8 ? 32 : LINE;
    }
    while (length > 64 && length * bytes > CACHE)
        length /= 2;
    return length;
}

static void choose_axis(kernel_plan *plan)
{
    const kernel_ir *k = plan->ir;
    double best = cost_along(plan);
    plan->along = true;
    plan->axis = DVT_NONE;
    for (uint32_t n = 0; n < k->kernel_axis_count; n++) {
        double cost = cost_across(plan, n);
        if (cost < best) {
            best = cost;
            plan->along = false;
            plan->axis = n;
        }
    }
    plan->units = plan->blocks = plan->widest = 1;
    plan->length = plan->along ? STRIP : strip_length(plan, plan->axis);
    if (!plan->along)
        plan->blocks = (plan->extents[plan->axis] + plan->length - 1) / plan->length;
    for (uint32_t n = 0; n < k->kernel_axis_count && k->loop_count > 0; n++)
        plan->units *= n == plan->axis ? plan->blocks : plan->extents[n];
    if (k->loop_count == 0)
        plan->units = 0;
    double each = plan->units > 0 ? best / (double)plan->units : 1;
    plan->grain = each < GRAIN ? (int64_t)(GRAIN / each) + 1 : 1;
}

/* The strip's axis goes last. */
static void order_axes(kernel_plan *plan, uint32_t number)
{
    const ir_loop *ir = &plan->ir->loops[number];
    plan_loop *loop = &plan->loops[number];
    loop->ir = ir;
    loop->first = ir->first;
    if (!plan->along)
        loop->strip_axis = plan->axis;
    for (uint32_t n = 0; n < ir->axis_count; n++)
        if (ir->axes[n] != loop->strip_axis)
            loop->axes[loop->walked++] = ir->axes[n];
    if (loop->walked < ir->axis_count)
        loop->axes[loop->walked] = loop->strip_axis;
    int64_t length = loop->strip_axis == DVT_NONE ? 1 : plan->extents[loop->strip_axis];
    length = length > plan->length ? plan->length : length;
    plan->widest = length > plan->widest ? length : plan->widest;
}

/* ---- levels ---- */

static uint8_t axis_level(const kernel_plan *plan, const plan_loop *loop, uint32_t axis)
{
    if (axis < plan->ir->kernel_axis_count)
        return LEVEL_POINT;
    uint8_t level = LEVEL_LOOP;
    for (uint32_t n = 0; loop->axes[n] != axis; n++)
        level++;
    return level;
}

/* Takes what a value that is used says of the user. */
static void depend(const kernel_plan *plan, uint32_t number, plan_step *s, uint32_t value)
{
    bool own = plan->ir->values[value].loop == number;
    uint8_t level = plan->levels[value];
    if (!own && level > LEVEL_POINT)
        level = LEVEL_POINT;
    s->level = level > s->level ? level : s->level;
    s->varies = s->varies || plan->varies[value];
}

static bool may_fail(const ir_instruction *i)
{
    return i->kind == IR_LOAD ||
           (i->kind == IR_APPLY &&
            ((i->op >= K_div_int && i->op <= K_floormod) ||
             (i->op >= K_check && i->op <= K_check_bounds) || i->op == K_check_divisor));
}

static void place_step(kernel_plan *plan, uint32_t number, plan_step *s)
{
    const ir_instruction *i = s->i;
    const plan_loop *loop = &plan->loops[number];
    uint8_t deepest = (uint8_t)(LEVEL_POINT + loop->ir->axis_count);
    for (uint32_t n = 0; n < i->arity; n++)
        depend(plan, number, s, i->args[n]);
    if (i->mask != 0)
        depend(plan, number, s, i->mask - 1);
    for (uint32_t n = 0; n < i->index.axis_count; n++) {
        uint8_t level = axis_level(plan, loop, plan->ir->terms[i->index.first + n].place);
        s->level = level > s->level ? level : s->level;
    }
    for (uint32_t n = 0; n < i->index.value_count; n++)
        depend(plan, number, s,
               plan->ir->terms[i->index.first + i->index.axis_count + n].place);
    if (may_fail(i) && s->level == LEVEL_ONCE)
        s->level = LEVEL_POINT; /* not before it is known that there is anything to do */
    if (loop->strip_axis != DVT_NONE && i->index.axis_count > 0)
        s->step = stride_along(plan, &i->index, loop->strip_axis);
    s->varies = s->varies || s->step != 0;
    if (i->kind == IR_STORE || i->kind == IR_REDUCE || i->kind == IR_SCAN)
        s->level = deepest;
    if (i->kind == IR_REDUCE)
        s->varies = !plan->along;
    if (i->kind == IR_SCAN)
        s->varies = true;
    if (i->kind != IR_STORE) {
        plan->levels[i->result] = i->kind == IR_REDUCE ? LEVEL_POINT : s->level;
        plan->varies[i->result] = s->varies;
    }
}

/* Which values must fill a strip, although all their elements are alike. */
static void mark_fills(kernel_plan *plan, const plan_step *s)
{
    bool whole = s->varies || s->i->kind == IR_REDUCE;
    for (uint32_t n = 0; whole && n < s->i->arity; n++)
        if (!plan->varies[s->i->args[n]])
            plan->fill[s->i->args[n]] = true;
}

static void find_functions(kernel_plan *plan, plan_step *s)
{
    const ir_instruction *i = s->i;
    const strip_table *t = plan->strips;
    type_id given = i->arity > 0 ? plan->ir->values[i->args[0]].type : T_F32;
    if (i->kind == IR_APPLY)
        s->apply = i->op == K_cast    ? t->cast[i->type][given]
                   : i->op == K_where ? t->apply[i->op][i->type]
                                      : t->apply[i->op][given];
    if (i->kind == IR_REDUCE || i->kind == IR_SCAN) {
        bool place = i->op == F_argmax || i->op == F_argmin;
        type_id reduced = place ? given : i->type;
        s->cast = given != reduced ? t->cast[reduced][given] : NULL;
        s->reduce = plan->along ? t->along[i->op][reduced] : t->across[i->op][reduced];
        s->scan = dvt_scan(i->op, reduced == T_F32 || reduced == T_F64, plan->along);
        s->accumulator = plan->accumulator_count++;
    }
    if (i->kind == IR_STORE) {
        type_id storage = plan->buffers[i->buffer].type;
        type_id wanted = dvt_computed(storage);
        s->cast = given != wanted ? t->cast[wanted][given] : NULL;
    }
}

/* A loop's steps in the order of their levels, each level's start noted. */
static void sort_steps(kernel_plan *plan, uint32_t number, const plan_step *unsorted)
{
    plan_loop *loop = &plan->loops[number];
    uint32_t at = loop->first, levels = LEVEL_LOOP + loop->ir->axis_count;
    for (uint32_t level = 0; level < levels; level++) {
        loop->levels[level] = at;
        for (uint32_t n = 0; n < loop->ir->count; n++)
            if (unsorted[n].level == level)
                plan->steps[at++] = unsorted[n];
    }
    loop->levels[levels] = at;
}

static dvt_status plan_steps(kernel_plan *plan, dvt_error *error)
{
    const kernel_ir *k = plan->ir;
    plan_step *scratch = calloc(k->instruction_count + 1u, sizeof *scratch);
    if (scratch == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t number = 0; number < k->loop_count; number++) {
        const ir_loop *loop = &k->loops[number];
        order_axes(plan, number);
        for (uint32_t n = 0; n < loop->count; n++) {
            plan_step *s = &scratch[n];
            *s = (plan_step){.i = &k->instructions[loop->first + n],
                             .offset = plan->steps[loop->first + n].offset};
            place_step(plan, number, s);
            mark_fills(plan, s);
            find_functions(plan, s);
        }
        sort_steps(plan, number, scratch);
    }
    free(scratch);
    return DVT_OK;
}

/* ---- slots ---- */

typedef struct {
    uint32_t *free;
    uint32_t count;
} slot_list;

static uint32_t take_slot(kernel_plan *plan, slot_list *list)
{
    return list->count > 0 ? list->free[--list->count] : plan->slot_count++;
}

/* Whether later loops may read a result. */
static bool is_kept(const plan_loop *loop, const plan_step *s)
{
    return s->i->kind == IR_REDUCE || loop->ir->axis_count == 0;
}

static void note_use(kernel_plan *plan, uint32_t value, uint32_t step, uint8_t level)
{
    if (plan->uses[value] != FOREVER)
        plan->uses[value] = plan->levels[value] == level ? step : FOREVER;
}

static void release(kernel_plan *plan, uint32_t number, slot_list *list, uint32_t value,
                    uint32_t step)
{
    if (plan->ir->values[value].loop == number && plan->uses[value] == step) {
        plan->uses[value] = FOREVER; /* once only, also where it is used twice */
        list->free[list->count++] = plan->slots[value];
    }
}

/* A statement for each value that a step reads. */
#define FOR_USES(step, value, statement)                                                       \
    do {                                                                                       \
        const ir_instruction *of = (step)->i;                                                  \
        for (uint32_t arg = 0; arg < of->arity; arg++) {                                       \
            uint32_t value = of->args[arg];                                                    \
            statement;                                                                         \
        }                                                                                      \
        for (uint32_t arg = 0; arg < of->index.value_count; arg++) {                           \
            uint32_t value =                                                                   \
                plan->ir->terms[of->index.first + of->index.axis_count + arg].place;           \
            statement;                                                                         \
        }                                                                                      \
        if (of->mask != 0) {                                                                   \
            uint32_t value = of->mask - 1;                                                     \
            statement;                                                                         \
        }                                                                                      \
    } while (0)

static void assign_loop(kernel_plan *plan, uint32_t number, slot_list *list)
{
    const plan_loop *loop = &plan->loops[number];
    uint32_t end = loop->first + loop->ir->count;
    for (uint32_t n = loop->levels[LEVEL_POINT]; n < end; n++) {
        const plan_step *s = &plan->steps[n];
        if (s->i->kind != IR_STORE)
            plan->uses[s->i->result] = is_kept(loop, s) ? FOREVER : n;
        FOR_USES(s, value, note_use(plan, value, n, s->level));
    }
    for (uint32_t n = loop->levels[LEVEL_POINT]; n < end; n++) {
        const plan_step *s = &plan->steps[n];
        if (s->i->kind != IR_STORE)
            plan->slots[s->i->result] = take_slot(plan, list);
        FOR_USES(s, value, release(plan, number, list, value, n));
        if (s->i->kind != IR_STORE)
            release(plan, number, list, s->i->result, n);
    }
}

static dvt_status assign_slots(kernel_plan *plan, dvt_error *error)
{
    const kernel_ir *k = plan->ir;
    slot_list list = {calloc(k->value_count + 1u, sizeof(uint32_t)), 0};
    if (list.free == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    for (uint32_t n = 0; n < k->value_count; n++)
        plan->uses[n] = FOREVER;
    for (uint32_t number = 0; number < k->loop_count; number++)
        for (uint32_t n = plan->loops[number].first;
             n < plan->loops[number].levels[LEVEL_POINT]; n++)
            plan->slots[plan->steps[n].i->result] = plan->slot_count++;
    for (uint32_t number = 0; number < k->loop_count; number++)
        assign_loop(plan, number, &list);
    free(list.free);
    size_t item = 1;
    static const uint8_t items[] = {4, 8, 8, 4, 2, 1, 1, 1};
    for (uint32_t n = 0; n < k->value_count; n++)
        item = items[k->values[n].type] > item ? items[k->values[n].type] : item;
    /* A little more than the strip, so that slots do not fall on one another in the cache. */
    plan->slot_size = ((size_t)plan->widest * item + 63) / 64 * 64 + 64;
    return DVT_OK;
}

dvt_status dvt_kernel_plan(const dvt_call *call, kernel_plan **made, dvt_error *error)
{
    const kernel_ir *k = (const kernel_ir *)(const void *)call->kernel;
    if (call->output_count != k->output_count || call->input_count != k->input_count ||
        call->attribute_count != k->size_count)
        return dvt_fail(error, DVT_ERROR_MALFORMED,
                        "generated kernel: called with other operands than its code has");
    kernel_plan *plan = allocate(k);
    if (plan == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    plan->ir = k;
    plan->call = call;
    plan->strips = dvt_strips();
    dvt_status status = dvt_kernel_bind(plan, error);
    if (status == DVT_OK)
        choose_axis(plan);
    if (status == DVT_OK)
        status = plan_steps(plan, error);
    if (status == DVT_OK)
        status = assign_slots(plan, error);
    if (status != DVT_OK) {
        free(plan);
        return status;
    }
    *made = plan;
    return DVT_OK;
}

/* ---- looking at a call without running it ---- */

dvt_status dvt_kernel_ir_check(const dvt_call *call, dvt_error *error)
{
    kernel_plan *plan = NULL;
    dvt_status status = dvt_kernel_plan(call, &plan, error);
    if (status == DVT_OK)
        free(plan);
    return status;
}

/* Points of a vector axis that generated code takes in one go, where each is a long loop
 * (NARROWEST in codegen/llvm/render.py). */
#define AT_ONCE 64

/* What native code does at least before it can stop. */
static double unit_of(const kernel_plan *plan)
{
    double points = 1;
    for (uint32_t n = 0; n < plan->ir->kernel_axis_count; n++)
        points *= plan->extents[n] > 0 ? (double)plan->extents[n] : 1;
    double each = (double)plan->work / points * plan->ir->instruction_count;
    return each * (points < AT_ONCE ? points : AT_ONCE);
}

dvt_status dvt_kernel_ir_look(const dvt_call *call, operand_use *uses, kernel_work *work,
                              dvt_error *error)
{
    kernel_plan *plan;
    dvt_status status = dvt_kernel_plan(call, &plan, error);
    if (status != DVT_OK)
        return status;
    if (!dvt_kernel_uses(plan, uses))
        status = dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    work->total =
        plan->work < INT64_MAX / 2 ? plan->work + plan->ir->instruction_count : plan->work;
    work->unit = unit_of(plan);
    work->scratch = dvt_kernel_scratch(plan);
    work->pieces = plan->units > 0 ? (uint64_t)((plan->units - 1) / plan->grain + 1) : 0;
    free(plan);
    return status;
}

int64_t dvt_kernel_ir_work(const dvt_call *call)
{
    kernel_plan *plan = NULL;
    dvt_error unread;
    if (dvt_kernel_plan(call, &plan, &unread) != DVT_OK)
        return INT64_MAX;
    int64_t work = plan->work;
    free(plan);
    return work;
}
