//! Messages in flight to one peer in one class: chunks, their transmissions, acknowledgements and retransmission.
//! Losses: [`loss`].

mod loss;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_core::{Span, Time};

use crate::config::{Config, Retransmission};
use crate::congestion::{self, Acked, Congestion};
use crate::counters::FlowCounts;
use crate::header::{ACK_SPAN, AckEntry, AckHead, Space, TransferId};
use crate::outgoing::{ARRIVED, LOST, Outgoing, UNSENT};
use crate::progress::{Begun, Pick, Progress, Sent};
use crate::rtt::Rtt;

/// The kernel's departure time is requested at least this often, and every round trip if this many datagrams are in
/// flight. For this long after a report, round trips without it are not sampled.
const STAMP_EVERY: Span = Span::from_millis(1);
const STAMP_BUSY_DATAGRAMS: u64 = 4;
/// Shortest interval of requests: a short round trip's worth of system calls.
const STAMP_BUSY_EVERY: Span = Span::from_micros(100);
const STAMPS_LAST: Span = Span::from_millis(100);
/// Bytes in flight over a stream: as much as a socket holds until it is acknowledged.
const STREAM_WINDOW: u64 = 256 << 10;

/// The first id of messages to groups; all later ids are such too.
const GROUPS: TransferId = TransferId { space: Space::Group, number: 0 };

#[derive(Debug)]
pub(crate) struct Sender {
    pub transfers: BTreeMap<TransferId, Outgoing>,
    next_number: u64,
    /// Begun messages with unsent chunks, served in turns.
    waiting: VecDeque<TransferId>,
    /// Messages of several chunks that are not begun, in order of arrival. Some may have gone.
    later: VecDeque<TransferId>,
    begun: Begun,
    lost: VecDeque<(TransferId, u8, u32)>,
    sent: VecDeque<Sent>,
    /// The last ones that were declared lost, by counter: their acknowledgements, too, say how long the way takes.
    given_up: VecDeque<Sent>,
    /// Newest datagram whose acknowledgement has come, in flight or declared lost.
    newest_echo: u64,
    in_flight: u64,
    pub bytes: usize,
    congestion: Box<dyn Congestion>,
    /// The congestion window after its last change.
    window: u64,
    by_stream: bool,
    pub rtt: Rtt,
    /// Round trip including host time. Timeouts are derived from it, so that a busy host is not taken for a loss.
    turn: Rtt,
    backoff: u32,
    /// Lost chunks that are sent regardless of the window: what is in flight may be lost too (RFC 9002 §7.5).
    probes: usize,
    /// Chunks are sent again alone, not with all that follow them.
    selective: bool,
    /// When something last arrived or was first sent.
    pub progress: Time,
    largest_echo: u64,
    /// That datagram went to a whole group: a path other than the peer's own.
    echo_shared: bool,
    deadlines: BTreeSet<(Time, TransferId)>,
    limited: bool,
    received: u32,
    marked: u32,
    /// Whether it is in the endpoint's queue of those with something to send.
    pub queued: bool,
    /// Datagrams go to several peers (through the switch), so their order says nothing.
    unordered: bool,
    /// When the kernel's departure time is next requested.
    stamp_at: Time,
    /// Until then round trips without the kernel's time are not sampled, because better ones follow.
    stamps_until: Time,
    pub counts: FlowCounts,
}

