//! Fetching what was committed while a node was no member: a rejoining node's and a hand-off's second step, and a
//! primary's first if no answering member holds everything.

use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::{Epoch, NodeId, Time};

use crate::msg::{Body, Chunk, Entry, FillPoint};
use crate::record;
use crate::replica::{Ctx, Forced, Replica};
use crate::room::{AGAIN, client_bytes, version_bytes};
use crate::trace::FILLED;
use crate::types::{CLIENTS_PAGE_MAX, Epochs, FinishedPuts, PutId, Role, is_key, page};
use crate::versions::KeyVersion;

/// A chunk that the store had no room for is asked for again after this many heartbeats.
const FULL_RETRY: u64 = 5;

pub(crate) struct Fill {
    /// What is still to be fetched, and what this node fetches in all.
    remaining: Epochs,
    wants: Epochs,
    source: Option<NodeId>,
    at: FillPoint,
    ask_at: Time,
    /// The last chunk is being forced.
    ending: bool,
    done: bool,
}

const BEGINNING: FillPoint = FillPoint::Keys { after: None };

impl Fill {
    pub fn new(wants: Epochs) -> Fill {
        let remaining = wants.clone();
        Fill { remaining, wants, source: None, at: BEGINNING, ask_at: Time::ZERO, ending: false, done: false }
    }
}

impl Replica {
    /// Whether it has something left to fetch.
    pub fn fills(&self) -> bool {
        self.fill.as_ref().is_some_and(|f| !f.done)
    }

    /// The member to fetch from: the primary; the primary itself fetches from members that hold what it lacks.
    fn source(&self, me: NodeId, remaining: &Epochs) -> Option<NodeId> {
        let view = self.view.as_ref()?;
        if view.primary != me {
            return Some(view.primary);
        }
        let holds = |m: &&crate::types::Member| m.node != me && !m.holds.common(remaining).is_empty();
        view.members.iter().find(holds).map(|m| m.node)
    }

    pub fn tick_fill(&mut self, ctx: &mut Ctx) {
        let Some(fill) = self.fill.as_ref().filter(|f| f.ask_at <= ctx.now && !f.ending) else { return };
        if fill.done {
            // A primary knows what it fetched, and what others have logged of it only when that is decided.
            let (meta, wants) = (ctx.meta, fill.wants.clone());
            if !self.leads(ctx.me) || self.settled() {
                self.send(ctx, meta, Body::Filled { wants });
            }
        } else if let Some(source) = self.source(ctx.me, &fill.remaining) {
            let (wants, at) = (fill.remaining.clone(), fill.at.clone());
            self.send(ctx, source, Body::Pull { wants, at });
            self.fill.as_mut().expect("it fills").source = Some(source);
        }
        self.fill.as_mut().expect("it fills").ask_at = ctx.now + ctx.config.retry;
    }

    /// A member requests keys. What an earlier primary committed must have reached this one first.
    pub fn on_pull(&mut self, ctx: &mut Ctx, from: NodeId, wants: &Epochs, at: FillPoint) {
        let for_primary = self.primary() == Some(from);
        if !for_primary && !self.settled() && !mutant!("kv-replica.fill.unsettled") {
            return;
        }
        let chunk = match at {
            FillPoint::Keys { after } => self.keys_chunk(ctx.config.chunk_keys, wants, after),
            FillPoint::Clients { after } => self.clients_chunk(after),
        };
        self.send(ctx, from, Body::Chunk(Box::new(chunk)));
    }

