/* The switch as tc-BPF programs: `ingress` on every port, `behind_queue` on the far end of ports with a queue,
 * `change_row` run by the control plane. */
#include "algorithm1.h"
#include "ports.h"
#include "report.h"
#include "rows.h"

#define TC_OK 0
#define TC_SHOT 2

/* Rewrites the front of our header. `from` and `to` differ in whole bytes anywhere: taken from the header's start they are
 * aligned to the checksum's words. */
INLINE void rewrite(struct __sk_buff *skb, const struct header *from, const struct header *to) {
    __s64 delta = bpf_csum_diff((__be32 *)from, REWRITTEN_BYTES, (__be32 *)to, REWRITTEN_BYTES, 0);
    bpf_l4_csum_replace(skb, AT_UDP + __builtin_offsetof(struct udp, checksum), 0, delta, BPF_F_MARK_MANGLED_0);
    bpf_skb_store_bytes(skb, AT_OURS, to, REWRITTEN_BYTES, 0);
}

INLINE void put_ethernet(struct __sk_buff *skb, const struct port *port, const __u8 from[6]) {
    __u8 addresses[12];
    __builtin_memcpy(addresses, port->mac, 6);
    __builtin_memcpy(addresses + 6, from, 6);
    bpf_skb_store_bytes(skb, 0, addresses, sizeof(addresses), 0);
}

INLINE int send(struct __sk_buff *skb, const struct port *port, const __u8 from[6]) {
    put_ethernet(skb, port, from);
    return port->place == PEER ? bpf_redirect_peer(port->ifindex, 0) : bpf_redirect(port->ifindex, 0);
}

INLINE int drop(__u32 why) {
    count(why);
    return TC_SHOT;
}

INLINE void redirect_ip(struct __sk_buff *skb, __be32 from, __be32 to, __u32 field) {
    bpf_l3_csum_replace(skb, AT_IP + __builtin_offsetof(struct ipv4, checksum), from, to, 4);
    bpf_l4_csum_replace(skb, AT_UDP + __builtin_offsetof(struct udp, checksum), from, to,
                        BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | 4);
    bpf_skb_store_bytes(skb, AT_IP + field, &to, 4, 0);
}

INLINE int load_head(struct __sk_buff *skb, struct head *h) {
    if (bpf_skb_load_bytes(skb, 0, h, AT_UDP))
        return -1;
    return h->eth.type == bpf_htons(ETH_IPV4) && h->ip.version_ihl == 0x45 ? 0 : -1;
}

INLINE int is_ours(struct __sk_buff *skb, struct head *h) {
    if (h->ip.protocol != PROTOCOL_UDP || h->ip.fragment & bpf_htons(IP_FRAGMENT))
        return 0;
    return !bpf_skb_load_bytes(skb, AT_UDP, &h->udp, sizeof(h->udp)) && h->udp.to == bpf_htons(OUR_PORT);
}

/* Readdresses to a member: its IPv4 address, its node in our header, the latency. `h` and `ours` are as the packet is. */
INLINE void readdress(struct __sk_buff *skb, struct head *h, struct header *ours, __u32 member, __be32 lat) {
    struct header to;
    redirect_ip(skb, h->ip.to, bpf_htonl(member), __builtin_offsetof(struct ipv4, to));
    h->ip.to = bpf_htonl(member);
    __builtin_memcpy(&to, ours, REWRITTEN_BYTES);
    to.destination = bpf_htonl((member & 0xffffff) - 1);
    to.lat = lat;
    rewrite(skb, ours, &to);
    __builtin_memcpy(ours, &to, REWRITTEN_BYTES);
}

/* Whose time behind a queue `behind_queue` adds: what goes to a host itself may have another operation and no stamp. */
INLINE int stamped(__u8 op) {
    return op == OP_READ || op == OP_WRITE || op == OP_GC;
}

