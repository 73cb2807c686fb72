//! Which mutations were executed (protocol rule 7), and which of their blocks may not have been.
//!
//! The tables live in memory. A shadow takes them over from the members, so that they are lost only with all members at
//! once. Of what a client then sends again, an unanswered mutation may be executed twice: nothing newer of its blocks was
//! ever sent, because a client has one mutation of a block under way and a volume has one writer. A late copy of an
//! *answered* one would undo what came after it. So a mutation is stamped with the epoch its client knows, and a member
//! refuses an older one than its own; a recovered set is two epochs further, and only what a client still wants gets the
//! new stamp.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::map::{Map, map};
use rackweave_core::msg::Mutation;
use rackweave_core::msg::peer::{Applied, ClientRecord};
use rackweave_core::{Incarnation, Timestamp};

use crate::config::CLIENTS_MAX;

/// Why a block of a known mutation may not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    /// Accepted here as a read-modify-write of this version, not resolved yet.
    Tentative(Timestamp),
    /// Never accepted here, or superseded by something not made from it.
    Lost,
}

/// A mutation may come in parts: a replay has only what was unresolved. So a record says which blocks came.
#[derive(Debug, Default)]
struct Record {
    /// Blocks that came, as bits from `anchor` on: a message has few enough, side by side.
    seen: u64,
    anchor: u32,
    /// Blocks in doubt; nearly always none.
    edges: Vec<(u32, Edge)>,
}

/// Lists of edges kept for reuse: as many as a client's partial writes under way need.
const SPARE_MAX: usize = 64;

/// How far below the first block that came others of the same message may be.
const BELOW: u32 = 24;

impl Record {
    fn see(&mut self, block: u32) {
        if self.seen == 0 {
            self.anchor = block.saturating_sub(BELOW);
        }
        self.seen |= self.bit(block);
        if !self.edges.is_empty() {
            self.edges.retain(|e| *e != (block, Edge::Lost));
        }
    }
    fn bit(&self, block: u32) -> u64 {
        block.checked_sub(self.anchor).and_then(|n| 1u64.checked_shl(n)).unwrap_or(0)
    }
    /// The blocks in it for good, without the `unresolved` ones; of a mutation that came whole, all or none.
    fn applied(&self, sequence: u64, unresolved: &[u32]) -> Applied {
        let mut doubtful = self.edges.iter().map(|e| e.0).chain(unresolved.iter().copied());
        let blocks = match self.seen {
            Applied::ALL if doubtful.next().is_some() => 0,
            Applied::ALL => Applied::ALL,
            seen => doubtful.fold(seen, |blocks, b| blocks & !self.bit(b)),
        };
        Applied { sequence, first: self.anchor, blocks }
    }
    fn edge(&self, block: u32) -> Option<Edge> {
        if self.seen != u64::MAX && self.seen & self.bit(block) == 0 {
            return Some(Edge::Lost);
        }
        self.edges.iter().find(|e| e.0 == block).map(|e| e.1)
    }
}

#[derive(Debug, Default)]
struct Client {
    floor: u64,
    /// By sequence.
    records: VecDeque<(u64, Record)>,
    /// Lists of edges that are empty, kept for the next partial writes.
    spare: Vec<Vec<(u32, Edge)>>,
    used: u64,
}

impl Client {
    fn find(&self, sequence: u64) -> Result<usize, usize> {
        // Nearly every sequence is new, or none is missing before it.
        let (Some((first, _)), Some((last, _))) = (self.records.front(), self.records.back()) else { return Err(0) };
        if *last < sequence {
            return Err(self.records.len());
        }
        let place = sequence.wrapping_sub(*first) as usize;
        match self.records.get(place) {
            Some((found, _)) if *found == sequence => Ok(place),
            _ => self.records.binary_search_by_key(&sequence, |r| r.0),
        }
    }
}

/// State of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Never seen.
    No,
    /// Answered to its client.
    Answered,
    /// Executed, except for blocks with an [`Edge`].
    Yes,
}

#[derive(Debug)]
pub(crate) struct Dedup {
    clients: Map<Incarnation, Client>,
    uses: u64,
}

