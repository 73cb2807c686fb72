//! Handling of received datagrams.

use std::collections::BTreeSet;

use bytes::Bytes;
use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Span, Time};

use crate::api::{Event, Message, Origin, Received, Train};
use crate::auth::OpenError;
use crate::endpoint::{Endpoint, fair_bytes};
use crate::header::{self, AckEntry, BOUND_VERSION, Kind, Malformed, Parsed, Space, VERSION, restore, whose};
use crate::peer::{Carrier, Control, REPLAY_SPAN, STREAM_PATH, TRIAL_TOKEN};
use crate::receiver::{Arrival, Datagram, Outcome, Receiver, Room};
use crate::window::Window;

/// Interval between challenges of an incarnation.
const CHALLENGE_EVERY: Span = Span::from_millis(1);
pub(crate) const COUNTER_BITS: u32 = 56;
/// Time after which no datagram of an ended incarnation is in flight.
const TWINS_AFTER: Span = Span::from_secs(1);
/// Interval between reports that a node runs twice.
const TWINS_EVERY: Span = Span::from_secs(10);

/// The counter for a datagram.
type Count = fn(&mut crate::Counters) -> &mut u64;
const UNKNOWN_KEY: Count = |c| &mut c.drop_unknown_key;
const TOO_MANY: Count = |c| &mut c.drop_too_many_peers;
const BAD_TAG: Count = |c| &mut c.drop_bad_tag;

/// Whether a chunk may have been for another node: its tag does not cover the destination, though it would in the newest
/// version that both ends speak.
pub(crate) fn is_unbound(p: &Parsed, keyed: bool, spoken: u8) -> bool {
    let direct = matches!(p.kind, Kind::Chunk(c) if c.id.space == Space::Direct);
    keyed && direct && p.version < BOUND_VERSION && spoken >= BOUND_VERSION && !mutant!("transport.destination.older")
}

/// What the network reports about a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub at: Time,
    pub marked: bool,
}

impl Endpoint {
    /// Handles a received datagram. Its results are in `poll_event`, `poll_transmit` and `next_deadline`.
    pub fn receive(&mut self, now: Time, mut r: Received) -> Origin {
        let mut origin = Origin::Nobody;
        let note = Note { at: r.at, marked: r.marked };
        if let Some(source) = self.take_in(now, &mut r.datagram, note, &mut origin) {
            self.touch(now, source);
        }
        origin
    }

    /// As [`Endpoint::receive`], for all datagrams of a train. Data to keep is copied.
    pub fn receive_train(&mut self, now: Time, t: Train<'_>) {
        let note = Note { at: t.at, marked: t.marked };
        let (mut origin, mut last, mut rest) = (Origin::Nobody, None, t.bytes);
        let segment = t.segment.max(1);
        while !rest.is_empty() {
            let one = segment.min(rest.len());
            let source = self.take_in(now, &mut rest[..one], note, &mut origin);
            if let (Some(source), Some(before)) = (source, last)
                && source != before
            {
                self.touch(now, before);
            }
            last = source.or(last);
            let more = if source.is_some() { self.take_run(now, rest, one, note) } else { 0 };
            rest = &mut rest[one * (1 + more)..];
        }
        if let Some(last) = last {
            self.touch(now, last);
        }
    }

    /// As [`Endpoint::receive`], for a datagram from a stream (PN5).
    pub fn receive_by_stream(&mut self, now: Time, r: Received) -> Origin {
        self.by_stream = true;
        let origin = self.receive(now, r);
        self.by_stream = false;
        origin
    }

    /// Returns the peer whose state may have changed: [`Endpoint::touch`] must follow.
    fn take_in(&mut self, now: Time, d: &mut [u8], note: Note, origin: &mut Origin) -> Option<NodeId> {
        self.counters.received += 1;
        self.counters.received_bytes += d.len() as u64;
        let (count, source) = self.arrive(now, d, note, origin);
        *count(&mut self.counters) += 1;
        source
    }

