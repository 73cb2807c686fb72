/* The replica and the destination table, as arrays of slots, and the index to the slots of those vSSDs whose own was taken. */
#pragma once

#include "wire.h"

enum redirect { OFF, BY_GC, BY_LOAD };

/* Set before loading. */
const volatile __u32 switch_ip;
/* A power of two, less one, within the tables: a vSSD's slot is its id's if that is free, and is found without the index. */
const volatile __u32 home_mask;
const volatile __u64 bits_expire_ns = 1000000000;
/* `enum redirect`: where reads go. The control plane changes it while packets pass. */
volatile __u8 redirect = BY_GC;
/* On: a gc_op without a right MAC is dropped. */
const volatile __u8 require_mac;
/* On: the tables' time is what the control plane writes, not the kernel's. */
const volatile __u8 manual_clock;
/* On: the switch of `own_rack`, of two. gc_ops go up to the control plane, which writes the states that follow. */
const volatile __u8 two_racks;
const volatile __u32 own_rack;
/* On: a read may go to the other rack if no replica in this one is idle. */
const volatile __u8 far_reads;

#define PEERS_MAX 3
#define ROWS_MAX 131072
/* Numbers of vSSDs from this one on stand for partitions of keys. */
#define NUMBER_MASK 0xffffffu
#define NUMBER_BITS 24
#define PARTITIONS 0xff0000u
#define PORTS_MAX 4096
#define KEYS_MAX 16384

/* A vSSD's registers: its server's last report, and when that expires (ns, a multiple of 32), in one word that is written
 * once. No observer sees the two bits disagree (protocol rule 16). */
#define READABLE 1ull
#define REPLICA_GC 2ull
#define DESTINATION_GC 4ull
#define HEARD 8ull
#define GC_BITS (REPLICA_GC | DESTINATION_GC)
/* A swap of dies keeps it busy: it counts as collecting, too. */
#define SWAPS 16ull
#define FLAGS 31ull

/* One cache line: all that a read needs to know of a candidate. */
struct destination {
    __u64 word;
    __u32 server; /* IPv4, host order */
    __u32 vssd;   /* 0: the slot is free */
    /* Reads sent there and not answered (load.h). Candidates are read without the lock; changes are made under it. */
    struct bpf_spin_lock lock;
    __u32 older, newer;
    __u32 collecting; /* what its collection counts as, in reads, as last reported; 0: it was not */
    __u64 span_begun; /* a multiple of READS_AGE: `newer` are of the span that begins there */
    __u64 incarnation, answered;
    __u64 erases_until;
};
_Static_assert(sizeof(struct destination) == 64, "a cache line");

struct peer {
    __u32 vssd, server;
};

struct row {
    __u64 incarnation;
    __u64 sequence; /* of the newest gc_op */
    __u64 request;  /* with epoch: of the create_vssd that wrote this row */
    __u32 epoch;
    __u8 answer, has_last, peer_count;
    __u8 popped; /* of the slot: it is not among the free ones */
    struct peer peers[PEERS_MAX];
};

struct control {
    /* Held while a row or a word changes: two soft requests must not accept each other's vSSD as idle. */
    struct bpf_spin_lock lock;
    __u32 checked; /* start guard: slots before this one are known; UINT_MAX: over */
    __u32 slots;   /* slots ever used */
    __u32 rows;
    __u64 start_until;
    __u64 now; /* with manual_clock */
    __u64 changes;
};

/* How a packet leaves by a port: straight into the far end of a veth pair; through the port's queue, behind which a program
 * completes its stamp; through the port's queue to a machine elsewhere. */
enum place { PEER, QUEUE, WIRE };

struct port {
    __u32 ifindex;
    __u8 mac[6];
    __u8 place; /* enum place */
    __u8 ways;  /* ports towards this address; of the first only */
};

struct port_key {
    __u32 ip; /* host order */
    __u32 way;
};

