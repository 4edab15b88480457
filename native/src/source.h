/* source.h: the bytes of an artifact, which several open artifacts may share. */
#ifndef DVT_SOURCE_H
#define DVT_SOURCE_H

#include "internal.h"
#include "sha256.h"

#include <stdatomic.h>

/* ---- guard.c: mappings whose file may be cut short ---- */
typedef struct guard guard;
/* Lets reads of a mapping past the end of its file give zeros instead of ending the process;
 * the guard is then broken. NULL: out of memory. */
guard *dvt_guard_add(void *start, size_t size);
bool dvt_guard_is_broken(const guard *g);
void dvt_guard_break(guard *g);
void dvt_guard_remove(guard *g); /* before the mapping goes; NULL is fine */

/* ---- source.c ---- */
struct dvt_source {
    atomic_int users;
    dvt_file file; /* verified; shared by all who open it */
    uint64_t size;
    const uint8_t *memory; /* bytes of the caller's; NULL: a file */
    void (*free_memory)(void *);
    int descriptor;       /* -1: none */
    long long modified;   /* the file's time of modification when it was opened */
    atomic_llong changed; /* the time of its last change of any kind */
    bool shows_changes;   /* whether every later change of its bytes changes `modified` */
    uint8_t *rest;        /* of a file: private, all but its constants */
    struct {
        uint64_t at, size; /* in the file; UINT64_MAX: there are none */
        uint8_t digest[32];
        bool is_tree;
    } constants;
    dvt_lock lock; /* held while constants are copied or mapped: guards what follows */
    uint8_t *copied;
    unsigned char *mapping;
    size_t mapping_size;
    const uint8_t *mapped;
    guard *guard;
};

void dvt_source_keep(dvt_source *s);
dvt_status dvt_source_read(const dvt_source *s, uint64_t at, uint8_t *to, size_t size,
                           dvt_error *error);
/* Where the constants are. With `may_map` they need no check, and may be a mapping of the file;
 * otherwise they are private and their digest has been checked. */
dvt_status dvt_source_constants(dvt_source *s, bool may_map, const uint8_t **data, bool *mapped,
                                dvt_error *error);
/* Compares the digest of the constants, and keeps none of them. */
dvt_status dvt_source_check(const dvt_source *s, dvt_error *error);
/* After a run with mapped constants: `status`, or DVT_ERROR_CHANGED if what it read may not be
 * what was loaded. */
dvt_status dvt_source_settle(dvt_source *s, dvt_status status, dvt_error *error);
/* Whether checking the constants takes so little that there is no point in putting it off. */
bool dvt_source_is_small(const dvt_source *s);

/* ---- file.c ---- */
/* Reads all but the constants and verifies it; fills `s->file` and `s->constants`. */
dvt_status dvt_file_verify(dvt_source *s, dvt_error *error);

#endif