    fn arrive(&mut self, now: Time, d: &mut [u8], note: Note, origin: &mut Origin) -> (Count, Option<NodeId>) {
        let p = match header::parse(d) {
            Ok(p) => p,
            Err(Malformed::Version { .. }) => return (|c| &mut c.drop_version, None),
            Err(_) => return (|c| &mut c.drop_malformed, None),
        };
        // One that reports nothing newer than the oldest version understands no answer.
        let silent = p.kind != Kind::Bare && p.version.max(p.newest) < VERSION - 1;
        if p.version > self.cfg.version || silent {
            return (|c| &mut c.drop_version, None);
        }
        // The switch may redirect a read to its own sender: datagrams of this incarnation are accepted.
        let ours = p.incarnation == self.incarnation || mutant!("transport.own.any-incarnation");
        let own = p.kind != Kind::Bare && ours && !mutant!("transport.own.dropped");
        if p.source == self.local && !own {
            return (|c| &mut c.drop_own_id, None);
        }
        if p.destination != self.local {
            return (|c| &mut c.drop_not_for_us, None);
        }
        if p.kind == Kind::Bare {
            return (self.bare_arrived(&p, d), None);
        }
        let mut known = std::mem::take(&mut self.known);
        let opened = self.auth.open(&p, d, &mut known);
        let result = match opened {
            Ok(()) if self.make_peer(now, p.source).is_err() => (TOO_MANY, None),
            Ok(()) => (self.of_peer(now, &p, d, note, &known, origin), Some(p.source)),
            Err(OpenError::UnknownKey) => (UNKNOWN_KEY, None),
            Err(OpenError::BadTag) => (BAD_TAG, None),
        };
        self.known = known;
        result
    }

    /// (incarnation, sequence) of a `gc_op` and (incarnation, answers) of a `load` prevent replays (protocol rule 16).
    fn bare_arrived(&mut self, p: &Parsed, d: &mut [u8]) -> Count {
        let owner = if self.cfg.is_switch(p.source) { self.local } else { p.source };
        match self.auth.open_gc(owner, p.incarnation, d) {
            Ok(()) => {}
            Err(OpenError::UnknownKey) => return UNKNOWN_KEY,
            Err(OpenError::BadTag) => return BAD_TAG,
        }
        if self.unread_bytes + d.len() > self.cfg.unread_bytes_max {
            return |c| &mut c.drop_unread;
        }
        restore(d);
        self.deliver(p.source, p.class, Message::whole(Bytes::copy_from_slice(d)), Vec::new());
        |c| &mut c.accepted
    }

    fn of_peer(&mut self, now: Time, p: &Parsed, d: &[u8], note: Note, known: &[u32], origin: &mut Origin) -> Count {
        // A peer's statement about newer incarnations stays true forever, so it needs no proof of liveness.
        let handshake = matches!(p.kind, Kind::Challenge { .. } | Kind::Proof { .. } | Kind::Outdated { .. });
        let Some(peer) = self.peers.get_mut(&p.source) else { return TOO_MANY };
        let older = peer.incarnation.filter(|&known| p.incarnation < known && !mutant!("transport.incarnation.older"));
        if let Some(newest) = older {
            *origin = Origin::Unproven(p.source);
            self.find_twins(now, p);
            self.outdated(now, p, newest);
            return |c| &mut c.drop_stale_incarnation;
        }
        *origin = Origin::Unproven(p.source);
        let keyed = !self.auth.keys().is_none();
        if peer.incarnation != Some(p.incarnation) {
            let answers = matches!(p.kind, Kind::Proof { answer, .. }
                if peer.challenge.is_some_and(|(challenged, token, _)| (challenged, token) == (p.incarnation, answer)));
            if !keyed || answers || mutant!("transport.incarnation.unproven") {
                self.meet(now, p.source, p.incarnation);
                if answers {
                    self.outdate(p);
                }
            } else if !handshake {
                self.challenge(now, p.source, p.incarnation);
                return |c| &mut c.drop_unproven;
            }
        }
        let Some(peer) = self.peers.get_mut(&p.source) else { return TOO_MANY };
        if peer.incarnation == Some(p.incarnation) {
            if !peer.replay.insert(p.counter & ((1 << COUNTER_BITS) - 1)) && !mutant!("transport.replay.accepted") {
                *origin = Origin::Nobody;
                return |c| &mut c.drop_replay;
            }
            *origin = Origin::Proven(p.source);
            peer.newest = p.newest.max(p.version);
            let unbound = is_unbound(p, keyed, peer.newest.min(self.cfg.version));
            let awaits_newer = peer.challenge.is_some_and(|(challenged, ..)| challenged > p.incarnation);
            self.heard(now, p.source);
            if unbound {
                *origin = Origin::Unproven(p.source);
                // The sender learns of the newer version from the handshake, and sends it again.
                if !awaits_newer {
                    self.challenge(now, p.source, p.incarnation);
                }
                return |c| &mut c.drop_unbound;
            }
        }
        if !p.acks.is_empty() {
            self.acks_arrived(now, p, &d[p.acks.clone()], note.at);
        }
        match p.kind {
            Kind::Chunk(_) => return self.chunk_arrived(now, p, d, note, known),
            Kind::Ping { token } => self.say(p.source, Control::Pong { token }),
            Kind::Pong { token } => self.pong(now, p.source, token),
            Kind::Challenge { token } => self.challenged(now, p, token),
            Kind::Proof { token, .. } if token != 0 => self.say(p.source, Control::Proof { answer: token, token: 0 }),
            Kind::Outdated { refused, newest } => {
                let mine = refused == self.incarnation || mutant!("transport.outdated.any-incarnation");
                if mine && (newest > refused || mutant!("transport.outdated.lower")) {
                    self.event(Event::Outdated { newest });
                }
            }
            Kind::Proof { .. } | Kind::Ack | Kind::Bare => {}
        }
        |c| &mut c.accepted
    }

