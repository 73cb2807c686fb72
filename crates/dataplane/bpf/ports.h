/* Where packets leave, and the stamp they leave with. */
#pragma once

#include "tables.h"

/* So that a stamp in progress cannot overflow: latencies beyond two seconds read as two seconds. */
#define LAT_CLAMP 0x7fffffffu

/* The first, or only, port towards an address. */
static __attribute__((noinline)) struct port *port_of(__u32 ip) {
    struct port_key key = {.ip = ip};
    return bpf_map_lookup_elem(&ports, &key);
}

/* Hash of a flow, as for ECMP: sender's address and UDP ports. */
INLINE __u32 flow_of(const struct head *h) {
    __u32 mixed = (h->ip.from ^ h->ip.to) * 0x85ebca6bu ^ ((__u32)h->udp.from << 16 | h->udp.to) * 0x9e3779b9u;
    mixed ^= mixed >> 15;
    return mixed * 0xc2b2ae35u;
}

/* Of several ports towards an address, the one of this flow. A function of its own: its keys need stack. */
static __attribute__((noinline)) struct port *port_for(__u32 ip, __u32 flow) {
    struct port *port = port_of(ip);
    if (!port || port->ways < 2)
        return port;
    struct port_key key = {.ip = ip, .way = ((__u64)flow * port->ways) >> 32};
    return bpf_map_lookup_elem(&ports, &key);
}

INLINE struct ring *ring_of(__be32 ip) {
    struct ring_prefix p = {.bits = 32, .address = ip};
    return bpf_map_lookup_elem(&rings, &p);
}

/* The time spent here, or, if a queue follows, the time it began: `behind_queue` adds the time it ended, modulo 2^32. */
INLINE __be32 stamp(__be32 lat, __u64 start, const struct port *port) {
    __u32 ns = bpf_ntohl(lat);
    if (port->place == QUEUE)
        return bpf_htonl((ns < LAT_CLAMP ? ns : LAT_CLAMP) - (__u32)start);
    return bpf_htonl(add_saturating(ns, bpf_ktime_get_ns() - start));
}

/* Turns an ARP request for a host or a ring into the answer, from the ports' table; returns the requester's port. */
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
