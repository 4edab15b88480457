/* Ed25519 (RFC 8032) and SHA-512 (FIPS 180-4), small rather than fast.
 *
 * Field elements modulo p = 2^255 - 19 are five limbs of 51 bits. Points are (X : Y : Z : T)
 * with x = X/Z, y = Y/Z, xy = T/Z; addition is the complete formula for twisted Edwards curves.
 * What touches a private key (sha512, multiply, reduce, multiply_add, encode) has no branch and
 * no address that depends on it; verifying has no secrets and takes shortcuts. */
#include "dovetail.h"

#include <stdbool.h>
#include <string.h>

typedef unsigned __int128 wide;

/* ---- SHA-512 ---- */

typedef struct {
    uint64_t state[8];
    uint8_t block[128];
    size_t used;
    uint64_t total;
} sha512;

/* The first 64 bits of the fractions of the cube roots, and of the square roots, of primes. */
static const uint64_t K[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc,
    0x3956c25bf348b538, 0x59f111f1b605d019, 0x923f82a4af194f9b, 0xab1c5ed5da6d8118,
    0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694,
    0xe49b69c19ef14ad2, 0xefbe4786384f25e3, 0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65,
    0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2, 0xd5a79147930aa725, 0x06ca6351e003826f, 0x142929670a0e6e70,
    0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b,
    0xa2bfe8a14cf10364, 0xa81a664bbc423001, 0xc24b8b70d0f89791, 0xc76c51a30654be30,
    0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb, 0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b,
    0xca273eceea26619c, 0xd186b8c721c0c207, 0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178,
    0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6, 0x597f299cfc657e2a, 0x5fcb6fab3ad6faec, 0x6c44198c4a475817,
};

