//! The replica table and the destination table (RackBlox figure 5), keyed by vSSD id.
//!
//! The two collecting bits of a vSSD, one a table, live in one word that is written once: no observer sees them
//! disagree (protocol rule 16).

use std::collections::BTreeSet;

use rackweave_core::map::{Map, map};
use rackweave_core::msg::{GcField, PEERS_MAX, TableError, VssdRow};
use rackweave_core::{Epoch, Incarnation, NodeId, Time, VssdId};

use crate::control::Announcement;

/// A vSSD's registers, one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word(u8);

impl Word {
    const READABLE: u8 = 1;
    const REPLICA_GC: u8 = 2;
    const DESTINATION_GC: u8 = 4;
    /// Its server reported its state recently.
    const HEARD: u8 = 8;
    /// A swap of dies keeps it busy; it counts as collecting, too.
    const SWAPS: u8 = 16;
    const GC: u8 = Self::REPLICA_GC | Self::DESTINATION_GC;

    pub fn readable(self) -> bool {
        self.0 & Self::READABLE != 0
    }
    pub fn collecting(self) -> bool {
        self.0 & Self::GC != 0
    }
    pub fn swaps(self) -> bool {
        self.0 & Self::SWAPS != 0
    }
    pub fn heard(self) -> bool {
        self.0 & Self::HEARD != 0
    }
    /// Known to be readable.
    pub fn serves(self) -> bool {
        self.readable() && self.heard()
    }
    /// Known to be readable and not to collect: fit to serve others' reads.
    pub fn idle(self) -> bool {
        self.0 & (Self::READABLE | Self::HEARD | Self::GC) == Self::READABLE | Self::HEARD
    }
    /// As its server reported.
    pub fn state(self) -> State {
        match (self.swaps(), self.collecting()) {
            (true, _) => State::Swaps,
            (false, true) => State::Collects,
            (false, false) => State::Idle,
        }
    }
    fn with(self, mask: u8, on: bool) -> Word {
        Word(if on { self.0 | mask } else { self.0 & !mask })
    }
}

/// A vSSD's activity, as its server reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Collects,
    /// For a slice of a swap of dies; its own collection may run beside it.
    Swaps,
}

/// Fields of a vSSD that the hot path needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub server: NodeId,
    pub word: Word,
}

/// The newest operation of a vSSD, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastOp {
    pub sequence: u64,
    pub answer: GcField,
    /// The bits it set have expired: a repetition is judged afresh.
    pub expired: bool,
}

impl LastOp {
    /// Whether the other rack's switch has not answered: the operation itself stands for the answer.
    pub fn is_pending(&self) -> bool {
        matches!(self.answer, GcField::Swap | GcField::SwapBeside)
    }
}

/// The rest of a row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub vssd: VssdId,
    peers: [(VssdId, NodeId); PEERS_MAX],
    peer_count: u8,
    /// Incarnation of the last server that reported this vSSD.
    pub incarnation: Incarnation,
    /// Epoch and request of the `create_vssd` that wrote this row: an older one of the same incarnation is ignored.
    announced: (Epoch, u64),
    pub last: Option<LastOp>,
    /// When the last report expires; `Time::MAX` without one.
    expires: Time,
}

impl Row {
    pub fn peers(&self) -> &[(VssdId, NodeId)] {
        &self.peers[..usize::from(self.peer_count)]
    }
}

/// Place of a row in the dense arrays.
pub(crate) type Slot = u32;

#[derive(Clone, Debug)]
pub(crate) struct Tables {
    rows_max: u32,
    index: Map<VssdId, Slot>,
    destinations: Vec<Destination>,
    rows: Vec<Row>,
    free: Vec<Slot>,
    /// vSSDs whose state is known, by the time it expires.
    expiry: BTreeSet<(Time, Slot)>,
    generation: u64,
}

/// Effect of a `create_vssd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Created {
    New,
    Changed,
    Same,
    /// Of an earlier incarnation, or older than the row: ignored.
    Stale,
}

impl Tables {
    pub fn new(rows_max: u32) -> Tables {
        Tables {
            rows_max,
            index: map(),
            destinations: Vec::new(),
            rows: Vec::new(),
            free: Vec::new(),
            expiry: BTreeSet::new(),
            generation: 0,
        }
    }