impl Dedup {
    pub fn new() -> Dedup {
        Dedup { clients: map(), uses: 0 }
    }
    pub fn clear(&mut self) {
        self.clients.clear();
    }
    pub fn seen(&self, m: Mutation) -> Seen {
        let Some(c) = self.clients.get(&m.client) else { return Seen::No };
        match c.find(m.sequence) {
            _ if m.sequence < c.floor && !mutant!("replica.dedup.no-floor") => Seen::Answered,
            Ok(_) => Seen::Yes,
            Err(_) => Seen::No,
        }
    }
    /// Whether this block of a mutation is in it for good: seen, and not in doubt.
    pub fn settled(&self, m: Mutation, block: u32) -> bool {
        match self.seen(m) {
            Seen::No => false,
            Seen::Answered => true,
            Seen::Yes => self.edge(m, block).is_none(),
        }
    }
    pub fn edge(&self, m: Mutation, block: u32) -> Option<Edge> {
        let c = self.clients.get(&m.client)?;
        let i = c.find(m.sequence).ok()?;
        c.records[i].1.edge(block)
    }
    /// Mutations remembered of a client.
    pub fn remembered(&self, client: Incarnation) -> usize {
        self.clients.get(&client).map_or(0, |c| c.records.len())
    }
    /// Records blocks of a mutation. Client zero stands for no client, and is not recorded.
    pub fn note(&mut self, m: Mutation, blocks: impl Iterator<Item = u32>) {
        if let Some(r) = self.record(m) {
            blocks.for_each(|b| r.see(b));
        }
    }
    /// Remembers that a block of a known mutation was refused, unless it is in effect already.
    pub fn refuse(&mut self, m: Mutation, block: u32) {
        if self.edge(m, block) == Some(Edge::Lost) {
            self.mark(m, block, Some(Edge::Lost));
        }
    }
    /// Remembers all of a mutation.
    pub fn note_all(&mut self, m: Mutation) {
        if let Some(r) = self.record(m) {
            r.seen = u64::MAX;
        }
    }
    fn record(&mut self, m: Mutation) -> Option<&mut Record> {
        if m.client.0 == 0 {
            return None;
        }
        self.uses += 1;
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&m.client) {
            self.evict();
        }
        let c = self.clients.entry(m.client).or_default();
        c.used = self.uses;
        if m.floor > c.floor {
            c.floor = m.floor;
            while c.records.front().is_some_and(|r| r.0 < m.floor) {
                let edges = c.records.pop_front().map(|r| r.1.edges).filter(|e| e.capacity() > 0);
                c.spare.extend(edges.filter(|_| c.spare.len() < SPARE_MAX).map(|mut e| {
                    e.clear();
                    e
                }));
            }
        }
        if m.sequence < c.floor {
            return None;
        }
        let i = c.find(m.sequence).unwrap_or_else(|i| {
            c.records.insert(i, (m.sequence, Record::default()));
            i
        });
        Some(&mut c.records[i].1)
    }
    fn evict(&mut self) {
        if let Some(idle) = self.clients.iter().min_by_key(|(_, c)| c.used).map(|(&k, _)| k) {
            self.clients.remove(&idle);
        }
    }
    /// Sets or clears the doubt about a block of a known mutation.
    pub fn mark(&mut self, m: Mutation, block: u32, edge: Option<Edge>) {
        let Some(c) = self.clients.get_mut(&m.client) else { return };
        let Ok(i) = c.find(m.sequence) else { return };
        let edges = &mut c.records[i].1.edges;
        let at = edges.iter().position(|e| e.0 == block);
        match (at, edge) {
            (Some(i), Some(e)) => edges[i].1 = e,
            (Some(i), None) => {
                edges.swap_remove(i);
            }
            (None, Some(e)) => {
                if edges.capacity() == 0 {
                    *edges = c.spare.pop().unwrap_or_default();
                }
                edges.push((block, e));
            }
            (None, None) => {}
        }
    }
    /// Clears the doubt if it is about this very version, or takes the block for lost.
    pub fn resolve(&mut self, m: Mutation, block: u32, version: Timestamp, applied: bool) {
        if self.edge(m, block) == Some(Edge::Tentative(version)) {
            self.mark(m, block, if applied { None } else { Some(Edge::Lost) });
        }
    }
    /// Forgets mutations of which something is in doubt (before a recovery, which settles what they left).
    pub fn drop_doubtful(&mut self) {
        for c in self.clients.values_mut() {
            c.records.retain(|r| r.1.edges.is_empty());
        }
    }
    /// For a shadow: the blocks of mutations that are neither in doubt nor `unresolved`. Invalidations bring it those.
    pub fn export(&self, unresolved: &Unresolved) -> Box<[ClientRecord]> {
        let of = |client: Incarnation, sequence: u64, r: &Record| {
            let open = unresolved.get(&(client, sequence)).filter(|_| !mutant!("replica.dedup.export-unresolved"));
            let open = open.map_or(&[][..], |b| b);
            r.applied(sequence, open)
        };
        let mut all: Vec<ClientRecord> = self
            .clients
            .iter()
            .map(|(&client, c)| {
                let applied = c.records.iter().map(|r| of(client, r.0, &r.1)).filter(|a| a.blocks != 0).collect();
                ClientRecord { client, floor: c.floor, applied }
            })
            .collect();
        all.sort_unstable_by_key(|r| r.client);
        all.into()
    }
    /// Takes over what every one of `members` tables has: what is in effect was seen by all.
    pub fn import(&mut self, records: &[ClientRecord], members: usize) {
        let mut floors: BTreeMap<Incarnation, u64> = BTreeMap::new();
        let mut seen: BTreeMap<(Incarnation, u64), Vec<Applied>> = BTreeMap::new();
        for r in records {
            let floor = floors.entry(r.client).or_default();
            *floor = r.floor.max(*floor);
            for a in &r.applied {
                seen.entry((r.client, a.sequence)).or_default().push(*a);
            }
        }
        for (&client, &floor) in &floors {
            let c = self.clients.entry(client).or_default();
            c.floor = floor.max(c.floor);
        }
        for (&(client, sequence), tables) in
            seen.iter().filter(|(_, tables)| tables.len() >= members || mutant!("replica.dedup.import-any"))
        {
            let m = Mutation { client, sequence, floor: 0 };
            match tables.iter().find(|a| a.blocks != Applied::ALL) {
                None => self.note_all(m),
                Some(_) if mutant!("replica.dedup.part-for-whole") => self.note_all(m),
                Some(few) => {
                    let blocks = (0..u64::BITS).filter(|i| few.blocks >> i & 1 == 1);
                    let blocks =
                        blocks.map(|i| few.first.saturating_add(i)).filter(|&b| tables.iter().all(|a| has(a, b)));
                    let mut blocks = blocks.peekable();
                    if blocks.peek().is_some() {
                        self.note(m, blocks);
                    }
                }
            }
        }
    }
}

