/* Mapped files that are cut short: zeros and a mark for those that are guarded, the handler
 * that was there before for all others. */
#include "source.h"

#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 8

static int passed_on;
static sigjmp_buf back;

static void on_bus_error(int number)
{
    (void)number;
    passed_on++;
    siglongjmp(back, 1);
}

/* A file of ones, mapped, whose name is gone already. */
static volatile unsigned char *map_ones(size_t size, int *descriptor)
{
    char name[] = "/tmp/dovetail-guard-XXXXXX";
    *descriptor = mkstemp(name);
    unlink(name);
    unsigned char *ones = malloc(size);
    memset(ones, 1, size);
    if (write(*descriptor, ones, size) != (ssize_t)size)
        exit(2);
    free(ones);
    void *mapping = mmap(NULL, size, PROT_READ, MAP_PRIVATE, *descriptor, 0);
    return mapping == MAP_FAILED ? NULL : mapping;
}

static void test_a_guarded_one(size_t page)
{
    int file;
    volatile unsigned char *p = map_ones(PAGES * page, &file);
    guard *g = dvt_guard_add((void *)(uintptr_t)p, PAGES * page - 100);
    CHECK(p[5 * page] == 1 && !dvt_guard_is_broken(g));
    CHECK(ftruncate(file, (off_t)(3 * page)) == 0);
    CHECK(p[6 * page + 1] == 0 && p[3 * page] == 0 && p[PAGES * page - 1] == 0);
    CHECK(p[3 * page - 1] == 1 && dvt_guard_is_broken(g));
    dvt_guard_remove(g);
    munmap((void *)(uintptr_t)p, PAGES * page);
    close(file);
}

static void test_another(size_t page)
{
    int file;
    volatile unsigned char *p = map_ones(PAGES * page, &file);
    guard *g = dvt_guard_add((void *)(uintptr_t)p, 2 * page);
    dvt_guard_remove(g); /* what is let go of is nobody's business either */
    CHECK(ftruncate(file, (off_t)page) == 0);
    if (sigsetjmp(back, 1) == 0)
        CHECK(p[page] == 2); /* not reached */
    CHECK(passed_on == 1);
    munmap((void *)(uintptr_t)p, PAGES * page);
    close(file);
}

static void test_many(size_t page)
{
    guard *held[20];
    for (size_t i = 0; i < 20; i++)
        held[i] = dvt_guard_add((void *)(1000 * page * (i + 1)), page);
    guard *again = held[7];
    dvt_guard_break(again);
    dvt_guard_remove(again);
    held[7] = dvt_guard_add((void *)(77 * page), page);
    CHECK(held[7] == again && !dvt_guard_is_broken(again));
    for (size_t i = 0; i < 20; i++)
        dvt_guard_remove(held[i]);
}

/* How a process ends that had its own way with the signal before its first guard, and is sent
 * one. If it lives on, it reads a guarded file that is cut short. */
static int end_of_child(void (*handler)(int), int flags, size_t page)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
        sigaction(SIGBUS, &action, NULL);
        test_many(page);
        raise(SIGBUS);
        if (handler == SIG_IGN)
            test_a_guarded_one(page);
        _exit(failures != 0);
    }
    return waitpid(child, &status, 0) == child ? status : -1;
}

static void test_sent_signals(size_t page)
{
    for (int flags = 0; flags <= SA_SIGINFO; flags += SA_SIGINFO) {
        int ended = end_of_child(SIG_DFL, flags, page);
        CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGBUS);
        int ignored = end_of_child(SIG_IGN, flags, page);
        CHECK(WIFEXITED(ignored) && WEXITSTATUS(ignored) == 0);
    }
}

int main(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    test_sent_signals(page);
    struct sigaction action = {.sa_handler = on_bus_error};
    sigaction(SIGBUS, &action, NULL); /* before the first guard: it gets what is not guarded */
    test_many(page);
    test_a_guarded_one(page);
    test_another(page);
    test_a_guarded_one(page);
    printf(failures ? "%d failures\n" : "guarded mappings: ok\n", failures);
    return failures != 0;
}
