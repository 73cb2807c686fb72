/* Algorithm 1 of RackBlox (3.3) with protocol rules 15 to 17, and the choice by load, as `rackweave_switch::Pipeline` has both. */
#pragma once

#include "load.h"

enum verdict_kind { DROP, FORWARD };

struct verdict {
    __u32 kind;
    __u32 to;   /* IPv4, host order */
    __u32 vssd; /* whose it is there */
};

/* Which of `count` idle replicas serves `request`. */
INLINE __u32 spread(__u32 request, __u32 count) {
    return ((__u64)(request * 0x9e3779b9u) * count) >> 32;
}

/* Replicas of a set in one rack that serve others' reads: the idle ones, and the first whose server is not silent. */
struct others {
    __u32 ids[PEERS_MAX], to[PEERS_MAX], idle_ones, heard_id, heard_to;
};

INLINE void add_other(struct others *o, __u32 id, __u32 server, __u64 flags) {
    if (!o->heard_id && serves(flags))
        o->heard_id = id, o->heard_to = server;
    if (!idle(flags))
        return;
    if (o->idle_ones == 0)
        o->ids[0] = id, o->to[0] = server;
    else if (o->idle_ones == 1)
        o->ids[1] = id, o->to[1] = server;
    else
        o->ids[2] = id, o->to[2] = server;
    o->idle_ones++;
}

INLINE void choose_idle(struct verdict *v, const struct others *o, __u32 request) {
    __u32 chosen = spread(request, o->idle_ones);
    v->vssd = chosen == 0 ? o->ids[0] : chosen == 1 ? o->ids[1] : o->ids[2];
    v->to = chosen == 0 ? o->to[0] : chosen == 1 ? o->to[1] : o->to[2];
}

/* A read leaves the vSSD with the state `own` for an idle readable peer, if there is one; and if its server is silent (RB13), if need
 * be for a peer that collects. Peers in this rack come first. */
INLINE void read_elsewhere(struct verdict *v, __u64 now, __u32 slot, __u64 own, __u32 request) {
    struct others near = {}, far = {};
    __u32 vssd = v->vssd;
    /* The other rack's switch reports its servers, if the link between the racks works. */
    if (!(own & HEARD) && !in_rack(vssd, own_rack))
        return;
    struct row *r = bpf_map_lookup_elem(&rows, &slot);
    if (!r)
        return;
#pragma unroll
    for (int i = 0; i < PEERS_MAX; i++) {
        __u32 id = r->peers[i].vssd, peer_slot;
        struct destination *p = i < r->peer_count ? find(id, &peer_slot) : 0;
        if (!p)
            continue;
        __u64 flags = flags_at(p->word, now);
        if (in_rack(id, own_rack))
            add_other(&near, id, p->server, flags);
        else if (far_reads)
            add_other(&far, id, p->server, flags);
    }
    if (near.idle_ones) {
        choose_idle(v, &near, request);
    } else if (two_racks && far.idle_ones) {
        choose_idle(v, &far, request);
    } else if (own & GC_BITS) {
        count(ALL_COLLECTING);
        return;
    } else if (near.heard_id) {
        v->vssd = near.heard_id;
        v->to = near.heard_to;
    } else if (two_racks && far.heard_id) {
        v->vssd = far.heard_id;
        v->to = far.heard_to;
    } else {
        return;
    }
    count(REDIRECTS);
    if (!in_rack(v->vssd, own_rack))
        count(REDIRECTS_FAR);
}

/* Lines 4 to 9. */
INLINE struct verdict on_read_by_gc(__u64 now, __u32 vssd, __u32 request) {
    struct verdict v = {.kind = DROP, .vssd = vssd};
    __u32 slot;
    count(READS);
    struct destination *d = find(vssd, &slot);
    if (!d) {
        count(UNKNOWN_VSSD);
        return v;
    }
    v.kind = FORWARD;
    v.to = d->server;
    __u64 own = flags_at(d->word, now);
    if (redirect != OFF && (own & (HEARD | GC_BITS)) != HEARD)
        read_elsewhere(&v, now, slot, own, request);
    return v;
}

/* A read goes to the readable replica in the rack with the lowest cost; of equal ones to the addressed one, else to the first. It
 * leaves the rack if none in it serves, or if none is idle, the addressed one collects, and one in the other rack is idle. */
