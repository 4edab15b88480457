/* The memory plan: lifetimes in, offsets in one arena out. Three orders are tried, each piece
 * goes into the smallest gap that fits, the smallest arena wins. Python asks for the same plan
 * (ir/memory.py). */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define MANY 3000 /* beyond this one order must do: placing is quadratic */
#define VERY_MANY                                                                              \
    (1 << 15) /* beyond this they are placed in time, beside those alive at once */

#define MOST_STEPS (1ull << 32) /* some seconds */

typedef struct {
    const lifetime *life;
    uint32_t index;
} item;

static int by_number(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_size(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->life->size != b->life->size)
        return by_number(b->life->size, a->life->size);
    if (a->life->first != b->life->first)
        return by_number(a->life->first, b->life->first);
    return by_number(a->index, b->index);
}

static int by_time(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->life->first != b->life->first)
        return by_number(a->life->first, b->life->first);
    if (a->life->size != b->life->size)
        return by_number(b->life->size, a->life->size);
    return by_number(a->index, b->index);
}

static int by_area(const void *left, const void *right)
{
    const item *a = left, *b = right;
    double x = (double)a->life->size * (double)(a->life->last - a->life->first + 1);
    double y = (double)b->life->size * (double)(b->life->last - b->life->first + 1);
    if (x != y)
        return x > y ? -1 : 1;
    return by_time(left, right);
}

/* The start of the smallest gap between `placed` (sorted by offset) that `life` fits into. */
static uint64_t best_gap(const lifetime *const *placed, size_t count, const uint64_t *at,
                         const lifetime *life)
{
    uint64_t best = UINT64_MAX, waste = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        if (placed[i]->first > life->last || life->first > placed[i]->last)
            continue;
        uint64_t gap = at[i] > end ? at[i] - end : 0;
        if (at[i] >= end && gap >= life->size && (best == UINT64_MAX || gap < waste)) {
            best = end;
            waste = gap;
        }
        if (at[i] + placed[i]->size > end)
            end = at[i] + placed[i]->size;
    }
    return best != UINT64_MAX ? best : end;
}

/* Sizes sum to less than 2^63 (checked by the caller), so offsets cannot overflow. */
static uint64_t place(const item *order, size_t count, const lifetime **placed, uint64_t *at,
                      uint64_t *offsets)
{
    uint64_t peak = 0;
    for (size_t n = 0; n < count; n++) {
        const lifetime *life = order[n].life;
        uint64_t offset = best_gap(placed, n, at, life);
        size_t slot = n;
        for (; slot > 0 && at[slot - 1] > offset; slot--) {
            at[slot] = at[slot - 1];
            placed[slot] = placed[slot - 1];
        }
        at[slot] = offset;
        placed[slot] = life;
        offsets[order[n].index] = offset;
        if (offset + life->size > peak)
            peak = offset + life->size;
    }
    return peak;
}

/* As `place`, in the order of time: those that have ended make room before the next one comes.
 * It takes as many steps as pieces are alive at once; false where those are too many. */
static bool place_in_time(const item *order, size_t count, const lifetime **placed,
                          uint64_t *at, uint64_t *offsets, uint64_t *peak)
{
    uint64_t steps = 0;
    size_t alive = 0;
    *peak = 0;
    for (size_t n = 0; n < count; n++) {
        const lifetime *life = order[n].life;
        size_t kept = 0;
        for (size_t i = 0; i < alive; i++)
            if (placed[i]->last >= life->first) {
                at[kept] = at[i];
                placed[kept++] = placed[i];
            }
        alive = kept;
        steps += 2 * alive;
        if (steps > MOST_STEPS)
            return false;
        uint64_t offset = best_gap(placed, alive, at, life);
        size_t slot = alive++;
        for (; slot > 0 && at[slot - 1] > offset; slot--) {
            at[slot] = at[slot - 1];
            placed[slot] = placed[slot - 1];
        }
        at[slot] = offset;
        placed[slot] = life;
        offsets[order[n].index] = offset;
        if (offset + life->size > *peak)
            *peak = offset + life->size;
    }
    return true;
}

static int by_event(const void *left, const void *right)
{
    const lifetime *a = left, *b = right; /* first: when; last: 0 end, 1 start */
    return a->first != b->first ? by_number(a->first, b->first) : by_number(a->last, b->last);
}

static uint64_t largest_set(const lifetime *lives, size_t count, lifetime *events)
{
    for (size_t i = 0; i < count; i++) {
        events[2 * i] = (lifetime){lives[i].size, lives[i].first, 1, 0};
        events[2 * i + 1] = (lifetime){lives[i].size, lives[i].last + 1, 0, 0};
    }
    qsort(events, 2 * count, sizeof *events, by_event);
    uint64_t now = 0, most = 0;
    for (size_t i = 0; i < 2 * count; i++) {
        now = events[i].last ? now + events[i].size : now - events[i].size;
        if (now > most)
            most = now;
    }
    return most;
}

dvt_status dvt_plan(lifetime *lives, size_t count, dvt_memory *memory, dvt_error *error)
{
    static int (*const orders[])(const void *, const void *) = {by_size, by_time, by_area};
    memset(memory, 0, sizeof *memory);
    for (size_t i = 0; i < count; i++)
        if (lives[i].size > INT64_MAX ||
            __builtin_add_overflow(memory->total, lives[i].size, &memory->total) ||
            memory->total > INT64_MAX)
            return dvt_fail(error, DVT_ERROR_OVERFLOW, "the temporaries do not fit 64 bits");
    if (count == 0)
        return DVT_OK;
    item *order = calloc(count, sizeof *order);
    const lifetime **placed = calloc(count, sizeof *placed);
    uint64_t *at = calloc(count, 2 * sizeof *at);
    lifetime *events = calloc(count, 2 * sizeof *events);
    bool crowded = false;
    if (order != NULL && placed != NULL && at != NULL && events != NULL) {
        memory->bound = largest_set(lives, count, events);
        memory->peak = UINT64_MAX;
        for (size_t n = 0; n < (count > MANY ? 1 : 3) && !crowded; n++) {
            for (size_t i = 0; i < count; i++)
                order[i] = (item){&lives[i], (uint32_t)i};
            qsort(order, count, sizeof *order, count > VERY_MANY ? by_time : orders[n]);
            uint64_t peak;
            if (count > VERY_MANY)
                crowded = !place_in_time(order, count, placed, at, at + count, &peak);
            else
                peak = place(order, count, placed, at, at + count);
            if (crowded || peak >= memory->peak)
                continue;
            memory->peak = peak;
            for (size_t i = 0; i < count; i++)
                lives[i].offset = at[count + i];
        }
    }
    bool failed = order == NULL || placed == NULL || at == NULL || events == NULL;
    free(order);
    free(placed);
    free(at);
    free(events);
    if (crowded)
        return dvt_fail(error, DVT_ERROR_LIMIT,
                        "%zu temporaries, too many of them alive at once to be planned", count);
    return failed ? dvt_fail(error, DVT_ERROR_MEMORY, "out of memory") : DVT_OK;
}
