/* Sets of elements: whether some regions cover another. A wrong "no" costs the time of clearing
 * memory; a wrong "yes" would show what lay in it. Every step here either keeps the question as
 * it is, or drops elements of what is held. */
#include "region.h"

#include <stdlib.h>

#define MOST_RUNS 4096 /* that are listed one by one */

/* ---- making regions ---- */

static void sort_by_stride(region_dim *dims, uint32_t rank)
{
    for (uint32_t i = 1; i < rank; i++)
        for (uint32_t n = i; n > 0 && dims[n - 1].stride < dims[n].stride; n--) {
            region_dim moved = dims[n];
            dims[n] = dims[n - 1];
            dims[n - 1] = moved;
        }
}

/* Joins the inner dimensions into the run, as long as it has no gaps, and the others in pairs.
 */
static void join(region *r)
{
    while (r->rank > 0 && r->dims[r->rank - 1].stride <= r->run) {
        r->rank--;
        r->run += (r->dims[r->rank].count - 1) * r->dims[r->rank].stride;
    }
    uint32_t kept = 0;
    for (uint32_t n = 1; n < r->rank; n++) {
        region_dim *outer = &r->dims[kept], inner = r->dims[n];
        if (outer->stride == inner.count * inner.stride)
            *outer = (region_dim){outer->count * inner.count, inner.stride};
        else
            r->dims[++kept] = inner;
    }
    if (r->rank > 0)
        r->rank = kept + 1;
}

bool dvt_region_make(int64_t offset, const region_dim *dims, uint32_t rank, region *made)
{
    *made = (region){.offset = offset, .run = 1};
    for (uint32_t n = 0; n < rank; n++) {
        region_dim d = dims[n];
        if (d.count == 0) {
            *made = (region){.offset = offset, .run = 0};
            return true;
        }
        if (d.count == 1 || d.stride == 0)
            continue;
        if (d.stride < 0) {
            made->offset += (d.count - 1) * d.stride;
            d.stride = -d.stride;
        }
        if (made->rank == REGION_RANK)
            return false;
        made->dims[made->rank++] = d;
    }
    sort_by_stride(made->dims, made->rank);
    join(made);
    return true;
}

void dvt_region_of(const dvt_tensor *t, int64_t offset, region *made)
{
    region_dim dims[DVT_MAX_RANK];
    for (int32_t d = 0; d < t->ndim; d++)
        dims[d] = (region_dim){t->shape[d], t->strides[d]};
    dvt_region_make(offset, dims, (uint32_t)t->ndim, made);
}

static int64_t length(const region *r)
{
    int64_t total = r->run;
    for (uint32_t n = 0; n < r->rank; n++)
        total += (r->dims[n].count - 1) * r->dims[n].stride;
    return total;
}

void dvt_region_hull(const region *r, region *hull)
{
    *hull = (region){.offset = r->offset, .run = length(r)};
}

/* ---- one period of what repeats ---- */

/* Part of `held` that lies in one step of its outermost dimension: the one where `wanted`
 * begins. */
static void choose_step(region *held, const region *wanted)
{
    region_dim outer = held->dims[0];
    int64_t steps = (wanted->offset - held->offset) / outer.stride;
    steps = wanted->offset < held->offset ? 0 : steps < outer.count ? steps : outer.count - 1;
    held->offset += steps * outer.stride;
    for (uint32_t n = 1; n < held->rank; n++)
        held->dims[n - 1] = held->dims[n];
    held->rank--;
}

/* Takes the outermost dimension off, where it is of this stride: what is left lies in [0,
 * stride). False where it reaches beyond. */
static bool take_period(region *r, int64_t stride, int64_t *first, int64_t *count)
{
    region rest = *r;
    *first = r->offset / stride;
    *count = 1;
    rest.offset = r->offset % stride;
    if (r->rank > 0 && r->dims[0].stride == stride) {
        *count = r->dims[0].count;
        for (uint32_t n = 1; n < rest.rank; n++)
            rest.dims[n - 1] = rest.dims[n];
        rest.rank--;
        join(&rest);
    } else if (r->rank == 0 && rest.offset == 0 && r->run % stride == 0) {
        *count = r->run / stride;
        rest.run = stride;
    }
    if (rest.offset + length(&rest) > stride)
        return false;
    *r = rest;
    return true;
}

/* The stride in which the question repeats, 0: none. */
static int64_t period_of(const region *wanted, const region *held, size_t count)
{
    if (wanted->rank > 0)
        return wanted->dims[0].stride;
    int64_t greatest = 0;
    for (size_t n = 0; n < count; n++)
        if (held[n].rank > 0 && held[n].dims[0].stride > greatest)
            greatest = held[n].dims[0].stride;
    return greatest;
}