    /// An ended incarnation sends new datagrams long after its last ones can have been in flight: its process still
    /// runs, and another one has its name.
    fn find_twins(&mut self, now: Time, p: &Parsed) {
        let Some(peer) = self.peers.get_mut(&p.source) else { return };
        let Some((incarnation, top, met)) = peer.former.filter(|f| f.0 == p.incarnation) else { return };
        let counter = p.counter & ((1 << COUNTER_BITS) - 1);
        if counter < top || now.since(met) < TWINS_AFTER {
            return;
        }
        peer.former = Some((incarnation, counter + 1, met));
        if peer.twins.is_none_or(|t| now.since(t) >= TWINS_EVERY) {
            peer.twins = Some(now);
            self.counters.twins_seen += 1;
            self.event(Event::Twins { peer: p.source });
        }
    }

    /// A node that lost its incarnation counter is sent the newest one known here. The incarnation before the newest is
    /// not answered: its process was met and superseded, and two processes must not outbid each other.
    fn outdated(&mut self, now: Time, p: &Parsed, newest: u64) {
        let by_stream = self.by_stream;
        let Some(peer) = self.peers.get_mut(&p.source) else { return };
        let followed = peer.former.is_some_and(|(before, ..)| before == p.incarnation);
        if (!followed || mutant!("transport.outdated.former")) && now.since(peer.outdated) >= CHALLENGE_EVERY {
            if mutant!("transport.outdated.silent") {
                return;
            }
            peer.outdated = now;
            peer.say(Control::Outdated { refused: p.incarnation, newest, by_stream });
        }
    }