INLINE struct verdict on_read_by_load(__u64 now, __u32 vssd, __u32 request) {
    struct verdict v = {.kind = DROP, .vssd = vssd};
    __u32 slot;
    count(READS);
    struct destination *own = find(vssd, &slot), *to = own;
    if (!own) {
        count(UNKNOWN_VSSD);
        return v;
    }
    v.kind = FORWARD;
    v.to = own->server;
    __u64 own_flags = flags_at(own->word, now), flags = own_flags;
    __u64 least = serves(flags) ? cost(own, flags, now) : NO_COST;
    int near_idle = idle(flags), far_serves = 0, far_idle = 0;
    struct row *r = bpf_map_lookup_elem(&rows, &slot);
#pragma unroll
    for (int i = 0; i < PEERS_MAX; i++) {
        __u32 id = r && i < r->peer_count ? r->peers[i].vssd : vssd, peer_slot;
        struct destination *p = id != vssd ? find(id, &peer_slot) : 0;
        if (!p)
            continue;
        __u64 theirs = flags_at(p->word, now);
        if (!in_rack(id, vssd >> NUMBER_BITS)) {
            far_serves |= serves(theirs);
            far_idle |= idle(theirs);
            continue;
        }
        __u64 price = cost(p, theirs, now);
        near_idle |= idle(theirs);
        if (serves(theirs) && price < least) {
            least = price;
            flags = theirs;
            v.vssd = id;
            to = p;
        }
    }
    if (two_racks && far_reads &&
        ((least == NO_COST && far_serves) || (!near_idle && (own_flags & GC_BITS) && far_idle))) {
        v.vssd = vssd;
        read_elsewhere(&v, now, slot, own_flags, request);
        return v;
    }
    v.to = to->server;
    sent(to, now);
    if (own_flags & flags & GC_BITS)
        count(ALL_COLLECTING);
    if (v.vssd != vssd)
        count(own_flags & GC_BITS ? REDIRECTS : BALANCED);
    return v;
}

INLINE struct verdict on_read(__u64 now, __u32 vssd, __u32 request) {
    return redirect == BY_LOAD ? on_read_by_load(now, vssd, request) : on_read_by_gc(now, vssd, request);
}

/* Lines 2 and 3. */
INLINE struct verdict on_write(__u32 vssd) {
    struct verdict v = {.kind = DROP, .vssd = vssd};
    __u32 slot;
    count(WRITES);
    struct destination *d = find(vssd, &slot);
    if (!d) {
        count(UNKNOWN_VSSD);
        return v;
    }
    v.kind = FORWARD;
    v.to = d->server;
    return v;
}

/* Slots checked for one soft request, which bounds the time of a packet. Its repetition checks the rest. */
#define START_SCAN_MAX 4096
#define START_OVER 0xffffffffu

struct start_scan {
    __u64 now;
    __u32 from;
    __u32 known;
};

static long start_scan_slot(__u32 i, struct start_scan *scan) {
    __u32 slot = scan->from + i;
    struct destination *d = bpf_map_lookup_elem(&destinations, &slot);
    struct row *r = bpf_map_lookup_elem(&rows, &slot);
    if (!d || !r)
        return 1;
    /* A partition of keys has no state of its own. */
    if (d->vssd && (d->vssd & NUMBER_MASK) < PARTITIONS) {
        if (!(flags_at(d->word, scan->now) & HEARD))
            return 1;
        for (int p = 0; p < PEERS_MAX; p++) {
            __u32 peer_slot;
            if (p >= r->peer_count)
                break;
            struct destination *peer = find(r->peers[p].vssd, &peer_slot);
            if (!peer || !(flags_at(peer->word, scan->now) & HEARD))
                return 1;
        }
    }
    scan->known++;
    return 0;
}

/* Protocol rule 17: soft requests are delayed until the state of every vSSD was reported. */
INLINE int starting(struct control *c, __u64 now) {
    __u32 from = c->checked;
    if (from == START_OVER)
        return 0;
    struct start_scan scan = {.now = now, .from = from};
    int over = now >= c->start_until;
    if (!over && from < c->slots) {
        __u32 left = c->slots - from;
        bpf_loop(left < START_SCAN_MAX ? left : START_SCAN_MAX, start_scan_slot, &scan, 0);
        over = scan.known == left;
    } else {
        over = 1;
    }
    __u32 checked = over ? START_OVER : from + scan.known;
    bpf_spin_lock(&c->lock);
    if (c->checked < checked)
        c->checked = checked;
    bpf_spin_unlock(&c->lock);
    return !over;
}