    pub fn rows(&self) -> u32 {
        self.index.len() as u32
    }
    /// Increases with every change of rows.
    pub fn generation(&self) -> u64 {
        self.generation
    }
    pub fn rows_max(&self) -> u32 {
        self.rows_max
    }
    #[inline]
    pub fn find(&self, vssd: VssdId) -> Option<Slot> {
        self.index.get(&vssd).copied()
    }
    #[inline]
    pub fn destination(&self, slot: Slot) -> Destination {
        self.destinations[slot as usize]
    }
    pub fn row(&self, slot: Slot) -> &Row {
        &self.rows[slot as usize]
    }
    /// The other rows of the set of `slot`, in the order of its peers; peers without a row are left out.
    pub fn peers(&self, slot: Slot) -> impl Iterator<Item = (VssdId, Destination)> {
        self.peer_slots(slot).map(|(v, s)| (v, self.destination(s)))
    }
    pub fn peer_slots(&self, slot: Slot) -> impl Iterator<Item = (VssdId, Slot)> {
        let row = self.row(slot);
        row.peers().iter().filter(|&&(v, _)| v != row.vssd).filter_map(|&(v, _)| self.find(v).map(|s| (v, s)))
    }
    /// Whether a vSSD swaps whose row names this one. Looks at all rows, as rarely as slices of swaps are requested.
    pub fn swaps_beside(&self, vssd: VssdId) -> bool {
        let swapping = self.destinations.iter().zip(&self.rows).filter(|(to, _)| to.word.swaps());
        swapping.into_iter().any(|(_, row)| row.vssd != vssd && row.peers().iter().any(|p| p.0 == vssd))
    }
    /// Whether the set of `slot` lies in more racks than one.
    pub fn spans_racks(&self, slot: Slot) -> bool {
        let row = self.row(slot);
        row.peers().iter().any(|&(v, _)| v.rack() != row.vssd.rack())
    }
    /// Rows ever used, holes included: slots are below this.
    pub fn slots(&self) -> u32 {
        self.rows.len() as u32
    }
    /// Whether the state of this row's vSSD and of each of its peers is known; a hole is, and a partition of keys has none.
    pub fn set_heard(&self, slot: Slot) -> bool {
        let row = self.row(slot);
        row.vssd == VssdId(0)
            || row.vssd.is_partition()
            || self.destination(slot).word.heard()
                && row.peers().iter().all(|&(v, _)| self.find(v).is_some_and(|s| self.destination(s).word.heard()))
    }

    pub fn create(
        &mut self,
        vssd: VssdId,
        incarnation: Incarnation,
        announced: (Epoch, u64),
        new: &VssdRow,
    ) -> Result<Created, TableError> {
        crate::control::check_row(vssd, new)?;
        let created = match self.find(vssd) {
            Some(slot) => self.update(slot, incarnation, announced, new),
            None => {
                if self.index.len() as u32 >= self.rows_max {
                    return Err(TableError::Full { rows: self.index.len() as u32 });
                }
                self.insert(vssd, incarnation, announced, new);
                Created::New
            }
        };
        if matches!(created, Created::New | Created::Changed) {
            self.generation += 1;
        }
        Ok(created)
    }

