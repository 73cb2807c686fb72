//! [`SetClient`]: window, tries and answer of each message.

use rackweave_core::map::{Map, map};
use rackweave_core::msg::{Body, Class, Control, Header, IoError, Mutation, Op, Packet, TRY_SHIFT, message_of, try_of};
use rackweave_core::rng::mix64;
use rackweave_core::{Effects, Epoch, Incarnation, Layout, SetId, Span, Time, VssdId};
use slab::Slab;

use crate::budget::Budget;
use crate::config::SetClientConfig;
use crate::registration::Registration;
use crate::set::{Lane, SetState};
use crate::timers::Timers;

/// The metadata service, in place of a set.
pub const META: u32 = u32::MAX;
/// A tag is slot, try, and the slot's serial ([`Header::request`]).
pub const SLOTS_MAX: u32 = 1 << TRY_SHIFT;

/// Offline I/O waits this many times longer for its answer before another member gets it (PN10): servers hold it back,
/// and a second copy would double the held requests.
const OFFLINE_PATIENCE: u64 = 10;

fn slot_of(tag: u64) -> u32 {
    tag as u32 & (SLOTS_MAX - 1)
}
/// The tag of the next try.
fn next_try(tag: u64) -> u64 {
    message_of(tag) | u64::from(try_of(tag).wrapping_add(1)) << TRY_SHIFT
}
fn serial_of(tag: u64) -> u32 {
    (tag >> 32) as u32
}

/// What an API's client keeps of a message.
pub trait SetMessage {
    /// Whether replicas deduplicate it (protocol rule 7): it takes a sequence, and a place in the window of mutations.
    fn is_mutation(&self) -> bool;
}

/// A message as it goes out.
#[derive(Debug)]
pub struct Composed {
    pub op: Op,
    pub class: Class,
    pub body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The API's client holds it back.
    Held,
    /// In its lane's queue.
    Queued,
    /// Sent.
    InFlight,
    /// No member can be addressed; the timer sends it again.
    Waiting,
}

#[derive(Debug)]
pub struct Message<M> {
    pub what: M,
    pub state: State,
    /// Index of its set; [`META`] for the metadata service.
    pub set: u32,
    /// Changes with each try.
    pub tag: u64,
    target: VssdId,
    /// Key by which [`SetState::pick`] spreads messages.
    key: u64,
    pub tries: u32,
    turn: u32,
    /// Members that refused since the last pause, and pauses.
    refused: u32,
    pauses: u32,
    /// Members whose device failed the message.
    failed: Vec<VssdId>,
    /// Zero, or the request for the map whose answer makes the failure final, if it names the same members.
    final_by: u64,
    /// When it was first sent.
    sent_at: Time,
    /// It has a good answer: no copy is carried out later.
    done: bool,
    /// Only the last try counts: an answer to an earlier one may be from before its set recovered.
    pub last_only: bool,
    /// Zero until first sent.
    pub sequence: u64,
    /// The set's last recovery known when it was first sent: it was applied since.
    pub after: Epoch,
}

/// Outcome of [`SetClient::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    First,
    /// Sent before, this many times, now to `member`; `moved`: not the one of the last try.
    Again {
        tries: u32,
        member: VssdId,
        moved: bool,
    },
    /// The set has no member: it waits.
    Paused,
}

/// Outcome of [`SetClient::failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Another member may serve it, or has a sound device: to be sent again.
    TryNext,
    /// Waits: for the answer to a later try, for the next map, or for members that may return.
    Paused,
    /// No expected member has a sound device, or the error is of the request, not of the member.
    Final,
}

/// Counters since the client was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetStats {
    pub messages: u64,
    /// Messages sent again, and why: no answer in time, or the member did not serve.
    pub timeouts: u64,
    /// Not sent again without an answer, for lack of budget.
    pub held_back: u64,
    pub refusals: u64,
}

