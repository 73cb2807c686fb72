//! Fetching what was committed while a node was no member: a rejoining node's and a hand-off's second step, and a
//! primary's first if no answering member holds everything.

use bytes::Bytes;
use rackweave_core::{Epoch, NodeId, Time};

use crate::clients::ClientState;
use crate::msg::{Body, Chunk, Entry};
use crate::record;
use crate::replica::{Ctx, Forced, Replica};
use crate::takeover::NEVER;
use crate::trace::FILLED;
use crate::types::{Epochs, PutId};

pub(crate) struct Fill {
    /// What is still to be fetched, and what this node fetches in all.
    remaining: Epochs,
    wants: Epochs,
    source: Option<NodeId>,
    after: Option<Bytes>,
    ask_at: Time,
    /// The last chunk is being forced.
    ending: bool,
    done: bool,
}

impl Fill {
    pub fn new(wants: Epochs) -> Fill {
        let remaining = wants.clone();
        Fill { remaining, wants, source: None, after: None, ask_at: Time::ZERO, ending: false, done: false }
    }
}

impl Replica {
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
            let (wants, after) = (fill.remaining.clone(), fill.after.clone());
            self.send(ctx, source, Body::Pull { wants, after });
            self.fill.as_mut().expect("it fills").source = Some(source);
        }
        self.fill.as_mut().expect("it fills").ask_at = ctx.now + ctx.config.retry;
    }

    /// A member requests keys. What an earlier primary committed must have reached this one first.
    pub fn on_pull(&mut self, ctx: &mut Ctx, from: NodeId, wants: &Epochs, after: Option<Bytes>) {
        let for_primary = self.primary() == Some(from);
        if !for_primary && !self.settled() && !mutant!("kv-replica.fill.unsettled") {
            return;
        }
        let from_key = match &after {
            Some(k) => std::ops::Bound::Excluded(k.clone()),
            None => std::ops::Bound::Unbounded,
        };
        let mut keys = self.keys.range((from_key, std::ops::Bound::Unbounded));
        let entry = |(key, v): (&Bytes, &crate::types::Version)| {
            let version = wants.contains(v.at.epoch).then(|| v.clone());
            let incomplete = self.marks.contains_key(key);
            Entry { key: key.clone(), at: v.at, version, incomplete }
        };
        let entries: Vec<Entry> = keys.by_ref().take(ctx.config.chunk_keys).map(entry).collect();
        let last = keys.next().is_none();
        let clients = last.then(|| self.complete_puts());
        self.send(ctx, from, Body::Chunk(Box::new(Chunk { after, entries, clients })));
    }

    /// Finished puts, without those that the other member will apply itself.
    fn complete_puts(&self) -> Vec<(NodeId, ClientState)> {
        let mut clients: Vec<(NodeId, ClientState)> = self.clients.iter().map(|(n, c)| (*n, c.clone())).collect();
        let in_flight = |id: &PutId| self.lead.as_ref().is_some_and(|l| l.puts.contains_key(id));
        for (client, state) in &mut clients {
            let (client, incarnation) = (*client, state.incarnation);
            state.finished.retain(|sequence, _| !in_flight(&PutId { client, incarnation, sequence: *sequence }));
        }
        clients
    }

    pub fn on_chunk(&mut self, ctx: &mut Ctx, from: NodeId, chunk: Chunk) {
        let Some(fill) = self.fill.as_mut() else { return };
        let expected = fill.source == Some(from) && fill.after == chunk.after && !fill.ending && !fill.done;
        if !expected {
            return;
        }
        if !self.leads(ctx.me)
            && let Some(key) = self.newer_than(&chunk)
        {
            self.stop(ctx, key);
            return;
        }
        let last = chunk.clients.is_some();
        let fill = self.fill.as_mut().expect("it fills");
        fill.after = chunk.entries.last().map(|e| e.key.clone()).or(fill.after.take());
        fill.ending = last;
        fill.ask_at = ctx.now;
        let mut entries = Vec::new();
        for Entry { key, version, incomplete, .. } in chunk.entries {
            let Some(v) = version.filter(|v| self.keys.get(&key).is_none_or(|mine| mine.at < v.at)) else { continue };
            entries.push((record::value_key(self.p, &key), Some(record::version(&v))));
            if incomplete {
                self.marks.insert(key.clone(), (v.at, ctx.now + ctx.config.doubt));
                entries.push((record::mark_key(self.p, &key), Some(record::mark(v.at))));
            } else if self.marks.remove(&key).is_some() {
                entries.push((record::mark_key(self.p, &key), None));
            }
            self.keys.insert(key, v);
        }
        for (node, theirs) in chunk.clients.into_iter().flatten() {
            let mine = self.clients.entry(node).or_default();
            mine.merge(&theirs);
            entries.push((record::client_key(self.p, node), Some(record::client(mine))));
        }
        let epoch = self.epoch();
        ctx.journal.force(ctx.fx, entries, Forced::Chunk { p: self.p, epoch, last });
    }

    /// A key of the chunk's range whose committed version here, of an earlier epoch, the primary does not have.
    fn newer_than(&self, chunk: &Chunk) -> Option<Bytes> {
        let epoch = self.epoch();
        let from = chunk.after.clone().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let last = chunk.entries.last().filter(|_| chunk.clients.is_none());
        let to = last.map_or(std::ops::Bound::Unbounded, |e| std::ops::Bound::Included(e.key.clone()));
        let mine = self.keys.range((from, to)).filter(|(_, v)| v.at.epoch < epoch);
        mine.filter(|(key, v)| {
            let at = chunk.entries.binary_search_by(|e| e.key.cmp(key)).map_or(NEVER, |i| chunk.entries[i].at);
            v.at > at
        })
        .map(|(k, _)| k.clone())
        .next()
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
        fill.after = None;
        fill.ask_at = ctx.now;
        fill.done = fill.remaining.is_empty();
        if fill.done {
            self.assembled = true;
            self.trace(ctx, FILLED, u64::from(view_epoch.0));
            self.lead_filled(ctx);
        }
    }
}