    fn keys_chunk(&self, keys_max: usize, wants: &Epochs, after: Option<Bytes>) -> Chunk {
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let entry = |v: &KeyVersion| {
            let at = v.record().at;
            let version = wants.contains(at.epoch).then(|| v.version());
            let incomplete = self.marks.contains_key(v.key());
            Entry { key: Bytes::copy_from_slice(v.key()), at, version, incomplete }
        };
        let keys = self.keys.range((from, Bound::Unbounded)).map(entry);
        let entries = page(keys.take(keys_max), Entry::bytes);
        let last = entries.last().map(|e| e.key.clone());
        let more = last.filter(|l| self.keys.range((Bound::Excluded(l), Bound::Unbounded)).next().is_some());
        let next = more.map_or(FillPoint::Clients { after: None }, |last| FillPoint::Keys { after: Some(last) });
        let at = FillPoint::Keys { after };
        Chunk { at, entries, clients: Vec::new(), next: Some(next), swept: self.swept }
    }

    /// Finished puts, without those that the other member will apply itself.
    fn clients_chunk(&self, after: Option<NodeId>) -> Chunk {
        let in_flight = |id: &PutId| self.lead.as_ref().is_some_and(|l| l.puts.contains_key(id));
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut states = self.clients.range((from, Bound::Unbounded));
        let puts = states.by_ref().take(CLIENTS_PAGE_MAX).map(|(n, c)| c.without(*n, in_flight));
        let clients: Vec<FinishedPuts> = puts.collect();
        let last = clients.last().map(|c| c.client).filter(|_| states.next().is_some());
        let next = last.map(|last| FillPoint::Clients { after: Some(last) });
        let at = FillPoint::Clients { after };
        Chunk { at, entries: Vec::new(), clients, next, swept: self.swept }
    }

    pub fn on_chunk(&mut self, ctx: &mut Ctx, from: NodeId, chunk: Chunk) {
        let Some(fill) = self.fill.as_mut() else { return };
        let expected = fill.source == Some(from) && fill.at == chunk.at && !fill.ending && !fill.done;
        if !expected || !chunk.entries.iter().all(|e| is_key(&e.key)) {
            return;
        }
        if !self.leads(ctx.me)
            && let Some(key) = self.newer_than(&chunk)
        {
            self.stop(ctx, key);
            return;
        }
        let (chunk, bytes) = self.that_fits(ctx, chunk);
        if chunk.entries.is_empty() && chunk.clients.is_empty() && chunk.next.as_ref() == Some(&chunk.at) {
            let fill = self.fill.as_mut().expect("it fills");
            fill.ask_at = ctx.now + ctx.config.heartbeat * FULL_RETRY;
            return self.chunk_without_room(ctx);
        }
        ctx.space.unforced += bytes;
        let mut entries = self.remove_swept(ctx, from, &chunk);
        let last = chunk.next.is_none();
        let fill = self.fill.as_mut().expect("it fills");
        fill.at = chunk.next.unwrap_or(BEGINNING);
        fill.ending = last;
        fill.ask_at = ctx.now;
        for Entry { key, version, incomplete, .. } in chunk.entries {
            let Some(v) = version.filter(|v| self.keys.get(&key).is_none_or(|mine| mine.at < v.at)) else { continue };
            let at = v.at;
            let version = KeyVersion::new(self.p, &key, &v);
            entries.push(version.change());
            self.keys.insert(version);
            if incomplete {
                entries.push((record::mark_key(self.p, &key), Some(record::mark(at))));
                self.mark(key, at, ctx.now + ctx.config.doubt);
            } else if self.marks.remove(&key).is_some() {
                entries.push((record::mark_key(self.p, &key), None));
            }
        }
        for mut theirs in chunk.clients {
            let (node, incarnation) = (theirs.client, theirs.incarnation);
            // A primary finds next what becomes of the puts in its log: it has not applied them. Other members are given what their
            // primary has finished, and may have logged a client's repetition of it.
            let logged = |sequence| self.logged.contains_key(&PutId { client: node, incarnation, sequence });
            let leads = self.lead.is_some() && !mutant!("kv-replica.fill.finishes-logged");
            theirs.finished.retain(|(s, _)| !leads || !logged(*s));
            let mine = self.clients.entry(node).or_default();
            mine.merge(&theirs.into());
            entries.push((record::client_key(self.p, node), Some(record::client(mine))));
        }
        let epoch = self.epoch();
        ctx.journal.force(ctx.fx, entries, Forced::Chunk { p: self.p, epoch, last, bytes });
    }

