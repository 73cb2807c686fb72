//! Order of transmission: control messages, gold, silver and copper chunks, separate acknowledgements.

use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Time};

use crate::api::{Transmit, Via};
use crate::endpoint::{CLASSES, Endpoint, single};
use crate::header::{
    self, AckEntry, AckHead, Chunk, EXTENSION_BYTES, Form, HEAD_BYTES, LONG, LONG_BYTES, SHORT, SHORT_BYTES, Sender,
    ShortOp, Space, TransferId, whose,
};
use crate::outgoing::{Outgoing, pieces};
use crate::peer::{Carrier, Control, STREAM_PATH};
use crate::progress::Pick;

/// Timeouts in a row after which the peer is informed, because its acknowledgements may take a bad path.
const UNHEARD_TIMEOUTS: u32 = 2;
/// Datagrams per train: Linux's limit (UDP_MAX_SEGMENTS before 6.9).
const TRAIN_DATAGRAMS: usize = 64;
/// Silver chunks per copper chunk while both wait (PN10: offline work gets what online work leaves, and a little more).
const SILVER_PER_COPPER: u32 = 8;

impl Endpoint {
    /// The next bytes to send, `None` when there are no more. They must be sent at once.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        let t = self
            .poll_bare()
            .or_else(|| self.poll_talk(now))
            .or_else(|| self.poll_chunk(now))
            .or_else(|| self.poll_acks(now))?;
        let datagrams = t.segment.map_or(1, |s| t.bytes.len().div_ceil(s));
        self.counters.sent += datagrams as u64;
        self.counters.sent_bytes += t.bytes.len() as u64;
        Some(t)
    }

    fn poll_bare(&mut self) -> Option<Transmit> {
        let (to, class, d) = self.bare.pop_front()?;
        Some(single(to, self.via(to), class, d, 0))
    }

    pub(crate) fn next_counter(&mut self) -> u64 {
        self.counter += 1;
        self.last_counter()
    }
    fn last_counter(&self) -> u64 {
        u64::from(self.auth.sending()) << 56 | self.counter
    }
    /// Sender fields for a peer of that version.
    pub(crate) fn sender(&self, newest: u8) -> Sender {
        Sender {
            node: self.local,
            incarnation: self.incarnation,
            version: newest.min(self.cfg.version),
            newest: self.cfg.version,
            encrypt: self.encrypts(),
        }
    }
    fn encrypts(&self) -> bool {
        self.cfg.encrypt && !self.auth.keys().is_none()
    }

    fn poll_talk(&mut self, now: Time) -> Option<Transmit> {
        while let Some(node) = self.talk.pop_front() {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let Some(control) = peer.controls.pop_front() else {
                peer.talking = false;
                continue;
            };
            self.talk.push_front(node);
            let path = peer.paths.current;
            return Some(self.control(now, node, control, path));
        }
        None
    }

    fn control(&mut self, now: Time, node: NodeId, control: Control, path: u16) -> Transmit {
        let (op, words) = match control {
            Control::Ping { token, .. } => (ShortOp::Ping, [Some(token), None]),
            Control::Pong { token } => (ShortOp::Pong, [Some(token), None]),
            Control::Challenge { token, .. } => (ShortOp::Challenge, [Some(token), None]),
            Control::Proof { answer, token } => (ShortOp::Proof, [Some(answer), Some(token)]),
            Control::Outdated { refused, newest, .. } => (ShortOp::Outdated, [Some(refused), Some(newest)]),
        };
        match op {
            ShortOp::Ping => self.counters.pings_sent += 1,
            ShortOp::Challenge => self.counters.challenges_sent += 1,
            ShortOp::Outdated => self.counters.outdated_sent += 1,
            _ => {}
        }
        // Pings test the paths even while the stream is used; challenges and proofs go where their peer sent from.
        let via = match control {
            Control::Ping { path, .. } if path != STREAM_PATH => Via::Path(path),
            Control::Pong { token } if token as u16 != STREAM_PATH => Via::Path(path),
            Control::Challenge { by_stream: true, .. } | Control::Outdated { by_stream: true, .. } => Via::Stream,
            _ => self.via(node),
        };
        // In the older version: a peer may have been downgraded to it, and understands nothing newer.
        let (counter, from) = (self.next_counter(), self.sender(crate::VERSION - 1));
        let mut d = Vec::with_capacity(80);
        header::put_short(&mut d, op, Class::Gold, &from, node, counter);
        header::put_brief(&mut d, &from, false);
        words.into_iter().flatten().for_each(|w| d.extend_from_slice(&w.to_be_bytes()));
        self.auth.seal((self.local, self.incarnation), &mut d, 0, SHORT, None, &[]);
        if op == ShortOp::Ping
            && let Some(peer) = self.peers.get_mut(&node)
        {
            peer.owed.get_or_insert(now);
            self.touch(now, node);
        }
        single(node, via, Class::Gold, d, counter)
    }

    fn poll_chunk(&mut self, now: Time) -> Option<Transmit> {
        let copper_first = self.silver_run >= SILVER_PER_COPPER;
        let order = if copper_first { [0, 2, 1] } else { [0, 1, 2] };
        for i in order {
            for _ in 0..self.ready[i].len() {
                let Some(node) = self.ready[i].pop_front() else { break };
                let group = self.groups.contains_key(&node);
                let t = if group {
                    self.chunk_to_group(now, node, CLASSES[i])
                } else {
                    self.chunk_to(now, node, CLASSES[i])
                };
                if let Some(t) = t {
                    match i {
                        1 if !self.ready[2].is_empty() => self.silver_run += 1,
                        2 => self.silver_run = 0,
                        _ => {}
                    }
                    return Some(t);
                }
            }
        }
        None
    }

    /// A chunk, or a train of them, to that peer in that class, if its window permits. Peers take turns.
    fn chunk_to(&mut self, now: Time, node: NodeId, class: Class) -> Option<Transmit> {
        let peer = self.peers.get_mut(&node)?;
        let picked = peer.flow(class).tx.pick(now);
        let Some(pick) = picked else {
            peer.flow(class).tx.queued = false;
            self.touch(now, node);
            return None;
        };
        let (datagram, current, on_stream) = (peer.datagram, peer.paths.current, peer.carrier == Carrier::Stream);
        let timed = !on_stream && peer.flow(class).tx.wants_stamp(now, datagram);
        let seeks = |o: &Outgoing| o.by == Some(node) && !o.bound && !mutant!("transport.stream.to-switch");
        let seeks_server = on_stream && peer.flow(class).tx.transfers.get(&pick.id).is_some_and(seeks);
        let chunk = peer.flow(class).tx.transfers.get(&pick.id).map_or(0, |o| o.chunk(pick.chunk, false).range().len());
        let one = LONG_BYTES + header::ACK_RESERVE + chunk;
        let more = self.peers.get(&node).is_some_and(|p| p.flows[class as usize].tx.waits_beside(pick));
        let mut d = Vec::with_capacity(if more { one.max(self.cfg.train_bytes_max) } else { one });
        let (to, counter) = self.put_datagram(now, node, class, pick, None, &mut d);
        let (segment, counter) = if more && to == node && !pick.again && !seeks_server {
            self.train(now, node, class, pick, counter, &mut d)
        } else {
            (None, counter)
        };
        self.ready[class as usize].push_back(node);
        self.touch(now, node);
        // A switch forwards datagrams, not what arrives on a stream to itself.
        let via = if seeks_server { Via::Path(current) } else { self.via(node) };
        Some(Transmit { segment, peer: node, timed, ..single(to, via, class, d, counter) })
    }

    fn via(&self, node: NodeId) -> Via {
        match self.peers.get(&node) {
            Some(p) if p.carrier == Carrier::Stream => Via::Stream,
            p => Via::Path(p.map_or(0, |p| p.paths.current)),
        }
    }

    /// Appends the datagram of a picked chunk. Returns its destination and counter. In a train it has the form of the
    /// first, so that it is as long, and no acknowledgements.
    fn put_datagram(
        &mut self,
        now: Time,
        node: NodeId,
        class: Class,
        pick: Pick,
        like: Option<Form>,
        d: &mut Vec<u8>,
    ) -> (NodeId, u64) {
        let start = d.len();
        let reused = pick.again && mutant!("transport.nonce.reused");
        let counter = if reused { self.last_counter() } else { self.next_counter() };
        let encrypt = self.encrypts();
        let Some(peer) = self.peers.get_mut(&node) else { return (node, counter) };
        let (newest, datagram, named) = (peer.newest, peer.datagram, whose_of(peer.incarnation, node));
        let on_stream = peer.carrier == Carrier::Stream;
        let left = peer.paths.since;
        let flow = peer.flow(class);
        let Some(o) = flow.tx.transfers.get(&pick.id) else { return (node, counter) };
        // There is no switch on the stream: the vSSD's last known server is addressed directly.
        let by_switch = o.by.filter(|by| !o.bound && (!on_stream || *by == node));
        let to = by_switch.unwrap_or(node);
        let long = pick.chunk == 0 || by_switch.is_some() || like == Some(LONG);
        let payload = o.chunk(pick.chunk, false).range().len();
        let fixed = if long { LONG_BYTES } else { SHORT_BYTES };
        let acks = if like.is_none() && flow.rx.has_pending_acks() {
            flow.rx.acks(now, named, datagram.saturating_sub(fixed + payload))
        } else {
            None
        };
        let last = flow.tx.full_after(fixed + payload);
        // The path was changed for it, or it is overdue: possibly its answer is what does not arrive.
        let unheard = flow.tx.timed_out() >= UNHEARD_TIMEOUTS || pick.again && left > flow.tx.progress;
        let c = Chunk { unheard, ..o.chunk(pick.chunk, last) };
        let from = Sender {
            node: self.local,
            incarnation: self.incarnation,
            // The switch may send it to any server, and all can read the older version.
            version: if by_switch.is_some() { crate::VERSION - 1 } else { newest.min(self.cfg.version) },
            newest: self.cfg.version,
            encrypt,
        };
        let form = if long {
            header::put_long(d, &o.message.head, to, counter);
            LONG
        } else {
            header::put_short(d, ShortOp::Chunk, class, &from, to, counter);
            SHORT
        };
        header::put_chunk(d, &from, &c, acks.is_some());
        debug_assert_eq!(d.len() - start, form.extension_at + EXTENSION_BYTES);
        put_acks(d, acks);
        let payload_at = d.len() - start;
        let (prefix, data) = pieces(&o.message, &c);
        d.extend_from_slice(prefix);
        self.auth.seal((self.local, self.incarnation), d, start, form, encrypt.then_some(payload_at), data);
        let bytes = d.len() - start;
        flow.tx.sent(now, pick, counter, bytes);
        peer.owed.get_or_insert(now);
        peer.used = now;
        if peer.carrier != Carrier::Stream {
            peer.loss_sent = peer.loss_sent.saturating_add(1);
        }
        self.counters.sent_chunks += 1;
        self.counters.sent_again += u64::from(pick.again);
        self.counters.group_repairs += u64::from(pick.id.space == Space::Group);
        (to, counter)
    }

    /// Extends a datagram to a train: chunks of this and of other messages in the same form, all as long as the first,
    /// except the last. None of them goes through the switch, which would rewrite only the first.
    fn train(
        &mut self,
        now: Time,
        node: NodeId,
        class: Class,
        first: Pick,
        counter: u64,
        d: &mut Vec<u8>,
    ) -> (Option<usize>, u64) {
        let one = d.len();
        let (form, fixed) = if d[0] == ShortOp::Chunk as u8 { (SHORT, SHORT_BYTES) } else { (LONG, LONG_BYTES) };
        let (mut last, mut counter, mut count) = (first.id, counter, 1);
        while d.len() == one * count && d.len() + one <= self.cfg.train_bytes_max && count < TRAIN_DATAGRAMS {
            let Some(peer) = self.peers.get_mut(&node) else { break };
            let on_stream = peer.carrier == Carrier::Stream;
            let fits = |o: &Outgoing, chunk: u32| {
                fixed + o.chunk(chunk, false).range().len() <= one
                    && (form == LONG || chunk > 0)
                    && (o.id.space != Space::Routed || o.bound || (on_stream && o.by != Some(node)))
            };
            let Some(pick) = peer.flow(class).tx.pick_more(last, fits) else { break };
            (_, counter) = self.put_datagram(now, node, class, pick, Some(form), d);
            (last, count) = (pick.id, count + 1);
            if d.len() == one * count {
                count += self.put_run(now, (node, class, last), form, one, TRAIN_DATAGRAMS - count, d);
                counter = self.last_counter();
            }
        }
        (if count > 1 { Some(one) } else { None }, counter)
    }

    /// Extends a train by the chunks after the one in its last datagram, of `one` bytes and without acknowledgements;
    /// common fields are copied. Returns their number, at most `most`.
    fn put_run(
        &mut self,
        now: Time,
        (node, class, id): (NodeId, Class, TransferId),
        form: Form,
        one: usize,
        most: usize,
        d: &mut Vec<u8>,
    ) -> usize {
        let fixed = form.extension_at + EXTENSION_BYTES;
        let (encrypt, like) = (self.encrypts(), d.len() - one);
        let most = most.min((self.cfg.train_bytes_max - d.len()) / one);
        let Some(peer) = self.peers.get_mut(&node) else { return 0 };
        let on_stream = peer.carrier == Carrier::Stream;
        let (auth, last, sender) = (&mut self.auth, &mut self.counter, (self.local, self.incarnation));
        let key = u64::from(auth.sending()) << 56;
        let put = |o: &Outgoing, chunk: u32| {
            *last += 1;
            let (start, counter) = (d.len(), key | *last);
            header::put_continued(d, like, form, counter, chunk as u16);
            let (_, data) = pieces(&o.message, &o.chunk(chunk, false));
            auth.seal(sender, d, start, form, encrypt.then_some(fixed), data);
            counter
        };
        let tx = &mut peer.flow(class).tx;
        if tx.transfers.get(&id).is_none_or(|o| fixed + o.chunk_bytes != one) {
            return 0;
        }
        let count = tx.sent_run(now, id, one, most, put);
        if !on_stream {
            peer.loss_sent = peer.loss_sent.saturating_add(count as u32);
        }
        self.counters.sent_chunks += count as u64;
        count
    }

    fn poll_acks(&mut self, now: Time) -> Option<Transmit> {
        while let Some((node, class)) = self.owing.pop_front() {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let (newest, room, incarnation) =
                (peer.newest, peer.datagram - header::SHORT_HEAD_BYTES - header::BRIEF_BYTES, peer.incarnation);
            let rx = &mut peer.flow(class).rx;
            rx.due = false;
            let acks = if rx.ack_at <= now { rx.acks(now, whose_of(incarnation, node), room) } else { None };
            self.touch(now, node);
            let Some(acks) = acks else { continue };
            let (counter, from) = (self.next_counter(), self.sender(newest));
            let mut d = Vec::with_capacity(128);
            header::put_short(&mut d, ShortOp::Ack, class, &from, node, counter);
            header::put_brief(&mut d, &from, true);
            put_acks(&mut d, Some(acks));
            self.auth.seal((self.local, self.incarnation), &mut d, 0, SHORT, None, &[]);
            self.counters.acks_sent += 1;
            return Some(single(node, self.via(node), class, d, counter));
        }
        None
    }
}

fn whose_of(incarnation: Option<u64>, node: NodeId) -> u32 {
    whose(node, incarnation.unwrap_or(0))
}

fn put_acks(d: &mut Vec<u8>, acks: Option<(AckHead, Vec<AckEntry>)>) {
    if let Some((head, entries)) = acks {
        header::put_acks(d, &head, &entries);
    }
}

const _: () = assert!(HEAD_BYTES == LONG.extension_at);