    fn say(&mut self, to: NodeId, c: Control) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.say(c);
        }
    }

    /// Accepts a new incarnation of the peer.
    fn meet(&mut self, now: Time, node: NodeId, incarnation: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let before = peer.incarnation.replace(incarnation);
        peer.challenge = None;
        if let Some(before) = before {
            peer.former = Some((before, peer.replay.top(), now));
            self.half_bytes -= peer.half_bytes();
            peer.replay = Window::new(REPLAY_SPAN);
            let size = peer.chunk_bytes();
            for f in &mut peer.flows {
                f.rx = Receiver::new();
                f.tx.restart(size, false);
            }
        }
        self.event(Event::PeerUp { peer: node, incarnation });
    }

    /// The proof was sealed after its challenge was sent. Datagrams sealed earlier may have been recorded in an earlier
    /// incarnation of this node, so none of them counts; the peer retransmits their contents.
    fn outdate(&mut self, proof: &Parsed) {
        if let Some(peer) = self.peers.get_mut(&proof.source) {
            peer.replay = Window::above(proof.counter & ((1 << COUNTER_BITS) - 1), REPLAY_SPAN);
        }
    }

    fn challenge(&mut self, now: Time, node: NodeId, incarnation: u64) {
        let token = self.rng.next_u64().max(1);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        match peer.challenge {
            Some((challenged, _, at)) if challenged == incarnation && now.since(at) < CHALLENGE_EVERY => return,
            Some((challenged, old, _)) if challenged == incarnation => peer.challenge = Some((incarnation, old, now)),
            _ => peer.challenge = Some((incarnation, token, now)),
        }
        if let Some((_, token, _)) = peer.challenge {
            peer.say(Control::Challenge { token, by_stream: self.by_stream });
        }
    }

    /// The peer does not know this incarnation and has dropped what arrived: prove it, challenge the peer if it is
    /// unknown too, and retransmit what is in flight.
    fn challenged(&mut self, now: Time, p: &Parsed, token: u64) {
        let mine = self.rng.next_u64().max(1);
        let Some(peer) = self.peers.get_mut(&p.source) else { return };
        let mut counter = 0;
        if peer.incarnation != Some(p.incarnation) {
            counter = match peer.challenge {
                Some((challenged, old, _)) if challenged == p.incarnation => old,
                _ => mine,
            };
            peer.challenge = Some((p.incarnation, counter, now));
            // It is not proven that this incarnation still lives. If another one does, its proof corrects the version.
            peer.newest = p.newest.max(p.version);
        }
        peer.say(Control::Proof { answer: token, token: counter });
        if now.since(peer.challenged) >= CHALLENGE_EVERY {
            peer.challenged = now;
            peer.flows.iter_mut().for_each(|f| f.tx.lose_all());
            self.lose_unbound(now);
        }
    }

    /// Marks as lost what went through the switch, whichever connection holds it: it may have reached a server that
    /// dropped it.
    fn lose_unbound(&mut self, now: Time) {
        let holders: BTreeSet<NodeId> = self.routed.iter().flat_map(|r| r.values().copied()).collect();
        for node in holders {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            peer.flows.iter_mut().for_each(|f| f.tx.lose_unbound());
            self.touch(now, node);
        }
    }

    fn heard(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        (peer.heard, peer.owed) = (now, None);
        peer.ping_at = now + self.cfg.keep_alive;
        if std::mem::take(&mut peer.down)
            && let Some(incarnation) = peer.incarnation
        {
            self.event(Event::PeerUp { peer: node, incarnation });
        }
    }

    fn pong(&mut self, now: Time, node: NodeId, token: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if token as u16 == STREAM_PATH {
            return;
        }
        peer.paths.works(token as u16);
        if token as u16 == peer.paths.current {
            peer.path_works = now;
        }
        if peer.carrier == Carrier::Stream && token & TRIAL_TOKEN != 0 {
            peer.loss_lost = peer.loss_lost.saturating_sub(1);
            self.stream_trial(now, node);
        }
    }

    fn acks_arrived(&mut self, now: Time, p: &Parsed, acks: &[u8], at: Time) {
        let (head, entries) = header::acks(acks);
        if head.whose != whose(self.local, self.incarnation) && !mutant!("transport.ack.other-incarnation") {
            return;
        }
        let (mut mine, mut moved) = (Vec::new(), Vec::new());
        for e in entries {
            if e.id.space != Space::Routed {
                if e.id.space == Space::Direct || self.expects(p.class, p.source, e.id) {
                    mine.push(e);
                }
                continue;
            }
            match self.routed[p.class as usize].get(&e.id.number) {
                Some(holder) if *holder != p.source => moved.push((*holder, e)),
                Some(holder) => {
                    self.bind(*holder, p.class, &e);
                    mine.push(e);
                }
                None => {}
            }
        }
        for (holder, e) in moved {
            if self.move_routed(now, p.class, holder, p.source, &e) {
                mine.push(e);
            }
            self.touch(now, holder);
        }
        let Some(peer) = self.peers.get_mut(&p.source) else { return };
        let progress = peer.flow(p.class).tx.acked(now, at, &head, &mine, &self.cfg);
        self.book(now, p.source, p.class, progress);
    }

    /// Binds the transfer to its first responder (protocol rule 13).
    fn bind(&mut self, holder: NodeId, class: Class, e: &AckEntry) {
        if let Some(o) = self.peers.get_mut(&holder).and_then(|p| p.flow(class).tx.transfers.get_mut(&e.id)) {
            o.bound = true;
        }
    }

    /// Another server than expected answered first and gets the rest of the message. False if the message is bound to
    /// the peer that holds it.
    fn move_routed(&mut self, now: Time, class: Class, from: NodeId, to: NodeId, e: &AckEntry) -> bool {
        let id = e.id;
        let Some(holder) = self.peers.get_mut(&from) else { return false };
        let tx = &mut holder.flow(class).tx;
        if tx.transfers.get(&id).is_none_or(|o| o.bound && !mutant!("transport.routed.rebinds")) {
            return false;
        }
        if mutant!("transport.routed.waits-on") {
            tx.progress = now;
        } else {
            tx.advanced(now);
        }
        let Some(mut o) = tx.take(id) else { return false };
        if tx.in_flight() == 0 && holder.in_flight() == 0 {
            holder.owed = None;
        }
        o.bound = true;
        if o.settles || !self.hints.contains_key(&o.vssd) {
            if self.hints.len() >= crate::endpoint::HINTS_MAX {
                self.hints.clear();
            }
            self.hints.insert(o.vssd, to);
        }
        self.routed[class as usize].insert(id.number, to);
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.flow(class).tx.adopt(o);
        }
        true
    }

    fn chunk_arrived(&mut self, now: Time, p: &Parsed, d: &[u8], note: Note, known: &[u32]) -> Count {
        let Kind::Chunk(c) = p.kind else { return |c| &mut c.drop_malformed };
        let Some(peer) = self.peers.get_mut(&p.source) else { return TOO_MANY };
        let half = peer.half_bytes();
        let room = Room {
            reassembly: fair_bytes(self.cfg.reassembly_bytes_max, self.cfg.reassembly_bytes_total, self.half_bytes)
                .saturating_sub(half),
            unread: self.cfg.unread_bytes_max.saturating_sub(self.unread_bytes),
        };
        let summed = self.cfg.block_crcs || self.auth.keys().is_none();
        let d = Datagram { long: p.form == header::LONG, bytes: d, payload: p.payload.clone(), known, summed };
        let rx = &mut peer.flow(p.class).rx;
        let outcome = rx.chunk(now, &c, &d, room);
        self.counters.chunks_early += u64::from(std::mem::take(&mut rx.early));
        let taken = !matches!(outcome, Outcome::Contradicts | Outcome::NoRoom | Outcome::Unread);
        if taken {
            let (at, counter, marked) = (note.at, p.counter, note.marked);
            // The sender learns soon that it is late, not lost (RFC 9000 §13.2.1). Groups report gaps themselves.
            let late = c.id.space != Space::Group && rx.is_late(counter);
            let arrival = Arrival { at, datagrams: 1, counter, marked, ack_now: c.ack_now || late };
            rx.arrived(now, arrival, &self.cfg);
        }
        self.half_bytes = self.half_bytes + peer.half_bytes() - half;
        match outcome {
            Outcome::Single => {
                let (message, crcs) = Receiver::whole(&c, &d);
                self.deliver(p.source, p.class, message, crcs);
            }
            Outcome::Whole(message, crcs) => self.deliver(p.source, p.class, message, crcs),
            Outcome::Stored => {}
            Outcome::Duplicate => {
                if c.unheard {
                    self.way_back(now, p.source);
                }
                return |c| &mut c.drop_duplicate;
            }
            Outcome::Contradicts => return |c| &mut c.drop_contradiction,
            Outcome::NoRoom => return |c| &mut c.drop_no_room,
            Outcome::Unread => return |c| &mut c.drop_unread,
        }
        |c| &mut c.accepted
    }
}
