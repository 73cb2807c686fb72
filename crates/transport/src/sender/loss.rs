//! Losses, detected as in QUIC (RFC 9002 §6): by later datagrams that arrived, or by the timeout.
//!
//! A datagram that was only late was declared lost spuriously: its chunk is acknowledged while the newest datagram that
//! arrived is older than the retransmission. The path then counts as one that reorders, as in RACK (RFC 8985 §6.2): for a
//! while the number of later datagrams says nothing, and the time that a datagram may be late grows.

use rackweave_core::{Span, Time};

use super::Sender;
use crate::config::{Config, Retransmission};
use crate::header::Space;
use crate::outgoing::{ARRIVED, LOST, Outgoing, UNSENT};
use crate::progress::{Pick, Progress, Sent};

/// Later datagrams that must arrive before an unacknowledged one counts as lost (RFC 9002 §6.1.1).
const REORDER_DATAGRAMS: usize = 3;
/// Datagrams retransmitted at a timeout, or on a new path.
const PROBES: usize = 2;
/// Lost datagrams whose acknowledgement is still recognized.
const GIVEN_UP_MAX: usize = 64;
/// Doublings of the timeout.
const BACKOFF_MAX: u32 = 10;

impl Sender {
    /// Finds chunks that enough later datagrams have overtaken.
    pub(super) fn find_lost(&mut self, now: Time, cfg: &Config, p: &mut Progress) {
        let later = self.sent.partition_point(|s| s.counter <= self.largest_echo);
        let (patience, reorders) = (self.rtt.patience(now), self.rtt.reorders(now));
        for i in 0..later {
            let s = self.sent[i];
            // Datagrams on different paths may overtake each other, and on a path that reorders.
            let ordered = !self.unordered && !reorders && s.shared == self.echo_shared;
            let overtaken = ordered && later - 1 - i >= REORDER_DATAGRAMS;
            if s.in_flight && i + 1 < later && (overtaken || s.at + patience <= now) {
                self.lose(i, now, p);
                if cfg.retransmission == Retransmission::GoBackN {
                    (i + 1..self.sent.len()).for_each(|j| self.lose_also(j));
                    break;
                }
            }
        }
        self.tidy();
    }
    fn lose(&mut self, i: usize, now: Time, p: &mut Progress) {
        let s = self.sent[i];
        self.sent[i].in_flight = false;
        self.in_flight -= u64::from(s.bytes);
        self.counts.lost += 1;
        self.given_up.truncate(GIVEN_UP_MAX - 1);
        self.given_up.push_front(s);
        p.lost += 1;
        if s.shared {
            p.lost_shared += 1;
            let number = self.transfers.get(&s.id).and_then(|o| o.group);
            p.shared_lost = number.map(|n| (n, s.at)).or(p.shared_lost);
        } else {
            p.largest_lost = p.largest_lost.max(s.bytes);
            p.lost_sent = p.lost_sent.max(s.at);
        }
        self.again(s);
        if !self.by_stream {
            self.congestion.lost(now, s.at);
            self.window = self.congestion.window();
        }
    }
    /// The datagram with this counter, if it was declared lost. Its acknowledgement has come: where round trips are longer than the
    /// timeout, all come so. One that a later datagram's has overtaken says nothing of the round trip: the datagram may have been held
    /// back for seconds.
    pub(super) fn take_given_up(&mut self, counter: u64) -> Option<Sent> {
        let i = self.given_up.iter().position(|s| s.counter == counter)?;
        let taken = self.given_up.remove(i).filter(|_| !mutant!("transport.rtt.lost-unsampled"));
        taken.filter(|s| s.counter > self.newest_echo || mutant!("transport.rtt.overtaken-sampled"))
    }
    /// Go-back-N: sent after a lost datagram, so retransmitted, arrived or not.
    fn lose_also(&mut self, i: usize) {
        let s = self.sent[i];
        if std::mem::take(&mut self.sent[i].in_flight) {
            self.in_flight -= u64::from(s.bytes);
        }
        if let Some(o) = self.transfers.get_mut(&s.id)
            && o.chunks[s.chunk as usize] == ARRIVED
        {
            o.left += 1;
            o.base = o.base.min(s.chunk);
            o.chunks[s.chunk as usize] = s.counter;
        }
        self.again(s);
    }
    fn again(&mut self, s: Sent) {
        if let Some(o) = self.transfers.get_mut(&s.id)
            && o.chunks.get(s.chunk as usize) == Some(&s.counter)
        {
            o.chunks[s.chunk as usize] = LOST;
            if mutant!("transport.chunk.not-resent") {
                return;
            }
            self.lost.push_back((s.id, o.attempt, s.chunk));
        }
    }
    pub(super) fn tidy(&mut self) {
        while self.sent.front().is_some_and(|s| !s.in_flight) {
            self.sent.pop_front();
        }
    }
    fn timeout(&self, cfg: &Config) -> Span {
        let base = self.turn.timeout(cfg.retransmit_initial, cfg.retransmit_min, cfg.ack_delay);
        (base * (1 << self.backoff.min(BACKOFF_MAX))).min(cfg.retransmit_max)
    }
    /// When [`Sender::timer`] has work.
    pub fn deadline(&self, cfg: &Config) -> Time {
        let first = self.deadlines.first().map_or(Time::MAX, |(at, _)| *at);
        let Some(oldest) = self.sent.iter().find(|s| s.in_flight) else { return first };
        let mut at = self.progress.max(oldest.at) + self.timeout(cfg);
        if oldest.counter < self.largest_echo {
            at = at.min(oldest.at + self.rtt.patience(self.progress));
        }
        first.min(at)
    }
    /// Handles the passing of time. True if the retransmission time has passed without an acknowledgement.
    pub fn timer(&mut self, now: Time, cfg: &Config, p: &mut Progress) -> bool {
        self.find_lost(now, cfg, p);
        let timeout = self.timeout(cfg);
        let Some(oldest) = self.sent.iter().find(|s| s.in_flight) else { return false };
        if self.progress.max(oldest.at) + timeout > now {
            return false;
        }
        self.probe(now, p);
        if self.backoff > 0 && !self.by_stream {
            self.congestion.timed_out(now);
            self.window = self.congestion.window();
        }
        self.backoff += 1;
        self.counts.timeouts += 1;
        self.tidy();
        true
    }
    /// Retransmits the oldest datagrams in flight. Their acknowledgement shows whether the others are lost too: a host
    /// that was only busy is not sent everything twice (RFC 9002 §6.2.4).
    fn probe(&mut self, now: Time, p: &mut Progress) {
        let oldest = (0..self.sent.len()).filter(|i| self.sent[*i].in_flight);
        let oldest: Vec<usize> = oldest.take(PROBES).collect();
        self.probes = oldest.len();
        oldest.into_iter().for_each(|i| self.lose(i, now, p));
    }
    /// After a timeout, a chunk of a message of which the receiver has some: it takes that one, whereas it may have no room for
    /// any other message, and then this one would not end either.
    pub(super) fn pick_probe(&mut self) -> Option<Pick> {
        // Go-back-N sends in order.
        if self.probes == 0 || !self.selective || mutant!("transport.probe.any-message") {
            return None;
        }
        let lost = |&(id, attempt, chunk): &(_, u8, u32)| {
            let o = self.transfers.get(&id).filter(|o| o.attempt == attempt && o.has_some_arrived());
            o.is_some_and(|o| o.chunks[chunk as usize] == LOST)
        };
        if let Some(at) = self.lost.iter().position(lost) {
            self.probes -= 1;
            return self.lost.remove(at).map(|(id, _, chunk)| Pick { id, chunk, again: true });
        }
        let unsent = |id: &_| {
            let o = self.transfers.get(id).filter(|o| o.has_some_arrived() && o.may_send_more());
            o.is_some_and(|o| o.chunks[o.next as usize] == UNSENT)
        };
        let at = self.waiting.iter().position(unsent)?;
        self.probes -= 1;
        let id = self.waiting.remove(at)?;
        self.waiting.push_front(id);
        self.transfers.get(&id).map(|o| Pick { id, chunk: o.next, again: false })
    }
    /// The path has changed.
    pub fn path_changed(&mut self, now: Time) -> Progress {
        let mut p = Progress::default();
        self.rtt.path_changed(now);
        self.probe(now, &mut p);
        self.tidy();
        p
    }
    /// Declares everything in flight lost: the peer reports that it dropped it, or the path has changed.
    pub fn lose_all(&mut self) {
        self.lose_those(|_| true);
    }
    /// Declares unanswered datagrams through the switch lost.
    pub fn lose_unbound(&mut self) {
        self.lose_those(|o| o.id.space == Space::Routed && !o.bound);
    }
    fn lose_those(&mut self, which: impl Fn(&Outgoing) -> bool) {
        for i in 0..self.sent.len() {
            let s = self.sent[i];
            if s.in_flight && self.transfers.get(&s.id).is_some_and(&which) {
                self.sent[i].in_flight = false;
                self.in_flight -= u64::from(s.bytes);
                self.again(s);
            }
        }
        self.tidy();
    }
}
