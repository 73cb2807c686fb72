//! Messages to groups (NI3): a message is sent once, to the group's virtual address, and a switch copies it to every
//! member (NICE §3.4, §5). Members individually get what they missed.
//!
//! For each member it is a transfer of that member's connection, which handles acknowledgements (whose gaps are NICE's
//! NACKs), losses, windows, timers and repairs. Only the first transmission of each chunk is one datagram for all of
//! them. The group's window is that of the slowest member, or, if `quorum` members suffice, of the slowest among the
//! `quorum` fastest (NICE's any-k).
//!
//! Members on a stream instead of datagrams get the message individually. So do all members while nothing arrives through
//! the switch.

use std::collections::VecDeque;

use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Span, Time};

use crate::api::{Event, GroupError, GroupOptions, Message, Missing, SendError, Transmit, Via};
use crate::endpoint::{Endpoint, single};
use crate::header::{self, LONG, LONG_BYTES, SHORT, SHORT_BYTES, ShortOp, Space, TransferId};
use crate::outgoing::{Outgoing, pieces};
use crate::peer::{Carrier, Control};
use crate::progress::{Pick, Progress};
use crate::receiver::ROUTED_SPAN;

/// Most members of a group: the limit of switches' tables, and NICE's largest (§6.3).
pub const MEMBERS_MAX: usize = 9;
/// Most groups: a replica group for each of NICE's 64 Ki nodes (NI8).
pub const GROUPS_MAX: usize = 65_536;
/// Source ports tried in a row before members get messages individually for [`ALONE`].
const PATHS_TRIED: u32 = 3;
/// How long members then get messages individually.
const ALONE: Span = Span::from_secs(1);

/// A virtual address and its members.
#[derive(Debug)]
pub(crate) struct Group {
    members: Vec<NodeId>,
    /// Messages with unsent chunks, served in turns.
    waiting: [VecDeque<u64>; 3],
    /// Whether it is in the endpoint's queue of those with something to send.
    queued: [bool; 3],
    path: u16,
    /// When a datagram to the group was last sent; when one was last known to arrive, or the path was first used or
    /// changed; number of path changes in a row.
    left: Time,
    works: Time,
    changed: u32,
    /// Members get messages individually until this time.
    alone: Time,
}

/// State of a message at one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Going(TransferId),
    Whole,
    Missing(Missing),
}

/// A message to a group in flight.
#[derive(Debug)]
pub(crate) struct Multicast {
    group: NodeId,
    message: Message,
    token: u64,
    quorum: usize,
    reached: bool,
    /// First unsent chunk, and number of chunks.
    next: u32,
    count: u32,
    members: Vec<(NodeId, State)>,
}

impl Multicast {
    fn whole(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().filter(|(_, s)| *s == State::Whole).map(|(n, _)| *n)
    }
    /// Members without the whole message, and their transfers.
    fn going(&self) -> impl Iterator<Item = (NodeId, TransferId)> + '_ {
        self.members.iter().filter_map(|(n, s)| match s {
            State::Going(id) => Some((*n, *id)),
            _ => None,
        })
    }
    fn missing(&self) -> Vec<(NodeId, Missing)> {
        let missing = self.members.iter().filter_map(|(n, s)| match s {
            State::Missing(why) => Some((*n, *why)),
            _ => None,
        });
        missing.collect()
    }
}

impl Endpoint {
    /// Sets the members of a virtual address, as in the switch's tables. Messages in flight keep their members. Unknown
    /// members are pinged, so that the first message finds them.
    pub fn set_group(&mut self, now: Time, group: NodeId, members: &[NodeId]) -> Result<(), GroupError> {
        let wrong = |node: &NodeId| [self.local, group].contains(node) || self.cfg.is_switch(*node);
        if members.is_empty() || members.len() > MEMBERS_MAX {
            return Err(GroupError::Members { group, members: members.len() });
        }
        if let Some(i) = (0..members.len()).find(|&i| wrong(&members[i]) || members[..i].contains(&members[i])) {
            return Err(GroupError::Member { group, member: members[i] });
        }
        if group == self.local || self.cfg.is_switch(group) || self.peers.contains_key(&group) {
            return Err(GroupError::Address { group });
        }
        if let Some(known) = self.groups.get_mut(&group) {
            known.members = members.to_vec();
        } else {
            if self.groups.len() >= GROUPS_MAX {
                return Err(GroupError::TooMany { limit: GROUPS_MAX });
            }
            let path = self.rng.below(u64::from(self.cfg.paths)) as u16;
            let (waiting, queued) = (Default::default(), [false; 3]);
            let (members, zero) = (members.to_vec(), Time::ZERO);
            let new = Group { members, waiting, queued, path, left: zero, works: zero, changed: 0, alone: zero };
            self.groups.insert(group, new);
        }
        for &node in members {
            if self.make_peer(now, node).is_err() {
                continue;
            }
            let token = self.sign_token();
            if let Some(peer) = self.peers.get_mut(&node).filter(|p| p.incarnation.is_none()) {
                let path = peer.paths.current;
                peer.say(Control::Ping { path, token: token | u64::from(path) });
            }
            self.touch(now, node);
        }
        Ok(())
    }
    /// Removes the group; messages in flight continue individually.
    pub fn remove_group(&mut self, now: Time, group: NodeId) {
        let Some(gone) = self.groups.remove(&group) else { return };
        for (class, number) in
            crate::endpoint::CLASSES.into_iter().zip(gone.waiting).flat_map(|(c, w)| w.into_iter().map(move |n| (c, n)))
        {
            self.part(now, class, number);
        }
    }
    /// The members of the address, if known.
    pub fn group(&self, group: NodeId) -> Option<&[NodeId]> {
        self.groups.get(&group).map(|g| &g.members[..])
    }