/// Messages to replica sets and to the metadata service. Sets have an index, messages a slot, in the client's tables.
/// Times passed to it never go back.
#[derive(Debug)]
pub struct SetClient<M> {
    pub(crate) cfg: SetClientConfig,
    pub(crate) incarnation: Option<Incarnation>,
    /// `None`: the owner knows the members of sets itself.
    pub(crate) registration: Option<Registration>,
    pub(crate) sets: Slab<SetState>,
    set_index: Map<SetId, u32>,
    messages: Slab<Message<M>>,
    serial: u32,
    timers: Timers,
    budget: Budget,
    /// Source of the drawn retry times.
    draws: u64,
    /// Sets whose lanes may move.
    due: Vec<u32>,
    stats: SetStats,
}

impl<M> SetClient<M> {
    /// A client that registers with the metadata service, and gets the members of sets from it.
    pub fn new(cfg: SetClientConfig) -> SetClient<M> {
        SetClient { registration: Some(Registration::new()), ..SetClient::unregistered(cfg, None, 0) }
    }
    /// A client whose node the metadata service has admitted as this incarnation: it requests the map, and registers as nothing
    /// else. Answers to an earlier incarnation's messages are not taken for answers to its own.
    pub fn admitted(cfg: SetClientConfig, incarnation: Incarnation) -> SetClient<M> {
        SetClient { registration: Some(Registration::new()), ..SetClient::routed_by_owner(cfg, incarnation) }
    }
    /// A client whose owner calls [`SetClient::route`]. Answers to an earlier incarnation's messages are not taken for
    /// answers to its own.
    pub fn routed_by_owner(cfg: SetClientConfig, incarnation: Incarnation) -> SetClient<M> {
        SetClient::unregistered(cfg, Some(incarnation), mix64(incarnation.0) as u32)
    }
    fn unregistered(cfg: SetClientConfig, incarnation: Option<Incarnation>, serial: u32) -> SetClient<M> {
        SetClient {
            draws: mix64(cfg.nonce),
            cfg: cfg.at_least(),
            incarnation,
            registration: None,
            sets: Slab::new(),
            set_index: map(),
            messages: Slab::new(),
            serial,
            timers: Timers::default(),
            budget: Budget::default(),
            due: Vec::new(),
            stats: SetStats::default(),
        }
    }
    pub fn stats(&self) -> SetStats {
        self.stats
    }
    /// Number of sets.
    pub fn known(&self) -> usize {
        self.sets.len()
    }
    /// Indices of sets are below it.
    pub fn sets(&self) -> usize {
        self.sets.iter().next_back().map_or(0, |(i, _)| i + 1)
    }
    /// # Panics
    /// If there is no set with this index.
    pub fn set(&self, set: u32) -> &SetState {
        &self.sets[set as usize]
    }
    pub fn set_mut(&mut self, set: u32) -> &mut SetState {
        &mut self.sets[set as usize]
    }
    /// Index of the set, which may be new.
    pub fn set_slot(&mut self, set: SetId) -> u32 {
        let known_at = self.registration.as_ref().map_or(0, |r| r.map_asks);
        let new = || self.sets.insert(SetState::known_since(set, known_at)) as u32;
        *self.set_index.entry(set).or_insert_with(new)
    }
    /// The last epoch in which the set recovered whole, as far as its answers have shown.
    pub fn recovered(&self, set: SetId) -> Option<Epoch> {
        self.set_index.get(&set).map(|i| self.sets[*i as usize].recovered)
    }
    /// Sets that the metadata service no longer has: they belonged to a deleted volume, and no replica of them will
    /// answer.
    pub fn ended_sets(&self) -> Vec<u32> {
        self.sets.iter().filter(|(_, s)| s.ended).map(|(i, _)| i as u32).collect()
    }
    /// Slots of the messages to a set.
    pub fn messages_to(&self, set: u32) -> Vec<u32> {
        self.messages().filter(|(_, m)| m.set == set).map(|(slot, _)| slot).collect()
    }
    /// Forgets a set, unless it is unknown or a message is for it. A later set may get its index.
    pub fn forget_set(&mut self, set: SetId) -> bool {
        let Some(&i) = self.set_index.get(&set) else { return false };
        if self.messages().any(|(_, m)| m.set == i) {
            return false;
        }
        self.set_index.remove(&set);
        self.sets.remove(i as usize);
        self.due.retain(|&due| due != i);
        true
    }
    /// The members of a set. Returns whether any changed: if so, messages of [`SetClient::stranded`] go again. `anew`:
    /// none is suspect from now on.
    pub fn route(&mut self, set: SetId, epoch: Epoch, members: &[VssdId], anew: bool) -> bool {
        let i = self.set_slot(set);
        let set = &mut self.sets[i as usize];
        set.epoch = epoch.max(set.epoch);
        let same = set.members() == members.len() && members.iter().all(|&m| set.has(m));
        if !same || anew {
            set.set_members(members);
        }
        !same || anew
    }
    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
    /// All messages, by slot.
    pub fn messages(&self) -> impl Iterator<Item = (u32, &Message<M>)> {
        self.messages.iter().map(|(slot, m)| (slot as u32, m))
    }
    /// # Panics
    /// If the slot is empty.
    pub fn message(&self, slot: u32) -> &Message<M> {
        &self.messages[slot as usize]
    }
    pub fn message_mut(&mut self, slot: u32) -> &mut Message<M> {
        &mut self.messages[slot as usize]
    }
    /// The slot of the message with this tag, of its last try.
    pub fn live(&self, tag: u64) -> Option<u32> {
        let slot = slot_of(tag);
        self.messages.get(slot as usize).is_some_and(|m| m.tag == tag).then_some(slot)
    }
    /// The slot of the message to a set that `tag` belongs to, whichever the try.
    pub fn owner_of(&self, tag: u64) -> Option<u32> {
        let m = self.messages.get(slot_of(tag) as usize)?;
        let same = serial_of(m.tag) == serial_of(tag) || mutant!("client.reply.any-message");
        (same && m.set != META).then_some(slot_of(tag))
    }
    /// As [`SetClient::owner_of`], of a message to the metadata service.
    pub fn control_owner_of(&self, tag: u64) -> Option<u32> {
        let m = self.messages.get(slot_of(tag) as usize)?;
        (serial_of(m.tag) == serial_of(tag) && m.set == META).then_some(slot_of(tag))
    }
    /// A number for a message or request: none has the same for the next 2³².
    pub fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// Adds a message, held back until [`SetClient::enqueue`] (or, for [`META`],
    /// [`SetClient::send_control`]). `key`: by which messages of a set are spread over its members.
    ///
    /// # Panics
    /// In debug builds, if there are [`SLOTS_MAX`] messages.
    pub fn insert(&mut self, set: u32, key: u64, what: M) -> u32 {
        let serial = self.next_serial();
        let entry = self.messages.vacant_entry();
        let slot = entry.key() as u32;
        debug_assert!(slot < SLOTS_MAX, "the API's client bounds its messages");
        entry.insert(Message {
            what,
            state: State::Held,
            set,
            tag: u64::from(serial) << 32 | u64::from(slot),
            target: VssdId(0),
            key,
            tries: 0,
            turn: 0,
            refused: 0,
            pauses: 0,
            failed: Vec::new(),
            final_by: 0,
            sent_at: Time::ZERO,
            done: false,
            last_only: false,
            sequence: 0,
            after: Epoch(0),
        });
        slot
    }