static const uint64_t START[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static uint64_t rotate(uint64_t x, int n)
{
    return (x >> n) | (x << (64 - n));
}

static void compress(uint64_t state[8], const uint8_t *p)
{
    uint64_t w[80], v[8];
    for (int i = 0; i < 16; i++) {
        w[i] = 0;
        for (int b = 0; b < 8; b++)
            w[i] = w[i] << 8 | p[8 * i + b];
    }
    for (int i = 16; i < 80; i++) {
        uint64_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 1) ^ rotate(a, 8) ^ (a >> 7)) + w[i - 7] +
               (rotate(b, 19) ^ rotate(b, 61) ^ (b >> 6));
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 80; i++) {
        uint64_t one = v[7] + (rotate(v[4], 14) ^ rotate(v[4], 18) ^ rotate(v[4], 41)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint64_t two = (rotate(v[0], 28) ^ rotate(v[0], 34) ^ rotate(v[0], 39)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

static void sha512_start(sha512 *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->state, START, sizeof START);
}

static void sha512_add(sha512 *h, const void *data, size_t size)
{
    const uint8_t *p = data;
    h->total += size;
    for (size_t i = 0; i < size; i++) {
        h->block[h->used++] = p[i];
        if (h->used == 128) {
            compress(h->state, h->block);
            h->used = 0;
        }
    }
}

static void sha512_end(sha512 *h, uint8_t digest[64])
{
    uint64_t bits = h->total * 8;
    uint8_t one = 0x80, zero = 0;
    sha512_add(h, &one, 1);
    while (h->used != 112)
        sha512_add(h, &zero, 1);
    memset(h->block + 112, 0, 16);
    for (int i = 0; i < 8; i++)
        h->block[127 - i] = (uint8_t)(bits >> (8 * i));
    compress(h->state, h->block);
    for (int i = 0; i < 64; i++)
        digest[i] = (uint8_t)(h->state[i / 8] >> (56 - 8 * (i % 8)));
}

/* ---- the field ---- */

#define MASK ((1ull << 51) - 1)

typedef struct {
    uint64_t v[5];
} field;

static const field ZERO = {{0}}, ONE = {{1}};

static field carried(field a)
{
    for (int round = 0; round < 2; round++) {
        uint64_t carry = 0;
        for (int i = 0; i < 5; i++) {
            a.v[i] += carry;
            carry = a.v[i] >> 51;
            a.v[i] &= MASK;
        }
        a.v[0] += 19 * carry;
    }
    return a;
}

static field add(field a, field b)
{
    for (int i = 0; i < 5; i++)
        a.v[i] += b.v[i];
    return carried(a);
}

static field sub(field a, field b)
{
    /* 4p is added first, so that no limb goes below zero. */
    a.v[0] += 4 * (MASK - 18);
    for (int i = 1; i < 5; i++)
        a.v[i] += 4 * MASK;
    for (int i = 0; i < 5; i++)
        a.v[i] -= b.v[i];
    return carried(a);
}

static field mul(field a, field b)
{
    wide sums[5] = {0};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            wide term = (wide)a.v[i] * b.v[j];
            sums[(i + j) % 5] += i + j >= 5 ? 19 * term : term; /* 2^255 = 19 */
        }
    field out;
    wide carry = 0;
    for (int i = 0; i < 5; i++) {
        sums[i] += carry;
        out.v[i] = (uint64_t)sums[i] & MASK;
        carry = sums[i] >> 51;
    }
    wide first = out.v[0] + 19 * carry;
    out.v[0] = (uint64_t)first & MASK;
    out.v[1] += (uint64_t)(first >> 51);
    return carried(out);
}

static void to_bytes(field a, uint8_t out[32])
{
    a = carried(carried(a));
    /* Below 2^255 now; subtract p once if the value is not below it. */
    field b = a;
    b.v[0] += 19;
    for (int i = 0; i < 4; i++) {
        b.v[i + 1] += b.v[i] >> 51;
        b.v[i] &= MASK;
    }
    uint64_t above = 0 - (b.v[4] >> 51); /* all ones where p is subtracted */
    b.v[4] &= MASK;
    for (int i = 0; i < 5; i++)
        a.v[i] ^= above & (a.v[i] ^ b.v[i]);
    memset(out, 0, 32);
    for (int bit = 0; bit < 255; bit++)
        out[bit / 8] |= (uint8_t)((a.v[bit / 51] >> (bit % 51) & 1) << (bit % 8));
}

/* False unless the bytes are the one encoding of an element. Bit 255 is ignored. */
static bool from_bytes(const uint8_t in[32], field *out)
{
    *out = ZERO;
    for (int bit = 0; bit < 255; bit++)
        out->v[bit / 51] |= (uint64_t)(in[bit / 8] >> (bit % 8) & 1) << (bit % 51);
    uint8_t again[32];
    to_bytes(*out, again);
    return memcmp(again, in, 31) == 0 && again[31] == (in[31] & 0x7f);
}

static bool equal(field a, field b)
{
    uint8_t x[32], y[32];
    to_bytes(a, x);
    to_bytes(b, y);
    return memcmp(x, y, 32) == 0;
}

/* a to a power that is no secret. */
static field power(field a, const uint8_t exponent[32])
{
    field out = ONE;
    for (int bit = 255; bit >= 0; bit--) {
        out = mul(out, out);
        if (exponent[bit / 8] >> (bit % 8) & 1)
            out = mul(out, a);
    }
    return out;
}

/* 2^n - minus, for n of 250 to 255, as an exponent. */
static void exponent_of(int n, unsigned minus, uint8_t out[32])
{
    memset(out, 0, 32);
    for (int bit = 0; bit < n; bit++)
        out[bit / 8] |= (uint8_t)(1u << (bit % 8));
    out[0] = (uint8_t)(out[0] - (minus - 1)); /* 2^n - 1 ends in 0xff */
}

static field inverse(field a)
{
    uint8_t e[32];
    exponent_of(255, 21, e);
    return power(a, e);
}

/* The curve's d = -121665 / 121666, twice that, and the square root of -1. */
static const field D = {
    {0x34dca135978a3, 0x1a8283b156ebd, 0x5e7a26001c029, 0x739c663a03cbb, 0x52036cee2b6ff}};
static const field TWICE_D = {
    {0x69b9426b2f159, 0x35050762add7a, 0x3cf44c0038052, 0x6738cc7407977, 0x2406d9dc56dff}};
static const field ROOT = {
    {0x61b274a0ea0b0, 0x0d5a5fc8f189d, 0x7ef5e9cbd0c60, 0x78595a6804c9e, 0x2b8324804fc1d}};

/* ---- the group ---- */

typedef struct {
    field x, y, z, t;
} point;

static const point NEUTRAL = {{{0}}, {{1}}, {{1}}, {{0}}};

/* The point of even x with y = 4/5, which generates the group of order L. */
static const point BASE = {
    {{0x62d608f25d51a, 0x412a4b4f6592a, 0x75b7171a4b31d, 0x1ff60527118fe, 0x216936d3cd6e5}},
    {{0x6666666666658, 0x4cccccccccccc, 0x1999999999999, 0x3333333333333, 0x6666666666666}},
    {{1}},
    {{0x68ab3a5b7dda3, 0x00eea2a5eadbb, 0x2af8df483c27e, 0x332b375274732, 0x67875f0fd78b7}},
};

static point add_points(const point *p, const point *q)
{
    field a = mul(sub(p->y, p->x), sub(q->y, q->x));
    field b = mul(add(p->y, p->x), add(q->y, q->x));
    field c = mul(mul(p->t, q->t), TWICE_D);
    field e = mul(p->z, q->z);
    e = add(e, e);
    field f = sub(b, a), g = sub(e, c), h = add(e, c), k = add(b, a);
    return (point){mul(f, g), mul(h, k), mul(g, h), mul(f, k)};
}

static point double_point(const point *p)
{
    field a = mul(p->x, p->x), b = mul(p->y, p->y), c = mul(p->z, p->z);
    field sum = add(p->x, p->y), h = add(a, b), e = sub(h, mul(sum, sum)), g = sub(a, b);
    field f = add(add(c, c), g);
    return (point){mul(e, f), mul(g, h), mul(f, g), mul(e, h)};
}

static point negative(const point *p)
{
    return (point){sub(ZERO, p->x), p->y, p->z, sub(ZERO, p->t)};
}

/* p where choice is 0, q where it is 1, without a branch. */
static point select_point(const point *p, const point *q, unsigned choice)
{
    uint64_t mask = 0 - (uint64_t)choice;
    point out;
    for (int i = 0; i < 5; i++) {
        out.x.v[i] = p->x.v[i] ^ (mask & (p->x.v[i] ^ q->x.v[i]));
        out.y.v[i] = p->y.v[i] ^ (mask & (p->y.v[i] ^ q->y.v[i]));
        out.z.v[i] = p->z.v[i] ^ (mask & (p->z.v[i] ^ q->z.v[i]));
        out.t.v[i] = p->t.v[i] ^ (mask & (p->t.v[i] ^ q->t.v[i]));
    }
    return out;
}

/* The base point times a secret. */
static point multiply(const uint8_t scalar[32])
{
    point out = NEUTRAL;
    for (int bit = 255; bit >= 0; bit--) {
        out = double_point(&out);
        point more = add_points(&out, &BASE);
        out = select_point(&out, &more, scalar[bit / 8] >> (bit % 8) & 1);
    }
    return out;
}

/* s * BASE + k * a; nothing here is secret. */
static point multiply_both(const uint8_t s[32], const uint8_t k[32], const point *a)
{
    point both = add_points(&BASE, a), out = NEUTRAL;
    for (int bit = 252; bit >= 0; bit--) { /* both are below L < 2^253 */
        unsigned left = s[bit / 8] >> (bit % 8) & 1, right = k[bit / 8] >> (bit % 8) & 1;
        out = double_point(&out);
        if (left || right)
            out = add_points(&out, left && right ? &both : left ? &BASE : a);
    }
    return out;
}

/* Whether p is one of the eight points whose order divides 8: as a key, such a point makes
 * signatures good whatever they sign. */
static bool has_small_order(const point *p)
{
    point q = double_point(p);
    q = double_point(&q);
    q = double_point(&q);
    return equal(q.x, ZERO) && equal(q.y, q.z);
}

static void encode(const point *p, uint8_t out[32])
{
    field z = inverse(p->z);
    uint8_t x[32];
    to_bytes(mul(p->x, z), x);
    to_bytes(mul(p->y, z), out);
    out[31] |= (uint8_t)((x[0] & 1) << 7);
}

/* False unless the bytes are the one encoding of a point on the curve. */
static bool decode(const uint8_t in[32], point *out)
{
    field y;
    if (!from_bytes(in, &y))
        return false;
    field y2 = mul(y, y), u = sub(y2, ONE), v = add(mul(D, y2), ONE);
    uint8_t e[32];
    exponent_of(252, 2, e); /* (p + 3) / 8 = 2^252 - 2 */
    field square = mul(u, inverse(v)), x = power(square, e);
    if (!equal(mul(x, x), square)) {
        x = mul(x, ROOT);
        if (!equal(mul(x, x), square))
            return false;
    }
    uint8_t bytes[32];
    to_bytes(x, bytes);
    int sign = in[31] >> 7;
    if (equal(x, ZERO) && sign)
        return false;
    if ((bytes[0] & 1) != sign)
        x = sub(ZERO, x);
    *out = (point){x, y, ONE, mul(x, y)};
    return true;
}

/* ---- scalars modulo the group order L = 2^252 + 27742317777372353535851937790883648493 ----
 */

static const uint8_t ORDER[32] = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58,
                                  0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
                                  0,    0,    0,    0,    0,    0,    0,    0,
                                  0,    0,    0,    0,    0,    0,    0,    0x10};