    /// Sends a packet's message to every member of a group. [`Event::GroupReached`] reports when `how.quorum` of them
    /// have it whole, [`Event::GroupDone`] the result at each. Refused only if fewer members than that can take it.
    pub fn send_group(
        &mut self,
        now: Time,
        group: NodeId,
        message: Message,
        how: GroupOptions,
    ) -> Result<(), SendError> {
        let result = self.take_group(now, group, message, how);
        match result {
            Ok(()) => self.counters.group_messages += 1,
            Err(_) => self.counters.messages_refused += 1,
        }
        result
    }

    fn take_group(&mut self, now: Time, to: NodeId, message: Message, how: GroupOptions) -> Result<(), SendError> {
        let (_, class) = self.check(&message)?;
        if how.deadline <= now {
            return Err(SendError::Late);
        }
        let Some(group) = self.groups.get(&to) else { return Err(SendError::UnknownGroup { group: to }) };
        let (members, alone) = (group.members.clone(), now < group.alone);
        if how.quorum == 0 || how.quorum > members.len() {
            return Err(SendError::Quorum { quorum: how.quorum, members: members.len() });
        }
        let (next, all) = (self.group_next[class as usize], &self.multicasts[class as usize]);
        if all.first_key_value().is_some_and(|(oldest, _)| next - oldest >= ROUTED_SPAN / 2) {
            return Err(SendError::WindowFull { to, limit: ROUTED_SPAN / 2 });
        }
        let (len, mut refused, mut takers, mut chunk) = (message.len(), Vec::new(), Vec::new(), usize::MAX);
        if self.queued_bytes + len * members.len() > self.cfg.queue_bytes_total {
            return Err(SendError::AllQueuesFull { queued: self.queued_bytes, limit: self.cfg.queue_bytes_total });
        }
        for &node in &members {
            match self.make_peer(now, node).and_then(|()| self.check_room(node, class, false, len)) {
                Ok(()) => takers.push(node),
                Err(e) => refused.push((node, e)),
            }
        }
        if takers.len() < how.quorum {
            return Err(refused.first().map_or(SendError::PeerDown { to }, |(_, e)| *e));
        }
        for n in &takers {
            chunk = chunk.min(self.peers.get(n).map_or(chunk, |p| p.chunk_bytes()));
        }
        let hears = |n: &NodeId| self.peers.get(n).is_some_and(|p| p.carrier != Carrier::Stream);
        let mut shared: Vec<NodeId> = takers.iter().copied().filter(hears).collect();
        if alone || shared.len() < 2 {
            shared.clear();
        }
        let id = TransferId { space: Space::Group, number: next };
        self.group_next[class as usize] += 1;
        let mut states: Vec<(NodeId, State)> = refused.iter().map(|(n, e)| (*n, State::Missing(why(e)))).collect();
        let mut count = 0;
        for node in takers {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let mut o = Outgoing::new(now, message.clone(), id, how.token, how.deadline);
            (o.group, o.shared) = (Some(id.number), shared.contains(&node));
            let chunks = peer.flow(class).tx.push(o, chunk);
            count = count.max(if shared.contains(&node) { chunks } else { 0 });
            self.queued_bytes += len;
            peer.used = now;
            states.push((node, State::Going(id)));
        }
        self.counters.group_members_missing += refused.len() as u64;
        let (token, quorum) = (how.token, how.quorum);
        let m = Multicast { group: to, message, token, quorum, reached: false, next: 0, count, members: states };
        let going: Vec<NodeId> = m.going().map(|(n, _)| n).collect();
        self.multicasts[class as usize].insert(id.number, m);
        if count > 0
            && let Some(g) = self.groups.get_mut(&to)
        {
            g.waiting[class as usize].push_back(id.number);
            self.ready_group(to, class);
        }
        going.into_iter().for_each(|n| self.touch(now, n));
        Ok(())
    }

