/* Our own threads, or those of the process's OpenMP. Of our own, one job at a time: a caller
 * that finds them busy does its own work alone, so that many threads may call one artifact and
 * none waits for another. */
#include "control.h"
#include "internal.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 256

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held by whoever uses the threads */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t start = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_t threads_made[MAX_THREADS];
static int started;           /* how many of them there are; guarded by busy */
static bool stopping;         /* guarded by lock */
static unsigned long current; /* number of the job; guarded by lock, as are the rest */
static int wanted, active;
static bool is_open;            /* whether the job still takes helpers */
static atomic_int limit;        /* 0: not decided yet */
static _Thread_local int asked; /* for the run that this thread is in; 0: as limit says */

static struct {
    dvt_body body;
    void *context;
    int64_t count, grain; /* of a piece that a thread takes */
    int64_t least;        /* of what it does between two looks at the control */
    run_control *control;
    atomic_llong next;
} job;

static void work(void)
{
    while (dvt_control_goes_on(job.control)) {
        int64_t begin = atomic_fetch_add(&job.next, job.grain);
        if (begin >= job.count)
            return;
        int64_t end = job.count - begin > job.grain ? begin + job.grain : job.count;
        dvt_control_run(job.control, job.least, job.body, job.context, begin, end);
    }
}

static void *worker(void *argument)
{
    int number = (int)(intptr_t)argument;
    unsigned long seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stopping && (current == seen || number >= wanted || !is_open)) {
            seen = current;
            pthread_cond_wait(&start, &lock);
        }
        if (stopping)
            break;
        seen = current;
        active++;
        pthread_mutex_unlock(&lock);
        work();
        pthread_mutex_lock(&lock);
        if (--active == 0)
            pthread_cond_signal(&done);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- the process's OpenMP ---- */

typedef void (*gomp_parallel)(void (*function)(void *), void *data, unsigned threads,
                              unsigned flags);
static _Atomic(gomp_parallel) openmp; /* NULL: our own threads */
static _Thread_local bool inside;     /* whether this thread is in a piece of OpenMP work */

typedef struct {
    dvt_body body;
    void *context;
    int64_t count, grain; /* of a piece that a thread takes */
    int64_t least;        /* of what it does between two looks at the control */
    run_control *control;
    atomic_llong next;
} shared_job;

static void openmp_work(void *argument)
{
    shared_job *shared = argument;
    bool outer = inside;
    inside = true;
    while (dvt_control_goes_on(shared->control)) {
        int64_t begin = atomic_fetch_add(&shared->next, shared->grain);
        if (begin >= shared->count)
            break;
        int64_t left = shared->count - begin;
        int64_t end = left > shared->grain ? begin + shared->grain : shared->count;
        dvt_control_run(shared->control, shared->least, shared->body, shared->context, begin,
                        end);
    }
    inside = outer;
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
    void *address = library != NULL ? dlsym(library, "GOMP_parallel") : NULL;
    memcpy(found, &address, sizeof address); /* the library stays loaded: it is never closed */
    return address != NULL;
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
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&start, NULL);
    pthread_cond_init(&done, NULL);
    started = 0;
    wanted = active = 0;
    is_open = false;
    forked_with_openmp = forked_with_openmp || had_openmp;
    atomic_store(&openmp, NULL);
}

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
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_broadcast(&start);
    pthread_mutex_unlock(&lock);
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

void dvt_parallel(int64_t count, int64_t grain, dvt_body body, void *context)
{
    if (grain < 1)
        grain = 1;
    int64_t pieces = count > 0 ? (count - 1) / grain + 1 : 0;
    int all = dvt_threads(), threads = pieces < all ? (int)pieces : all;
    int64_t balanced = grain; /* a few pieces a thread balance well enough */
    if (pieces > 4 * (int64_t)threads)
        balanced = (count - 1) / (4 * (int64_t)threads) + 1;
    run_control *control = dvt_control();
    gomp_parallel run = atomic_load(&openmp);
    if (run != NULL && threads > 1 && !inside) {
        shared_job shared = {body, context, count, balanced, grain, control, 0};
        /* Always the whole team, as PyTorch does: one of another size ends threads. */
        run(openmp_work, &shared, (unsigned)all, 0);
        return;
    }
    if (threads <= 1 || inside || pthread_mutex_trylock(&busy) != 0) {
        dvt_control_run(control, grain, body, context, 0, count);
        return;
    }
    int helpers = grow(threads - 1);
    job.body = body;
    job.context = context;
    job.count = count;
    job.grain = balanced;
    job.least = grain;
    job.control = control;
    atomic_store(&job.next, 0);
    pthread_mutex_lock(&lock);
    wanted = helpers;
    is_open = true;
    current++;
    pthread_cond_broadcast(&start);
    pthread_mutex_unlock(&lock);
    work();
    pthread_mutex_lock(&lock);
    is_open = false; /* a helper that the system has not woken yet is not waited for */
    while (active > 0)
        pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&busy);
}
