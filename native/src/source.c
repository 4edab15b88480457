/* The bytes of an artifact, and when they may be believed.
 *
 * A file is opened once. All of it but its constants is read once into private memory, and what
 * is verified there is what is used. Constants are large: those of a file that the caller
 * trusts are mapped and not read at all, those of any other file are copied, and hashed as they
 * are copied, before the first use. What is mapped can change under us: after each run
 * dvt_source_settle tells whether it has. See decision 64. */
#include "source.h"

#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE                                                                              \
    (2u << 20) /* bytes: where the system has large pages, they are of this size */
#define PIECE (16u * DVT_LEAF) /* bytes that a thread reads and hashes at one time */
/* Constants of up to this many bytes are copied in any case: that takes less than keeping an
 * eye on a mapping. */
#define SMALL (1u << 20)
/* Nanoseconds in which a second change may leave a file's time as it was: clocks of file
 * systems tick at least every 10 ms, some of old ones every two seconds. */
#define TICK      20000000ll
#define LONG_TICK 2100000000ll

static long long nanoseconds(struct timespec t)
{
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- opening and closing ---- */

static dvt_source *new_source(void)
{
    dvt_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    atomic_init(&s->users, 1);
    s->descriptor = -1;
    s->constants.at = UINT64_MAX;
    s->file.source = s;
    dvt_lock_init_long(&s->lock, NULL, NULL);
    return s;
}

/* Whether a change from now on shows in the file's time of modification. */
static bool shows_changes(const struct stat *info)
{
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    long long age = nanoseconds(clock) - nanoseconds(info->st_mtim);
    long long tick = info->st_mtim.tv_nsec == 0 ? LONG_TICK : TICK;
    return age > tick || age < -tick;
}

static dvt_status open_file(dvt_source *s, const char *path, dvt_error *error)
{
    struct stat info;
    s->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->descriptor < 0)
        return dvt_fail(error, DVT_ERROR_IO, "cannot open %.300s: %s", path, strerror(errno));
    if (fstat(s->descriptor, &info) != 0 || !S_ISREG(info.st_mode))
        return dvt_fail(error, DVT_ERROR_IO, "%.300s is not a regular file", path);
    s->size = (uint64_t)info.st_size;
    s->modified = nanoseconds(info.st_mtim);
    atomic_init(&s->changed, nanoseconds(info.st_ctim));
    s->shows_changes = shows_changes(&info);
    return DVT_OK;
}

static dvt_status finish_source(dvt_source *s, dvt_status status, dvt_source **source,
                                dvt_error *error)
{
    dvt_error unread;
    if (status == DVT_OK)
        status = dvt_file_verify(s, error != NULL ? error : &unread);
    if (status == DVT_OK)
        *source = s;
    else
        dvt_source_close(s);
    return status;
}