/* Lines 10 to 25: the answer to a gc_op from address `from`, or -1. */
static __attribute__((noinline)) int on_gc_op(__u64 now, __u32 from, const struct gc_op *op) {
    if (!op)
        return -1;
    __u32 vssd = bpf_ntohl(op->head.vssd);
    __u64 incarnation = bpf_be64_to_cpu(op->head.incarnation), sequence = bpf_be64_to_cpu(op->sequence);
    __u8 field = op->field;
    int answer = -1;
    __u32 slot, why = UNKNOWN_VSSD, why_too = COUNTERS;
    struct destination *d = find(vssd, &slot);
    struct row *r = d ? bpf_map_lookup_elem(&rows, &slot) : 0;
    struct control *c = the_control();
    if (!d || !r || !c) {
        count(why);
        return -1;
    }
    /* No helper may be called under the lock. */
    struct destination *peers[PEERS_MAX];
#pragma unroll
    for (int i = 0; i < PEERS_MAX; i++) {
        __u32 peer_slot, id = r->peers[i].vssd;
        peers[i] = i < r->peer_count && id != vssd ? find(id, &peer_slot) : 0;
    }
    int asks = field == GC_SOFT || field == GC_SWAP || field == GC_SWAP_BESIDE;
    int start = asks && starting(c, now);

    bpf_spin_lock(&c->lock);
    __u64 word = d->word, bits = 0;
    if (d->vssd != vssd)
        goto out;
    why = GC_FOREIGN;
    if (d->server != from)
        goto out;
    why = MALFORMED;
    if (field == GC_ACCEPT || field == GC_DELAY)
        goto out;
    why = GC_STALE;
    if (incarnation < r->incarnation)
        goto out;
    if (incarnation > r->incarnation) {
        /* A new incarnation, before its row: whether it is readable is not known yet. */
        r->incarnation = incarnation;
        r->epoch = 0;
        r->request = 0;
        r->has_last = 0;
        word = 0;
    } else if (r->has_last) {
        if (sequence == r->sequence && flags_at(word, now) & HEARD) {
            why = GC_DUPLICATES;
            answer = r->answer;
            goto out;
        }
        if (sequence < r->sequence)
            goto out;
    }
    /* Whether a peer is idle (1), and whether one forbids a swap (2, rule 35): it swaps, or is not known not to. */
    int beside = 0;
#pragma unroll
    for (int i = 0; i < PEERS_MAX; i++) {
        if (peers[i]) {
            __u32 id = r->peers[i].vssd;
            __u64 flags = peers[i]->vssd == id ? flags_at(peers[i]->word, now) : SWAPS;
            int known = (flags & HEARD) || ((id ^ vssd) & ~NUMBER_MASK);
            beside |= (idle(flags) ? 1 : 0) | (!known || (flags & SWAPS) ? 2 : 0);
        }
    }
    switch (field) {
    case GC_SWAP:
    case GC_SWAP_BESIDE:
    case GC_SOFT:
        answer = GC_DELAY;
        why = GC_DELAYED;
        if (start)
            why_too = GC_DELAYED_AFTER_START;
        else if (beside == 1 || (beside == 3 && field == GC_SOFT)) {
            answer = GC_ACCEPT;
            why = GC_ACCEPTED;
        }
        bits = answer == GC_ACCEPT || field == GC_SWAP_BESIDE ? GC_BITS : 0;
        if (answer == GC_ACCEPT)
            bits |= field == GC_SOFT ? flags_at(word, now) & SWAPS : SWAPS;
        break;
    case GC_REGULAR:
    case GC_BACKGROUND:
        answer = GC_ACCEPT;
        why = field == GC_REGULAR ? GC_REGULARS : GC_BACKGROUNDS;
        /* The last command of a slice is under way for a moment after the vSSD must collect. */
        bits = GC_BITS | (flags_at(word, now) & SWAPS);
        break;
    case GC_HEARTBEAT:
    case GC_SWAPPING:
        answer = field;
        why = GC_HEARTBEATS;
        bits = GC_BITS | (field == GC_SWAPPING ? SWAPS : 0);
        break;
    case GC_FINISH:
        answer = GC_FINISH;
        why = GC_FINISHED;
        break;
    default:
        answer = GC_IDLE;
        why = GC_IDLES;
    }
    r->sequence = sequence;
    r->answer = answer;
    r->has_last = 1;
    d->word = ((now + bits_expire_ns) & ~FLAGS) | (word & READABLE) | HEARD | bits;
out:
    bpf_spin_unlock(&c->lock);
    count(why);
    if (why_too != COUNTERS)
        count(why_too);
    return answer;
}
