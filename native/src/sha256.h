/* sha256.h: SHA-256 by blocks, on whatever the processor has for it. */
#ifndef DVT_SHA256_H
#define DVT_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A leaf of a tree digest (see SPEC.md): small enough that a few leaves stay in a cache, which
 * are hashed at one time. */
#define DVT_LEAF 65536

/* Adds `blocks` blocks of 64 bytes to each of `lanes` states; the data of a lane starts
 * `stride` bytes after that of the one before. */
typedef struct {
    const char *name;
    size_t lanes;
    bool (*is_here)(void); /* whether this processor runs it */
    void (*add)(uint32_t (*states)[8], const uint8_t *data, size_t stride, size_t blocks);
} sha256_engine;

extern const uint32_t dvt_sha256_constants[64];
extern const sha256_engine dvt_sha256_plain, dvt_sha256_x86_one, dvt_sha256_x86_two,
    dvt_sha256_x86_eight;

typedef struct {
    uint32_t state[8];
    uint8_t block[64];
    size_t used;
    uint64_t total;
} sha256;

void dvt_sha256_start(sha256 *h);
void dvt_sha256_add(sha256 *h, const void *data, size_t size);
void dvt_sha256_end(sha256 *h, uint8_t digest[32]);

/* The digests of the leaves of `data`, 32 bytes each: all leaves are whole but the last. */
void dvt_sha256_leaves(const uint8_t *data, size_t size, uint8_t *digests);
/* The same on one engine, for tests. */
void dvt_sha256_leaves_on(const sha256_engine *engine, const uint8_t *data, size_t size,
                          uint8_t *digests);

#endif
