//! The passing of time: losses, paths, silent peers, sizes that do not get through.

use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Span, Time};

use crate::api::{Event, Missing};
use crate::config::{Config, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN};
use crate::endpoint::{CLASSES, Endpoint};
use crate::header::Space;
use crate::outgoing::Outgoing;
use crate::peer::{Carrier, Control, Flow, IDLE_KEEP_ALIVES, Peer, TRIAL_TOKEN};
use crate::progress::Progress;

/// Large datagrams lost in a row before smaller ones are tried.
const LARGE_LOST_MAX: u32 = 6;
/// Largest datagrams of common networks besides the least: Ethernet, and jumbo frames. Sizes step through these, so
/// that the right one is found before a message's deadline.
const SIZES: [usize; 3] = [DATAGRAM_BYTES_MIN, 1472, 8972];
/// Time until a larger size is tried again.
const LARGER_AFTER: Span = Span::from_secs(10);
/// Time without another chunk until an incomplete message is dropped: longer than a sender's longest timeouts.
const HALF_AFTER: Span = Span::from_secs(4);
/// Loss is judged once in this time, over at least this many datagrams.
const LOSS_PERIOD: Span = Span::from_secs(1);
const LOSS_SENT_MIN: u32 = 100;
/// Pings of a test whether datagrams get through again, and their interval.
const TRIAL_PINGS: u32 = 20;
const TRIAL_EVERY: Span = Span::from_millis(50);
/// Interval of stream attempts to a peer that is silent on every path.
const SILENT_STREAM_EVERY: Span = Span::from_secs(2);

impl Peer {
    pub(crate) fn next_deadline(&self, cfg: &Config) -> Time {
        let mut at = self.paths.deadline();
        let mut waiting = false;
        for f in &self.flows {
            at = at.min(f.tx.deadline(cfg)).min(if f.rx.due { Time::MAX } else { f.rx.ack_at });
            if let Some(oldest) = f.rx.oldest() {
                at = at.min(oldest + HALF_AFTER);
            }
            if f.tx.in_flight() > 0 {
                at = at.min(self.path_check_at(f, f.sla(cfg)));
                waiting = true;
            }
        }
        if let Some(owed) = self.owed.filter(|_| !self.down && !cfg.is_switch(self.node)) {
            at = at.min(owed + cfg.dead_after);
            if self.carrier == Carrier::Datagrams {
                at = at.min((owed + cfg.dead_after / 3).max(self.stream_at));
            }
        }
        if self.carrier == Carrier::Stream {
            at = at.min(self.stuck_at(cfg)).min(self.loss_at + TRIAL_EVERY * u64::from(self.loss_sent));
        } else if waiting {
            at = at.min(self.loss_at + LOSS_PERIOD);
        }
        at.min(self.ping_at)
    }
}

impl Flow {
    /// Time without an acknowledgement after which a path counts as failed: the SLA time, or on paths with longer round trips
    /// what an acknowledgement takes there. Otherwise such a path would be left before it could answer.
    fn sla(&self, cfg: &Config) -> Span {
        let answer = self.tx.rtt.timeout(Span::ZERO, Span::ZERO, cfg.ack_delay).min(cfg.retransmit_max);
        if mutant!("transport.path.sla-alone") { cfg.sla } else { answer.max(cfg.sla) }
    }
}

impl Peer {
    /// Since when nothing shows that the current path works, for a class that waits for an acknowledgement.
    fn quiet_since(&self, f: &Flow) -> Time {
        f.tx.progress.max(self.path_works).max(self.paths.since)
    }
    /// When to check the path of such a class: a ping is sent after half of the SLA time, so that its answer can arrive
    /// before the end, and repeated while nothing arrives.
    fn path_check_at(&self, f: &Flow, sla: Span) -> Time {
        let quiet = self.quiet_since(f);
        let ask = quiet.max(self.path_asked) + sla / 2;
        if quiet + sla > self.path_asked { ask.min(quiet + sla) } else { ask }
    }
    /// When a stream that delivers nothing is given up.
    fn stuck_at(&self, cfg: &Config) -> Time {
        let waiting = self.flows.iter().filter(|f| f.tx.in_flight() > 0);
        let since = waiting.map(|f| f.tx.progress.max(self.stream_since)).min();
        since.map_or(Time::MAX, |t| t + cfg.dead_after / 3 * 2)
    }
}