    fn mark_due(&mut self, set: u32) {
        let s = &mut self.sets[set as usize];
        if !s.due {
            s.due = true;
            self.due.push(set);
        }
    }
    /// A set whose messages may go, each once.
    pub fn pop_due_set(&mut self) -> Option<u32> {
        let set = self.due.pop()?;
        self.sets[set as usize].due = false;
        Some(set)
    }

    fn header(&self, op: Op, vssd: VssdId, set: SetId, request: u64) -> Header {
        Header {
            class: if op == Op::Control { Class::Gold } else { Class::Silver },
            set,
            incarnation: self.incarnation.unwrap_or_default(),
            request,
            ..Header::addressed(op, vssd)
        }
    }
    pub(crate) fn packet_to_meta(&self, control: Control, request: u64, fx: &mut Effects) {
        let header = self.header(Op::Control, VssdId(0), SetId(0), request);
        fx.send(Packet { src: self.cfg.node, dst: Layout::META, header, body: Body::Control(control) });
    }
    /// Doubles each time, ± 25 % drawn, so that messages sent together are retried apart.
    fn backoff(&mut self, base: Span, times: u32) -> Span {
        let span = (base * (1 << times.min(20))).min(self.cfg.timeout_max);
        self.draws = mix64(self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15));
        Span(span.0 - span.0 / 4 + self.draws % (span.0 / 2).max(1))
    }

    /// A message to the metadata service, once more. Without a registration it waits for one.
    pub fn send_control(&mut self, now: Time, slot: u32, control: Control, fx: &mut Effects) {
        let m = &mut self.messages[slot as usize];
        if m.tries > 0 {
            m.tag = next_try(m.tag);
        }
        m.state = State::InFlight;
        let (tag, tries) = (m.tag, m.tries);
        m.tries += 1;
        if self.registered() {
            self.stats.messages += 1;
            // One number for all tries, so that the metadata service recognizes a repetition.
            self.packet_to_meta(control, message_of(tag), fx);
        }
        let wait = self.backoff(self.cfg.timeout, tries);
        self.timers.add(now + wait, tag);
    }

    /// No member can be addressed: waits, longer each time, and requests a newer map.
    pub fn pause(&mut self, now: Time, slot: u32, fx: &mut Effects) {
        self.ask_map(now, fx);
        let m = &mut self.messages[slot as usize];
        m.state = State::Waiting;
        m.refused = 0;
        let pauses = m.pauses;
        m.pauses += 1;
        // An answer to an earlier try no longer decides whether it failed.
        m.tag = next_try(m.tag);
        let tag = m.tag;
        let wait = self.backoff(self.cfg.retry_delay, pauses);
        self.timers.add(now + wait, tag);
    }

    /// A tag whose time has come; see [`SetClient::timed_out`].
    pub fn pop_timer(&mut self, now: Time) -> Option<u64> {
        self.timers.pop_due(now)
    }
    /// The time of a tag has come. Returns the slot of the message that is to be sent again.
    pub fn timed_out(&mut self, now: Time, tag: u64, fx: &mut Effects) -> Option<u32> {
        let slot = self.live(tag)?;
        let m = &self.messages[slot as usize];
        if m.state == State::InFlight {
            self.stats.timeouts += 1;
            let (set, target) = (m.set, m.target);
            if set != META {
                self.sets[set as usize].suspect(target, now, self.cfg.timeout * 4);
                self.sets[set as usize].narrow(now, self.cfg.timeout);
                self.ask_map(now, fx);
                if !self.budget.take(now) {
                    self.stats.held_back += 1;
                    let wait = self.backoff(self.cfg.timeout, 0);
                    self.timers.add(now + wait, tag);
                    return None;
                }
            }
            self.messages[slot as usize].turn += 1;
        }
        Some(slot)
    }
    /// When the next timer or routine request is due.
    pub fn deadline(&mut self) -> Time {
        let messages = &self.messages;
        let next = self.timers.next(|tag| messages.get(slot_of(tag) as usize).is_some_and(|m| m.tag == tag));
        next.min(self.registration.as_ref().map_or(Time::MAX, |r| r.due_at))
    }

    /// A good answer with this tag: the set's window grows, and the time it took is measured.
    pub fn answered(&mut self, now: Time, slot: u32, tag: u64) {
        let m = &mut self.messages[slot as usize];
        m.done = true;
        let set = &mut self.sets[m.set as usize];
        set.widen();
        if try_of(tag) == 0 {
            set.answered_after(now.since(m.sent_at));
        }
    }
    /// A message is done: it pays for retries.
    pub fn pay(&mut self) {
        self.budget.answered();
    }
    /// Whether a failure with this tag is that of the last try, which is still in flight.
    fn is_last_try(&self, slot: u32, tag: u64) -> bool {
        let m = &self.messages[slot as usize];
        m.tag == tag && m.state == State::InFlight
    }
    /// Replica `from` answered the try with this tag with an error.
    pub fn failed(
        &mut self,
        now: Time,
        slot: u32,
        (tag, from): (u64, VssdId),
        error: IoError,
        fx: &mut Effects,
    ) -> Failure {
        if !self.is_last_try(slot, tag) {
            return Failure::Paused;
        }
        match error {
            IoError::NotServing => self.refused(now, slot, from, fx),
            IoError::Device | IoError::Corrupt => self.device_failed(now, slot, from, fx),
            // The network may repeat what was refused: a copy may still be under way.
            IoError::Fenced { .. } | IoError::NoSpace | IoError::Malformed => Failure::Final,
        }
    }
    /// Member `from` does not serve.
    fn refused(&mut self, now: Time, slot: u32, from: VssdId, fx: &mut Effects) -> Failure {
        self.stats.refusals += 1;
        self.ask_map(now, fx);
        let m = &mut self.messages[slot as usize];
        let set = &mut self.sets[m.set as usize];
        let who = if set.has(from) { from } else { m.target };
        set.suspect(who, now, self.cfg.timeout);
        m.turn += 1;
        m.refused += 1;
        if (m.refused as usize) < set.members() {
            return Failure::TryNext;
        }
        self.pause(now, slot, fx);
        Failure::Paused
    }
    /// The device of member `from` failed the message. Another member may have a sound one, though it does not answer
    /// now. The failure is final once each has failed and the metadata service has reported that no other member is
    /// expected.
    fn device_failed(&mut self, now: Time, slot: u32, from: VssdId, fx: &mut Effects) -> Failure {
        let m = &mut self.messages[slot as usize];
        let set = &mut self.sets[m.set as usize];
        if !set.has(from) {
            // A read redirected to a former member: the addressed member is not concerned.
            return self.refused(now, slot, from, fx);
        }
        m.turn += 1;
        set.suspect(from, now, self.cfg.timeout);
        if !m.failed.contains(&from) {
            m.failed.push(from);
        }
        // A map requested from now on shows whether other members are expected; an owner's is never old.
        let asked_next = self.registration.as_ref().map_or(0, |r| r.map_asks + 1);
        self.ask_map(now, fx);
        let m = &mut self.messages[slot as usize];
        if !self.sets[m.set as usize].all_in(&m.failed) {
            return Failure::TryNext;
        }
        if self.registration.as_ref().is_none_or(|r| m.final_by != 0 && r.map_answered >= m.final_by) {
            return Failure::Final;
        }
        // All are tried again: one may have been repaired by then.
        m.failed.clear();
        m.final_by = if m.final_by == 0 { asked_next } else { m.final_by };
        self.pause(now, slot, fx);
        Failure::Paused
    }
    /// The map has changed: messages that wait for a member, or for an answer of one that left. They are to be sent
    /// again.
    pub fn stranded(&mut self) -> Vec<u32> {
        let mut slots = Vec::new();
        for (slot, m) in &mut self.messages {
            let stranded = m.set != META
                && match m.state {
                    State::Waiting => true,
                    State::InFlight => !self.sets[m.set as usize].has(m.target),
                    State::Held | State::Queued => false,
                };
            if stranded {
                m.refused = 0;
                slots.push(slot as u32);
            }
        }
        slots
    }
    /// Slots of the messages to the metadata service.
    pub fn controls(&self) -> Vec<u32> {
        self.messages().filter(|(_, m)| m.set == META).map(|(slot, _)| slot).collect()
    }
}

