//! Consecutive chunks of one message in a train: common fields are checked once, and data is checked while it is copied
//! (PN3). Every exception is left to the code for single datagrams.

use rackweave_core::Time;

use crate::arrive::{COUNTER_BITS, Note, is_unbound};
use crate::endpoint::Endpoint;
use crate::header::{self, EXTENSION_BYTES, Kind, u64_at};
use crate::receiver::Arrival;

impl Endpoint {
    /// A train's first datagram was just received. Takes the following full chunks that are next in order, of the same
    /// incarnation of the sender, except a message's last missing one. Returns their number.
    pub(crate) fn take_run(&mut self, now: Time, train: &mut [u8], segment: usize, note: Note) -> usize {
        let (first, rest) = train.split_at_mut(segment);
        if rest.len() < segment {
            return 0;
        }
        let Ok(p) = header::parse(first) else { return 0 };
        let Kind::Chunk(c) = p.kind else { return 0 };
        let payload_at = p.form.extension_at + EXTENSION_BYTES;
        let Some(peer) = self.peers.get_mut(&p.source) else { return 0 };
        if p.payload.start != payload_at || peer.incarnation != Some(p.incarnation) {
            return 0;
        }
        let spoken = peer.newest.min(self.cfg.version);
        if is_unbound(&p, !self.auth.keys().is_none(), spoken) && !mutant!("transport.destination.older-run") {
            return 0;
        }
        let (auth, replay, rx) = (&mut self.auth, &mut peer.replay, &mut peer.flows[p.class as usize].rx);
        let (mut latest, mut rest) = (p.counter, rest.chunks_exact_mut(segment));
        let next = |number: u16, put: &mut dyn FnMut(u32, &[u8]) -> u32| {
            let Some(d) = rest.next().filter(|d| header::continued(first, p.form, d) == Some(number)) else {
                return false;
            };
            let counter = u64_at(d, p.form.counter_at);
            let low = counter & ((1 << COUNTER_BITS) - 1);
            if counter >> COUNTER_BITS != p.counter >> COUNTER_BITS
                || replay.seen(low)
                || auth.open_onto(&p, d, payload_at, put).is_err()
            {
                return false;
            }
            latest = latest.max(counter);
            replay.insert(low)
        };
        let datagrams = rx.run(now, &c, next);
        if datagrams > 0 {
            let arrival = Arrival { at: note.at, datagrams, counter: latest, marked: note.marked, ack_now: c.ack_now };
            rx.arrived(now, arrival, &self.cfg);
            self.counters.received += u64::from(datagrams);
            self.counters.received_bytes += u64::from(datagrams) * segment as u64;
            self.counters.accepted += u64::from(datagrams);
        }
        datagrams as usize
    }
}
