/* Work that is stopped by the caller's flag, by the caller's answer, alone and among threads.
 */
#include "control.h"
#include "source.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    atomic_llong done;
    volatile int32_t *flag;
    int64_t stop_at;
    useconds_t each; /* what one takes */
} progress;

static void count(void *context, int64_t begin, int64_t end)
{
    progress *p = context;
    if (atomic_fetch_add(&p->done, end - begin) >= p->stop_at && p->flag != NULL)
        *p->flag = 1;
    usleep((useconds_t)(end - begin) * p->each);
}

static int says_stop(void *context)
{
    return ++*(int *)context >= 2;
}

static void test_flag(int threads)
{
    volatile int32_t flag = 0;
    run_control control = {.cancel = &flag};
    progress p = {.flag = &flag, .stop_at = 100, .each = 20};
    dvt_set_threads(threads);
    dvt_control_set(&control);
    dvt_parallel(1 << 20, 1, count, &p);
    EXPECT(atomic_load(&control.stopped), "the flag was not seen");
    EXPECT(atomic_load(&p.done) < 1 << 19, "most of the work was done although it was stopped");
    dvt_control_set(NULL);
    progress all = {.stop_at = 1 << 10};
    dvt_parallel(1 << 10, 1 << 8, count, &all);
    EXPECT(atomic_load(&all.done) == 1 << 10, "nobody stopped it, and not all was done");
}

static void test_question(int threads)
{
    int asked = 0;
    run_control control = {.poll = says_stop, .context = &asked};
    progress p = {.stop_at = 1 << 30, .each = 20};
    dvt_set_threads(threads);
    dvt_control_set(&control);
    dvt_parallel(1 << 20, 1, count, &p);
    dvt_control_set(NULL);
    EXPECT(asked == 2, "asked again after the answer was to stop, or never");
    EXPECT(atomic_load(&p.done) < 1 << 20, "all was done although it was stopped");
}

/* All of it is done, once, in parts of any size. */
static void test_all_is_done(void)
{
    volatile int32_t flag = 0;
    run_control control = {.cancel = &flag};
    dvt_control_set(&control);
    for (int64_t total = 1; total < 3000; total = total * 3 + 1)
        for (int64_t grain = 1; grain < 3000; grain = grain * 7 + 1)
            for (int threads = 1; threads < 4; threads++) {
                progress p = {.stop_at = 1 << 30};
                dvt_set_threads(threads);
                dvt_parallel(total, grain, count, &p);
                EXPECT(atomic_load(&p.done) == total, "not all was done");
            }
    dvt_control_set(NULL);
}

#define HEAD      4096 /* bytes before the constants */
#define CONSTANTS (5u << 20)

/* A file of nothing but constants. */
static unsigned char *make_file(void)
{
    static const unsigned char magic[8] = {0x89, 'D', 'V', 'T', '\r', '\n', 0x1a, '\n'};
    const uint16_t version[] = {DVT_FORMAT_MAJOR, DVT_FORMAT_MINOR};
    const uint32_t sizes[] = {128, HEAD + CONSTANTS, 0, 1};
    const uint32_t entry[] = {DVT_CONSTANTS, 1, HEAD, 0, CONSTANTS, 0};
    unsigned char *file = aligned_alloc(DVT_ALIGN, HEAD + CONSTANTS);
    if (file == NULL)
        exit(2);
    memset(file, 0, HEAD);
    memset(file + HEAD, 3, CONSTANTS);
    memcpy(file, magic, sizeof magic);
    memcpy(file + 8, version, sizeof version);
    memcpy(file + 12, sizes, sizeof sizes);
    memcpy(file + 128, entry, sizeof entry);
    dvt_section_digest(DVT_CONSTANTS, DVT_FORMAT_MINOR, (span){file + HEAD, CONSTANTS},
                       file + 128 + 24);
    dvt_sha256(file, 128 + 64, file + 80);
    return file;
}

/* A run that is stopped looks at its constants all the same: they are not damaged. */
static void test_digests_are_whole(void)
{
    volatile int32_t flag = 1;
    run_control control = {.cancel = &flag};
    unsigned char *file = make_file();
    dvt_source *source = NULL;
    dvt_error error;
    EXPECT(dvt_source_memory(file, HEAD + CONSTANTS, free, &source, &error) == DVT_OK,
           "a file of constants is refused");
    dvt_control_set(&control);
    EXPECT(dvt_source_check(source, &error) == DVT_OK, "constants not read are called damaged");
    EXPECT(dvt_control() == &control, "the run's control was lost");
    dvt_control_set(NULL);
    dvt_source_close(source);
}

int main(void)
{
    test_digests_are_whole();
    for (int threads = 1; threads < 4; threads += 2) {
        test_flag(threads);
        test_question(threads);
    }
    test_all_is_done();
    printf("native/tests/test_control: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
