/* kernel_worker.h: what one thread works with while it runs kernel IR, and the instructions
 * that it runs on a strip. */
#ifndef DVT_KERNEL_WORKER_H
#define DVT_KERNEL_WORKER_H

#include "control.h"
#include "kernel_plan.h"

typedef struct {
    const kernel_plan *plan;
    void **values;      /* where each value lies at present */
    char *slots;        /* strips of memory for values */
    char *accumulators; /* for each reduction STRIP totals and STRIP positions */
    uint32_t flags;
    uint32_t ticks; /* strips since the run was last asked whether to stop */
    run_control *control;
    int64_t n; /* length of the strip, where it lies along an axis of the kernel */
    int64_t position[MAX_AXES];
    _Alignas(64) int64_t offsets[STRIP];
    _Alignas(64) unsigned char raw[STRIP * 8], converted[STRIP * 8];
} worker;

/* Code for each size of an element: X(bytes, unsigned integer of that size). */
#define ITEMS(X) X(1, uint8_t) X(2, uint16_t) X(4, uint32_t) X(8, uint64_t)

/* Bytes of an element of each type. */
static const uint8_t item_of[] = {4, 8, 8, 4, 2, 1, 1, 1, 2, 2};

static inline void *slot_of(const worker *w, uint32_t value)
{
    return w->slots + w->plan->slots[value] * w->plan->slot_size;
}

/* ---- kernel_memory.c: instructions that compute places ---- */
void dvt_strip_load(worker *w, const plan_step *s, int64_t n);
void dvt_strip_store(worker *w, const plan_step *s, int64_t n);
void dvt_strip_position(worker *w, const plan_step *s, int64_t n);
/* Spreads a value that is the same for a whole strip. */
void dvt_strip_spread(worker *w, uint32_t value);

/* ---- kernel_reduce.c: reductions and scans, started before a loop and run in it ---- */
/* Where a loop has no points, positions are 0; otherwise the first one comes before this. */
void dvt_reduction_start(const worker *w, const plan_step *s, bool empty);
void dvt_reduction_add(worker *w, const plan_step *s, int64_t n);
void dvt_reduction_finish(worker *w, const plan_step *s);
void dvt_scan_strip(worker *w, const plan_step *s, int64_t n);

#endif
