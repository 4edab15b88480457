/* Ed25519 (RFC 8032) and SHA-512 (FIPS 180-4), small rather than fast.
 *
 * Field elements modulo p = 2^255 - 19 are five limbs of 51 bits. Points are (X : Y : Z : T)
 * with x = X/Z, y = Y/Z, xy = T/Z; addition is the complete formula for twisted Edwards curves,
 * which serves doubling too. Not constant-time: verifying has no secrets, and signing is for a
 * machine of one's own. */
#include "dovetail.h"

#include <stdbool.h>
#include <string.h>

/* ---- SHA-512; its constants are the first 64 bits of fractions of roots of primes ---- */

typedef unsigned __int128 wide;

typedef struct {
    uint64_t state[8];
    uint8_t block[128];
    size_t used;
    uint64_t total;
} sha512;

static uint64_t rotate(uint64_t x, int n)
{
    return (x >> n) | (x << (64 - n));
}

/* floor(2^64 * root(n)) without the whole part, by bisection on 128-bit integers: the square
 * root (cube = false) or the cube root of a prime. Saves two tables and cannot be mistyped. */
static uint64_t root_fraction(uint64_t prime, bool cube)
{
    uint64_t whole = 1;
    while ((cube ? (whole + 1) * (whole + 1) * (whole + 1) : (whole + 1) * (whole + 1)) <=
           prime)
        whole++;
    uint64_t fraction = 0;
    for (int bit = 63; bit >= 0; bit--) {
        uint64_t tried = fraction | 1ull << bit;
        /* v = whole + tried/2^64 as limbs of 32 bits; compare v^2 or v^3 with prime. */
        uint64_t limbs[3] = {tried & 0xffffffffu, tried >> 32, whole};
        uint64_t product[10] = {1};
        size_t length = 1;
        for (int power = 0; power < (cube ? 3 : 2); power++) {
            uint64_t next[10] = {0};
            for (size_t i = 0; i < length; i++) {
                uint64_t carry = 0;
                for (size_t j = 0; j < 3; j++) {
                    uint64_t sum = product[i] * limbs[j] + next[i + j] + carry;
                    next[i + j] = sum & 0xffffffffu;
                    carry = sum >> 32;
                }
                next[i + 3] += carry;
            }
            length += 3;
            memcpy(product, next, sizeof product);
        }
        size_t point = cube ? 6 : 4; /* limbs behind the binary point */
        uint64_t high = product[point] | product[point + 1] << 32;
        if (high < prime)
            fraction = tried;
    }
    return fraction;
}

static uint64_t K[80], START[8];

