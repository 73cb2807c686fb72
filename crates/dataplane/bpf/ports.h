/* Where packets leave, and the stamp they leave with. */
#pragma once

#include "tables.h"

/* So that a stamp in progress cannot overflow: latencies beyond two seconds read as two seconds. */
#define LAT_CLAMP 0x7fffffffu

INLINE __u32 add_saturating(__u32 a, __u64 b) {
    __u64 sum = a + b;
    return sum > 0xffffffffu ? 0xffffffffu : sum;
}

INLINE struct port *port_of(__u32 ip) {
    return bpf_map_lookup_elem(&ports, &ip);
}

INLINE struct ring *ring_of(__be32 ip) {
    struct ring_prefix p = {.bits = 32, .address = ip};
    return bpf_map_lookup_elem(&rings, &p);
}

/* The time spent here, or, if a queue follows, the time it began: `behind_queue` adds the time it ended, modulo 2^32. */
INLINE __be32 stamp(__be32 lat, __u64 start, const struct port *port) {
    __u32 ns = bpf_ntohl(lat);
    if (port->queued)
        return bpf_htonl((ns < LAT_CLAMP ? ns : LAT_CLAMP) - (__u32)start);
    return bpf_htonl(add_saturating(ns, bpf_ktime_get_ns() - start));
}

/* Makes a question where a host is, or a ring, the answer, from the ports' table; and says behind which port asks. */
INLINE struct port *arp_reply(struct arp *a) {
    __be32 ip = a->to_ip;
    /* A ring's address is here. */
    struct port *asked = port_of(ring_of(ip) ? switch_ip : bpf_ntohl(ip)), *asking = port_of(bpf_ntohl(a->from_ip));
    if (a->op != bpf_htons(1) || !asked || !asking)
        return 0;
    a->op = bpf_htons(2);
    __builtin_memcpy(a->to, a->from, 6);
    a->to_ip = a->from_ip;
    __builtin_memcpy(a->from, asked->mac, 6);
    a->from_ip = ip;
    return asking;
}