/* Reduces the question to one period; what does not repeat with it is dropped. False where it
 * cannot be reduced, and everything is as it was. */
static bool reduce(region *wanted, region *held, size_t *count)
{
    int64_t stride = period_of(wanted, held, *count), first, steps;
    if (stride == 0 || !take_period(wanted, stride, &first, &steps))
        return false;
    size_t kept = 0;
    for (size_t n = 0; n < *count; n++) {
        region one = held[n];
        int64_t begin, length_of;
        while (one.rank > 0 && one.dims[0].stride > stride) {
            region place = *wanted;
            place.offset += first * stride;
            choose_step(&one, &place);
        }
        if (one.run > 0 && take_period(&one, stride, &begin, &length_of) && begin <= first &&
            begin + length_of >= first + steps)
            held[kept++] = one;
    }
    *count = kept;
    return true;
}

/* ---- run by run ---- */

typedef struct {
    int64_t begin, end;
} range;

static int by_begin(const void *left, const void *right)
{
    const range *a = left, *b = right;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Adds the runs of a region to a list; false where there is no room for them. */
static bool list_runs(const region *r, range *list, size_t *count)
{
    size_t runs = r->run > 0 ? 1 : 0, first = *count;
    for (uint32_t n = 0; n < r->rank && runs > 0; n++) {
        if (r->dims[n].count > MOST_RUNS)
            return false;
        runs *= (size_t)r->dims[n].count;
        if (runs > MOST_RUNS)
            return false;
    }
    if (*count + runs > MOST_RUNS)
        return false;
    for (size_t i = 0; i < runs; i++) {
        size_t left = i;
        int64_t at = r->offset;
        for (uint32_t n = r->rank; n-- > 0;) {
            at += (int64_t)(left % (size_t)r->dims[n].count) * r->dims[n].stride;
            left /= (size_t)r->dims[n].count;
        }
        list[first + i] = (range){at, at + r->run};
    }
    *count = first + runs;
    return true;
}

/* Sorts ranges and joins those that touch. */
static size_t join_ranges(range *list, size_t count)
{
    if (count == 0)
        return 0;
    qsort(list, count, sizeof *list, by_begin);
    size_t kept = 0;
    for (size_t i = 1; i < count; i++)
        if (list[i].begin > list[kept].end)
            list[++kept] = list[i];
        else if (list[i].end > list[kept].end)
            list[kept].end = list[i].end;
    return kept + 1;
}

static bool covered_by_runs(const region *wanted, const region *held, size_t count)
{
    range *lists = malloc(2 * MOST_RUNS * sizeof *lists);
    range *mine = lists, *theirs = lists != NULL ? lists + MOST_RUNS : NULL;
    size_t mine_count = 0, their_count = 0;
    bool fits = lists != NULL && list_runs(wanted, mine, &mine_count);
    for (size_t n = 0; fits && n < count; n++)
        fits = list_runs(&held[n], theirs, &their_count);
    if (fits) {
        mine_count = join_ranges(mine, mine_count);
        their_count = join_ranges(theirs, their_count);
    }
    for (size_t i = 0, n = 0; fits && i < mine_count; i++) {
        while (n < their_count && theirs[n].end < mine[i].end)
            n++;
        fits = n < their_count && theirs[n].begin <= mine[i].begin;
    }
    free(lists);
    return fits;
}

/* ---- the question ---- */

static bool same(const region *a, const region *b)
{
    bool equal = a->offset == b->offset && a->run == b->run && a->rank == b->rank;
    for (uint32_t n = 0; equal && n < a->rank; n++)
        equal = a->dims[n].count == b->dims[n].count && a->dims[n].stride == b->dims[n].stride;
    return equal;
}

static bool one_covers(const region *wanted, const region *held, size_t count)
{
    int64_t end = wanted->offset + length(wanted);
    for (size_t n = 0; n < count; n++)
        if (same(wanted, &held[n]) || (held[n].rank == 0 && held[n].offset <= wanted->offset &&
                                       held[n].offset + held[n].run >= end))
            return true;
    return false;
}

bool dvt_region_covered(const region *wanted, const region *held, size_t count)
{
    if (wanted->run == 0 || one_covers(wanted, held, count))
        return true;
    region *left = count < SIZE_MAX / sizeof *left ? malloc(count * sizeof *left) : NULL;
    if (count == 0 || left == NULL) {
        free(left);
        return false;
    }
    bool covered = covered_by_runs(wanted, held, count);
    region question = *wanted;
    size_t remaining = count;
    for (size_t n = 0; n < count; n++)
        left[n] = held[n];
    while (!covered && remaining > 0 && reduce(&question, left, &remaining))
        covered = one_covers(&question, left, remaining) ||
                  covered_by_runs(&question, left, remaining);
    free(left);
    return covered;
}
