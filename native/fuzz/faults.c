/* The allocator as the runtime sees it (the linker puts these in the place of malloc and its
 * like): what is handed out holds a known byte, and a request may fail. */
#include "fuzz.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *held, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
int __real_mprotect(void *at, size_t size, int protection);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *held, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
int __wrap_mprotect(void *at, size_t size, int protection);

#define MOST ((size_t)64 << 20)

static atomic_int fill_byte;
static atomic_uint left; /* requests until one fails; 0: none does */
static atomic_bool happened;

void faults_fill(int byte)
{
    fill_byte = byte;
}

void faults_fail(uint32_t count)
{
    left = count;
    happened = false;
}

bool faults_pending(void)
{
    return left != 0;
}

bool faults_happened(void)
{
    return happened;
}

/* Whether a request fails: because it was to, or because nothing that is run needs as much. */
static bool fails(size_t size)
{
    if (size > MOST)
        return true;
    unsigned now = atomic_load(&left);
    while (now != 0 && !atomic_compare_exchange_weak(&left, &now, now - 1))
        ; /* another thread came first */
    if (now != 1)
        return false;
    happened = true;
    return true;
}

static void *filled(void *made, size_t size)
{
    if (made != NULL)
        memset(made, fill_byte, size);
    return made;
}

void *__wrap_malloc(size_t size)
{
    return fails(size) ? NULL : filled(__real_malloc(size), size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    size_t total;
    bool fits = !__builtin_mul_overflow(count, size, &total);
    return !fits || fails(total) ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *held, size_t size)
{
    return fails(size) ? NULL : __real_realloc(held, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails(size) ? NULL : filled(__real_aligned_alloc(alignment, size), size);
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    return fails(size) ? MAP_FAILED : __real_mmap(at, size, protection, flags, file, offset);
}

int __wrap_mprotect(void *at, size_t size, int protection)
{
    return fails(0) ? -1 : __real_mprotect(at, size, protection);
}
