/* Checksum (docs/wire.md) and tag of a gc_op or load: both are checked when it comes, and made anew for the answer to a gc_op. */
#pragma once

#include "siphash.h"
#include "tables.h"

/* CRC32C, reflected, a nibble at a time: the table is one cache line. */
static const __u32 crc32c_nibble[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

/* Of the header without what a switch rewrites, the key's id, the checksum and the tag, and of the body. */
static __attribute__((noinline)) __u32 report_checksum(const union report *g, __u32 length) {
    __u32 crc = ~0u;
    if (!g)
        return 0;
    const __u8 *bytes = (const __u8 *)g;
    for (__u32 i = 0; i < sizeof(*g); i++) {
        if (i >= length)
            break;
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
static __attribute__((noinline)) __u64 report_tag(const union report *g, __u64 k0, __u64 k1) {
    __u64 words[8] = {}, key[2] = {k0, k1};
    if (!g)
        return 0;
    __u8 *to = (__u8 *)words;
    const __u8 *from = (const __u8 *)g;
    to[0] = from[0];
    __builtin_memcpy(to + 1, from + 9, 7);
    __builtin_memcpy(to + 8, from + 20, 40);
    __builtin_memcpy(to + 48, from + 80, 12);
    return siphash_64_bytes(key, words);
}

/* The key of the incarnation of `owner` that this report is of. */
INLINE __u64 *report_key(const union report *g, __u32 owner) {
    struct key_of k = {
        .incarnation = bpf_be64_to_cpu(g->head.incarnation),
        .node = owner,
        .key_id = g->head.key_id,
    };
    return bpf_map_lookup_elem(&keys, &k);
}

INLINE __u32 report_length(__u8 op) {
    return op == OP_GC ? sizeof(struct gc_op) : sizeof(struct load_op);
}

/* Zero, or the counter of what is wrong with it as `reason`. */
INLINE int report_check(const union report *g, __u32 *reason) {
    __u32 length = report_length(g->head.op);
    *reason = MALFORMED;
    if (g->head.version != WIRE_VERSION || bpf_ntohl(g->head.body_bytes) != length - sizeof(g->head) || g->head.flags ||
        (g->head.op == OP_GC && g->gc.field > GC_SWAP_BESIDE) || g->head.vssd != g->head.original_vssd)
        return -1;
    *reason = BAD_CHECKSUM;
    if (report_checksum(g, length) != bpf_ntohl(g->head.checksum))
        return -1;
    *reason = BAD_MAC;
    if (require_mac) {
        __u64 *key = report_key(g, bpf_ntohl(g->head.source));
        if (!key || report_tag(g, key[0], key[1]) != bpf_be64_to_cpu(g->head.tag) || g->head.tag_rest)
            return -1;
    }
    return 0;
}

/* Makes it the answer, from the switch (node and address differ by 10.0.0.1) to whom it came from. */
INLINE void gc_answer(union report *g, __u8 field) {
    __u32 owner = bpf_ntohl(g->head.source);
    g->gc.field = field;
    g->head.destination = g->head.source;
    g->head.source = bpf_htonl((switch_ip & 0xffffff) - 1);
    g->head.checksum = bpf_htonl(report_checksum(g, sizeof(g->gc)));
    if (require_mac) {
        __u64 *key = report_key(g, owner);
        if (key)
            g->head.tag = bpf_cpu_to_be64(report_tag(g, key[0], key[1]));
    }
}