    /// Queues the group among those with something to send.
    pub(crate) fn ready_group(&mut self, group: NodeId, class: Class) {
        let i = class as usize;
        if let Some(g) = self.groups.get_mut(&group).filter(|g| !g.queued[i] && !g.waiting[i].is_empty()) {
            g.queued[i] = true;
            self.ready[i].push_back(group);
        }
    }

    /// The next chunk to a group, if enough of its members' windows permit it.
    pub(crate) fn chunk_to_group(&mut self, now: Time, to: NodeId, class: Class) -> Option<Transmit> {
        let i = class as usize;
        self.groups.get_mut(&to)?.queued[i] = false;
        for _ in 0..self.groups.get(&to)?.waiting[i].len() {
            let number = self.groups.get_mut(&to)?.waiting[i].pop_front()?;
            let Some((chunk, takers)) = self.next_shared(class, number) else { continue };
            if takers.iter().filter(|(_, room)| *room).count() < self.needed(class, number, takers.len()) {
                // The limiting members report when it may continue.
                for (node, _) in takers.into_iter().filter(|(_, room)| !room) {
                    if let Some(peer) = self.peers.get_mut(&node).filter(|p| !p.holds_up.contains(&(to, class))) {
                        peer.holds_up.push((to, class));
                    }
                }
                self.groups.get_mut(&to)?.waiting[i].push_back(number);
                continue;
            }
            let t = self.put_shared(now, to, class, number, chunk, &takers);
            // In turns: a long message does not delay short ones behind it.
            self.groups.get_mut(&to)?.waiting[i].push_back(number);
            self.ready_group(to, class);
            return t;
        }
        None
    }

    /// A message's next unsent chunk, the members that take it from the group's datagrams, and whether each has room in
    /// its window. `None` if everything is sent or no member takes it.
    fn next_shared(&mut self, class: Class, number: u64) -> Option<(u32, Vec<(NodeId, bool)>)> {
        let m = self.multicasts[class as usize].get(&number)?;
        let mut takers = Vec::with_capacity(m.members.len());
        for (node, id) in m.going() {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            if let Some(room) = peer.flow(class).tx.room_in_group(id, m.next) {
                takers.push((node, room));
            }
        }
        (m.next < m.count && !takers.is_empty()).then_some((m.next, takers))
    }

    /// Number of `takers` that must have room for a quorum to get the message whole.
    fn needed(&self, class: Class, number: u64, takers: usize) -> usize {
        let Some(m) = self.multicasts[class as usize].get(&number) else { return 1 };
        let others = m.going().count() - takers;
        m.quorum.saturating_sub(m.whole().count() + others).clamp(1, takers)
    }

    fn put_shared(
        &mut self,
        now: Time,
        to: NodeId,
        class: Class,
        number: u64,
        chunk: u32,
        takers: &[(NodeId, bool)],
    ) -> Option<Transmit> {
        let counter = self.next_counter();
        // All members can read the older version, and may not know the newer one.
        let from = self.sender(crate::VERSION - 1);
        let id = TransferId { space: Space::Group, number };
        let long = chunk == 0;
        let form = if long { LONG } else { SHORT };
        let first = self.peers.get_mut(&takers.first()?.0)?;
        let o = first.flow(class).tx.transfers.get(&id)?;
        let bytes = o.chunk(chunk, false).range().len() + if long { LONG_BYTES } else { SHORT_BYTES };
        // Message and chunks are the same for all members.
        let mut c = o.chunk(chunk, false);
        for (node, _) in takers {
            c.ack_now |= self.peers.get_mut(node).is_some_and(|p| p.flow(class).tx.full_after(bytes));
        }
        let mut d = Vec::with_capacity(bytes);
        let m = self.multicasts[class as usize].get_mut(&number)?;
        m.next = chunk + 1;
        if long {
            header::put_long(&mut d, &m.message.head, to, counter);
        } else {
            header::put_short(&mut d, ShortOp::Chunk, class, &from, to, counter);
        }
        header::put_chunk(&mut d, &from, &c, false);
        let payload_at = d.len();
        let (prefix, data) = pieces(&m.message, &c);
        d.extend_from_slice(prefix);
        self.auth.seal((self.local, self.incarnation), &mut d, 0, form, from.encrypt.then_some(payload_at), data);
        for (node, _) in takers {
            let Some(peer) = self.peers.get_mut(node) else { continue };
            peer.flow(class).tx.sent_to_group(now, Pick { id, chunk, again: false }, counter, bytes);
            peer.owed.get_or_insert(now);
            peer.used = now;
            self.touch(now, *node);
        }
        self.counters.sent_chunks += 1;
        self.counters.group_chunks += 1;
        let g = self.groups.get_mut(&to)?;
        if now.since(g.left) > self.cfg.sla {
            g.works = now;
        }
        g.left = now;
        Some(single(to, Via::Path(g.path), class, d, counter))
    }

