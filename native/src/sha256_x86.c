/* SHA-256 on x86-64: with the SHA extensions, one message or two interleaved, which hides the
 * instructions' latency; and eight messages in the lanes of AVX2. */
#include "sha256.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>

#define INLINE   static inline __attribute__((always_inline))
#define WITH_SHA __attribute__((target("sha,sse4.1,ssse3")))
#define WITH_AVX __attribute__((target("avx2")))

/* ---- the SHA extensions ---- */

static bool has_sha(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0 &&
           __builtin_cpu_supports("sse4.1") != 0;
}

/* The bytes of big-endian words, swapped. */
WITH_SHA INLINE __m128i swapped(const uint8_t *p)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p), order);
}

/* A state as the instructions want it: a, b, e, f in one register and c, d, g, h in another. */
typedef struct {
    __m128i abef, cdgh;
} halves;

WITH_SHA INLINE halves split(const uint32_t state[8])
{
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)state);
    __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(state + 4));
    low = _mm_shuffle_epi32(low, 0xb1);
    high = _mm_shuffle_epi32(high, 0x1b);
    return (halves){_mm_alignr_epi8(low, high, 8), _mm_blend_epi16(high, low, 0xf0)};
}

WITH_SHA INLINE void join(halves h, uint32_t state[8])
{
    __m128i x = _mm_shuffle_epi32(h.abef, 0x1b), y = _mm_shuffle_epi32(h.cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(x, y, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(y, x, 8));
}

/* Four rounds of one message; w holds its last sixteen words. */
WITH_SHA INLINE void four_rounds(halves *h, __m128i w[4], int group, const uint8_t *block)
{
    __m128i *now = &w[group & 3], last = w[(group + 3) & 3];
    if (group < 4) {
        *now = swapped(block + 16 * group);
    } else {
        __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(group + 1) & 3]),
                                    _mm_alignr_epi8(last, w[(group + 2) & 3], 4));
        *now = _mm_sha256msg2_epu32(sum, last);
    }
    const uint32_t *constants = dvt_sha256_constants + 4 * group;
    __m128i m = _mm_add_epi32(*now, _mm_load_si128((const __m128i *)(const void *)constants));
    h->cdgh = _mm_sha256rnds2_epu32(h->cdgh, h->abef, m);
    h->abef = _mm_sha256rnds2_epu32(h->abef, h->cdgh, _mm_shuffle_epi32(m, 0x0e));
}

WITH_SHA INLINE void add_sha(uint32_t (*states)[8], const uint8_t *data, size_t stride,
                             size_t blocks, int lanes)
{
    halves h[2];
    for (int s = 0; s < lanes; s++)
        h[s] = split(states[s]);
    for (size_t i = 0; i < blocks; i++, data += 64) {
        halves before[2];
        __m128i w[2][4] = {{_mm_setzero_si128()}};
        for (int s = 0; s < lanes; s++)
            before[s] = h[s];
#pragma GCC unroll 16
        for (int group = 0; group < 16; group++)
            for (int s = 0; s < lanes; s++)
                four_rounds(&h[s], w[s], group, data + (size_t)s * stride);
        for (int s = 0; s < lanes; s++) {
            h[s].abef = _mm_add_epi32(h[s].abef, before[s].abef);
            h[s].cdgh = _mm_add_epi32(h[s].cdgh, before[s].cdgh);
        }
    }
    for (int s = 0; s < lanes; s++)
        join(h[s], states[s]);
}

WITH_SHA static void add_one(uint32_t (*states)[8], const uint8_t *data, size_t stride,
                             size_t blocks)
{
    add_sha(states, data, stride, blocks, 1);
}

WITH_SHA static void add_two(uint32_t (*states)[8], const uint8_t *data, size_t stride,
                             size_t blocks)
{
    add_sha(states, data, stride, blocks, 2);
}

/* ---- eight messages in the lanes of AVX2 ---- */

typedef uint32_t lanes __attribute__((vector_size(32)));

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

/* Half a block of each message: word i of all messages in w[i]. */
WITH_AVX INLINE void transpose(const uint8_t *data, size_t stride, lanes w[8])
{
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
    __m256i r[8], t[8];
    for (size_t i = 0; i < 8; i++) {
        const void *row = data + i * stride;
        r[i] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)row), order);
    }
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int n = 0; n < 2; n++) {
            r[i + 2 * n] = _mm256_unpacklo_epi64(t[i + n], t[i + n + 2]);
            r[i + 2 * n + 1] = _mm256_unpackhi_epi64(t[i + n], t[i + n + 2]);
        }
    for (int i = 0; i < 4; i++) {
        w[i] = (lanes)_mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        w[i + 4] = (lanes)_mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
}

#define ROTATE(x, n) (((x) >> (n)) | ((x) << (32 - (n))))

WITH_AVX INLINE void one_round(lanes v[8], lanes w[16], int i)
{
    lanes *now = &w[i & 15];
    if (i >= 16) {
        lanes x = w[(i + 1) & 15], y = w[(i + 14) & 15];
        *now += (ROTATE(x, 7) ^ ROTATE(x, 18) ^ (x >> 3)) + w[(i + 9) & 15] +
                (ROTATE(y, 17) ^ ROTATE(y, 19) ^ (y >> 10));
    }
    /* The eight variables change places by one each round: here their names do. */
    lanes a = v[(64 - i) & 7], b = v[(65 - i) & 7], c = v[(66 - i) & 7];
    lanes e = v[(68 - i) & 7], f = v[(69 - i) & 7], g = v[(70 - i) & 7], h = v[(71 - i) & 7];
    lanes one = h + (ROTATE(e, 6) ^ ROTATE(e, 11) ^ ROTATE(e, 25)) + ((e & f) ^ (~e & g)) +
                dvt_sha256_constants[i] + *now;
    v[(67 - i) & 7] += one;
    v[(71 - i) & 7] =
        one + (ROTATE(a, 2) ^ ROTATE(a, 13) ^ ROTATE(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
}

WITH_AVX static void add_eight(uint32_t (*states)[8], const uint8_t *data, size_t stride,
                               size_t blocks)
{
    lanes h[8];
    for (int i = 0; i < 8; i++)
        for (int s = 0; s < 8; s++)
            h[i][s] = states[s][i];
    for (size_t n = 0; n < blocks; n++, data += 64) {
        lanes w[16], v[8];
        transpose(data, stride, w);
        transpose(data + 32, stride, w + 8);
        memcpy(v, h, sizeof v);
#pragma GCC unroll 64
        for (int i = 0; i < 64; i++)
            one_round(v, w, i);
        for (int i = 0; i < 8; i++)
            h[i] += v[i];
    }
    for (int i = 0; i < 8; i++)
        for (int s = 0; s < 8; s++)
            states[s][i] = h[i][s];
}

#else

static bool has_sha(void)
{
    return false;
}

static bool has_avx2(void)
{
    return false;
}

#define add_one   NULL
#define add_two   NULL
#define add_eight NULL

#endif

const sha256_engine dvt_sha256_x86_one = {"SHA extensions", 1, has_sha, add_one};
const sha256_engine dvt_sha256_x86_two = {"SHA extensions, two messages", 2, has_sha, add_two};
const sha256_engine dvt_sha256_x86_eight = {"AVX2, eight messages", 8, has_avx2, add_eight};
