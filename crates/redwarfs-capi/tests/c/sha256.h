/* SHA-256 (FIPS 180-4), for the digests of the test vectors. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    uint32_t state[8];
    uint64_t length;
    unsigned char block[64];
} sha256;

static uint32_t sha256_constants[64];

/* The first 32 bits of the fraction of a root of a prime, by whole numbers. */
static uint32_t sha256_root(uint64_t prime, int degree)
{
    /* The largest r with (r / 2^32)^degree <= prime. */
    unsigned __int128 low = 0, high = (unsigned __int128)1 << 37;
    while (high - low > 1) {
        unsigned __int128 mid = (low + high) / 2;
        /* mid < 2^37, so its square has 74 bits. The cube is compared in two steps, exactly. */
        int less;
        if (degree == 2) {
            less = mid * mid <= (unsigned __int128)prime << 64;
        } else {
            unsigned __int128 square = mid * mid;
            unsigned __int128 upper = (square >> 32) * mid, lower = (square & 0xffffffff) * mid;
            upper += lower >> 32;
            unsigned __int128 bound = (unsigned __int128)prime << 64;
            less = upper < bound || (upper == bound && (lower & 0xffffffff) == 0);
        }
        if (less)
            low = mid;
        else
            high = mid;
    }
    return (uint32_t)low;
}

static uint32_t sha256_rotated(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_start(sha256 *s)
{
    uint64_t prime = 1;
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 64; i++) {
        int is_prime;
        do {
            prime++;
            is_prime = 1;
            for (uint64_t d = 2; d * d <= prime; d++)
                if (prime % d == 0)
                    is_prime = 0;
        } while (!is_prime);
        if (sha256_constants[63] == 0 || i < 8) {
            if (i < 8)
                s->state[i] = sha256_root(prime, 2);
            sha256_constants[i] = sha256_root(prime, 3);
        }
    }
}

static void sha256_block(sha256 *s, const unsigned char *data)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
               (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] +
               (sha256_rotated(a, 7) ^ sha256_rotated(a, 18) ^ a >> 3) +
               (sha256_rotated(b, 17) ^ sha256_rotated(b, 19) ^ b >> 10);
    }
    memcpy(v, s->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t1 = v[7] + (sha256_rotated(e, 6) ^ sha256_rotated(e, 11) ^ sha256_rotated(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + sha256_constants[i] + w[i];
        uint32_t t2 = (sha256_rotated(a, 2) ^ sha256_rotated(a, 13) ^ sha256_rotated(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        s->state[i] += v[i];
}

static void sha256_add(sha256 *s, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    while (length > 0) {
        size_t at = s->length % 64, room = 64 - at;
        size_t count = length < room ? length : room;
        memcpy(s->block + at, bytes, count);
        s->length += count;
        bytes += count;
        length -= count;
        if (s->length % 64 == 0)
            sha256_block(s, s->block);
    }
}

static void sha256_hex(sha256 *s, char *hex)
{
    uint64_t bits = s->length * 8;
    unsigned char end[8];
    for (int i = 0; i < 8; i++)
        end[i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(s, "\x80", 1);
    while (s->length % 64 != 56)
        sha256_add(s, "", 1);
    sha256_add(s, end, 8);
    for (int i = 0; i < 8; i++)
        sprintf(hex + 8 * i, "%08x", s->state[i]);
}

#endif