    fn insert(&mut self, vssd: VssdId, incarnation: Incarnation, announced: (Epoch, u64), new: &VssdRow) {
        let (peers, peer_count) = pack_peers(&new.peers);
        let row = Row { vssd, peers, peer_count, incarnation, announced, last: None, expires: Time::MAX };
        let destination = Destination { server: new.server, word: Word::default().with(Word::READABLE, new.readable) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.rows[slot as usize] = row;
                self.destinations[slot as usize] = destination;
                slot
            }
            None => {
                self.rows.push(row);
                self.destinations.push(destination);
                self.slots() - 1
            }
        };
        self.index.insert(vssd, slot);
    }

    fn update(&mut self, slot: Slot, incarnation: Incarnation, announced: (Epoch, u64), new: &VssdRow) -> Created {
        let row = &self.rows[slot as usize];
        if (incarnation, announced) < (row.incarnation, row.announced) && !mutant!("switch.row.older") {
            return Created::Stale;
        }
        let newer = incarnation > row.incarnation;
        if newer && !mutant!("switch.incarnation.keeps-state") {
            self.forget_state(slot);
        }
        let (peers, peer_count) = pack_peers(&new.peers);
        let row = &mut self.rows[slot as usize];
        let to = &mut self.destinations[slot as usize];
        let word = to.word.with(Word::READABLE, new.readable);
        let same =
            !newer && row.peers() == &peers[..usize::from(peer_count)] && to.server == new.server && to.word == word;
        (row.incarnation, row.announced) = (incarnation, announced);
        (row.peers, row.peer_count) = (peers, peer_count);
        (to.server, to.word) = (new.server, word);
        if same { Created::Same } else { Created::Changed }
    }

    /// A new incarnation of the server: it does not collect, but has not reported that yet.
    pub fn forget_state(&mut self, slot: Slot) {
        self.set_expiry(slot, Time::MAX);
        let to = &mut self.destinations[slot as usize];
        to.word = to.word.with(Word::GC | Word::SWAPS | Word::HEARD, false);
        self.rows[slot as usize].last = None;
    }

    /// False if there was no such row, or a later incarnation of its server made it.
    pub fn delete(&mut self, vssd: VssdId, incarnation: Incarnation) -> bool {
        let Some(slot) = self.find(vssd) else { return false };
        if incarnation < self.row(slot).incarnation && !mutant!("switch.row.delete-newer") {
            return false;
        }
        self.set_expiry(slot, Time::MAX);
        self.index.remove(&vssd);
        let row = &mut self.rows[slot as usize];
        (row.vssd, row.peer_count, row.last) = (VssdId(0), 0, None);
        self.destinations[slot as usize].word = Word::default();
        self.free.push(slot);
        self.generation += 1;
        true
    }

    /// A `gc_op` of a new incarnation came before its row: whether this incarnation is readable is not known yet.
    pub fn begin_incarnation(&mut self, slot: Slot, incarnation: Incarnation) {
        self.forget_state(slot);
        let to = &mut self.destinations[slot as usize];
        to.word = to.word.with(Word::READABLE, mutant!("switch.incarnation.keeps-readable"));
        let row = &mut self.rows[slot as usize];
        (row.incarnation, row.announced) = (incarnation, (Epoch(0), 0));
    }

    /// Writes the bits of a vSSD and the answer at once. The bits expire at `until`.
    pub fn set_state(&mut self, slot: Slot, state: State, last: LastOp, until: Time) {
        let to = &mut self.destinations[slot as usize];
        let bits = if mutant!("switch.bits.half") { Word::DESTINATION_GC } else { Word::GC };
        to.word = to.word.with(bits, state != State::Idle).with(Word::HEARD, true);
        to.word = to.word.with(Word::SWAPS, state == State::Swaps);
        self.rows[slot as usize].last = Some(last);
        self.set_expiry(slot, until);
    }

    fn set_expiry(&mut self, slot: Slot, at: Time) {
        let row = &mut self.rows[slot as usize];
        if row.expires == at {
            return;
        }
        if row.expires != Time::MAX {
            self.expiry.remove(&(row.expires, slot));
        }
        if at != Time::MAX {
            self.expiry.insert((at, slot));
        }
        row.expires = at;
    }

    /// When the next state expires.
    pub fn deadline(&self) -> Time {
        self.expiry.first().map_or(Time::MAX, |&(at, _)| at)
    }

    /// Forgets one expired state, and returns the vSSD and whether it collected.
    pub fn expire_one(&mut self, now: Time) -> Option<(VssdId, bool)> {
        let &(at, slot) = self.expiry.first()?;
        if at > now || mutant!("switch.bits.never-expire") {
            return None;
        }
        self.set_expiry(slot, Time::MAX);
        let to = &mut self.destinations[slot as usize];
        let collected = to.word.collecting();
        to.word = to.word.with(Word::GC | Word::SWAPS | Word::HEARD, false);
        let row = &mut self.rows[slot as usize];
        if let Some(last) = &mut row.last {
            last.expired = true;
        }
        Some((row.vssd, collected))
    }

    /// A row as it was last announced, for a data plane elsewhere that follows this one.
    pub fn announced(&self, vssd: VssdId) -> Option<Announcement> {
        let slot = self.find(vssd)?;
        let (row, to) = (self.row(slot), self.destination(slot));
        let (incarnation, (epoch, request)) = (row.incarnation, row.announced);
        let row = VssdRow { server: to.server, readable: to.word.readable(), peers: row.peers().to_vec() };
        Some(Announcement { vssd, incarnation, epoch, request, row })
    }

    /// A row's state, for the same.
    pub fn row_state(&self, vssd: VssdId) -> Option<RowState> {
        let slot = self.find(vssd)?;
        let (row, word) = (self.row(slot), self.destination(slot).word);
        Some(RowState {
            incarnation: row.incarnation,
            readable: word.readable(),
            collecting: word.collecting(),
            swaps: word.swaps(),
            heard_until: word.heard().then_some(row.expires),
        })
    }

    /// The last report of every row's server, in arbitrary order.
    pub fn reported(&self) -> impl Iterator<Item = ReportedState> {
        let live = self.rows.iter().zip(&self.destinations).filter(|(r, _)| r.vssd != VssdId(0));
        live.map(|(r, to)| ReportedState {
            vssd: r.vssd,
            incarnation: r.incarnation,
            sequence: r.last.map_or(0, |l| l.sequence),
            heard: to.word.heard(),
            collecting: to.word.collecting(),
        })
    }

    /// Both tables as they are, in id order.
    pub fn dump(&self) -> Dump {
        let mut slots: Vec<Slot> = self.index.values().copied().collect();
        slots.sort_unstable_by_key(|&s| self.row(s).vssd);
        Dump {
            rings: Vec::new(),
            generation: self.generation,
            replica: slots.iter().map(|&s| self.replica_row(s)).collect(),
            destination: slots.iter().map(|&s| self.destination_row(s)).collect(),
        }
    }

    fn replica_row(&self, slot: Slot) -> ReplicaRow {
        let row = self.row(slot);
        let peer = |&(vssd, server): &(VssdId, NodeId)| {
            let word = self.find(vssd).map_or(Word::default(), |s| self.destination(s).word);
            PeerState { vssd, server, readable: word.readable(), collecting: word.collecting() }
        };
        ReplicaRow {
            vssd: row.vssd,
            collecting: self.destination(slot).word.0 & Word::REPLICA_GC != 0,
            peers: row.peers().iter().map(peer).collect(),
        }
    }

    fn destination_row(&self, slot: Slot) -> DestinationRow {
        let to = self.destination(slot);
        DestinationRow {
            vssd: self.row(slot).vssd,
            server: to.server,
            collecting: to.word.0 & Word::DESTINATION_GC != 0,
            readable: to.word.readable(),
            heard: to.word.heard(),
        }
    }

    /// Whether each pair of bits agrees and the tables are consistent.
    pub fn check(&self) -> Result<(), CheckError> {
        if self.index.len() + self.free.len() != self.rows.len() {
            return Err(CheckError::Slots { rows: self.index.len() as u32, slots: self.slots() });
        }
        let mut heard = 0;
        for (&vssd, &slot) in &self.index {
            let (row, word) = (self.row(slot), self.destination(slot).word);
            if row.vssd != vssd {
                return Err(CheckError::Index { vssd, found: row.vssd });
            }
            let differ = (word.0 & Word::REPLICA_GC != 0) != (word.0 & Word::DESTINATION_GC != 0);
            if differ || word.swaps() && !word.collecting() {
                return Err(CheckError::BitsDisagree { vssd });
            }
            heard += usize::from(word.heard());
            if word.heard() != self.expiry.contains(&(row.expires, slot)) || word.collecting() && !word.heard() {
                return Err(CheckError::Expiry { vssd });
            }
        }
        if heard != self.expiry.len() {
            return Err(CheckError::Expiries { known: heard as u32, expiring: self.expiry.len() as u32 });
        }
        Ok(())
    }
}

