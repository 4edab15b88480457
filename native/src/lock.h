/* lock.h: locks that a forked child can go on using; lock.c says how. Not installed. */
#ifndef DVT_LOCK_H
#define DVT_LOCK_H

#include <pthread.h>
#include <stdbool.h>

typedef struct dvt_lock {
    pthread_mutex_t mutex;
    bool brief;
    bool held; /* of long ones, with who holds it */
    pthread_t holder;
    void (*in_child)(void *context); /* of long ones: called where nobody holds it; or NULL */
    void *context;
    struct dvt_lock *next, **before;
} dvt_lock;
void dvt_lock_init_brief(dvt_lock *l);
void dvt_lock_init_long(dvt_lock *l, void (*in_child)(void *), void *context);
void dvt_lock_destroy(dvt_lock *l);
void dvt_lock_take(dvt_lock *l);
void dvt_lock_give(dvt_lock *l);

#endif
