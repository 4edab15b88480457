/* Forks while other threads hold the runtime's locks and use its threads: the child goes on. */
#include "internal.h"

#include "check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_bool stop;
static atomic_int ready;

/* Runs body in a child, which an alarm ends where it hangs. */
static void in_child(int (*body)(void *), void *context)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(body(context) ? 0 : 7);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
}

static int take_and_give(void *context)
{
    dvt_lock_take(context);
    dvt_lock_give(context);
    return 1;
}

static void *hold(void *context)
{
    dvt_lock_take(context);
    atomic_store(&ready, 1);
    while (!atomic_load(&stop))
        usleep(100);
    dvt_lock_give(context);
    return NULL;
}

static void *take_often(void *context)
{
    while (!atomic_load(&stop))
        take_and_give(context);
    return NULL;
}

static void abandon(void *context)
{
    ++*(int *)context;
}

static int called;
static int take_and_look(void *context)
{
    return take_and_give(context) && called == 1;
}

static void test_long_lock_of_another_thread(void)
{
    dvt_lock lock;
    pthread_t thread;
    dvt_lock_init_long(&lock, abandon, &called);
    atomic_store(&stop, false);
    atomic_store(&ready, 0);
    REQUIRE(pthread_create(&thread, NULL, hold, &lock) == 0);
    while (!atomic_load(&ready))
        usleep(100);
    in_child(take_and_look, &lock);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    take_and_give(&lock);
    dvt_lock_destroy(&lock);
}

static int give_and_take(void *context)
{
    dvt_lock *lock = context;
    if (called != 0 || !lock->held || pthread_mutex_trylock(&lock->mutex) == 0)
        return 0;
    dvt_lock_give(lock);
    return take_and_give(lock);
}

static void test_long_lock_of_the_forking_thread(void)
{
    dvt_lock lock;
    dvt_lock_init_long(&lock, abandon, &called);
    dvt_lock_take(&lock);
    in_child(give_and_take, &lock);
    dvt_lock_give(&lock);
    dvt_lock_destroy(&lock);
}

static void test_brief_lock(void)
{
    dvt_lock lock;
    pthread_t thread;
    dvt_lock_init_brief(&lock);
    atomic_store(&stop, false);
    REQUIRE(pthread_create(&thread, NULL, take_often, &lock) == 0);
    for (int i = 0; i < 50; i++)
        in_child(take_and_give, &lock);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    dvt_lock_destroy(&lock);
}

static void count(void *context, int64_t begin, int64_t end)
{
    atomic_fetch_add((atomic_llong *)context, end - begin);
}

static int run_parallel(void *unused)
{
    (void)unused;
    atomic_llong total = 0;
    dvt_parallel(1000, 1, count, &total);
    return atomic_load(&total) == 1000;
}

static void *run_often(void *unused)
{
    while (!atomic_load(&stop))
        REQUIRE(run_parallel(unused));
    return NULL;
}

static int run_grandchild(void *unused)
{
    in_child(run_parallel, unused);
    return run_parallel(unused);
}

static void test_pool(void)
{
    pthread_t threads[2];
    in_child(run_parallel, NULL); /* before the first run */
    in_child(run_grandchild, NULL);
    REQUIRE(run_parallel(NULL));
    in_child(run_grandchild, NULL);
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&threads[i], NULL, run_often, NULL) == 0);
    for (int i = 0; i < 50; i++)
        in_child(run_parallel, NULL);
    in_child(run_grandchild, NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    REQUIRE(run_parallel(NULL));
}

int main(void)
{
    dvt_set_threads(3);
    test_long_lock_of_another_thread();
    test_long_lock_of_the_forking_thread();
    test_brief_lock();
    test_pool();
    puts("native/tests/test_fork: ok");
    return 0;
}
