/* Kernel IR: reductions and scans, strip by strip. */
#include "kernel_worker.h"

#include <math.h>
#include <string.h>

static bool is_float(type_id type)
{
    return type == T_F32 || type == T_F64;
}

static type_id reduced_type(const worker *w, const plan_step *s)
{
    bool is_place = s->i->op == F_argmax || s->i->op == F_argmin;
    return is_place ? w->plan->ir->values[s->i->args[0]].type : s->i->type;
}

static char *totals_of(const worker *w, const plan_step *s)
{
    return w->accumulators + (size_t)s->accumulator * 2 * 8 * STRIP;
}

void dvt_reduction_start(const worker *w, const plan_step *s, bool empty)
{
    uint8_t op = s->i->op;
    type_id type = reduced_type(w, s);
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

void dvt_reduction_add(worker *w, const plan_step *s, int64_t n)
{
    const void *value = w->values[s->i->args[0]];
    const int64_t *places = s->i->arity > 1 ? w->values[s->i->args[1]] : NULL;
    if (s->cast != NULL) {
        s->cast(n, w->converted, &value, &w->flags);
        value = w->converted;
    }
    char *totals = totals_of(w, s);
    s->reduce(n, value, places, totals, (int64_t *)(void *)totals + STRIP);
}

void dvt_reduction_finish(worker *w, const plan_step *s)
{
    uint32_t result = s->i->result;
    bool is_place = s->i->arity > 1;
    const void *totals = totals_of(w, s) + (is_place ? 8 * STRIP : 0);
    type_id from = !is_place && is_float(s->i->type) ? T_F64 : T_I64;
    w->values[result] = slot_of(w, result);
    w->plan->strips->cast[s->i->type][from](w->plan->along ? 1 : w->n, w->values[result],
                                            &totals, &w->flags);
    if (w->plan->fill[result] && w->plan->along)
        dvt_strip_spread(w, result);
}

/* Scans go on in doubles or int64s, as reductions do; what comes out is of the scan's own type.
 */
void dvt_scan_strip(worker *w, const plan_step *s, int64_t n)
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
