/* control.h: stopping a run that is going on. Not installed. */
#ifndef DVT_CONTROL_H
#define DVT_CONTROL_H

#include "internal.h"

#include <stdatomic.h>

/* Of one run; NULL where nobody can stop it. The thread that runs it asks now and then
 * (dvt_control_poll); those that help it only look whether it is to stop. */
typedef struct run_control {
    const volatile int32_t *cancel; /* the caller's flag, or NULL */
    int (*poll)(void *context);     /* the caller's question, or NULL */
    void *context;
    int64_t next; /* when to ask again, in nanoseconds; 0: not yet known */
    atomic_bool stopped;
    struct run_control *batch; /* stops with it; NULL: the run is alone */
} run_control;

/* What this thread's run is controlled by. Sets another and returns the one before. */
run_control *dvt_control_set(run_control *control);
run_control *dvt_control(void);
/* By any thread. */
static inline bool dvt_control_stopped(run_control *c)
{
    if (c == NULL)
        return false;
    if ((c->cancel != NULL && *c->cancel != 0) ||
        (c->batch != NULL && atomic_load_explicit(&c->batch->stopped, memory_order_relaxed)))
        atomic_store_explicit(&c->stopped, true, memory_order_relaxed);
    return atomic_load_explicit(&c->stopped, memory_order_relaxed);
}
/* By the thread that runs: also asks the caller, if it is time. Whether to stop. */
bool dvt_control_poll(run_control *c);
/* By a thread that does part of a run's work: whether there is any point in more of it. */
bool dvt_control_goes_on(run_control *c);
/* Runs body over [begin, end), in parts that take some milliseconds at most unless `least` of
 * it takes longer, as long as the run goes on. Without a control: at once. */
void dvt_control_run(run_control *c, int64_t least, dvt_body body, void *context, int64_t begin,
                     int64_t end);

/* Nanoseconds since some moment in the past. */
uint64_t dvt_now(void);

#endif
