/* Stopping a run: the caller's flag is looked at between instructions and between pieces of a
 * kernel; a caller that must be asked (Python, about signals) is asked every so often. */
#include "control.h"

#include <stddef.h>
#include <time.h>

#define BRIEF_NS 500000   /* the next part of a kernel may take longer */
#define LONG_NS  4000000  /* it should not */
#define PERIOD   50000000 /* ns between two questions: at once, to a person at a keyboard */

static _Thread_local run_control *current;

run_control *dvt_control_set(run_control *control)
{
    run_control *before = current;
    current = control;
    return before;
}

run_control *dvt_control(void)
{
    return current;
}

static int64_t time_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

uint64_t dvt_now(void)
{
    return (uint64_t)time_of(CLOCK_MONOTONIC);
}

#ifdef CLOCK_MONOTONIC_COARSE
#define COARSE CLOCK_MONOTONIC_COARSE
#else
#define COARSE CLOCK_MONOTONIC
#endif

bool dvt_control_poll(run_control *c)
{
    if (dvt_control_stopped(c))
        return true;
    if (c == NULL || c->poll == NULL)
        return false;
    int64_t now = time_of(COARSE);
    if (c->next == 0 || now < c->next) {
        c->next = c->next != 0 ? c->next : now + PERIOD;
        return false;
    }
    c->next = now + PERIOD;
    if (c->poll(c->context) != 0)
        atomic_store(&c->stopped, true);
    return atomic_load(&c->stopped);
}

bool dvt_control_goes_on(run_control *c)
{
    if (c == NULL)
        return true;
    return c == current ? !dvt_control_poll(c) : !dvt_control_stopped(c);
}

void dvt_control_run(run_control *c, int64_t least, dvt_body body, void *context, int64_t begin,
                     int64_t end)
{
    int64_t part = c == NULL || end - begin <= least ? end - begin : least;
    int64_t before = part < end - begin ? time_of(CLOCK_MONOTONIC) : 0;
    while (begin < end) {
        int64_t stop = end - begin > part ? begin + part : end;
        body(context, begin, stop);
        begin = stop;
        if (begin == end || !dvt_control_goes_on(c))
            return;
        int64_t now = time_of(CLOCK_MONOTONIC), took = now - before;
        before = now;
        if (took < BRIEF_NS && part <= INT64_MAX / 2)
            part *= 2;
        else if (took > LONG_NS && part / 2 >= least)
            part /= 2;
    }
}
