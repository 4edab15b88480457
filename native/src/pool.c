/* Our own threads, or those of the process's OpenMP. Of our own, one job at a time: a caller
 * that finds them busy does its own work alone, so that many threads may call one artifact and
 * none waits for another.
 *
 * Both are teams, which work in one way: whoever has a job takes pieces of it, and so does
 * every helper that is there. A helper that the system does not run, because others keep its
 * core busy, takes none, and nobody waits for it. Waiting is brief spinning, then sleep. */
#include "control.h"
#include "internal.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 256
/* Nanoseconds that a thread spins before it sleeps: a few times what it takes to wake one. */
#define SPIN_NS    30000
#define SPINS      32        /* between two looks at the clock */
#define LATE_NS    200000    /* after which a helper was not run, because others were */
#define CROWDED_NS 250000000 /* for which that is taken to last */
#define MAX_SHARES 64        /* of a job: more threads than that begin in one with others */

/* ---- teams ---- */

/* Pieces of a job that one thread begins with: the first of those left in the upper half, the
 * end of them in the lower. A thread gets the same part of every job, so that it finds what it
 * wrote in the last one in its own cache. */
typedef struct {
    _Alignas(64) _Atomic(uint64_t) left;
} share;

typedef struct {
    dvt_body body;
    void *context;
    int64_t count, grain; /* of a piece */
    int shares;
    run_control *control;
    share share[MAX_SHARES];
} shared_job;

/* State of a team: the number of its job, whether that takes helpers, how many are in it. */
#define ONE_JOB (UINT64_C(1) << 33)
#define OPEN    (UINT64_C(1) << 32)
#define ACTIVE  (OPEN - 1)

typedef struct {
    _Atomic(uint64_t) state;
    atomic_bool ended; /* helpers leave */
    atomic_int left;   /* those that have left */
    atomic_int wanted; /* helpers that may enter: those of a lower number */
    atomic_int asleep;
    pthread_mutex_t lock; /* of those who sleep */
    pthread_cond_t changed;
    shared_job *job; /* valid for those who are in it */
} team;

#define EMPTY_TEAM {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}

static _Thread_local bool inside;  /* whether this thread is in a piece of work */
static _Thread_local team *region; /* whose jobs this thread hands out */

static inline void relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

typedef bool (*condition)(team *t, uint64_t value);

/* There is a job that a helper may enter, other than the one it has seen, or none any more. */
static bool has_news(team *t, uint64_t seen)
{
    uint64_t state = atomic_load(&t->state);
    return atomic_load(&t->ended) || ((state & OPEN) != 0 && state / ONE_JOB != seen);
}

static bool is_done(team *t, uint64_t unused)
{
    (void)unused;
    return (atomic_load(&t->state) & ACTIVE) == 0;
}

static bool have_left(team *t, uint64_t count)
{
    return (uint64_t)atomic_load(&t->left) >= count;
}

static bool spin(team *t, condition holds, uint64_t value)
{
    uint64_t start = 0;
    for (unsigned n = 0; !holds(t, value); n++) {
        relax();
        if (n % SPINS != 0)
            continue;
        uint64_t now = dvt_now();
        start = start == 0 ? now : start;
        if (now - start > SPIN_NS)
            return false;
    }
    return true;
}

static void wait_until(team *t, condition holds, uint64_t value)
{
    if (spin(t, holds, value))
        return;
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->asleep,
                     1); /* before the last look: whoever changes looks at it after */
    while (!holds(t, value))
        pthread_cond_wait(&t->changed, &t->lock);
    atomic_fetch_sub(&t->asleep, 1);
    pthread_mutex_unlock(&t->lock);
}