static void make_constants(void)
{
    if (K[79] != 0)
        return;
    uint64_t found[80], made[80], start[8];
    size_t count = 0;
    for (uint64_t n = 2; count < 80; n++) {
        bool prime = true;
        for (uint64_t d = 2; d * d <= n && prime; d++)
            prime = n % d != 0;
        if (prime)
            found[count++] = n;
    }
    for (size_t i = 0; i < 80; i++)
        made[i] = root_fraction(found[i], true);
    for (size_t i = 0; i < 8; i++)
        start[i] = root_fraction(found[i], false);
    memcpy(START, start, sizeof START); /* the same bytes whoever writes them last */
    memcpy(K, made, sizeof K);
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
    make_constants();
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
    if (b.v[4] >> 51) {
        b.v[4] &= MASK;
        a = b;
    }
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

/* a to the power 2^255 - 21 - back (back = 0: the inverse), or to (p + 3) / 8 below. */
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

/* The square root of -1: 2 to the power (p - 1) / 4 = 2^253 - 5. */
static field root_of_minus_one(void)
{
    uint8_t e[32];
    field two = {{2}};
    exponent_of(253, 5, e);
    return power(two, e);
}

/* The curve's d = -121665 / 121666. */
static field curve_d(void)
{
    field a = {{121665}}, b = {{121666}};
    return mul(sub(ZERO, a), inverse(b));
}

/* ---- the group ---- */

typedef struct {
    field x, y, z, t;
} point;

static point add_points(const point *p, const point *q, field d2)
{
    field a = mul(sub(p->y, p->x), sub(q->y, q->x));
    field b = mul(add(p->y, p->x), add(q->y, q->x));
    field c = mul(mul(p->t, q->t), d2);
    field e = mul(p->z, q->z);
    e = add(e, e);
    field f = sub(b, a), g = sub(e, c), h = add(e, c), k = add(b, a);
    return (point){mul(f, g), mul(h, k), mul(g, h), mul(f, k)};
}

static point multiply(const point *p, const uint8_t scalar[32], field d2)
{
    point out = {ZERO, ONE, ONE, ZERO};
    for (int bit = 255; bit >= 0; bit--) {
        out = add_points(&out, &out, d2);
        if (scalar[bit / 8] >> (bit % 8) & 1)
            out = add_points(&out, p, d2);
    }
    return out;
}

static void encode(const point *p, uint8_t out[32])
{
    field z = inverse(p->z);
    uint8_t x[32];
    to_bytes(mul(p->x, z), x);
    to_bytes(mul(p->y, z), out);
    out[31] |= (uint8_t)((x[0] & 1) << 7);
}

static bool decode(const uint8_t in[32], field d, point *out)
{
    field y;
    if (!from_bytes(in, &y))
        return false;
    field y2 = mul(y, y), u = sub(y2, ONE), v = add(mul(d, y2), ONE);
    uint8_t e[32];
    exponent_of(252, 2, e); /* (p + 3) / 8 = 2^252 - 2 */
    field square = mul(u, inverse(v)), x = power(square, e);
    if (!equal(mul(x, x), square)) {
        x = mul(x, root_of_minus_one());
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

static point base_point(field d)
{
    uint8_t y[32];
    field four = {{4}}, five = {{5}};
    to_bytes(mul(four, inverse(five)), y); /* the even x belongs to it: sign bit 0 */
    point base = {ZERO, ONE, ONE, ZERO};
    decode(y, d, &base);
    return base;
}

/* ---- scalars modulo the group order L = 2^252 + 27742317777372353535851937790883648493 ----
 */

static const uint8_t ORDER[32] = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58,
                                  0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
                                  0,    0,    0,    0,    0,    0,    0,    0,
                                  0,    0,    0,    0,    0,    0,    0,    0x10};

static bool below_order(const uint8_t s[32])
{
    for (int i = 31; i >= 0; i--)
        if (s[i] != ORDER[i])
            return s[i] < ORDER[i];
    return false;
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
        if (!below_order(out)) {
            int borrow = 0;
            for (int i = 0; i < 32; i++) {
                int rest = out[i] - ORDER[i] - borrow;
                out[i] = (uint8_t)rest;
                borrow = rest < 0;
            }
        }
    }
}

/* (a * b + c) mod L */
static void multiply_add(const uint8_t a[32], const uint8_t b[32], const uint8_t c[32],
                         uint8_t out[32])
{
    uint8_t product[65] = {0};
    memcpy(product, c, 32);
    for (int i = 0; i < 32; i++) {
        unsigned carry = 0;
        for (int j = 0; j < 32 || carry; j++) {
            unsigned sum = product[i + j] + carry + (j < 32 ? (unsigned)a[i] * b[j] : 0);
            product[i + j] = (uint8_t)sum;
            carry = sum >> 8;
        }
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

int dvt_ed25519_verify(const uint8_t signature[64], const uint8_t key[32], const void *message,
                       size_t size)
{
    field d = curve_d(), d2 = add(d, d);
    point a, r, base = base_point(d);
    if (!below_order(signature + 32) || !decode(key, d, &a) || !decode(signature, d, &r))
        return 0;
    uint8_t k[32], left[32], right[32];
    challenge(signature, key, message, size, k);
    point sb = multiply(&base, signature + 32, d2), ka = multiply(&a, k, d2);
    point sum = add_points(&r, &ka, d2);
    encode(&sb, left);
    encode(&sum, right);
    return memcmp(left, right, 32) == 0;
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
    field d = curve_d();
    point base = base_point(d), a = multiply(&base, secret, add(d, d));
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