/// Unresolved blocks of mutations that a shadow requests; of a range its first block.
pub(crate) type Unresolved = BTreeMap<(Incarnation, u64), Vec<u32>>;

fn has(a: &Applied, block: u32) -> bool {
    let bit = block.checked_sub(a.first).and_then(|n| a.blocks.checked_shr(n));
    a.blocks == Applied::ALL || bit.is_some_and(|b| b & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Incarnation = Incarnation(9);

    fn mutation(sequence: u64) -> Mutation {
        Mutation { client: CLIENT, sequence, floor: 0 }
    }
    fn table(seen: &[(u64, &[u32])]) -> Dedup {
        let mut d = Dedup::new();
        seen.iter().for_each(|&(sequence, blocks)| d.note(mutation(sequence), blocks.iter().copied()));
        d
    }
    fn shadow_of(members: &[(&Dedup, Unresolved)]) -> Dedup {
        let records: Vec<ClientRecord> = members.iter().flat_map(|(d, open)| d.export(open).into_vec()).collect();
        let mut shadow = Dedup::new();
        shadow.import(&records, members.len());
        shadow
    }

    /// A replay brings what was unresolved. A shadow that took the part for the whole would answer a write that was never
    /// executed.
    #[test]
    fn a_shadow_learns_of_the_blocks_that_members_saw_and_of_no_others() {
        let part = table(&[(1, &[26]), (2, &[5, 6])]);
        let whole = table(&[(1, &[25, 26]), (2, &[6, 7])]);
        for members in [vec![&part], vec![&part, &whole], vec![&whole, &part]] {
            let of: Vec<_> = members.iter().map(|d| (*d, Unresolved::new())).collect();
            let shadow = shadow_of(&of);
            assert_eq!(shadow.seen(mutation(1)), Seen::Yes);
            assert_eq!(shadow.edge(mutation(1), 25), Some(Edge::Lost));
            assert!(shadow.settled(mutation(1), 26));
            assert_eq!(shadow.settled(mutation(2), 5), members.len() == 1);
            assert!(shadow.settled(mutation(2), 6));
        }
        let alone = shadow_of(&[(&part, Unresolved::new()), (&table(&[]), Unresolved::new())]);
        assert_eq!(alone.seen(mutation(1)), Seen::No, "one of two members never saw it: it is not in effect");
    }

    #[test]
    fn blocks_in_doubt_are_left_out_and_the_others_are_not() {
        let mut d = table(&[(1, &[25, 26, 27])]);
        d.mark(mutation(1), 27, Some(Edge::Lost));
        d.note_all(mutation(2));
        d.note_all(mutation(3));
        let open = Unresolved::from([((CLIENT, 1), vec![26]), ((CLIENT, 3), vec![0])]);
        let shadow = shadow_of(&[(&d, open)]);
        assert!(shadow.settled(mutation(1), 25), "answered by others, a late copy would undo what came after it");
        assert_eq!((26..28).map(|b| shadow.edge(mutation(1), b)).collect::<Vec<_>>(), [Some(Edge::Lost); 2]);
        assert!(shadow.settled(mutation(2), 1 << 30), "a range came whole");
        assert_eq!(shadow.seen(mutation(3)), Seen::No);
    }
}