/* NICE 3: a put reaches every replica of the group, a get the one of the client's share. */
static __attribute__((noinline)) int to_ring(struct __sk_buff *skb, struct head *h, const struct ring *ring, __u64 start) {
    struct header ours;
    if (!h || !ring || !is_ours(skb, h) || bpf_skb_load_bytes(skb, AT_OURS, &ours, REWRITTEN_BYTES))
        return drop(MALFORMED);
    if (skb->gso_size)
        return drop(TRAINS);
    count(RING_PACKETS);
    __be32 lat = ours.lat;
    __u32 members = ring->count < REPLICAS_MAX ? ring->count : REPLICAS_MAX;
    __u32 share = ((__u64)(bpf_ntohl(h->ip.from) * 0x9e3779b9u) * members) >> 32;
    for (__u32 i = 0; i < REPLICAS_MAX; i++) {
        if (i >= members)
            break;
        if (!ring->multicast && i != share)
            continue;
        struct port *port = port_of(ring->members[i]);
        if (!port) {
            count(NO_PORT);
            continue;
        }
        readdress(skb, h, &ours, ring->members[i], stamped(ours.op) ? stamp(lat, start, port) : lat);
        if (i == (ring->multicast ? members - 1 : share))
            return send(skb, port, h->eth.to);
        put_ethernet(skb, port, h->eth.to);
        bpf_clone_redirect(skb, port->ifindex, 0);
    }
    return TC_SHOT;
}

INLINE int forward(struct __sk_buff *skb, struct head *h, const struct header *ours, struct verdict v, __u64 start) {
    struct port *port = port_for(v.to, flow_of(h));
    if (!port)
        return drop(NO_PORT);
    redirect_ip(skb, h->ip.to, bpf_htonl(v.to), __builtin_offsetof(struct ipv4, to));
    /* A host drops what comes from an address of its own. */
    if (h->ip.from == bpf_htonl(v.to))
        redirect_ip(skb, h->ip.from, bpf_htonl(switch_ip), __builtin_offsetof(struct ipv4, from));
    struct header to;
    __builtin_memcpy(&to, ours, REWRITTEN_BYTES);
    to.vssd = bpf_htonl(v.vssd);
    to.destination = bpf_htonl((v.to & 0xffffff) - 1);
    to.lat = stamp(ours->lat, start, port);
    rewrite(skb, ours, &to);
    return send(skb, port, h->eth.to);
}

/* Read and write: all that matters is in the header. */
static __attribute__((noinline)) int io(struct __sk_buff *skb, struct head *h, __u64 start) {
    struct header ours;
    if (!h || bpf_skb_load_bytes(skb, AT_OURS, &ours, sizeof(ours)))
        return drop(MALFORMED);
    __u32 vssd = bpf_ntohl(ours.vssd);
    struct verdict v = ours.op == OP_WRITE
                           ? on_write(vssd)
                           : on_read(table_time(start), vssd, (__u32)bpf_be64_to_cpu(ours.request));
    return v.kind == FORWARD ? forward(skb, h, &ours, v, start) : TC_SHOT;
}

