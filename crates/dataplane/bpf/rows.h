/* Changes of rows, and of states that the control plane decides, through `change_row` (a test run), under the same lock as gc_op. */
#pragma once

#include "tables.h"

#define barrier() asm volatile("" ::: "memory")

enum change_kind { CREATE = 1, DELETE = 2, STATE = 3 };
/* Number of an announcement that only finds out whether there is the row (`core::msg::PROBE`). */
#define PROBE 0

enum change_result { CHANGED_NEW, CHANGED, CHANGED_NOTHING, STALE, FULL, DELETED, NOT_THERE, BAD_CHANGE };

/* The first bytes are those of an Ethernet header, which a test run wants. Native byte order. */
struct change {
    __u8 ethernet[16];
    __u32 kind, vssd;
    __u64 incarnation, request;
    __u32 epoch, server;
    __u32 readable, peer_count;
    struct peer peers[PEERS_MAX];
    __u64 word; /* of a state: the vSSD's registers */
};

INLINE void write_row(struct row *r, const struct change *n) {
    r->incarnation = n->incarnation;
    r->request = n->request;
    r->epoch = n->epoch;
    r->peer_count = n->peer_count;
#pragma unroll
    for (int i = 0; i < PEERS_MAX; i++)
        r->peers[i] = n->peers[i];
}

INLINE int same_peers(const struct row *r, const struct change *n) {
    int same = r->peer_count == n->peer_count;
#pragma unroll
    for (int i = 0; i < PEERS_MAX; i++)
        same &= r->peers[i].vssd == n->peers[i].vssd && r->peers[i].server == n->peers[i].server;
    return same;
}

INLINE int update_row(struct control *c, __u32 slot, const struct change *n) {
    struct destination *d = bpf_map_lookup_elem(&destinations, &slot);
    struct row *r = bpf_map_lookup_elem(&rows, &slot);
    int result = BAD_CHANGE;
    if (!d || !r)
        return result;
    bpf_spin_lock(&c->lock);
    result = STALE;
    if (n->incarnation < r->incarnation)
        goto out;
    __u64 word = d->word;
    int reborn = n->incarnation > r->incarnation;
    if (reborn) {
        word &= READABLE;
        r->has_last = 0;
    } else if (n->epoch < r->epoch || (n->epoch == r->epoch && n->request < r->request)) {
        goto out;
    }
    word = (word & ~READABLE) | (n->readable ? READABLE : 0);
    result = !reborn && word == d->word && d->server == n->server && same_peers(r, n) ? CHANGED_NOTHING : CHANGED;
    write_row(r, n);
    d->server = n->server;
    d->word = word;
    c->changes += result == CHANGED;
out:
    bpf_spin_unlock(&c->lock);
    return result;
}

/* Slots that were taken as somebody's own are still among the free ones: they are left out when they come up. */
static long next_free(__u32 i, __u32 *to) {
    __u32 slot;
    (void)i;
    if (bpf_map_pop_elem(&free_slots, &slot))
        return 1;
    struct destination *d = bpf_map_lookup_elem(&destinations, &slot);
    struct row *r = bpf_map_lookup_elem(&rows, &slot);
    if (!d || !r)
        return 1;
    r->popped = 1;
    if (d->vssd)
        return 0;
    *to = slot;
    return 1;
}

INLINE int create_row(struct control *c, const struct change *n) {
    __u32 vssd = n->vssd, slot;
    if (find(vssd, &slot))
        return update_row(c, slot, n);
    slot = vssd & home_mask;
    struct destination *d = bpf_map_lookup_elem(&destinations, &slot);
    int at_home = d && !d->vssd;
    if (!at_home) {
        slot = ~0u;
        bpf_loop(ROWS_MAX, next_free, &slot, 0);
        if (slot == ~0u)
            return FULL;
        d = bpf_map_lookup_elem(&destinations, &slot);
    }
    struct row *r = bpf_map_lookup_elem(&rows, &slot);
    if (!d || !r)
        return BAD_CHANGE;
    bpf_spin_lock(&d->lock);
    d->older = d->newer = d->collecting = 0;
    d->incarnation = d->answered = d->erases_until = 0;
    bpf_spin_unlock(&d->lock);
    /* Nobody finds the slot before it has its vSSD's id, which is written last: at home it is found by that. */
    bpf_spin_lock(&c->lock);
    r->has_last = 0;
    write_row(r, n);
    d->server = n->server;
    d->word = n->readable ? READABLE : 0;
    barrier();
    d->vssd = vssd;
    if (slot >= c->slots)
        c->slots = slot + 1;
    c->rows++;
    c->changes++;
    bpf_spin_unlock(&c->lock);
    if (!at_home && bpf_map_update_elem(&slot_of, &vssd, &slot, BPF_NOEXIST)) {
        bpf_spin_lock(&c->lock);
        d->vssd = 0;
        c->rows--;
        c->changes--;
        bpf_spin_unlock(&c->lock);
        r->popped = 0;
        bpf_map_push_elem(&free_slots, &slot, 0);
        return FULL;
    }
    return CHANGED_NEW;
}

INLINE int delete_row(struct control *c, const struct change *n) {
    __u32 vssd = n->vssd, slot;
    struct destination *d = find(vssd, &slot);
    struct row *r = d ? bpf_map_lookup_elem(&rows, &slot) : 0;
    if (!d || !r)
        return NOT_THERE;
    bpf_spin_lock(&c->lock);
    int stale = n->incarnation < r->incarnation;
    if (!stale) {
        d->vssd = 0;
        d->word = 0;
        r->peer_count = 0;
        r->has_last = 0;
        c->rows--;
        c->changes++;
    }
    bpf_spin_unlock(&c->lock);
    if (stale)
        return STALE;
    bpf_map_delete_elem(&slot_of, &vssd);
    if (r->popped) {
        r->popped = 0;
        bpf_map_push_elem(&free_slots, &slot, 0);
    }
    return DELETED;
}

/* A state may be of a newer incarnation than the row. Any row that this incarnation announces counts then. */
INLINE int set_state(struct control *c, const struct change *n) {
    __u32 slot;
    struct destination *d = find(n->vssd, &slot);
    struct row *r = d ? bpf_map_lookup_elem(&rows, &slot) : 0;
    if (!d || !r)
        return NOT_THERE;
    bpf_spin_lock(&c->lock);
    int stale = n->incarnation < r->incarnation;
    if (!stale) {
        if (n->incarnation > r->incarnation) {
            r->incarnation = n->incarnation;
            r->epoch = 0;
            r->request = 0;
        }
        d->word = n->word;
    }
    bpf_spin_unlock(&c->lock);
    return stale ? STALE : CHANGED_NOTHING;
}

INLINE int change(const struct change *n) {
    struct control *c = the_control();
    if (!c || !n->vssd || n->peer_count > PEERS_MAX)
        return BAD_CHANGE;
    if (n->kind == STATE)
        return set_state(c, n);
    int result = n->kind == CREATE ? create_row(c, n) : n->kind == DELETE ? delete_row(c, n) : BAD_CHANGE;
    if (result == CHANGED_NEW)
        count(ROWS_CREATED);
    else if (result == DELETED)
        count(ROWS_DELETED);
    else if (result == STALE && !(n->kind == CREATE && n->request == PROBE))
        count(ROWS_STALE);
    else if (result == FULL)
        count(ROWS_REFUSED);
    return result;
}

SEC("classifier")
int change_row(struct __sk_buff *skb) {
    struct change n;
    if (bpf_skb_load_bytes(skb, 0, &n, sizeof(n)))
        return BAD_CHANGE;
    return change(&n);
}