impl<M: SetMessage> SetClient<M> {
    fn lane(set: &mut SetState, mutation: bool) -> &mut Lane {
        if mutation { &mut set.writes } else { &mut set.reads }
    }
    /// A message to a set may go when the window permits.
    pub fn enqueue(&mut self, slot: u32) {
        let m = &mut self.messages[slot as usize];
        m.state = State::Queued;
        let set = m.set;
        Self::lane(&mut self.sets[set as usize], m.what.is_mutation()).queue.push_back(m.tag);
        self.mark_due(set);
    }
    /// The next read of the set that its window has room for. It is to be sent.
    pub fn next_read(&mut self, set: u32) -> Option<u32> {
        loop {
            let s = &mut self.sets[set as usize];
            if s.reads.occupied >= s.window(self.cfg.window) {
                return None;
            }
            let tag = s.reads.queue.pop_front()?;
            if let Some(slot) = self.live(tag) {
                self.sets[set as usize].reads.occupied += 1;
                return Some(slot);
            }
        }
    }
    /// As [`SetClient::next_read`], of mutations; it has a sequence from now on.
    pub fn next_mutation(&mut self, set: u32) -> Option<u32> {
        loop {
            let s = &mut self.sets[set as usize];
            if s.writes.occupied >= s.window(self.cfg.window) || !s.may_mutate() {
                return None;
            }
            let tag = s.writes.queue.pop_front()?;
            let Some(slot) = self.live(tag) else { continue };
            let s = &mut self.sets[set as usize];
            s.writes.occupied += 1;
            let m = &mut self.messages[slot as usize];
            (m.sequence, m.after) = (s.next_sequence(), s.recovered);
            return Some(slot);
        }
    }