dvt_status dvt_source_open(const char *path, dvt_source **source, dvt_error *error)
{
    dvt_source *s = new_source();
    if (s == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    return finish_source(s, open_file(s, path, error), source, error);
}

dvt_status dvt_source_memory(const void *data, size_t size, void (*free_data)(void *),
                             dvt_source **source, dvt_error *error)
{
    if ((uintptr_t)data % DVT_ALIGN != 0)
        return dvt_fail(error, DVT_ERROR_ARGUMENT, "the bytes are not 64-byte aligned");
    dvt_source *s = new_source();
    if (s == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    s->memory = data;
    s->size = size;
    dvt_status status = finish_source(s, DVT_OK, source, error);
    if (status == DVT_OK)
        s->free_memory = free_data; /* of what failed, the caller is still the owner */
    return status;
}

void dvt_source_keep(dvt_source *s)
{
    atomic_fetch_add(&s->users, 1);
}

void dvt_source_close(dvt_source *s)
{
    if (s == NULL || atomic_fetch_sub(&s->users, 1) > 1)
        return;
    dvt_guard_remove(s->guard);
    if (s->mapping != NULL)
        munmap(s->mapping, s->mapping_size);
    if (s->copied != NULL)
        munmap(s->copied, (size_t)s->constants.size);
    if (s->descriptor >= 0)
        close(s->descriptor);
    free(s->rest);
    if (s->free_memory != NULL)
        s->free_memory((void *)(uintptr_t)s->memory);
    dvt_lock_destroy(&s->lock);
    free(s);
}

/* ---- reading ---- */

static bool is_unchanged(const dvt_source *s, const struct stat *now)
{
    return nanoseconds(now->st_mtim) == s->modified && (uint64_t)now->st_size == s->size;
}

static dvt_status fail_changed(dvt_error *error)
{
    return dvt_fail(error, DVT_ERROR_CHANGED,
                    "the file was changed or cut short after it was opened: load it again (and "
                    "replace files as a whole, or load them with copy=True, DVT_OPEN_COPY)");
}

/* Some bytes that failed a check: changed since, or damaged from the start. */
static dvt_status fail_damaged(const dvt_source *s, dvt_error *error)
{
    struct stat now;
    if (s->descriptor >= 0 && fstat(s->descriptor, &now) == 0 && !is_unchanged(s, &now))
        return fail_changed(error);
    return dvt_fail(error, DVT_ERROR_MALFORMED, "section %d is damaged (its digest differs)",
                    DVT_CONSTANTS);
}

static bool read_all(int descriptor, uint8_t *to, size_t size, uint64_t at)
{
    while (size > 0) {
        size_t most = size < (1u << 30) ? size : 1u << 30;
        ssize_t got = pread(descriptor, to, most, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return true;
}

dvt_status dvt_source_read(const dvt_source *s, uint64_t at, uint8_t *to, size_t size,
                           dvt_error *error)
{
    if (s->memory != NULL) {
        memcpy(to, s->memory + at, size);
        return DVT_OK;
    }
    errno = 0;
    if (read_all(s->descriptor, to, size, at))
        return DVT_OK;
    return errno == 0 ? fail_changed(error)
                      : dvt_fail(error, DVT_ERROR_IO, "cannot read: %s", strerror(errno));
}

/* ---- constants: hashing ---- */

typedef struct {
    const dvt_source *s;
    uint8_t *to;         /* where they are copied; NULL: nowhere */
    const uint8_t *from; /* where they are already; NULL: to be read */
    uint8_t *leaves;     /* digests; NULL: the digest is no tree */
    atomic_int failed;   /* an errno; -1: the file ended */
} reading;

static bool read_piece(reading *r, uint64_t at, size_t size, uint8_t *to)
{
    errno = 0;
    if (read_all(r->s->descriptor, to, size, r->s->constants.at + at))
        return true;
    atomic_store(&r->failed, errno == 0 ? -1 : errno);
    return false;
}

static void read_pieces(void *context, int64_t begin, int64_t end)
{
    reading *r = context;
    bool passing = r->from == NULL && r->to == NULL;
    uint8_t *scratch = passing ? malloc(PIECE) : NULL;
    if (passing && scratch == NULL) {
        atomic_store(&r->failed, ENOMEM);
        return;
    }
    for (int64_t i = begin; i < end && atomic_load(&r->failed) == 0; i++) {
        uint64_t at = (uint64_t)i * PIECE, left = r->s->constants.size - at;
        size_t size = left < PIECE ? (size_t)left : PIECE;
        uint8_t *to = r->to != NULL ? r->to + at : scratch;
        if (r->from == NULL && !read_piece(r, at, size, to))
            break;
        if (r->leaves != NULL)
            dvt_sha256_leaves(r->from != NULL ? r->from + at : to, size,
                              r->leaves + at / DVT_LEAF * 32);
    }
    free(scratch);
}

/* The digest of what has been read or, piece by piece, of what has not (before format 1.3). */
static bool hash_in_order(reading *r, uint8_t digest[32])
{
    sha256 h;
    dvt_sha256_start(&h);
    uint64_t size = r->s->constants.size;
    const uint8_t *held = r->from != NULL ? r->from : r->to;
    uint8_t *scratch = held == NULL ? malloc(PIECE) : NULL;
    if (held == NULL && scratch == NULL)
        atomic_store(&r->failed, ENOMEM);
    for (uint64_t at = 0; at < size && atomic_load(&r->failed) == 0; at += PIECE) {
        size_t piece = size - at < PIECE ? (size_t)(size - at) : PIECE;
        if (held == NULL && !read_piece(r, at, piece, scratch))
            break;
        dvt_sha256_add(&h, held != NULL ? held + at : scratch, piece);
    }
    free(scratch);
    dvt_sha256_end(&h, digest);
    return atomic_load(&r->failed) == 0;
}

static dvt_status read_failed(const reading *r, dvt_error *error)
{
    int failed = atomic_load(&r->failed);
    if (failed == ENOMEM)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    return failed < 0 ? fail_changed(error)
                      : dvt_fail(error, DVT_ERROR_IO, "cannot read: %s", strerror(failed));
}

/* Reads what is not there yet, copies it if it is to be kept, and compares the digest. */
static dvt_status pass_over(reading *r, dvt_error *error)
{
    const dvt_source *s = r->s;
    int64_t pieces = (int64_t)((s->constants.size + PIECE - 1) / PIECE);
    size_t leaves = (size_t)((s->constants.size + DVT_LEAF - 1) / DVT_LEAF);
    uint8_t digest[32];
    bool in_order = !s->constants.is_tree;
    r->leaves = in_order ? NULL : malloc(32 * leaves + 1);
    if (!in_order && r->leaves == NULL)
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    /* A run that is stopped must not stop this: what was not read would be taken for damage. */
    run_control *control = dvt_control_set(NULL);
    if (pieces == 1)
        read_pieces(r, 0, 1); /* not worth waking a thread */
    else if (!in_order || r->to != NULL)
        dvt_parallel(pieces, 1, read_pieces, r);
    dvt_control_set(control);
    bool whole = atomic_load(&r->failed) == 0;
    if (in_order)
        whole = whole && hash_in_order(r, digest);
    else
        dvt_sha256(r->leaves, 32 * leaves, digest);
    free(r->leaves);
    if (!whole)
        return read_failed(r, error);
    return memcmp(digest, s->constants.digest, 32) == 0 ? DVT_OK : fail_damaged(s, error);
}

dvt_status dvt_source_check(const dvt_source *s, dvt_error *error)
{
    if (s->constants.at == UINT64_MAX)
        return DVT_OK;
    reading r = {.s = s};
    r.from = s->memory != NULL ? s->memory + s->constants.at : NULL;
    return pass_over(&r, error);
}

/* ---- constants: copying and mapping ---- */

static dvt_status copy_constants(dvt_source *s, dvt_error *error)
{
    size_t size = (size_t)s->constants.size;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return dvt_fail(error, DVT_ERROR_MEMORY, "no memory for %zu bytes of constants", size);
#ifdef MADV_HUGEPAGE
    if (size >= 2 * (size_t)HUGE_PAGE)
        madvise(memory, size, MADV_HUGEPAGE);
#endif
    reading r = {.s = s, .to = memory};
    dvt_status status = pass_over(&r, error);
    if (status != DVT_OK) {
        munmap(memory, size);
        return status;
    }
    mprotect(memory, size, PROT_READ);
    s->copied = memory;
    return DVT_OK;
}

static dvt_status map_constants(dvt_source *s, dvt_error *error)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t start = s->constants.at / page * page, lead = s->constants.at - start;
    size_t size = (size_t)(s->constants.size + lead);
    void *mapping = mmap(NULL, size, PROT_READ, MAP_PRIVATE, s->descriptor, (off_t)start);
    if (mapping == MAP_FAILED)
        return dvt_fail(error, DVT_ERROR_IO, "cannot map the constants: %s", strerror(errno));
    s->guard = dvt_guard_add(mapping, size);
    if (s->guard == NULL) {
        munmap(mapping, size);
        return dvt_fail(error, DVT_ERROR_MEMORY, "out of memory");
    }
    s->mapping = mapping;
    s->mapping_size = size;
    s->mapped = s->mapping + lead;
    return DVT_OK;
}

dvt_status dvt_source_constants(dvt_source *s, bool may_map, const uint8_t **data, bool *mapped,
                                dvt_error *error)
{
    dvt_status status = DVT_OK;
    *mapped = false;
    if (s->memory != NULL || s->constants.size == 0) {
        static const uint8_t nothing[DVT_ALIGN];
        *data = s->memory != NULL ? s->memory + s->constants.at : nothing;
        return may_map || s->memory == NULL ? DVT_OK : dvt_source_check(s, error);
    }
    *mapped = may_map && s->shows_changes && s->constants.size > SMALL;
    dvt_lock_take(&s->lock);
    if (*mapped && s->mapped == NULL)
        status = map_constants(s, error);
    else if (!*mapped && s->copied == NULL)
        status = copy_constants(s, error);
    *data = *mapped ? s->mapped : s->copied;
    dvt_lock_give(&s->lock);
    return status;
}

bool dvt_source_is_small(const dvt_source *s)
{
    return s->constants.at == UINT64_MAX || s->constants.size <= SMALL;
}

/* The file was renamed, deleted, given other permissions, or changed by somebody who put its
 * time of modification back. Its bytes tell. */
static dvt_status look_again(dvt_source *s, const struct stat *now, dvt_error *error)
{
    dvt_status status = DVT_OK;
    dvt_lock_take(&s->lock);
    if (atomic_load(&s->changed) != nanoseconds(now->st_ctim)) {
        reading r = {.s = s, .from = s->mapped};
        status = pass_over(&r, error);
        if (status == DVT_OK)
            atomic_store(&s->changed, nanoseconds(now->st_ctim));
        else
            dvt_guard_break(s->guard);
    }
    dvt_lock_give(&s->lock);
    return status == DVT_OK || status == DVT_ERROR_MEMORY ? status : fail_changed(error);
}

dvt_status dvt_source_settle(dvt_source *s, dvt_status status, dvt_error *error)
{
    struct stat now;
    if (fstat(s->descriptor, &now) != 0 || !is_unchanged(s, &now))
        return fail_changed(error);
    dvt_status same = atomic_load(&s->changed) == nanoseconds(now.st_ctim)
                          ? DVT_OK
                          : look_again(s, &now, error);
    if (dvt_guard_is_broken(s->guard))
        return fail_changed(error);
    return same != DVT_OK ? same : status;
}
