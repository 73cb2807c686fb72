/* A gc_op's checksum (docs/wire.md) and tag: both are checked when it comes and made anew for the answer. */
#pragma once

#include "siphash.h"
#include "tables.h"

/* CRC32C, reflected, a nibble at a time: the table is 64 bytes, and gc_ops are few. */
static const __u32 crc32c_nibble[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

/* Of the header without what a switch rewrites, the key's id, the checksum and the tag, and of the body. */
static __attribute__((noinline)) __u32 gc_checksum(const struct gc_op *g) {
    __u32 crc = ~0u;
    if (!g)
        return 0;
    const __u8 *bytes = (const __u8 *)g;
    for (__u32 i = 0; i < sizeof(struct gc_op); i++) {
        if (i >= 64 && i < 80)
            continue;
        __u8 covered = !((i >= 1 && i < 9) || (i >= 16 && i < 20) || (i >= 48 && i < 56) || (i >= 60 && i < 64));
        crc ^= covered ? bytes[i] : 0;
        crc = crc32c_nibble[crc & 15] ^ crc >> 4;
        crc = crc32c_nibble[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}

/* Bytes 0, 9-15, 20-59 of the header, the body, zeros. */
static __attribute__((noinline)) __u64 gc_tag(const struct gc_op *g, __u64 k0, __u64 k1) {
    __u64 words[8] = {}, key[2] = {k0, k1};
    if (!g)
        return 0;
    __u8 *to = (__u8 *)words;
    const __u8 *from = (const __u8 *)g;
    to[0] = from[0];
    __builtin_memcpy(to + 1, from + 9, 7);
    __builtin_memcpy(to + 8, from + 20, 40);
    __builtin_memcpy(to + 48, from + 80, 9);
    return siphash_64_bytes(key, words);
}

/* The key of the life of `owner` that this gc_op is of. */
INLINE __u64 *gc_key(const struct gc_op *g, __u32 owner) {
    struct key_of k = {
        .incarnation = bpf_be64_to_cpu(g->head.incarnation),
        .node = owner,
        .key_id = g->head.key_id,
    };
    return bpf_map_lookup_elem(&keys, &k);
}

/* What is wrong with it, if anything: a counter. */
INLINE int gc_check(const struct gc_op *g, __u32 *reason) {
    *reason = MALFORMED;
    if (g->head.version != WIRE_VERSION || bpf_ntohl(g->head.body_bytes) != 9 || g->head.flags ||
        g->field > GC_IDLE || g->head.vssd != g->head.original_vssd)
        return -1;
    *reason = BAD_CHECKSUM;
    if (gc_checksum(g) != bpf_ntohl(g->head.checksum))
        return -1;
    *reason = BAD_MAC;
    if (require_mac) {
        __u64 *key = gc_key(g, bpf_ntohl(g->head.source));
        if (!key || gc_tag(g, key[0], key[1]) != bpf_be64_to_cpu(g->head.tag) || g->head.tag_rest)
            return -1;
    }
    return 0;
}

/* Makes it the answer, from the switch (node and address differ by 10.0.0.1) to whom it came from. */
INLINE void gc_answer(struct gc_op *g, __u8 field) {
    __u32 owner = bpf_ntohl(g->head.source);
    g->field = field;
    g->head.destination = g->head.source;
    g->head.source = bpf_htonl((switch_ip & 0xffffff) - 1);
    g->head.checksum = bpf_htonl(gc_checksum(g));
    if (require_mac) {
        __u64 *key = gc_key(g, owner);
        if (key)
            g->head.tag = bpf_cpu_to_be64(gc_tag(g, key[0], key[1]));
    }
}