fn pack_peers(peers: &[(VssdId, NodeId)]) -> ([(VssdId, NodeId); PEERS_MAX], u8) {
    let mut packed = [(VssdId(0), NodeId(0)); PEERS_MAX];
    packed[..peers.len()].copy_from_slice(peers);
    (packed, peers.len() as u8)
}

/// Both tables, in id order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Changes of rows (not of bits) since the switch started.
    pub generation: u64,
    pub replica: Vec<ReplicaRow>,
    pub destination: Vec<DestinationRow>,
    /// NICE's rings, by prefix.
    pub rings: Vec<crate::rings::Ring>,
}

/// A row of the replica table: vSSD → collecting, its peers and their bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRow {
    pub vssd: VssdId,
    pub collecting: bool,
    pub peers: Vec<PeerState>,
}

/// A peer as its own row says; one without a row is not readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerState {
    pub vssd: VssdId,
    /// As the row's owner announced it.
    pub server: NodeId,
    pub readable: bool,
    pub collecting: bool,
}

/// A row's state: all that a read needs to know, and the incarnation of the server that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowState {
    pub incarnation: Incarnation,
    pub readable: bool,
    pub collecting: bool,
    pub swaps: bool,
    /// When the report of its server expires, if there is one.
    pub heard_until: Option<Time>,
}

/// The last report of a vSSD's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedState {
    pub vssd: VssdId,
    /// Incarnation of the reporting server.
    pub incarnation: Incarnation,
    /// Of the last `gc_op`; zero: none.
    pub sequence: u64,
    /// It has not expired.
    pub heard: bool,
    pub collecting: bool,
}

/// A row of the destination table: vSSD → server, collecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationRow {
    pub vssd: VssdId,
    pub server: NodeId,
    pub collecting: bool,
    pub readable: bool,
    /// Its server reported recently whether it collects.
    pub heard: bool,
}

/// Tables that contradict themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("{vssd}: the bits of the replica and the destination table disagree")]
    BitsDisagree { vssd: VssdId },
    #[error("the row of {vssd} is {found}'s")]
    Index { vssd: VssdId, found: VssdId },
    #[error("{rows} rows and the free slots are not all of {slots} slots")]
    Slots { rows: u32, slots: u32 },
    #[error("{vssd}: state that does not expire, or expiry without a state")]
    Expiry { vssd: VssdId },
    #[error("the state of {known} vSSDs is known, {expiring} expire")]
    Expiries { known: u32, expiring: u32 },
}