struct key_of {
    __u64 incarnation;
    __u32 node;
    __u32 key_id;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, ROWS_MAX);
    __type(key, __u32);
    __type(value, __u32);
} slot_of SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, ROWS_MAX);
    /* Nobody maps it: it begins on a page, and so each of its slots on a cache line. */
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct destination);
} destinations SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, ROWS_MAX);
    __type(key, __u32);
    __type(value, struct row);
} rows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_STACK);
    __uint(max_entries, ROWS_MAX);
    __type(value, __u32);
} free_slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct control);
} control SEC(".maps");

/* Ports by the addresses behind them: several of equal cost are ways 0, 1, ... */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, PORTS_MAX);
    __type(key, struct port_key);
    __type(value, struct port);
} ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, KEYS_MAX);
    __type(key, struct key_of);
    __type(value, __u64[2]);
} keys SEC(".maps");

/* NICE's virtual rings: a prefix of ring addresses to the members of its replica group. */
#define RINGS_MAX 131072
#define REPLICAS_MAX 9

struct ring_prefix {
    __u32 bits;
    __be32 address;
};

struct ring {
    __u8 multicast; /* to all of them; otherwise to the one whose share the client is */
    __u8 count;
    __u8 zero[2];
    __u32 members[REPLICAS_MAX]; /* IPv4, host order */
};

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, RINGS_MAX);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct ring_prefix);
    __type(value, struct ring);
} rings SEC(".maps");

/* In the order of `rackweave_switch::Counters`, then this data plane's own. */
enum counter {
    READS, WRITES, REDIRECTS, ALL_COLLECTING,
    GC_ACCEPTED, GC_DELAYED, GC_DELAYED_AFTER_START, GC_REGULARS, GC_BACKGROUNDS, GC_FINISHED, GC_HEARTBEATS, GC_IDLES,
    GC_DUPLICATES, GC_STALE, GC_FOREIGN,
    ROWS_CREATED, ROWS_DELETED, ROWS_STALE, ROWS_REFUSED,
    UNKNOWN_VSSD, MALFORMED,
    BAD_CHECKSUM, BAD_MAC, NO_PORT, TRAINS, RING_PACKETS, BALANCED, REDIRECTS_FAR,
    COUNTERS
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

INLINE void count(__u32 what) {
    __u64 *n = bpf_map_lookup_elem(&counters, &what);
    if (n)
        ++*n;
}

INLINE struct control *the_control(void) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(&control, &zero);
}

INLINE __u32 add_saturating(__u32 a, __u64 b) {
    __u64 sum = a + b;
    return sum > 0xffffffffu ? 0xffffffffu : sum;
}

INLINE __u64 table_time(__u64 real) {
    if (!manual_clock)
        return real;
    struct control *c = the_control();
    return c ? c->now : 0;
}

/* The bits as they count at `now`: expired ones are gone. */
INLINE __u64 flags_at(__u64 word, __u64 now) {
    return (word & ~FLAGS) > now ? word & FLAGS : word & READABLE;
}
/* Known to be readable. */
INLINE int serves(__u64 flags) {
    return (flags & (READABLE | HEARD)) == (READABLE | HEARD);
}
/* Of one rack, which racks its vSSDs' ids name does not matter. */
INLINE int in_rack(__u32 vssd, __u32 rack) {
    return !two_racks || vssd >> NUMBER_BITS == rack;
}
INLINE int idle(__u64 flags) {
    return (flags & (READABLE | HEARD | GC_BITS)) == (READABLE | HEARD);
}

/* One cache line where ids are dense, as a rack's are. */
INLINE struct destination *find(__u32 vssd, __u32 *slot) {
    *slot = vssd & home_mask;
    struct destination *home = bpf_map_lookup_elem(&destinations, slot);
    /* A free slot's vSSD is zero. */
    if (vssd && home && home->vssd == vssd)
        return home;
    __u32 *s = bpf_map_lookup_elem(&slot_of, &vssd);
    if (!s)
        return 0;
    *slot = *s;
    return bpf_map_lookup_elem(&destinations, slot);
}