/* out = s - L; returns 1 where s was below L, and out has wrapped around. */
static unsigned less_order(const uint8_t s[32], uint8_t out[32])
{
    unsigned borrow = 0;
    for (int i = 0; i < 32; i++) {
        unsigned rest = (unsigned)s[i] - ORDER[i] - borrow;
        out[i] = (uint8_t)rest;
        borrow = rest >> 8 & 1;
    }
    return borrow;
}

/* The rest of a number of `size` bytes, bit by bit from the top. */
static void reduce(const uint8_t *number, size_t size, uint8_t out[32])
{
    memset(out, 0, 32);
    for (size_t bit = size * 8; bit-- > 0;) {
        unsigned carry = number[bit / 8] >> (bit % 8) & 1;
        for (int i = 0; i < 32; i++) { /* out < L < 2^253, so doubling fits */
            unsigned doubled = 2u * out[i] + carry;
            out[i] = (uint8_t)doubled;
            carry = doubled >> 8;
        }
        uint8_t less[32];
        unsigned keep = 0u - less_order(out, less); /* all ones where out is below L */
        for (int i = 0; i < 32; i++)
            out[i] = (uint8_t)((out[i] & keep) | (less[i] & ~keep));
    }
}

/* (a * b + c) mod L */
static void multiply_add(const uint8_t a[32], const uint8_t b[32], const uint8_t c[32],
                         uint8_t out[32])
{
    uint8_t product[64] = {0};
    memcpy(product, c, 32);
    for (int i = 0; i < 32; i++) {
        unsigned carry = 0;
        for (int j = 0; j < 32; j++) {
            unsigned sum = product[i + j] + carry + (unsigned)a[i] * b[j];
            product[i + j] = (uint8_t)sum;
            carry = sum >> 8;
        }
        product[i + 32] = (uint8_t)carry; /* nothing was there yet */
    }
    reduce(product, 64, out);
}

