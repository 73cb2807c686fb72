/* Pending reads of each vSSD, as `rackweave_switch::load` counts them: sent there, less the answers that its server reports. */
#pragma once

#include "tables.h"

/* A read that is unanswered for between one and two of these does not count. */
#define READS_AGE_NS 10000000ull
/* What an erasing die counts as, in reads, and collection if the server does not say. */
#define COLLECTING_READS 8
#define ERASING_READS 8
#define NO_COST ~0ull

/* Whether the counts are of this span, of the last, or older. */
enum age { THIS_SPAN, LAST_SPAN, OLDER };

INLINE enum age age_of(const struct destination *d, __u64 now) {
    __u64 begun = d->span_begun;
    return now < begun + READS_AGE_NS ? THIS_SPAN : now < begun + 2 * READS_AGE_NS ? LAST_SPAN : OLDER;
}

/* Reads before the vSSD, and what its state counts as. Without the lock: a count that changes meanwhile is off by little. */
INLINE __u64 cost(const struct destination *d, __u64 flags, __u64 now) {
    enum age age = age_of(d, now);
    __u64 reads = age == THIS_SPAN ? (__u64)d->older + d->newer : age == LAST_SPAN ? d->newer : 0;
    __u64 collecting = d->collecting ? d->collecting : COLLECTING_READS;
    return (reads > 0xffffffffu ? 0xffffffffu : reads) + (flags & GC_BITS ? collecting : 0) +
           (now < d->erases_until ? ERASING_READS : 0);
}

/* Under the lock. */
INLINE void grow_old(struct destination *d, __u64 now) {
    enum age age = age_of(d, now);
    if (age == THIS_SPAN)
        return;
    d->older = age == LAST_SPAN ? d->newer : 0;
    d->newer = 0;
    d->span_begun = now - now % READS_AGE_NS;
}

INLINE void sent(struct destination *d, __u64 now) {
    bpf_spin_lock(&d->lock);
    grow_old(d, now);
    d->newer = add_saturating(d->newer, 1);
    bpf_spin_unlock(&d->lock);
}

INLINE __u32 less_saturating(__u32 a, __u32 b) {
    return a > b ? a - b : 0;
}

/* Under the lock: a report of an incarnation of the vSSD's server. A late one, of this or an earlier one, is ignored. */
INLINE void reported(struct destination *d, __u64 now, __u64 incarnation, __u64 answered, __u32 state) {
    __u32 waiting = state & 0xffff;
    grow_old(d, now);
    if (incarnation < d->incarnation || (incarnation == d->incarnation && answered < d->answered))
        return;
    if (incarnation > d->incarnation) {
        /* Reads sent to an earlier incarnation get no answer; the number sent to this one before is unknown. */
        d->older = 0;
        d->newer = 0;
    } else {
        __u64 more = answered - d->answered;
        __u32 answers = more > 0xffffffffu ? 0xffffffffu : more, left = less_saturating(answers, d->older);
        d->older = less_saturating(d->older, answers);
        d->newer = less_saturating(d->newer, left);
    }
    d->incarnation = incarnation;
    d->answered = answered;
    d->collecting = state >> 16 & 0x7fff;
    d->erases_until = state >> 31 ? now + READS_AGE_NS : 0;
    /* Waiting reads count as sent now. */
    __u32 all = add_saturating(d->older, d->newer);
    if (all < waiting)
        all = waiting;
    if (d->newer < waiting)
        d->newer = waiting;
    d->older = all - d->newer;
}

/* A server reports the pending reads of its vSSD. */
static __attribute__((noinline)) int on_load(__u64 now, __u32 from, const struct load_op *op) {
    if (!op)
        return 0;
    __u32 slot, state = bpf_ntohl(op->waiting);
    __u64 incarnation = bpf_be64_to_cpu(op->head.incarnation), answered = bpf_be64_to_cpu(op->answered);
    struct destination *d = find(bpf_ntohl(op->head.vssd), &slot);
    if (!d || d->server != from) {
        count(MALFORMED);
        return 0;
    }
    bpf_spin_lock(&d->lock);
    reported(d, now, incarnation, answered, state);
    bpf_spin_unlock(&d->lock);
    return 0;
}