    /// A member has the message whole, or will not get it.
    pub(crate) fn part_done(&mut self, class: Class, number: u64, node: NodeId, missing: Option<Missing>) {
        let Some(m) = self.multicasts[class as usize].get_mut(&number) else { return };
        let Some((_, state)) = m.members.iter_mut().find(|(n, s)| *n == node && matches!(s, State::Going(_))) else {
            return;
        };
        *state = missing.map_or(State::Whole, State::Missing);
        let whole: Vec<NodeId> = m.whole().collect();
        let (group, token) = (m.group, m.token);
        let reached = !m.reached && whole.len() >= m.quorum;
        m.reached |= reached;
        let done = m.going().next().is_none().then(|| m.missing());
        self.counters.group_members_missing += u64::from(missing.is_some());
        if reached {
            self.event(Event::GroupReached { group, token, members: whole.clone() });
        }
        if let Some(missing) = done {
            self.multicasts[class as usize].remove(&number);
            self.event(Event::GroupDone { group, token, whole, missing });
        }
        // Fewer windows limit it now.
        self.ready_group(group, class);
    }

    /// Evaluates acknowledgements and timers for the path through the switch: whether anything arrives.
    pub(crate) fn book_group(&mut self, now: Time, class: Class, p: &Progress) {
        let group_of = |number: u64| self.multicasts[class as usize].get(&number).map(|m| m.group);
        let arrived = p.shared_arrived.and_then(group_of);
        let lost = p.shared_lost.and_then(|(number, sent)| Some((group_of(number)?, sent)));
        if let Some(g) = arrived.and_then(|g| self.groups.get_mut(&g)) {
            (g.works, g.changed) = (now, 0);
        }
        let Some((to, sent)) = lost else { return };
        let (sla, paths) = (self.cfg.sla, self.cfg.paths);
        let Some(g) = self.groups.get_mut(&to) else { return };
        // Datagrams sent before the last change say nothing about this path.
        if now.since(g.works) < sla || sent < g.works || now < g.alone {
            return;
        }
        g.path = (g.path + 1) % paths;
        (g.works, g.changed) = (now, g.changed + 1);
        if g.changed < PATHS_TRIED {
            return;
        }
        (g.alone, g.changed) = (now + ALONE, 0);
        self.counters.group_ways_lost += 1;
        for class in crate::endpoint::CLASSES {
            let waiting = self.groups.get_mut(&to).map(|g| std::mem::take(&mut g.waiting[class as usize]));
            waiting.into_iter().flatten().for_each(|number| self.part(now, class, number));
        }
    }

    /// Sends the rest of a message to each member individually.
    fn part(&mut self, now: Time, class: Class, number: u64) {
        let Some(m) = self.multicasts[class as usize].get_mut(&number) else { return };
        m.next = m.count;
        let going: Vec<(NodeId, TransferId)> = m.going().collect();
        for (node, id) in going {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.flow(class).tx.unshare(id);
                self.touch(now, node);
            }
        }
    }

    /// Counts an acknowledgement of a message to a group that is void: its sender is not a member, or the message is
    /// done. True if it is valid.
    pub(crate) fn expects(&mut self, class: Class, from: NodeId, id: TransferId) -> bool {
        let flow = self.peers.get(&from).map(|p| &p.flows[class as usize]);
        if flow.is_some_and(|f| f.tx.transfers.contains_key(&id)) {
            return true;
        }
        let m = self.multicasts[class as usize].get(&id.number);
        let foreign =
            m.map_or(id.number >= self.group_next[class as usize], |m| m.members.iter().all(|(n, _)| *n != from));
        if foreign {
            self.counters.acks_foreign += 1;
        } else {
            self.counters.acks_late += 1;
        }
        false
    }
}

fn why(e: &SendError) -> Missing {
    match e {
        SendError::PeerDown { .. } => Missing::Down,
        _ => Missing::Full,
    }
}
