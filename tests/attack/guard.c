/* Guarded tensors, for the attack on ATen: loaded before libc (LD_PRELOAD).
 *
 * Every tensor's memory (PyTorch takes it by posix_memalign) lies alone between pages that
 * nothing may touch, its end against the next of them, and is filled with a byte of the
 * caller's choice. A read or write beyond ends the process at once; one within the page is
 * found by the fill: a write when the memory is freed, a read by a result that differs when the
 * fill does, as does a result that was never written. Freed memory is never used again. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE    4096u
#define SPACE   ((size_t)1 << 40) /* addresses, not memory: none is used twice */
#define LARGEST ((size_t)64 << 20)

extern void __libc_free(void *pointer);
extern void *__libc_memalign(size_t alignment, size_t size);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *space, *next;
static int enabled, fill;
static size_t live, live_limit = (size_t)512 << 20;

/* Before the data's first page lies one with what free needs, then one that nothing may touch.
 */
typedef struct {
    size_t size, pages;
    int fill;
} header;

void guard_enable(int on, int byte)
{
    enabled = on;
    fill = byte;
}

static void *guarded(size_t size)
{
    size_t rounded = (size + 63) / 64 * 64, pages = (rounded + PAGE - 1) / PAGE;
    if (size > LARGEST)
        return NULL;
    pthread_mutex_lock(&lock);
    if (space == NULL)
        space = next =
            mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *at = next;
    int full = space == MAP_FAILED || live + pages * PAGE > live_limit ||
               (size_t)(at - space) + (pages + 3) * PAGE > SPACE;
    if (!full) {
        next += (pages + 3) * PAGE;
        live += pages * PAGE;
    }
    pthread_mutex_unlock(&lock);
    if (full || mprotect(at, PAGE, PROT_READ | PROT_WRITE) != 0 ||
        mprotect(at + 2 * PAGE, pages * PAGE, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    *(header *)(void *)at = (header){size, pages, fill};
    memset(at + 2 * PAGE, fill, pages * PAGE);
    return at + (pages + 2) * PAGE - rounded;
}

static void check(const unsigned char *from, const unsigned char *to, int byte)
{
    static const char TEXT[] = "guard: memory beside a tensor was written\n";
    for (; from < to; from++)
        if (*from != (unsigned char)byte) {
            (void)!write(2, TEXT, sizeof TEXT - 1);
            abort();
        }
}

int posix_memalign(void **pointer, size_t alignment, size_t size)
{
    *pointer = enabled && alignment <= 64 && size > 0 ? guarded(size)
                                                      : __libc_memalign(alignment, size);
    return *pointer != NULL ? 0 : ENOMEM;
}

/* The header of what starts on this page or, if it is large, some pages before: the first page
 * of its data is where the tensor starts, because its end is rounded up by less than a page. */
void free(void *pointer)
{
    unsigned char *p = pointer;
    if (space == NULL || p < space || p >= space + SPACE) {
        __libc_free(pointer);
        return;
    }
    unsigned char *first = (unsigned char *)((uintptr_t)p / PAGE * PAGE);
    header h = *(header *)(void *)(first - 2 * PAGE);
    check(first, p, h.fill);
    check(p + h.size, first + h.pages * PAGE, h.fill);
    madvise(first - 2 * PAGE, (h.pages + 2) * PAGE, MADV_DONTNEED);
    mprotect(first - 2 * PAGE, (h.pages + 2) * PAGE, PROT_NONE);
    pthread_mutex_lock(&lock);
    live -= h.pages * PAGE;
    pthread_mutex_unlock(&lock);
}
