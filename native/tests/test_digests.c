/* SHA-256 and Ed25519 against published vectors; the planner against its promise. */
#include "internal.h"
#include "sha256.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>

static void from_hex(const char *text, uint8_t *out)
{
    for (; *text; text += 2) {
        char pair[3] = {text[0], text[1], 0};
        *out++ = (uint8_t)strtol(pair, NULL, 16);
    }
}

static void expect_sha256(const char *message, size_t repeat, const char *digest)
{
    size_t length = strlen(message);
    char *text = malloc(length * repeat + 1);
    uint8_t got[32], want[32];
    for (size_t i = 0; i < repeat; i++)
        memcpy(text + i * length, message, length);
    dvt_sha256(text, length * repeat, got);
    from_hex(digest, want);
    CHECK(memcmp(got, want, 32) == 0);
    free(text);
}

static void test_sha256(void) /* FIPS 180-4 examples */
{
    expect_sha256("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_sha256("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect_sha256("a", 1000000,
                  "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_leaves(void) /* every engine that this processor has, against the plain one */
{
    static const sha256_engine *const engines[] = {&dvt_sha256_plain, &dvt_sha256_x86_one,
                                                   &dvt_sha256_x86_two, &dvt_sha256_x86_eight};
    static const size_t sizes[] = {
        0, 1, DVT_LEAF - 1, DVT_LEAF, DVT_LEAF + 1, 9 * DVT_LEAF, 17 * DVT_LEAF + 12345};
    uint8_t *data = malloc(18 * DVT_LEAF), want[18 * 32], got[18 * 32];
    for (size_t i = 0; i < 18 * DVT_LEAF; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 11);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (size_t e = 0; e < sizeof engines / sizeof *engines; e++) {
            size_t size = sizes[n], leaves = (size + DVT_LEAF - 1) / DVT_LEAF;
            for (size_t i = 0; i < leaves; i++) {
                size_t left = size - i * DVT_LEAF;
                dvt_sha256(data + i * DVT_LEAF, left < DVT_LEAF ? left : DVT_LEAF,
                           want + 32 * i);
            }
            if (!engines[e]->is_here())
                continue;
            memset(got, 0, sizeof got);
            dvt_sha256_leaves_on(engines[e], data, size, got);
            CHECK(memcmp(got, want, 32 * leaves) == 0);
        }
    sha256 h; /* in pieces of every kind of size */
    dvt_sha256_start(&h);
    for (size_t at = 0, piece = 0; at < 5 * DVT_LEAF; at += piece, piece = piece % 131 + 1)
        dvt_sha256_add(&h, data + at,
                       piece = at + piece > 5 * DVT_LEAF ? 5 * DVT_LEAF - at : piece);
    dvt_sha256_end(&h, got);
    dvt_sha256(data, 5 * DVT_LEAF, want);
    CHECK(memcmp(got, want, 32) == 0);
    free(data);
}

static void test_ed25519(void) /* RFC 8032, 7.1, test 3 */
{
    uint8_t seed[32], key[32], want[64], got[64];
    const uint8_t message[2] = {0xaf, 0x82};
    from_hex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7", seed);
    from_hex("6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
             "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
             want);
    dvt_ed25519_public(seed, key);
    dvt_ed25519_sign(seed, message, 2, got);
    CHECK(memcmp(got, want, 64) == 0);
    CHECK(dvt_ed25519_verify(got, key, message, 2));
    CHECK(!dvt_ed25519_verify(got, key, message, 1));
    got[7] ^= 1;
    CHECK(!dvt_ed25519_verify(got, key, message, 2));
    /* The neutral element as a key: R = B and S = 1 would sign whatever there is to sign. */
    uint8_t neutral[32] = {1}, forged[64] = {0x58, [32] = 1};
    memset(forged + 1, 0x66, 31);
    CHECK(!dvt_ed25519_verify(forged, neutral, message, 2));
}

static void test_plan(void)
{
    uint64_t state = 1;
    for (int round = 0; round < 200; round++) {
        lifetime lives[40];
        for (int i = 0; i < 40; i++) {
            state = state * 6364136223846793005u + 1;
            uint32_t first = (uint32_t)i, last = first + (uint32_t)(state >> 60);
            lives[i] = (lifetime){64 * (1 + (state >> 40) % 9), first, last, 0};
        }
        dvt_memory memory = {.struct_size = sizeof memory};
        dvt_error error;
        CHECK(dvt_plan(lives, 40, &memory, &error) == DVT_OK);
        CHECK(memory.bound <= memory.peak && memory.peak <= memory.total);
        for (int i = 0; i < 40; i++)
            for (int j = 0; j < i; j++) {
                bool meet = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
                bool apart = lives[i].offset + lives[i].size <= lives[j].offset ||
                             lives[j].offset + lives[j].size <= lives[i].offset;
                CHECK(apart || !meet);
            }
    }
    lifetime huge[2] = {{INT64_MAX - 1, 0, 1, 0}, {INT64_MAX - 1, 0, 1, 0}};
    dvt_memory memory = {.struct_size = sizeof memory};
    dvt_error error;
    CHECK(dvt_plan(huge, 2, &memory, &error) == DVT_ERROR_OVERFLOW);
}

static void add_one(void *context, int64_t begin, int64_t end)
{
    int *counts = context;
    for (int64_t i = begin; i < end; i++)
        counts[i]++;
}

static void test_parallel(void)
{
    int counts[1000];
    dvt_set_threads(4);
    for (int64_t n = 0; n <= 1000; n += 37) {
        memset(counts, 0, sizeof counts);
        dvt_parallel(n, 1 + n / 50, add_one, counts);
        for (int64_t i = 0; i < 1000; i++)
            CHECK(counts[i] == (i < n));
    }
}

int main(void)
{
    test_sha256();
    test_leaves();
    test_ed25519();
    test_plan();
    test_parallel();
    printf(failures ? "%d failures\n" : "digests, plan, threads: ok\n", failures);
    return failures != 0;
}