fn below(size: usize) -> usize {
    SIZES.into_iter().rev().find(|s| *s < size).unwrap_or(DATAGRAM_BYTES_MIN)
}
fn above(size: usize) -> usize {
    SIZES.into_iter().find(|s| *s > size).unwrap_or(DATAGRAM_BYTES_MAX)
}

impl Endpoint {
    /// Handles the passing of time. To be called when [`Endpoint::next_deadline`] has come; calls at other times are
    /// harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        // Each peer once: new deadlines at this instant wait for the next call.
        for _ in 0..self.deadlines.len() {
            let Some(&(at, node)) = self.deadlines.first() else { return };
            if at > now {
                return;
            }
            self.deadlines.pop_first();
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.deadline = Time::MAX;
            }
            self.peer_timeout(now, node);
            self.touch(now, node);
        }
    }

    fn peer_timeout(&mut self, now: Time, node: NodeId) {
        for class in CLASSES {
            let Some(peer) = self.peers.get_mut(&node) else { return };
            let mut expired = Vec::new();
            while let Some(o) = peer.flow(class).tx.expired(now) {
                expired.push(o);
            }
            expired.iter().for_each(|o| self.give_up(node, class, o, Missing::Late));
            let Some(peer) = self.peers.get_mut(&node) else { return };
            let mut progress = Progress::default();
            if peer.flow(class).tx.timer(now, &self.cfg, &mut progress) {
                self.counters.timeouts += 1;
                self.sign_of_life(node);
            }
            self.book(now, node, class, progress);
            let Some(peer) = self.peers.get_mut(&node) else { return };
            let before = Time(now.0.saturating_sub(HALF_AFTER.0));
            let half = peer.half_bytes();
            self.counters.messages_half += peer.flow(class).rx.expire(before);
            self.half_bytes = self.half_bytes + peer.half_bytes() - half;
        }
        self.check_path(now, node);
        self.check_alive(now, node);
        self.check_loss(now, node);
        self.check_silence(now, node);
    }

    fn give_up(&mut self, node: NodeId, class: Class, o: &Outgoing, why: Missing) {
        self.queued_bytes -= o.message.len();
        self.counters.messages_given_up += 1;
        if o.id.space == Space::Routed {
            self.routed[class as usize].remove(&o.id.number);
        }
        match o.group {
            Some(number) => self.part_done(class, number, node, Some(why)),
            None => self.event(Event::GaveUp { to: node, token: o.token }),
        }
    }

    /// PN4: without an acknowledgement within the SLA time, changes the source port.
    fn check_path(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if let Some(path) = peer.paths.probe(now, self.cfg.path_blacklist) {
            let token = self.rng.next_u64() & !(0xffff | TRIAL_TOKEN) | u64::from(path);
            peer.say(Control::Ping { path, token });
        }
        let cfg = &self.cfg;
        if !peer.flows.iter().any(|f| f.tx.in_flight() > 0 && peer.path_check_at(f, f.sla(cfg)) <= now) {
            return;
        }
        peer.path_asked = now;
        // Datagrams to a whole group say nothing about the peer's own path.
        let late = |f: &&Flow| f.tx.alone_in_flight() && now.since(peer.quiet_since(f)) >= f.sla(cfg);
        // Only network time counts, not the hosts' own delays: the retransmission time is irrelevant here. A live host
        // does not prove that the switch's path to it works.
        let quiet = peer.flows.iter().filter(late).map(|f| peer.quiet_since(f)).max();
        let since = |f: &Flow| f.tx.progress.max(peer.paths.since);
        let astray = |f: &&Flow| now.since(since(f)) >= f.sla(cfg) && f.tx.timed_out() > 0 && f.tx.unbound_in_flight();
        let by_switch = || peer.flows.iter().filter(astray).map(since).max();
        if let Some(quiet) = quiet.or_else(by_switch) {
            self.change_path(now, node, quiet);
        }
        self.sign_of_life(node);
    }

    /// The peer receives no acknowledgements although they were sent: their path is bad.
    pub(crate) fn way_back(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let sla = peer.flows.iter().map(|f| f.sla(&self.cfg)).max().unwrap_or(self.cfg.sla);
        if now.since(peer.paths.since) >= sla {
            // Since when is unknown here.
            self.change_path(now, node, now);
        }
    }

    fn change_path(&mut self, now: Time, node: NodeId, quiet: Time) {
        let Some(peer) = self.peers.get_mut(&node).filter(|p| p.carrier != Carrier::Stream) else { return };
        let Some((from, to)) = peer.paths.fail(now, quiet, self.cfg.path_blacklist, &mut self.rng) else { return };
        let lost = peer.flows.each_mut().map(|f| f.tx.path_changed(now));
        for (class, progress) in CLASSES.into_iter().zip(lost) {
            self.book(now, node, class, progress);
        }
        self.counters.path_changes += 1;
        self.event(Event::PathChanged { peer: node, from, to });
    }

    /// Token of a ping outside a test, without the path's number.
    pub(crate) fn sign_token(&mut self) -> u64 {
        self.rng.next_u64() & !(0xffff | TRIAL_TOKEN)
    }
    /// A ping on the current path distinguishes a silent path, lost large datagrams, and a slow receiver.
    fn sign_of_life(&mut self, node: NodeId) {
        let token = self.sign_token();
        if let Some(peer) = self.peers.get_mut(&node).filter(|p| !self.cfg.is_switch(p.node)) {
            let path = peer.paths.current;
            peer.say(Control::Ping { path, token: token | u64::from(path) });
        }
    }

    fn check_alive(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.ping_at <= now {
            let idle = self.cfg.keep_alive * IDLE_KEEP_ALIVES;
            peer.ping_at = if self.cfg.is_switch(node) || (now.since(peer.used) > idle && !peer.down) {
                Time::MAX
            } else {
                let any = self.rng.below(u64::from(self.cfg.paths)) as u16;
                let path = if peer.down { any } else { peer.paths.current };
                let token = self.rng.next_u64() & !(0xffff | TRIAL_TOKEN) | u64::from(path);
                peer.say(Control::Ping { path, token });
                now + self.cfg.keep_alive
            };
        }
        if self.cfg.is_switch(node) || peer.down || peer.owed.is_none_or(|t| now.since(t) < self.cfg.dead_after) {
            return;
        }
        peer.down = true;
        peer.ping_at = now + self.cfg.keep_alive;
        self.counters.peers_down += 1;
        self.event(Event::PeerDown { peer: node });
        self.drop_all(node);
    }

    /// The peer is down: gives up every message to it.
    fn drop_all(&mut self, node: NodeId) {
        for class in CLASSES {
            loop {
                let Some(peer) = self.peers.get_mut(&node) else { return };
                let tx = &mut peer.flow(class).tx;
                let Some(id) = tx.transfers.keys().next().copied() else { break };
                let Some(o) = tx.take(id) else { break };
                self.hints.remove(&o.vssd);
                self.give_up(node, class, &o, Missing::Down);
            }
        }
    }

    /// PN5: heavy loss of datagrams requests a stream; on the stream, pings test whether datagrams get through.
    fn check_loss(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.carrier == Carrier::Stream {
            if now >= peer.stuck_at(&self.cfg) {
                self.counters.streams_stuck += 1;
                self.stream_down(now, node);
                return self.event(Event::StreamStuck { peer: node });
            }
            return self.stream_trial(now, node);
        }
        if now.since(peer.loss_at) < LOSS_PERIOD {
            return;
        }
        let (sent, lost) = (peer.loss_sent, peer.loss_lost);
        (peer.loss_sent, peer.loss_lost, peer.loss_at) = (0, 0, now);
        let heavy = u64::from(lost) * 1000 > u64::from(sent) * u64::from(self.cfg.stream_loss_per_mille);
        if sent >= LOSS_SENT_MIN && heavy && peer.carrier == Carrier::Datagrams && !self.cfg.is_switch(node) {
            peer.carry_by(Carrier::StreamWanted);
            self.event(Event::StreamWanted { peer: node });
        } else if !heavy && peer.carrier == Carrier::StreamWanted {
            peer.carry_by(Carrier::Datagrams);
        }
    }

    /// PN5: nothing at all is received from a peer, dead or not; something on the path may filter datagrams.
    fn check_silence(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node).filter(|p| !self.cfg.is_switch(p.node)) else { return };
        let silent = peer.down || peer.owed.is_some_and(|t| now.since(t) >= self.cfg.dead_after / 3);
        if silent && peer.carrier == Carrier::Datagrams && peer.stream_at <= now {
            peer.stream_at = now + SILENT_STREAM_EVERY;
            peer.carry_by(Carrier::StreamWanted);
            self.event(Event::StreamWanted { peer: node });
        }
    }

    /// On the stream: `loss_sent` pings of the test were sent, `loss_lost` of them are unanswered.
    pub(crate) fn stream_trial(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if now < peer.loss_at + TRIAL_EVERY * u64::from(peer.loss_sent) {
            return;
        }
        if peer.loss_sent < TRIAL_PINGS {
            let path = peer.paths.current;
            peer.say(Control::Ping { path, token: self.rng.next_u64() & !0xffff | TRIAL_TOKEN | u64::from(path) });
            peer.loss_sent += 1;
            peer.loss_lost += 1;
            return;
        }
        let few = u64::from(peer.loss_lost) * 4000 < u64::from(TRIAL_PINGS * self.cfg.stream_loss_per_mille);
        (peer.loss_sent, peer.loss_lost, peer.loss_at) = (0, 0, now);
        if few {
            peer.carry_by(Carrier::Datagrams);
            self.event(Event::StreamDone { peer: node });
        }
    }

    /// Large datagrams vanish, however many are sent, while the peer answers: uses smaller ones, and larger ones again
    /// after a while. The same rule makes chunks small under heavy loss, where a lost one then costs less (PN7).
    pub(crate) fn sizes(&mut self, now: Time, node: NodeId, p: &Progress) {
        let max = self.cfg.datagram_bytes_max;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if p.largest_arrived as usize > DATAGRAM_BYTES_MIN {
            peer.large_lost = 0;
        } else if p.largest_lost as usize > DATAGRAM_BYTES_MIN && peer.heard > p.lost_sent {
            peer.large_lost += p.lost;
        }
        let smaller = peer.large_lost >= LARGE_LOST_MAX && peer.datagram > DATAGRAM_BYTES_MIN;
        let larger = peer.larger_at <= now && peer.datagram < max;
        if !smaller && !larger {
            return;
        }
        let size = if smaller { below(peer.datagram) } else { above(peer.datagram) };
        self.set_size(now, node, size);
    }

    /// The driver's socket refuses datagrams of this size to the peer: uses smaller ones at once.
    pub fn too_long(&mut self, now: Time, node: NodeId, bytes: usize) {
        if self.peers.get(&node).is_some_and(|p| bytes <= p.datagram && bytes > DATAGRAM_BYTES_MIN) {
            self.set_size(now, node, below(bytes));
            self.touch(now, node);
        }
    }

    fn set_size(&mut self, now: Time, node: NodeId, size: usize) {
        let max = self.cfg.datagram_bytes_max;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let smaller = size < peer.datagram;
        peer.datagram = size.min(max);
        peer.large_lost = 0;
        peer.larger_at = if peer.datagram < max { now + LARGER_AFTER } else { Time::MAX };
        self.counters.chunk_size_changes += 1;
        if smaller {
            let chunk_bytes = peer.chunk_bytes();
            peer.flows.iter_mut().for_each(|f| f.tx.restart(chunk_bytes, true));
        }
    }
}
