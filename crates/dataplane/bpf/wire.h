/* Bytes of a frame as the switch sees them: Ethernet, IPv4 without options, UDP, our header (docs/wire.md). */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define INLINE static inline __attribute__((always_inline))

#define ETH_IPV4 0x0800
#define ETH_ARP 0x0806
#define PROTOCOL_UDP 17
#define OUR_PORT 0x5257
/* Any fragment bit or offset: only the first fragment has ports. */
#define IP_FRAGMENT 0x3fff

struct ethernet {
    __u8 to[6], from[6];
    __be16 type;
} __attribute__((packed));

struct ipv4 {
    __u8 version_ihl, tos;
    __be16 length, id, fragment;
    __u8 ttl, protocol;
    __be16 checksum;
    __be32 from, to;
} __attribute__((packed));

struct udp {
    __be16 from, to, length, checksum;
} __attribute__((packed));

struct head {
    struct ethernet eth;
    struct ipv4 ip;
    struct udp udp;
} __attribute__((packed));

struct arp {
    __be16 hardware, protocol;
    __u8 hardware_bytes, protocol_bytes;
    __be16 op;
    __u8 from[6];
    __be32 from_ip;
    __u8 to[6];
    __be32 to_ip;
} __attribute__((packed));

enum op { OP_READ = 3, OP_WRITE = 4, OP_GC = 5, OP_LOAD = 9 };
enum gc_field { GC_SOFT, GC_REGULAR, GC_BACKGROUND, GC_ACCEPT, GC_DELAY, GC_FINISH, GC_HEARTBEAT, GC_IDLE, GC_SWAP, GC_SWAPPING, GC_SWAP_BESIDE };

#define WIRE_VERSION 1

/* Our header. */
struct header {
    __u8 op;
    __be32 vssd, lat;
    __u8 version, class, flags;
    __be32 source, destination, original_vssd, set, epoch;
    __be64 incarnation, request;
    /* Of a report: the id of the key its tag is made with. */
    __u8 key_id, zero[7];
    __be32 body_bytes, checksum;
    __be64 tag, tag_rest;
} __attribute__((packed));

struct gc_op {
    struct header head;
    __u8 field;
    __be64 sequence;
} __attribute__((packed));

struct load_op {
    struct header head;
    __be64 answered;
    __be32 waiting; /* the highest bit: a die erases; the 15 below: what a collection counts as */
} __attribute__((packed));

/* What servers report on their vSSDs, a multiple of four for the checksum's difference. What is after the body is zero. */
union report {
    struct header head;
    struct gc_op gc;
    struct load_op load;
    __be32 words[23];
};

#define AT_IP sizeof(struct ethernet)
#define AT_UDP (AT_IP + sizeof(struct ipv4))
#define AT_OURS (AT_UDP + sizeof(struct udp))
/* All that a switch may rewrite lies in the header's first bytes; a multiple of four, as bpf_csum_diff wants. */
#define REWRITTEN_BYTES 20

_Static_assert(sizeof(struct head) == AT_OURS, "no padding");
_Static_assert(sizeof(struct header) == 80, "80 bytes");
_Static_assert(sizeof(struct gc_op) == 89, "header and 9 bytes");
_Static_assert(sizeof(union report) == sizeof(struct load_op), "header and 12 bytes");