/* ---- signatures ---- */

static void challenge(const uint8_t r[32], const uint8_t key[32], const void *message,
                      size_t size, uint8_t out[32])
{
    sha512 h;
    uint8_t digest[64];
    sha512_start(&h);
    sha512_add(&h, r, 32);
    sha512_add(&h, key, 32);
    sha512_add(&h, message, size);
    sha512_end(&h, digest);
    reduce(digest, 64, out);
}

/* Strict: one encoding of each signature, and no small-order key or R. R = s * BASE - k * a is
 * computed and compared as bytes, so that an R in another encoding never matches. */
int dvt_ed25519_verify(const uint8_t signature[64], const uint8_t key[32], const void *message,
                       size_t size)
{
    point a;
    uint8_t k[32], unused[32], r[32];
    if (!less_order(signature + 32, unused) || !decode(key, &a) || has_small_order(&a))
        return 0;
    challenge(signature, key, message, size, k);
    point minus = negative(&a), made = multiply_both(signature + 32, k, &minus);
    if (has_small_order(&made))
        return 0;
    encode(&made, r);
    return memcmp(r, signature, 32) == 0;
}

static void expand(const uint8_t seed[32], uint8_t digest[64])
{
    sha512 h;
    sha512_start(&h);
    sha512_add(&h, seed, 32);
    sha512_end(&h, digest);
    digest[0] &= 248;
    digest[31] = (uint8_t)((digest[31] & 63) | 64);
}

static void public_of(const uint8_t secret[32], uint8_t key[32])
{
    point a = multiply(secret);
    encode(&a, key);
}

void dvt_ed25519_public(const uint8_t seed[32], uint8_t key[32])
{
    uint8_t digest[64];
    expand(seed, digest);
    public_of(digest, key);
}

void dvt_ed25519_sign(const uint8_t seed[32], const void *message, size_t size,
                      uint8_t signature[64])
{
    uint8_t digest[64], key[32], nonce[64], r[32], k[32];
    expand(seed, digest);
    public_of(digest, key);
    sha512 h;
    sha512_start(&h);
    sha512_add(&h, digest + 32, 32);
    sha512_add(&h, message, size);
    sha512_end(&h, nonce);
    reduce(nonce, 64, r);
    public_of(r, signature);
    challenge(signature, key, message, size, k);
    multiply_add(k, digest, r, signature + 32);
}
