/* Sleeping and waking across two processes. A word in shared memory cannot be left locked by a
 * process that was killed, as a mutex could. */
#define _GNU_SOURCE
#include "wire.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void sim_sleep(_Atomic uint32_t *word, uint32_t value, uint64_t nanoseconds)
{
    struct timespec limit = {(time_t)(nanoseconds / 1000000000u),
                             (long)(nanoseconds % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void sim_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
