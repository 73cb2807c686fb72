/* The switch as an XDP program: the same tables and decisions before the kernel has made a packet buffer.
 *
 * Senders on this machine leave the UDP checksum to be completed later, which here means never: it is set to zero, none
 * (RFC 768). Our own CRC32C covers more. Rings are not here: a copy for each member needs a packet buffer. */
#include "algorithm1.h"
#include "ports.h"
#include "report.h"
#include "rows.h"

INLINE int drop(__u32 why) {
    count(why);
    return XDP_DROP;
}

INLINE int send(struct head *h, const struct port *port, const __u8 from[6]) {
    __u8 source[6];
    __builtin_memcpy(source, from, 6);
    __builtin_memcpy(h->eth.to, port->mac, 6);
    __builtin_memcpy(h->eth.from, source, 6);
    return bpf_redirect(port->ifindex, 0);
}

/* RFC 1624. */
INLINE void ip_checksum(struct ipv4 *ip, __be32 from, __be32 to) {
    __u32 sum = (__u16)~ip->checksum;
    sum += (__u16)~from + (__u16)~(from >> 16) + (to & 0xffff) + (to >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip->checksum = ~sum;
}

INLINE int forward(struct head *h, struct header *ours, __u32 to, __u64 start) {
    struct port *port = port_for(to, flow_of(h));
    if (!port)
        return drop(NO_PORT);
    ip_checksum(&h->ip, h->ip.to, bpf_htonl(to));
    h->ip.to = bpf_htonl(to);
    /* A host drops what comes from an address of its own. */
    if (h->ip.from == bpf_htonl(to)) {
        ip_checksum(&h->ip, h->ip.from, bpf_htonl(switch_ip));
        h->ip.from = bpf_htonl(switch_ip);
    }
    h->udp.checksum = 0;
    ours->destination = bpf_htonl((to & 0xffffff) - 1);
    ours->lat = stamp(ours->lat, start, port);
    return send(h, port, h->eth.to);
}

static __attribute__((noinline)) int io(struct xdp_md *ctx, __u64 start) {
    void *end = (void *)(long)ctx->data_end;
    struct head *h = (void *)(long)ctx->data;
    struct header *ours = (void *)(h + 1);
    if ((void *)(ours + 1) > end)
        return drop(MALFORMED);
    __u32 vssd = bpf_ntohl(ours->vssd);
    struct verdict v = ours->op == OP_WRITE
                           ? on_write(vssd)
                           : on_read(table_time(start), vssd, (__u32)bpf_be64_to_cpu(ours->request));
    if (v.kind != FORWARD)
        return XDP_DROP;
    ours->vssd = bpf_htonl(v.vssd);
    return forward(h, ours, v.to, start);
}

static __attribute__((noinline)) int report(struct xdp_md *ctx, __u8 op, __u64 start) {
    void *end = (void *)(long)ctx->data_end;
    struct head *h = (void *)(long)ctx->data;
    union report f = {};
    __u32 reason;
    if ((void *)(h + 1) > end || ctx->data_end - ctx->data != AT_OURS + report_length(op) ||
        bpf_xdp_load_bytes(ctx, AT_OURS, &f, op == OP_GC ? sizeof(f.gc) : sizeof(f.load)))
        return drop(MALFORMED);
    if (report_check(&f, &reason))
        return drop(reason);
    __be32 from = h->ip.from;
    if ((bpf_ntohl(from) & 0xffffff) - 1 != bpf_ntohl(f.head.source))
        return drop(op == OP_GC ? GC_FOREIGN : MALFORMED);
    if (op == OP_LOAD) {
        on_load(table_time(start), bpf_ntohl(from), &f.load);
        return XDP_DROP;
    }
    int answer = on_gc_op(table_time(start), bpf_ntohl(from), &f.gc);
    struct port *port = port_for(bpf_ntohl(from), flow_of(h));
    if (answer < 0)
        return XDP_DROP;
    if (!port)
        return drop(NO_PORT);
    gc_answer(&f, answer);
    f.head.lat = stamp(f.head.lat, start, port);
    bpf_xdp_store_bytes(ctx, AT_OURS, &f.gc, sizeof(f.gc));
    /* Swapping the addresses does not change the checksum. The answer goes to the port on which the node listens. */
    h->ip.from = h->ip.to;
    h->ip.to = from;
    h->udp.from = bpf_htons(OUR_PORT);
    h->udp.checksum = 0;
    return send(h, port, h->eth.to);
}

INLINE int answer_arp(struct head *h, void *end) {
    struct arp *arp = (void *)(&h->eth + 1);
    if ((void *)(arp + 1) > end)
        return XDP_PASS;
    struct port *asking = arp_reply(arp);
    if (!asking)
        return XDP_PASS;
    __builtin_memcpy(h->eth.to, arp->to, 6);
    __builtin_memcpy(h->eth.from, arp->from, 6);
    /* Not XDP_TX: on veth it wakes the far end only if that has a program of its own. */
    return bpf_redirect(asking->ifindex, 0);
}

SEC("xdp")
int ingress(struct xdp_md *ctx) {
    __u64 start = bpf_ktime_get_ns();
    void *end = (void *)(long)ctx->data_end;
    struct head *h = (void *)(long)ctx->data;
    if ((void *)(&h->eth + 1) > end)
        return XDP_PASS;
    if (h->eth.type == bpf_htons(ETH_ARP))
        return answer_arp(h, end);
    if ((void *)(&h->ip + 1) > end || h->eth.type != bpf_htons(ETH_IPV4) || h->ip.version_ihl != 0x45)
        return XDP_PASS;
    int whole_udp = h->ip.protocol == PROTOCOL_UDP && !(h->ip.fragment & bpf_htons(IP_FRAGMENT)) && (void *)(h + 1) <= end;
    __u32 to = bpf_ntohl(h->ip.to);
    if (to != switch_ip) {
        struct port *port = port_of(to);
        if (port && port->ways > 1)
            port = port_for(to, (void *)(&h->udp.length) <= end ? flow_of(h) : 0);
        if (!port)
            return XDP_PASS;
        if (whole_udp)
            h->udp.checksum = 0;
        return send(h, port, h->eth.to);
    }
    struct header *ours = (void *)(h + 1);
    if (!whole_udp || h->udp.to != bpf_htons(OUR_PORT) || (void *)ours + 1 > end)
        return XDP_PASS;
    __u8 op = ours->op;
    if ((op != OP_READ && op != OP_WRITE && op != OP_GC && op != OP_LOAD) || (two_racks && op == OP_GC))
        return XDP_PASS; /* rows and the like: the control plane's socket */
    if (op == OP_GC || op == OP_LOAD)
        return report(ctx, op, start);
    return io(ctx, start);
}

char _license[] SEC("license") = "Apache-2.0";