/* A report comes whole and alone. The answer to a gc_op is as long, so only its bytes change. */
static __attribute__((noinline)) int report(struct __sk_buff *skb, struct head *h, __u8 op, __u64 start) {
    union report f = {};
    __u32 reason;
    if (!h || skb->len != AT_OURS + report_length(op) ||
        bpf_skb_load_bytes(skb, AT_OURS, &f, op == OP_GC ? sizeof(f.gc) : sizeof(f.load)))
        return drop(MALFORMED);
    if (report_check(&f, &reason))
        return drop(reason);
    __u32 from = bpf_ntohl(h->ip.from);
    if ((from & 0xffffff) - 1 != bpf_ntohl(f.head.source))
        return drop(op == OP_GC ? GC_FOREIGN : MALFORMED);
    if (op == OP_LOAD) {
        on_load(table_time(start), from, &f.load);
        return TC_SHOT;
    }
    int answer = on_gc_op(table_time(start), from, &f.gc);
    struct port *port = port_for(from, flow_of(h));
    if (answer < 0)
        return TC_SHOT;
    if (!port)
        return drop(NO_PORT);
    __s64 delta = bpf_csum_diff(f.words, sizeof(f), 0, 0, 0);
    gc_answer(&f, answer);
    f.head.lat = stamp(f.head.lat, start, port);
    delta = bpf_csum_diff(0, 0, f.words, sizeof(f), delta);
    /* Swapping the addresses changes no checksum. The answer goes to the port on which its node listens. */
    __be32 addresses[2] = {h->ip.to, h->ip.from};
    bpf_skb_store_bytes(skb, AT_IP + __builtin_offsetof(struct ipv4, from), addresses, 8, 0);
    bpf_l4_csum_replace(skb, AT_UDP + __builtin_offsetof(struct udp, checksum), h->udp.from, bpf_htons(OUR_PORT),
                        BPF_F_MARK_MANGLED_0 | 2);
    h->udp.from = bpf_htons(OUR_PORT);
    bpf_skb_store_bytes(skb, AT_UDP, &h->udp, 4, 0);
    bpf_l4_csum_replace(skb, AT_UDP + __builtin_offsetof(struct udp, checksum), 0, delta, BPF_F_MARK_MANGLED_0);
    bpf_skb_store_bytes(skb, AT_OURS, &f.gc, sizeof(f.gc), 0);
    return send(skb, port, h->eth.to);
}

/* An ARP request is answered from the ports' table. */
static __attribute__((noinline)) int answer_arp(struct __sk_buff *skb) {
    struct {
        struct ethernet eth;
        struct arp arp;
    } __attribute__((packed)) f;
    if (bpf_skb_load_bytes(skb, 0, &f, sizeof(f)))
        return TC_OK;
    struct port *asking = arp_reply(&f.arp);
    if (!asking)
        return TC_OK;
    bpf_skb_store_bytes(skb, AT_IP, &f.arp, sizeof(f.arp), 0);
    return send(skb, asking, f.arp.from);
}

SEC("classifier")
int ingress(struct __sk_buff *skb) {
    __u64 start = bpf_ktime_get_ns();
    struct head h = {};
    __u8 op;
    if (skb->protocol == bpf_htons(ETH_ARP))
        return answer_arp(skb);
    if (load_head(skb, &h))
        return TC_OK;
    if (bpf_ntohl(h.ip.to) != switch_ip) {
        struct port *port = port_of(bpf_ntohl(h.ip.to));
        if (port && port->ways > 1) {
            bpf_skb_load_bytes(skb, AT_UDP, &h.udp, 4);
            port = port_for(bpf_ntohl(h.ip.to), flow_of(&h));
        }
        if (port)
            return send(skb, port, h.eth.to);
        struct ring *ring = ring_of(h.ip.to);
        return ring ? to_ring(skb, &h, ring, start) : TC_OK;
    }
    if (!is_ours(skb, &h) || bpf_skb_load_bytes(skb, AT_OURS, &op, 1))
        return TC_OK;
    if ((!stamped(op) && op != OP_LOAD) || (two_racks && op == OP_GC))
        return TC_OK; /* rows and the like: the control plane's socket */
    /* A train is one packet here: only its first header would be rewritten. */
    if (skb->gso_size)
        return drop(TRAINS);
    return op == OP_GC || op == OP_LOAD ? report(skb, &h, op, start) : io(skb, &h, start);
}

SEC("classifier")
int behind_queue(struct __sk_buff *skb) {
    struct head h;
    struct header ours, to;
    if (load_head(skb, &h) || !is_ours(skb, &h) || bpf_skb_load_bytes(skb, AT_OURS, &ours, REWRITTEN_BYTES))
        return TC_OK;
    if (!stamped(ours.op))
        return TC_OK;
    __builtin_memcpy(&to, &ours, REWRITTEN_BYTES);
    to.lat = bpf_htonl(bpf_ntohl(ours.lat) + (__u32)bpf_ktime_get_ns());
    rewrite(skb, &ours, &to);
    return TC_OK;
}

char _license[] SEC("license") = "Apache-2.0";