    /// The part of the chunk that the store has room for, with the bytes of its records.
    fn that_fits(&self, ctx: &mut Ctx, mut chunk: Chunk) -> (Chunk, u64) {
        let new = |e: &Entry| {
            let v = e.version.as_ref().filter(|v| self.keys.get(&e.key).is_none_or(|mine| mine.at < v.at));
            v.map_or(0, |v| version_bytes(&e.key, v.value.as_deref()))
        };
        let known = |n: &NodeId| self.clients.get(n).map_or(0, |c| c.finished.len());
        let mut bytes = 0;
        let mut fits = |more: u64| {
            let fits = self.has_room_for_chunk(ctx, bytes + more);
            bytes += if fits { more } else { 0 };
            fits
        };
        let entries = chunk.entries.iter().take_while(|e| fits(new(e))).count();
        let clients =
            chunk.clients.iter().take_while(|c| fits(client_bytes(c.finished.len() + known(&c.client)))).count();
        if entries < chunk.entries.len() {
            let after = entries.checked_sub(1).map(|i| chunk.entries[i].key.clone());
            chunk.entries.truncate(entries);
            chunk.next = Some(after.map_or(chunk.at.clone(), |k| FillPoint::Keys { after: Some(k) }));
        }
        if clients < chunk.clients.len() {
            let after = clients.checked_sub(1).map(|i| chunk.clients[i].client);
            chunk.clients.truncate(clients);
            chunk.next = Some(after.map_or(chunk.at.clone(), |n| FillPoint::Clients { after: Some(n) }));
        }
        (chunk, bytes)
    }
    /// A hand-off fetches only into the room of puts. One of the partition's own nodes needs what the others have room for.
    fn has_room_for_chunk(&self, ctx: &Ctx, bytes: u64) -> bool {
        let room = ctx.space.room;
        let own = self.leads(ctx.me) || self.role(ctx.me) == Some(Role::Home);
        let into_deletions = mutant!("kv-replica.fill.into-deletions");
        let own_part = if into_deletions { room.for_findings } else { room.for_fills };
        let part = if own { own_part } else { room.for_puts };
        ctx.space.fits(part, AGAIN * bytes) || mutant!("kv-replica.fill.without-room")
    }
    fn role(&self, n: NodeId) -> Option<Role> {
        self.view.as_ref().and_then(|v| v.member(n)).map(|m| m.role)
    }
    /// A hand-off leaves; one of the partition's own nodes waits for deletions.
    fn chunk_without_room(&mut self, ctx: &mut Ctx) {
        if self.role(ctx.me) == Some(Role::Handoff) && !self.leads(ctx.me) {
            self.join_without_room(ctx);
        }
    }

    pub fn forced_chunk(&mut self, ctx: &mut Ctx, epoch: Epoch, last: bool) {
        let view_epoch = self.epoch();
        if !last || epoch != view_epoch {
            return;
        }
        let holds = |n: NodeId| self.view.as_ref().and_then(|v| v.member(n)).map(|m| m.holds.clone());
        let source = self.fill.as_ref().and_then(|f| f.source).and_then(holds).unwrap_or_default();
        let leads = self.leads(ctx.me);
        let Some(fill) = self.fill.as_mut() else { return };
        fill.ending = false;
        // A primary that is settled has everything, whatever its place in the view says.
        fill.remaining = if leads { fill.remaining.minus(&source) } else { Epochs::none() };
        fill.ask_at = ctx.now;
        fill.done = fill.remaining.is_empty();
        if fill.done {
            self.assembled = true;
            self.trace(ctx, FILLED, u64::from(view_epoch.0));
            self.lead_filled(ctx);
        }
    }
}
