/* Mappings whose file may be cut short by somebody else. Reading past the end of the file is
 * SIGBUS, which ends a process. While something is guarded, a handler puts pages of zeros in
 * the place of what is gone and marks the guard: the run goes on and its result is thrown away.
 *
 * The handler is installed when the first mapping is guarded, once, and stays. Whatever is not
 * about a guarded mapping goes to the handler that was there before, or has its default effect.
 * A handler that somebody installs later and that does not call ours takes its place: then a
 * file cut short ends the process, as without us. */
#include "source.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Never freed, since a handler may be looking at it, but used again. */
struct guard {
    struct guard *next; /* set before it is in the list */
    atomic_uintptr_t start, end;
    atomic_bool is_broken;
    atomic_bool is_used;
};

static _Atomic(guard *) guards;
static struct sigaction before;
static atomic_uintptr_t page_size;
static pthread_once_t installed = PTHREAD_ONCE_INIT;

/* The guard of an address, and where its mapping ends. Another thread may be giving a guard to
 * another mapping: an end counts only where the start is the same before and after it. */
static guard *guard_of(uintptr_t address, uintptr_t *end)
{
    for (guard *g = atomic_load(&guards); g != NULL; g = g->next) {
        uintptr_t start = atomic_load(&g->start);
        *end = atomic_load(&g->end);
        if (address >= start && address < *end && atomic_load(&g->start) == start)
            return g;
    }
    return NULL;
}

/* Zeros from the page of an address to the end of the mapping. */
static bool put_zeros(uintptr_t address, uintptr_t end)
{
    uintptr_t page = atomic_load(&page_size), start = address / page * page;
    int kept = errno;
    void *made = mmap((void *)start, end - start, PROT_READ,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    errno = kept;
    return made != MAP_FAILED;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    bool is_sent = info->si_code <= 0; /* by a process, and by no instruction */
    if (before.sa_handler == SIG_IGN && is_sent)
        return;
    if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        signal(number, SIG_DFL); /* the instruction is tried again, and ends the process */
        if (is_sent)
            raise(number);
    } else if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(number, info, context);
    } else {
        before.sa_handler(number);
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    uintptr_t address = (uintptr_t)info->si_addr, end;
    guard *g = info->si_code == BUS_ADRERR ? guard_of(address, &end) : NULL;
    if (g != NULL) {
        atomic_store(&g->is_broken, true);
        if (put_zeros(address, end))
            return;
    }
    pass_on(number, info, context);
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigemptyset(&action.sa_mask);
    atomic_store(&page_size, (uintptr_t)sysconf(_SC_PAGESIZE));
    sigaction(SIGBUS, NULL, &before);
    sigaction(SIGBUS, &action, NULL);
}

static guard *unused_guard(void)
{
    for (guard *g = atomic_load(&guards); g != NULL; g = g->next) {
        bool is_used = false;
        if (atomic_compare_exchange_strong(&g->is_used, &is_used, true))
            return g;
    }
    guard *g = calloc(1, sizeof *g);
    if (g == NULL)
        return NULL;
    atomic_init(&g->is_used, true);
    atomic_init(&g->start, UINTPTR_MAX); /* of nothing yet: the handler may see it */
    g->next = atomic_load(&guards);
    while (!atomic_compare_exchange_weak(&guards, &g->next, g))
        ;
    return g;
}

guard *dvt_guard_add(void *start, size_t size)
{
    pthread_once(&installed, install);
    guard *g = unused_guard();
    if (g == NULL)
        return NULL;
    uintptr_t page = atomic_load(&page_size);
    atomic_store(&g->is_broken, false);
    atomic_store(&g->end, ((uintptr_t)start + size + page - 1) / page * page);
    atomic_store(&g->start, (uintptr_t)start);
    return g;
}

bool dvt_guard_is_broken(const guard *g)
{
    return atomic_load(&g->is_broken);
}

void dvt_guard_break(guard *g)
{
    atomic_store(&g->is_broken, true);
}

void dvt_guard_remove(guard *g)
{
    if (g == NULL)
        return;
    atomic_store(&g->start, UINTPTR_MAX);
    atomic_store(&g->end, 0);
    atomic_store(&g->is_used, false);
}
