/* SHA-256 (FIPS 180-4), and the leaves of a tree of it. */
#include "sha256.h"
#include "dovetail.h"

#include <stdatomic.h>
#include <string.h>

const uint32_t dvt_sha256_constants[64] __attribute__((aligned(64))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
};

static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/* ---- in plain C ---- */

static uint32_t rotate(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static void add_block(uint32_t state[8], const uint8_t *p)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ (a >> 3)) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ (b >> 10));
    }
    memcpy(v, state, sizeof v);
#pragma GCC unroll 8
    for (int i = 0; i < 64; i++) {
        /* The eight variables change places by one each round: here their names do. */
        uint32_t a = v[(64 - i) & 7], b = v[(65 - i) & 7], c = v[(66 - i) & 7];
        uint32_t e = v[(68 - i) & 7], f = v[(69 - i) & 7], g = v[(70 - i) & 7];
        uint32_t one = v[(71 - i) & 7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                       ((e & f) ^ (~e & g)) + dvt_sha256_constants[i] + w[i];
        v[(67 - i) & 7] += one;
        v[(71 - i) & 7] = one + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                          ((a & b) ^ (a & c) ^ (b & c));
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

static void add_plain(uint32_t (*states)[8], const uint8_t *data, size_t stride, size_t blocks)
{
    (void)stride;
    for (size_t i = 0; i < blocks; i++)
        add_block(states[0], data + 64 * i);
}

static bool anywhere(void)
{
    return true;
}

const sha256_engine dvt_sha256_plain = {"plain", 1, anywhere, add_plain};

/* ---- which engine ---- */

/* The best engine of those, in the order given: asked once, since asking is slow in a virtual
 * machine. Whoever comes first finds what everybody would find. */
typedef struct {
    const sha256_engine *of[3];
    _Atomic(const sha256_engine *) found;
} choice;

static const sha256_engine *chosen(choice *c)
{
    const sha256_engine *found = atomic_load_explicit(&c->found, memory_order_acquire);
    for (size_t i = 0; found == NULL; i++)
        if (c->of[i]->is_here())
            atomic_store_explicit(&c->found, found = c->of[i], memory_order_release);
    return found;
}

/* For one message, and for many at one time (decision 64 has the figures). */
static choice single = {.of = {&dvt_sha256_x86_one, &dvt_sha256_plain}};
static choice many = {.of = {&dvt_sha256_x86_two, &dvt_sha256_x86_eight, &dvt_sha256_plain}};

/* ---- messages ---- */

void dvt_sha256_start(sha256 *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->state, START, sizeof START);
}

void dvt_sha256_add(sha256 *h, const void *data, size_t size)
{
    const uint8_t *p = data;
    h->total += size;
    if (h->used > 0) {
        size_t taken = size < 64 - h->used ? size : 64 - h->used;
        memcpy(h->block + h->used, p, taken);
        h->used += taken;
        p += taken;
        size -= taken;
        if (h->used < 64)
            return;
        chosen(&single)->add(&h->state, h->block, 0, 1);
        h->used = 0;
    }
    if (size >= 64)
        chosen(&single)->add(&h->state, p, 0, size / 64);
    h->used = size % 64;
    if (h->used > 0)
        memcpy(h->block, p + size - h->used, h->used);
}

static void write_state(const uint32_t state[8], uint8_t digest[32])
{
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

void dvt_sha256_end(sha256 *h, uint8_t digest[32])
{
    uint8_t tail[128] = {0};
    memcpy(tail, h->block, h->used);
    tail[h->used] = 0x80;
    size_t length = h->used < 56 ? 64 : 128;
    for (int i = 0; i < 8; i++)
        tail[length - 1 - (size_t)i] = (uint8_t)((h->total << 3) >> (8 * i));
    chosen(&single)->add(&h->state, tail, 0, length / 64);
    write_state(h->state, digest);
}

void dvt_sha256(const void *data, size_t size, uint8_t digest[32])
{
    sha256 h;
    dvt_sha256_start(&h);
    if (size > 0)
        dvt_sha256_add(&h, data, size);
    dvt_sha256_end(&h, digest);
}

/* ---- leaves ---- */

/* As many whole leaves as the engine takes at one time. */
static void whole_leaves(const sha256_engine *engine, const uint8_t *data, uint8_t *digests)
{
    uint32_t states[8][8];
    uint8_t tails[8][64] = {{0}}; /* what follows a leaf: one block of padding */
    for (size_t i = 0; i < engine->lanes; i++) {
        memcpy(states[i], START, sizeof START);
        tails[i][0] = 0x80;
        for (int b = 0; b < 8; b++)
            tails[i][63 - b] = (uint8_t)((uint64_t)DVT_LEAF * 8 >> (8 * b));
    }
    engine->add(states, data, DVT_LEAF, DVT_LEAF / 64);
    engine->add(states, tails[0], 64, 1);
    for (size_t i = 0; i < engine->lanes; i++)
        write_state(states[i], digests + 32 * i);
}

void dvt_sha256_leaves_on(const sha256_engine *engine, const uint8_t *data, size_t size,
                          uint8_t *digests)
{
    size_t step = engine->lanes * DVT_LEAF;
    for (; size >= step; data += step, size -= step, digests += 32 * engine->lanes)
        whole_leaves(engine, data, digests);
    for (; size > 0; digests += 32) {
        size_t leaf = size < DVT_LEAF ? size : DVT_LEAF;
        dvt_sha256(data, leaf, digests);
        data += leaf;
        size -= leaf;
    }
}

void dvt_sha256_leaves(const uint8_t *data, size_t size, uint8_t *digests)
{
    dvt_sha256_leaves_on(chosen(&many), data, size, digests);
}