/* After what somebody may wait for has changed. */
static void wake(team *t)
{
    if (atomic_load(&t->asleep) == 0)
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static uint64_t range_of(uint64_t first, uint64_t end)
{
    return first << 32 | end;
}

static void divide(shared_job *job, dvt_body body, void *context, int64_t count, int64_t grain,
                   int threads)
{
    if ((count - 1) / grain >= UINT32_MAX)
        grain = count / UINT32_MAX + 1;
    job->body = body;
    job->context = context;
    job->count = count;
    job->grain = grain;
    job->shares = threads < MAX_SHARES ? threads : MAX_SHARES;
    uint64_t pieces = (uint64_t)((count - 1) / grain + 1), shares = (uint64_t)job->shares;
    for (uint64_t i = 0; i < shares; i++)
        atomic_init(&job->share[i].left,
                    range_of(pieces * i / shares, pieces * (i + 1) / shares));
}

/* Half of what is left of a share: the first half for its own thread, the last for others, so
 * that threads seldom meet and end together. */
static bool take_half(shared_job *job, int number, bool is_own, int64_t *begin, int64_t *end)
{
    _Atomic(uint64_t) *left = &job->share[number].left;
    uint64_t now = atomic_load(left), first, stop, size, rest;
    do {
        first = now >> 32;
        stop = now & UINT32_MAX;
        if (first >= stop)
            return false;
        size = (stop - first + 1) / 2;
        rest = is_own ? range_of(first + size, stop) : range_of(first, stop - size);
    } while (!atomic_compare_exchange_weak(left, &now, rest));
    first = is_own ? first : stop - size;
    *begin = (int64_t)first * job->grain;
    *end = (int64_t)(first + size) * job->grain;
    *end = *end < job->count ? *end : job->count;
    return true;
}

/* The next pieces of a job: of the thread's own share, then of others'. */
static bool take(shared_job *job, int number, int64_t *begin, int64_t *end)
{
    int own = number % job->shares;
    for (int i = 0; i < job->shares; i++)
        if (take_half(job, (own + i) % job->shares, i == 0, begin, end))
            return true;
    return false;
}

static void work(shared_job *job, int number)
{
    int64_t begin, end;
    bool outer = inside;
    inside = true;
    while (dvt_control_goes_on(job->control) && take(job, number, &begin, &end))
        dvt_control_run(job->control, job->grain, job->body, job->context, begin, end);
    inside = outer;
}

/* What a helper does until the team ends. */
static void help(team *t, int number)
{
    uint64_t seen = 0;
    for (;;) {
        wait_until(t, has_news, seen);
        if (atomic_load(&t->ended))
            return;
        uint64_t state = atomic_load(&t->state);
        seen = state / ONE_JOB;
        bool enters = (state & OPEN) != 0 && number < atomic_load(&t->wanted);
        while (enters && !atomic_compare_exchange_weak(&t->state, &state, state + 1))
            enters = (state & OPEN) != 0 && state / ONE_JOB == seen;
        if (!enters)
            continue;
        work(t->job, number + 1);
        if ((atomic_fetch_sub(&t->state, 1) & (OPEN | ACTIVE)) == 1)
            wake(t);
    }
}

/* Hands a job out; there is no other. */
static void open_job(team *t, shared_job *job, int helpers)
{
    t->job = job;
    atomic_store(&t->wanted, helpers);
    atomic_store(&t->state, (atomic_load(&t->state) / ONE_JOB + 1) * ONE_JOB + OPEN);
    wake(t);
}

/* Does what is left of a job. A helper that the system has not woken yet is not waited for. */
static void finish_job(team *t)
{
    work(t->job, 0);
    atomic_fetch_and(&t->state, ~OPEN);
    wait_until(t, is_done, 0);
}

/* ---- the process's OpenMP ---- */

typedef void (*gomp_parallel)(void (*function)(void *), void *data, unsigned threads,
                              unsigned flags);
typedef int (*omp_number)(void);

static _Atomic(gomp_parallel) openmp;          /* NULL: our own threads */
static omp_number thread_number, thread_count; /* set before it */

static _Atomic(uint64_t) crowded_until; /* on dvt_now's clock */
static _Thread_local bool is_alone;     /* whether this thread's run has no use for OpenMP */

typedef struct {
    team team;
    void (*body)(void *context);
    void *context;
} openmp_region;

static void in_region(void *argument)
{
    openmp_region *r = argument;
    int number = thread_number();
    if (number != 0) {
        help(&r->team, number - 1);
        atomic_fetch_add(&r->team.left, 1);
        wake(&r->team); /* the region's end waits for all: what is woken is there */
        return;
    }
    team *outer = region;
    region = &r->team;
    r->body(r->context);
    region = outer;
    atomic_store(&r->team.ended, true);
    wake(&r->team);
    /* OpenMP's barrier would spin for long on a core that a helper may need. */
    uint64_t before = dvt_now();
    wait_until(&r->team, have_left, (uint64_t)thread_count() - 1);
    uint64_t after = dvt_now();
    if (after - before > LATE_NS)
        atomic_store(&crowded_until, after + CROWDED_NS);
}

/* Whether a run that has no use for OpenMP had better use our own threads, because helpers of
 * OpenMP, which a region must wait for, have just come late. */
static bool avoids_openmp(void)
{
    uint64_t until = atomic_load_explicit(&crowded_until, memory_order_relaxed);
    return is_alone && until != 0 && dvt_now() < until;
}

bool dvt_alone(bool alone)
{
    bool before = is_alone;
    is_alone = alone;
    return before;
}

static bool had_openmp;         /* whether this process had it when it last forked */
static bool forked_with_openmp; /* whether an ancestor had it when it forked this one */

static bool is_openmp(const struct dl_phdr_info *info)
{
    return info->dlpi_name != NULL && strstr(info->dlpi_name, "libgomp") != NULL;
}

static int find_openmp(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    if (!is_openmp(info))
        return 0;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return 0;
    static const char *const names[] = {"GOMP_parallel", "omp_get_thread_num",
                                        "omp_get_num_threads"};
    void *functions[3];
    for (int i = 0; i < 3; i++)
        if ((functions[i] = dlsym(library, names[i])) == NULL)
            return 0;
    memcpy(&thread_number, &functions[1], sizeof thread_number);
    memcpy(&thread_count, &functions[2], sizeof thread_count);
    memcpy(found, functions, sizeof *functions); /* it stays loaded: it is never closed */
    return 1;
}

int dvt_adopt_openmp(void)
{
    gomp_parallel found = NULL;
    if (!forked_with_openmp)
        dl_iterate_phdr(find_openmp, &found);
    if (found != NULL)
        atomic_store(&openmp, found);
    return found != NULL;
}

void dvt_own_threads(void)
{
    atomic_store(&openmp, NULL);
}

/* ---- our own threads ---- */

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held by whoever uses the threads */
static team own = EMPTY_TEAM;
static pthread_t threads_made[MAX_THREADS];
static int started; /* how many of them there are; guarded by busy */

static void *worker(void *number)
{
    help(&own, (int)(intptr_t)number);
    return NULL;
}

/* ---- forks (see lock.c) ---- */

static int see_openmp(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    return is_openmp(info);
}

void dvt_pool_before_fork(void)
{
    had_openmp = dl_iterate_phdr(see_openmp, NULL) != 0;
}

/* A child process has none of its parent's threads, and GNU's OpenMP waits for them for ever:
 * it is not used in a child whose parent had it, whether it had been used there or not. */
void dvt_pool_in_child(void)
{
    pthread_mutex_init(&busy, NULL);
    own = (team)EMPTY_TEAM;
    started = 0;
    forked_with_openmp = forked_with_openmp || had_openmp;
    atomic_store(&openmp, NULL);
}

/* ---- how many ---- */

static atomic_int limit;        /* 0: not decided yet */
static _Thread_local int asked; /* for the run that this thread is in; 0: as limit says */

static int default_threads(void)
{
    const char *given = getenv("DOVETAIL_NUM_THREADS");
    long count = given != NULL ? strtol(given, NULL, 10) : 0;
    if (count <= 0)
        count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : (int)count;
}

void dvt_set_threads(int count)
{
    atomic_store(&limit, count <= 0            ? default_threads()
                         : count > MAX_THREADS ? MAX_THREADS
                                               : count);
}

int dvt_threads(void)
{
    if (asked > 0)
        return asked;
    if (atomic_load(&limit) == 0)
        dvt_set_threads(0);
    return atomic_load(&limit);
}

int dvt_ask_threads(int count)
{
    int before = asked;
    asked = count > MAX_THREADS ? MAX_THREADS : count;
    return before;
}

/* When the process ends or the library is unloaded, no thread may be left in its code. */
__attribute__((destructor)) static void stop(void)
{
    if (pthread_mutex_trylock(&busy) != 0)
        return; /* the process ends in the middle of a run */
    atomic_store(&own.ended, true);
    wake(&own);
    for (int i = 0; i < started; i++)
        pthread_join(threads_made[i], NULL);
    started = 0;
}

/* Have `count` threads beside the caller's; fewer if the system gives fewer. */
static int grow(int count)
{
    while (started < count) {
        if (pthread_create(&threads_made[started], NULL, worker, (void *)(intptr_t)started) !=
            0)
            break;
        started++;
    }
    return started < count ? started : count;
}

/* ---- work for them ---- */

typedef struct {
    shared_job *job;
    int helpers;
} one_job;

static void run_job(void *argument)
{
    const one_job *one = argument;
    if (region == NULL) { /* OpenMP has just been given up */
        work(one->job, 0);
        return;
    }
    open_job(region, one->job, one->helpers);
    finish_job(region);
}

static _Thread_local uint64_t shared; /* jobs that this thread had others help with */

uint64_t dvt_jobs_shared(void)
{
    return shared;
}

void dvt_parallel(int64_t count, int64_t grain, dvt_body body, void *context)
{
    if (grain < 1)
        grain = 1;
    int64_t pieces = count > 0 ? (count - 1) / grain + 1 : 0;
    int all = dvt_threads(), threads = pieces < all ? (int)pieces : all;
    run_control *control = dvt_control();
    bool alone = threads <= 1 || inside;
    shared += !alone;
    bool is_openmp = region != NULL || (atomic_load(&openmp) != NULL && !avoids_openmp());
    if (!alone && is_openmp) {
        shared_job job;
        divide(&job, body, context, count, grain, threads);
        job.control = control;
        one_job one = {&job, threads - 1};
        if (region != NULL)
            run_job(&one);
        else
            dvt_in_region(run_job, &one);
        return;
    }
    if (alone || pthread_mutex_trylock(&busy) != 0) {
        dvt_control_run(control, grain, body, context, 0, count);
        return;
    }
    shared_job job;
    divide(&job, body, context, count, grain, threads);
    job.control = control;
    open_job(&own, &job, grow(threads - 1));
    finish_job(&own);
    pthread_mutex_unlock(&busy);
}

void dvt_in_region(void (*body)(void *context), void *context)
{
    gomp_parallel run = atomic_load(&openmp);
    if (run == NULL || region != NULL || inside || avoids_openmp()) {
        body(context);
        return;
    }
    openmp_region r = {EMPTY_TEAM, body, context};
    /* Always the whole team, as PyTorch does: one of another size ends threads. */
    run(in_region, &r, (unsigned)dvt_threads(), 0);
}