impl Sender {
    pub fn new(cfg: &Config, unordered: bool) -> Sender {
        let congestion = congestion::new(cfg.algorithm, cfg.datagram_bytes_max, cfg.base_rtt);
        Sender {
            transfers: BTreeMap::new(),
            next_number: 0,
            waiting: VecDeque::new(),
            later: VecDeque::new(),
            begun: Begun::default(),
            lost: VecDeque::new(),
            sent: VecDeque::new(),
            given_up: VecDeque::new(),
            newest_echo: 0,
            in_flight: 0,
            bytes: 0,
            window: congestion.window(),
            by_stream: false,
            congestion,
            rtt: Rtt::default(),
            turn: Rtt::default(),
            backoff: 0,
            probes: 0,
            selective: cfg.retransmission == Retransmission::Selective,
            progress: Time::ZERO,
            largest_echo: 0,
            echo_shared: false,
            deadlines: BTreeSet::new(),
            limited: false,
            received: 0,
            marked: 0,
            queued: false,
            unordered,
            stamp_at: Time::ZERO,
            stamps_until: Time::ZERO,
            counts: FlowCounts::default(),
        }
    }
    pub fn next_direct(&self) -> TransferId {
        TransferId { space: Space::Direct, number: self.next_number }
    }
    /// Distance of the oldest unacknowledged direct message from the next.
    pub fn direct_span(&self) -> u64 {
        let oldest = self.transfers.range(..TransferId { space: Space::Routed, number: 0 }).next();
        oldest.map_or(0, |(id, _)| self.next_number - id.number)
    }
    /// Returns the number of chunks.
    pub fn push(&mut self, mut o: Outgoing, chunk_bytes: usize) -> u32 {
        if o.id.space == Space::Direct {
            self.next_number = o.id.number + 1;
        }
        o.cut(chunk_bytes);
        let count = o.left;
        self.insert(o);
        count
    }
    /// Sends the rest of the message to this peer individually.
    pub fn unshare(&mut self, id: TransferId) {
        if let Some(o) = self.transfers.get_mut(&id)
            && std::mem::take(&mut o.shared)
        {
            let queue = if o.chunks.len() == 1 { &mut self.waiting } else { &mut self.later };
            queue.push_back(id);
        }
    }
    pub fn unshare_all(&mut self) {
        let all: Vec<TransferId> = self.transfers.range(GROUPS..).map(|(id, _)| *id).collect();
        all.into_iter().for_each(|id| self.unshare(id));
    }
    fn insert(&mut self, o: Outgoing) {
        self.bytes += o.message.len();
        if o.deadline != Time::MAX {
            self.deadlines.insert((o.deadline, o.id));
        }
        if !o.shared {
            let queue = if o.chunks.len() == 1 { &mut self.waiting } else { &mut self.later };
            queue.push_back(o.id);
        }
        self.transfers.insert(o.id, o);
    }
    /// Begins messages: the oldest, or the newest while the oldest has less than half of its time left. In such an
    /// overload the older ones would be late even if they were begun.
    fn begin(&mut self, now: Time) {
        while !self.begun.full()
            && let Some(&oldest) = self.later.front()
        {
            let Some(o) = self.transfers.get(&oldest).filter(|o| !o.begun) else {
                self.later.pop_front();
                continue;
            };
            let id = if now < o.late { self.later.pop_front() } else { self.later.pop_back() };
            if let Some(o) = id.and_then(|id| self.transfers.get_mut(&id)).filter(|o| !o.begun) {
                self.begun.add(o);
                self.waiting.push_back(o.id);
            }
        }
    }
    /// Takes a message that another peer's connection held and that is now bound to this one.
    pub fn adopt(&mut self, mut o: Outgoing) {
        for state in &mut o.chunks {
            if *state != ARRIVED {
                *state = UNSENT;
            }
        }
        o.next = o.base;
        self.insert(o);
    }
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }
    /// Whether anything is in flight to this peer alone.
    pub fn alone_in_flight(&self) -> bool {
        self.sent.iter().any(|s| s.in_flight && !s.shared)
    }
    /// Whether anything is in flight to whichever server the switch chooses.
    pub fn unbound_in_flight(&self) -> bool {
        let unbound = |id| self.transfers.get(&id).is_some_and(|o| o.id.space == Space::Routed && !o.bound);
        self.sent.iter().any(|s| s.in_flight && unbound(s.id))
    }
    pub fn window(&self) -> u64 {
        if self.by_stream { STREAM_WINDOW } else { self.window }
    }
    fn room(&self, bytes: usize) -> bool {
        self.in_flight == 0 || self.in_flight + bytes as u64 <= self.window()
    }
    /// From now on datagrams go by a stream, or no longer. TCP has a congestion window of its own, and resends what is lost:
    /// a second one would shrink with each of its timeouts, and leave it too little in flight to notice a loss sooner.
    pub fn use_stream(&mut self, by_stream: bool) {
        self.by_stream = by_stream && !mutant!("transport.stream.congestion");
    }

    /// The next chunk that may be sent, lost ones first. [`Sender::sent`] must follow.
    pub fn pick(&mut self, now: Time) -> Option<Pick> {
        self.begin(now);
        if let Some(pick) = self.pick_probe() {
            return Some(pick);
        }
        while let Some(&(id, attempt, chunk)) = self.lost.front() {
            let wanted = self.transfers.get(&id).filter(|o| o.attempt == attempt && o.chunks[chunk as usize] == LOST);
            let Some(bytes) = wanted.map(|o| o.chunk_bytes) else {
                self.lost.pop_front();
                continue;
            };
            if !self.room(bytes) && self.probes == 0 {
                self.limited = true;
                return None;
            }
            self.probes = self.probes.saturating_sub(1);
            self.lost.pop_front();
            return Some(Pick { id, chunk, again: true });
        }
        for _ in 0..self.waiting.len() {
            let id = self.waiting.pop_front()?;
            let Some(o) = self.transfers.get_mut(&id) else { continue };
            while (o.next as usize) < o.chunks.len() && o.chunks[o.next as usize] != UNSENT {
                o.next += 1;
            }
            if o.next as usize >= o.chunks.len() {
                self.begun.end(o);
                continue;
            }
            let (may, bytes, chunk) = (o.may_send_more(), o.chunk_bytes, o.next);
            if !may {
                self.waiting.push_back(id);
                continue;
            }
            self.waiting.push_front(id);
            if !self.room(bytes) {
                self.limited = true;
                return None;
            }
            return Some(Pick { id, chunk, again: false });
        }
        None
    }
    /// Whether there is anything for a train besides that chunk.
    pub fn waits_beside(&self, pick: Pick) -> bool {
        self.waiting.len() > 1 || self.transfers.get(&pick.id).is_some_and(|o| pick.chunk as usize + 1 < o.chunks.len())
    }
    /// Another unsent chunk for the train of `last`, which must fit by its bytes: of the same message while it has any,
    /// then of the next.
    pub fn pick_more(&mut self, last: TransferId, fits: impl Fn(&Outgoing, u32) -> bool) -> Option<Pick> {
        if !self.lost.is_empty() {
            return None;
        }
        // An incomplete message has just had its turn.
        let same = self.waiting.back() == Some(&last);
        let id = if same { last } else { *self.waiting.front()? };
        let o = self.transfers.get(&id)?;
        let chunk = o.next;
        let fresh = o.may_send_more() && o.chunks[chunk as usize] == UNSENT;
        if !fresh || !fits(o, chunk) {
            return None;
        }
        if !self.room(o.chunk_bytes) {
            self.limited = true;
            return None;
        }
        if same {
            self.waiting.rotate_right(1);
        }
        Some(Pick { id, chunk, again: false })
    }
    /// Whether the window has room for the group's chunk; `None` if it is no longer sent that way.
    pub fn room_in_group(&mut self, id: TransferId, chunk: u32) -> Option<bool> {
        let o = self.transfers.get(&id).filter(|o| o.shared)?;
        let spoken_of = chunk <= o.base.saturating_add(ACK_SPAN);
        let room = self.room(o.chunk_bytes);
        self.limited |= !room;
        Some(room && spoken_of)
    }
    /// Whether nothing more could be sent after a datagram of `bytes`, so that its acknowledgement is awaited.
    pub fn full_after(&self, bytes: usize) -> bool {
        self.in_flight + 2 * bytes as u64 > self.window()
    }
    /// The chunk was sent in a datagram of `bytes`.
    pub fn sent(&mut self, now: Time, pick: Pick, counter: u64, bytes: usize) {
        let Some(o) = self.transfers.get_mut(&pick.id) else { return };
        if !pick.again {
            o.next = pick.chunk + 1;
            let whole = o.next as usize >= o.chunks.len();
            if whole {
                self.begun.end(o);
            }
            // In turns: a long message does not delay short ones behind it.
            if let Some(id) = self.waiting.pop_front()
                && !whole
            {
                self.waiting.push_back(id);
            }
        }
        self.on_the_way(now, pick, counter, bytes, false);
    }
    /// The chunks after `last`, which was just sent, are sent in datagrams of `bytes` each: those of data only and as
    /// long as `last`, while there is room for another after them. `put` assigns each its counter. Returns their
    /// number, at most `most`.
    pub fn sent_run(
        &mut self,
        now: Time,
        last: TransferId,
        bytes: usize,
        most: usize,
        mut put: impl FnMut(&Outgoing, u32) -> u64,
    ) -> usize {
        let turn = self.lost.is_empty() && self.waiting.back() == Some(&last);
        let Some(o) = self.transfers.get_mut(&last).filter(|_| turn) else { return 0 };
        let (id, bytes, window) = (last, bytes as u64, if self.by_stream { STREAM_WINDOW } else { self.window });
        let mut count = 0;
        while count < most
            && (o.next as usize) + 1 < o.chunks.len()
            && o.chunks[o.next as usize] == UNSENT
            && o.may_send_more()
            && o.next as usize * o.chunk_bytes >= o.prefix_bytes()
            && self.in_flight + 2 * bytes <= window
        {
            let (chunk, counter) = (o.next, put(o, o.next));
            o.chunks[chunk as usize] = counter;
            o.next += 1;
            self.in_flight += bytes;
            let (at, left, stamped, in_flight, shared, again) = (now, now, false, true, false, false);
            let bytes = bytes as u32;
            self.sent.push_back(Sent { counter, id, chunk, bytes, at, left, stamped, in_flight, shared, again });
            count += 1;
        }
        self.counts.sent += count as u64;
        count
    }
    /// The chunk was sent in a datagram to the whole group.
    pub fn sent_to_group(&mut self, now: Time, pick: Pick, counter: u64, bytes: usize) {
        if let Some(o) = self.transfers.get_mut(&pick.id) {
            o.next = pick.chunk + 1;
            self.on_the_way(now, pick, counter, bytes, true);
        }
    }
    fn on_the_way(&mut self, now: Time, pick: Pick, counter: u64, bytes: usize, shared: bool) {
        let Some(o) = self.transfers.get_mut(&pick.id) else { return };
        o.chunks[pick.chunk as usize] = counter;
        if self.in_flight == 0 && !pick.again {
            self.progress = now;
        }
        self.in_flight += bytes as u64;
        self.counts.sent += 1;
        self.counts.sent_again += u64::from(pick.again);
        let (id, chunk, bytes) = (pick.id, pick.chunk, bytes as u32);
        let (at, left, stamped, in_flight, again) = (now, now, false, true, pick.again);
        self.sent.push_back(Sent { counter, id, chunk, bytes, at, left, stamped, in_flight, shared, again });
    }
    /// Whether to request the kernel's departure time of the picked datagram: once per round trip of a busy connection,
    /// once in a while for others. Each request costs a system call.
    pub fn wants_stamp(&mut self, now: Time, datagram: usize) -> bool {
        if now < self.stamp_at {
            return false;
        }
        let busy = self.in_flight >= STAMP_BUSY_DATAGRAMS * datagram as u64;
        self.stamp_at = now + if busy { self.rtt.smoothed().clamp(STAMP_BUSY_EVERY, STAMP_EVERY) } else { STAMP_EVERY };
        true
    }
    /// The driver learned the datagram's departure time.
    pub fn departed_at(&mut self, counter: u64, at: Time) {
        if let Ok(i) = self.sent.binary_search_by_key(&counter, |s| s.counter) {
            let s = &mut self.sent[i];
            (s.left, s.stamped) = (s.at.max(at), true);
            self.stamps_until = s.left + STAMPS_LAST;
        }
    }

    /// Something has arrived by this connection's way: the time until the next retransmission begins anew.
    pub fn advanced(&mut self, now: Time) {
        self.progress = now;
        self.backoff = 0;
    }

    /// Acknowledgements of this class arrived at `at`.
    pub fn acked(&mut self, now: Time, at: Time, head: &AckHead, entries: &[AckEntry], cfg: &Config) -> Progress {
        let mut p = Progress::default();
        let echoed = self.sent.binary_search_by_key(&head.echo, |s| s.counter).ok();
        let first = echoed.map(|i| self.sent[i]).filter(|s| s.in_flight);
        let known = first.or_else(|| self.take_given_up(head.echo));
        self.newest_echo = self.newest_echo.max(known.map_or(0, |s| s.counter));
        let rtt = known.map(|s| {
            let network = Span(at.since(s.left).0.saturating_sub(u64::from(head.hold_ns)));
            (network, now.since(s.at), s.stamped)
        });
        let newest = echoed.is_some() && head.echo > self.largest_echo;
        if newest {
            self.largest_echo = head.echo;
            self.echo_shared = echoed.is_some_and(|i| self.sent[i].shared);
        }
        let mut bytes = 0;
        for e in entries {
            bytes += self.entry(e, head.echo, &mut p);
            if self.forgotten(e, newest) {
                self.recut(e.id, None);
            }
        }
        let rtt = rtt.and_then(|(network, turn, stamped)| {
            self.turn.add(now, turn);
            // The wall clock of the timestamps may be set between two of them.
            let sample = network > Span::ZERO && (stamped || now >= self.stamps_until);
            self.counts.samples += u64::from(sample);
            self.counts.stamped += u64::from(stamped);
            sample.then_some((network, turn))
        });
        if let Some((network, _)) = rtt {
            self.rtt.add(now, network);
        }
        let timed_out = self.backoff > 0;
        if bytes > 0 {
            self.advanced(now);
        }
        let counted = (head.received.wrapping_sub(self.received), head.marked.wrapping_sub(self.marked));
        let newer = counted.0 < u32::MAX / 2;
        if newer {
            (self.received, self.marked) = (head.received, head.marked);
        }
        if !self.by_stream {
            self.congestion.acked(&Acked {
                now,
                bytes,
                rtt,
                late: self.rtt.late(now),
                received: if newer { counted.0 } else { 0 },
                marked: if newer { counted.1.min(counted.0) } else { 0 },
                limited: self.limited,
            });
            self.window = self.congestion.window();
        }
        if bytes > 0 {
            self.limited = false;
        }
        if cfg.retransmission == Retransmission::GoBackN {
            // It retransmits what was not lost, too.
            p.spurious = 0;
        } else if p.spurious > 0 {
            // If a newer datagram has arrived too, an acknowledgement may have been lost, with no datagram late.
            if !newest && !timed_out {
                self.rtt.reordered(now);
            }
            self.congestion.spurious(p.spurious);
        }
        self.find_lost(now, cfg, &mut p);
        p
    }

    /// `echo` is the newest datagram that arrived.
    fn entry(&mut self, e: &AckEntry, echo: u64, p: &mut Progress) -> u64 {
        let id = e.id;
        let Some(o) = self.transfers.get_mut(&id) else { return 0 };
        if !e.done && e.attempt != o.attempt {
            return 0;
        }
        let (mut bytes, missing) = (0, o.left);
        for chunk in o.base..o.chunks.len() as u32 {
            let state = o.chunks[chunk as usize];
            if chunk > o.next.max(u32::from(e.base)).saturating_add(ACK_SPAN) && !e.done {
                break;
            }
            if state == ARRIVED || !e.has(chunk) {
                continue;
            }
            o.chunks[chunk as usize] = ARRIVED;
            o.left -= 1;
            match state {
                LOST => p.spurious += 1,
                UNSENT => {}
                counter => {
                    if let Ok(i) = self.sent.binary_search_by_key(&counter, |s| s.counter)
                        && std::mem::take(&mut self.sent[i].in_flight)
                    {
                        let s = self.sent[i];
                        bytes += u64::from(s.bytes);
                        // An earlier transmission has arrived, since this one has not.
                        p.spurious += u32::from(s.again && s.counter > echo);
                        if s.shared {
                            p.shared_arrived = o.group;
                        } else {
                            p.arrived += 1;
                            p.largest_arrived = p.largest_arrived.max(s.bytes);
                        }
                    }
                }
            }
        }
        while (o.base as usize) < o.chunks.len() && o.chunks[o.base as usize] == ARRIVED {
            o.base += 1;
        }
        self.in_flight -= bytes;
        p.repeated += u32::from(o.group.is_some() && o.left == missing && !e.done);
        if e.done
            && let Some(o) = self.take(id)
        {
            p.finished.push(o);
        }
        bytes
    }
    /// Whether the receiver has dropped its part of the message: it misses chunks that it had, or has all and is not
    /// done.
    fn forgotten(&self, e: &AckEntry, newest: bool) -> bool {
        let Some(o) = self.transfers.get(&e.id).filter(|o| o.attempt == e.attempt && !e.done) else { return false };
        let told = o.next.min(u32::from(e.base).saturating_add(ACK_SPAN));
        o.left == 0 || newest && (u32::from(e.base)..told).any(|c| o.chunks[c as usize] == ARRIVED && !e.has(c))
    }

    /// Takes a message whose deadline has passed.
    pub fn expired(&mut self, now: Time) -> Option<Outgoing> {
        let &(at, id) = self.deadlines.first()?;
        if at > now { None } else { self.take(id) }
    }
    /// Removes a message; its datagrams in flight no longer count.
    pub fn take(&mut self, id: TransferId) -> Option<Outgoing> {
        let mut o = self.transfers.remove(&id)?;
        self.bytes -= o.message.len();
        self.deadlines.remove(&(o.deadline, id));
        for counter in o.chunks.iter().filter(|c| !matches!(**c, UNSENT | LOST | ARRIVED)) {
            if let Ok(i) = self.sent.binary_search_by_key(counter, |s| s.counter)
                && std::mem::take(&mut self.sent[i].in_flight)
            {
                self.in_flight -= u64::from(self.sent[i].bytes);
            }
        }
        self.tidy();
        self.begun.end(&mut o);
        Some(o)
    }
    /// Restarts all messages in chunks of that size: the peer has restarted, or large datagrams vanish.
    pub fn restart(&mut self, chunk_bytes: usize, larger_only: bool) {
        self.backoff = 0;
        let ids: Vec<TransferId> = self.transfers.keys().copied().collect();
        for id in ids {
            if larger_only && self.transfers.get(&id).is_some_and(|o| o.chunk_bytes.min(o.body_bytes()) <= chunk_bytes)
            {
                continue;
            }
            self.recut(id, Some(chunk_bytes));
        }
    }
    /// Restarts the message in chunks of that size or of its own.
    fn recut(&mut self, id: TransferId, chunk_bytes: Option<usize>) {
        let Some(mut o) = self.take(id) else { return };
        o.attempt = o.attempt.wrapping_add(1);
        o.shared = false;
        o.cut(chunk_bytes.unwrap_or(o.chunk_bytes));
        self.waiting.retain(|w| *w != id);
        self.later.retain(|w| *w != id);
        self.insert(o);
    }
    pub fn has_work(&self) -> bool {
        !self.lost.is_empty() || !self.waiting.is_empty() || !self.later.is_empty()
    }
    pub fn timed_out(&self) -> u32 {
        self.backoff
    }
}
