/* Locks that survive a fork. A child has the one thread that forked; what another thread held
 * is locked in it for ever unless somebody lets go.
 *
 * Brief locks guard lists and are never held while other code is called: fork waits for them,
 * so that the child finds the lists whole. Long locks are held for a whole run: fork cannot
 * wait for those (the run may need what the forking thread holds, such as Python's GIL), so the
 * child starts with them free, unless the thread that forked is the one that holds it. */
#include "internal.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static dvt_lock *all; /* guarded by list_lock */

static void init(dvt_lock *l, bool brief, void (*in_child)(void *), void *context)
{
    *l = (dvt_lock){.brief = brief, .in_child = in_child, .context = context};
    pthread_mutex_init(&l->mutex, NULL);
    pthread_mutex_lock(&list_lock);
    l->next = all;
    l->before = &all;
    if (all != NULL)
        all->before = &l->next;
    all = l;
    pthread_mutex_unlock(&list_lock);
}

void dvt_lock_init_brief(dvt_lock *l)
{
    init(l, true, NULL, NULL);
}

void dvt_lock_init_long(dvt_lock *l, void (*in_child)(void *), void *context)
{
    init(l, false, in_child, context);
}

void dvt_lock_destroy(dvt_lock *l)
{
    pthread_mutex_lock(&list_lock);
    *l->before = l->next;
    if (l->next != NULL)
        l->next->before = l->before;
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_destroy(&l->mutex);
}

void dvt_lock_take(dvt_lock *l)
{
    pthread_mutex_lock(&l->mutex);
    if (l->brief)
        return;
    l->holder = pthread_self();
    l->held = true;
}

void dvt_lock_give(dvt_lock *l)
{
    l->held = false;
    pthread_mutex_unlock(&l->mutex);
}

static void before_fork(void)
{
    dvt_pool_before_fork();
    dvt_table_before_fork();
    pthread_mutex_lock(&list_lock);
    for (dvt_lock *l = all; l != NULL; l = l->next)
        if (l->brief)
            pthread_mutex_lock(&l->mutex);
}

static void give_brief(void)
{
    for (dvt_lock *l = all; l != NULL; l = l->next)
        if (l->brief)
            pthread_mutex_unlock(&l->mutex);
    pthread_mutex_unlock(&list_lock);
    dvt_table_after_fork();
}

static void in_child(void)
{
    give_brief();
    dvt_pool_in_child();
    for (dvt_lock *l = all; l != NULL; l = l->next) {
        bool own = l->held && pthread_equal(l->holder, pthread_self());
        if (l->brief || own)
            continue;
        pthread_mutex_init(&l->mutex, NULL);
        l->held = false;
        if (l->in_child != NULL)
            l->in_child(l->context);
    }
}

/* When the library is loaded, and not at the first use: a process that loads a model and then
 * forks its workers has not run it yet. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, give_brief, in_child);
}