    /// One more try of a message to a set, at the next member in turn. `compose` gets the mutation's identity.
    pub fn send(
        &mut self,
        now: Time,
        slot: u32,
        compose: impl FnOnce(&M, Mutation) -> Composed,
        fx: &mut Effects,
    ) -> Sent {
        let m = &mut self.messages[slot as usize];
        if m.tries > 0 {
            m.tag = next_try(m.tag);
        }
        let set = &self.sets[m.set as usize];
        let Some(target) = set.pick(now, m.key, m.turn) else {
            m.tries += 1;
            m.final_by = 0;
            self.pause(now, slot, fx);
            return Sent::Paused;
        };
        let (tag, tries) = (m.tag, m.tries);
        let sent =
            if tries == 0 { Sent::First } else { Sent::Again { tries, member: target, moved: m.target != target } };
        m.target = target;
        m.state = State::InFlight;
        (m.tries, m.done) = (tries + 1, false);
        if tries == 0 {
            m.sent_at = now;
        }
        let timeout = set.timeout().max(self.cfg.timeout).min(self.cfg.timeout_max);
        let again = if mutant!("client.retry.new-sequence") { u64::from(m.tries) << 40 } else { 0 };
        let mutation =
            Mutation { client: self.incarnation.unwrap_or_default(), sequence: m.sequence + again, floor: set.floor() };
        let (set_id, epoch) = (set.set, set.epoch);
        let Composed { op, class, body } = compose(&m.what, mutation);
        let header = Header { epoch, class, ..self.header(op, target, set_id, tag) };
        self.stats.messages += 1;
        let dst = self.cfg.layout.switch_of(target);
        fx.send(Packet { src: self.cfg.node, dst, header, body });
        if class == Class::Copper {
            // Its servers serve others first.
            let wait = self.backoff(self.cfg.timeout * OFFLINE_PATIENCE, tries);
            self.timers.add(now + wait, tag);
        } else if tries == 0 && timeout == self.cfg.timeout {
            self.timers.add_ordered(now + timeout, tag);
        } else {
            let wait = self.backoff(timeout, tries);
            self.timers.add(now + wait, tag);
        }
        sent
    }

    /// Removes a message: its place in the window is free. Its sequence is answered, or given up if a copy may still be under way.
    pub fn release(&mut self, slot: u32) -> Message<M> {
        let m = self.messages.remove(slot as usize);
        if m.set == META {
            return m;
        }
        let set = &mut self.sets[m.set as usize];
        if m.state != State::Held {
            let queued = m.state == State::Queued && m.tries == 0 && m.sequence == 0;
            Self::lane(set, m.what.is_mutation()).occupied -= u32::from(!queued);
        }
        if m.sequence != 0 {
            let copies = !m.done && m.tries > 0;
            if copies && !mutant!("client.release.forgets-copies") {
                set.sequence_given_up(m.sequence);
            } else {
                set.sequence_answered(m.sequence);
            }
        }
        self.mark_due(m.set);
        m
    }
}

#[cfg(test)]
#[path = "set_client_tests.rs"]
mod tests;
