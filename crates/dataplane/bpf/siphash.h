/* SipHash-2-4 (Aumasson, Bernstein 2012) of 64 bytes. */
#pragma once

#include "wire.h"

#define ROTATE(x, n) (((x) << (n)) | ((x) >> (64 - (n))))

INLINE void sip_round(__u64 v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = ROTATE(v[1], 13) ^ v[0];
    v[3] = ROTATE(v[3], 16) ^ v[2];
    v[0] = ROTATE(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = ROTATE(v[1], 17) ^ v[2];
    v[3] = ROTATE(v[3], 21) ^ v[0];
    v[2] = ROTATE(v[2], 32);
}

INLINE __u64 siphash_64_bytes(const __u64 key[2], const __u64 words[8]) {
    __u64 v[4] = {
        key[0] ^ 0x736f6d6570736575ull,
        key[1] ^ 0x646f72616e646f6dull,
        key[0] ^ 0x6c7967656e657261ull,
        key[1] ^ 0x7465646279746573ull,
    };
#pragma unroll
    for (int i = 0; i < 9; i++) {
        __u64 word = i < 8 ? words[i] : 64ull << 56; /* then the length, padded */
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
#pragma unroll
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
