//! Algorithm 1 of RackBlox, with protocol rules 15 to 17: one packet in, one verdict out.

use rackweave_core::msg::keys::View;
use rackweave_core::msg::{Body, GcField, GcOp, Header, Op, PROBE, ReadLoad, Table, TableError, VssdRow};
use rackweave_core::{Epoch, Incarnation, NodeId, Span, Time, VssdId};

use crate::config::{COLLECTING, ReadWeights, Redirect, SwitchConfig};
use crate::control::{Announcement, Change, DataPlane, Position, RingChange, RowResult};
use crate::load::Loads;
use crate::rings::{KeyRings, RingError, Rings};
use crate::tables::{
    CheckError, Created, Destination, Dump, LastOp, ReportedState, RowState, Slot, State, Tables, Word,
};

mod far;

use far::unless_swapping;

/// Verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the server of the named vSSD.
    Forward {
        to: NodeId,
    },
    /// To another replica of the set: the destination and the header's `vssd` are rewritten.
    Redirect {
        to: NodeId,
        vssd: VssdId,
    },
    /// Back to its sender with this field, the sequence as it was.
    Gc {
        answer: GcField,
        how: GcHow,
    },
    /// The other rack's switch decides; the answer follows its own ([`Pipeline::far_answers`]).
    RequestFar,
    /// Answer of `create_vssd` and `del_vssd`.
    Table(Result<(), TableError>),
    Drop(DropReason),
}

/// Origin of the answer to a `gc_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcHow {
    /// The tables were consulted and changed.
    New,
    /// The same operation had been answered before; nothing changed.
    Duplicate,
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// No row (overlay: no address to forward it to).
    UnknownVssd,
    /// A `gc_op` older than the newest of its vSSD.
    StaleGcOp,
    /// A `create_vssd` or `del_vssd` of an earlier incarnation of the server, or a `create_vssd` older than the row (by
    /// epoch, then request).
    StaleRow,
    /// A `gc_op` from a server that does not own the vSSD.
    ForeignGcOp,
    /// An operation that the switch does not handle, or a body that does not match its operation.
    Malformed,
}

counters! {
    /// Counters since the pipeline was created.
    pub struct Counters {
        reads,
        writes,
        redirects,
        /// Of these: to another rack, since no readable replica in this one was idle.
        redirects_far,
        /// States received from the other rack's switch.
        far_states,
        /// Requests of the other rack's switch to swap dies under its vSSDs.
        far_requests,
        /// Reads sent to a replica with fewer pending reads, though the addressed one did not collect.
        balanced,
        /// Reads of a collecting vSSD that went to one that collects: none was idle, or the idle ones had too many pending
        /// reads.
        all_collecting,
        gc_accepted,
        gc_delayed,
        /// Of the delayed ones: the switch did not yet know every vSSD's state (protocol rule 17).
        gc_delayed_after_start,
        gc_regular,
        gc_background,
        gc_finished,
        gc_heartbeats,
        gc_idles,
        gc_duplicates,
        gc_stale,
        gc_foreign,
        gc_bits_expired,
        /// Times a vSSD's state became unknown because its server was silent, collecting or not.
        fell_silent,
        rows_created,
        rows_deleted,
        rows_stale,
        rows_refused,
        unknown_vssd as "drop_unknown_vssd",
        malformed as "drop_malformed",
        /// `gc_op`s in the kernel with a wrong CRC32C.
        bad_checksum as "drop_bad_checksum",
        /// `gc_op`s in the kernel with a wrong tag, or of a sender without a key.
        bad_mac as "drop_bad_mac",
        /// Packets in the kernel for an address behind no port.
        no_port as "drop_no_port",
        /// Requests in the kernel in trains of segments (GSO), which cannot be rewritten one by one.
        trains as "drop_trains",
        /// Packets for a ring's address, and for an address of the rings without a ring.
        ring_packets,
        unknown_ring as "drop_unknown_ring",
    }
}

/// After this number of expiry times a vSSD without a report does not hold up the others' soft requests: its server has
/// ended, and a vSSD of unknown state never counts as idle anyway.
const START_GUARD_EXPIRIES: u64 = 2;

/// The tables and the program over them.
///
/// `now` must never go back from call to call.
#[derive(Clone, Debug)]
pub struct Pipeline {
    tables: Tables,
    rings: Rings,
    key_rings: KeyRings,
    rack: u32,
    redirect: Redirect,
    weights: ReadWeights,
    far_reads: bool,
    loads: Loads,
    bits_expire: Span,
    start: StartGuard,
    started: Option<Time>,
    counters: Counters,
    position: Position,
}

/// Protocol rule 17: soft requests are delayed until the state of every known vSSD was reported.
#[derive(Clone, Debug)]
enum StartGuard {
    /// No packet yet.
    Unstarted,
    /// Rows below `checked` were found to be known with all their peers. No row is looked at twice: what becomes unknown
    /// later is never taken to be idle.
    Waiting {
        until: Time,
        checked: Slot,
    },
    Over,
}

impl Pipeline {
    pub fn new(cfg: &SwitchConfig) -> Pipeline {
        Pipeline {
            tables: Tables::new(cfg.rows_max),
            rings: Rings::default(),
            key_rings: KeyRings::default(),
            rack: cfg.rack,
            redirect: cfg.redirect,
            weights: cfg.weights,
            far_reads: cfg.far_reads,
            loads: Loads::default(),
            bits_expire: cfg.bits_expire,
            start: StartGuard::Unstarted,
            started: None,
            counters: Counters::default(),
            position: Position::default(),
        }
    }

    /// Decides about one packet from `src`, and changes the tables accordingly.
    #[inline]
    pub fn process(&mut self, now: Time, src: NodeId, header: &Header, body: &Body) -> Verdict {
        match (header.op, body) {
            (Op::Read, _) if self.redirect == Redirect::Load => self.read_by_load(now, header.vssd, header.request),
            (Op::Read, _) => self.read(header.vssd, header.request),
            (Op::Write, _) => self.write(header.vssd),
            (Op::GcOp, Body::Table(Table::Gc(op))) => self.gc_op(now, src, header, *op),
            (Op::CreateVssd, Body::Table(Table::Create(row))) => {
                let announced = (header.epoch, header.request);
                row_verdict(self.create(now, header.vssd, header.incarnation, announced, row))
            }
            (Op::DelVssd, Body::Table(Table::Delete)) => row_verdict(self.delete(header.vssd, header.incarnation)),
            _ => {
                self.counters.malformed += 1;
                Verdict::Drop(DropReason::Malformed)
            }
        }
    }

    /// Members of NICE's ring that get a packet for its address.
    pub fn to_ring(&mut self, from: NodeId, to: NodeId) -> &[NodeId] {
        match self.rings.find(to.ipv4()) {
            Some(ring) => {
                self.counters.ring_packets += 1;
                ring.reached(from)
            }
            None => {
                self.counters.unknown_ring += 1;
                &[]
            }
        }
    }

    /// The membership service announces the members of a partition of keys.
    pub fn view_announced(&mut self, incarnation: Incarnation, view: &View) {
        let change = self.key_rings.change(incarnation, view);
        // A full table keeps what it has: senders reach members without it.
        let _ = change.map(|c| self.change_ring(&c));
    }

    /// Lines 4 to 9: a read goes from a collecting vSSD to an idle readable peer, if there is one; and from a vSSD with
    /// a silent server (RB13) to any readable peer, idle ones first.
    #[inline]
    pub fn read(&mut self, vssd: VssdId, request: u64) -> Verdict {
        self.counters.reads += 1;
        let Some(slot) = self.tables.find(vssd) else { return self.unknown() };
        let to = self.tables.destination(slot);
        if to.word.heard() && !to.word.collecting() || self.redirect == Redirect::Off {
            return Verdict::Forward { to: to.server };
        }
        self.read_elsewhere(slot, to, request)
    }

    #[cold]
    fn read_elsewhere(&mut self, slot: Slot, own: Destination, request: u64) -> Verdict {
        // The other rack's switch reports its servers, if the link between the racks works.
        if !own.word.heard() && self.tables.row(slot).vssd.rack() != self.rack {
            return Verdict::Forward { to: own.server };
        }
        let rack = self.rack;
        let idle = |here: bool| {
            let peers = self.tables.peers(slot);
            peers.filter(move |(v, to)| (v.rack() == rack) == here && to.word.idle())
        };
        let (near, far) = (idle(true).count(), if self.far_reads { idle(false).count() } else { 0 });
        let (here, count) = if near > 0 { (true, near) } else { (false, far) };
        if count == 0 && own.word.collecting() {
            self.counters.all_collecting += 1;
            return Verdict::Forward { to: own.server };
        }
        if count == 0 {
            return self.read_of_silent(slot, own.server);
        }
        let (vssd, to) = idle(here).nth(spread(request, count)).expect("fewer than were counted");
        self.counters.redirects += 1;
        self.counters.redirects_far += u64::from(!here);
        Verdict::Redirect { to: to.server, vssd }
    }

    /// No peer is idle: the first that is readable and whose server is not silent either.
    fn read_of_silent(&mut self, slot: Slot, server: NodeId) -> Verdict {
        let (rack, far_reads) = (self.rack, self.far_reads);
        let heard = |here: bool| {
            let peers = self.tables.peers(slot).filter(move |(v, _)| (v.rack() == rack) == here);
            peers.filter(|(_, to)| to.word.serves()).map(|(v, to)| (v, to.server, here)).next()
        };
        let Some((vssd, to, here)) = heard(true).or_else(|| heard(false).filter(|_| far_reads)) else {
            return Verdict::Forward { to: server };
        };
        self.counters.redirects += 1;
        self.counters.redirects_far += u64::from(!here);
        Verdict::Redirect { to, vssd }
    }

    /// A readable replica of the vSSD that does not collect.
    pub fn idle_peer(&self, vssd: VssdId) -> Option<VssdId> {
        let slot = self.tables.find(vssd)?;
        self.tables.peers(slot).find(|(_, to)| to.word.idle()).map(|(peer, _)| peer)
    }

    /// A read goes to the readable replica in the rack with the fewest pending reads: of equal ones to the addressed
    /// one, else to the first. A collecting one counts [`ReadWeights::collecting`] more: reads avoid it until they would wait
    /// longer at the others. Any readable replica serves it (Hermes), so only its latency is decided here.
    fn read_by_load(&mut self, now: Time, vssd: VssdId, request: u64) -> Verdict {
        self.counters.reads += 1;
        let Some(slot) = self.tables.find(vssd) else { return self.unknown() };
        let own = self.tables.destination(slot);
        let (mut best, mut idle): (Option<(u32, Slot, VssdId)>, bool) = (None, false);
        let peers = self.tables.peer_slots(slot);
        // A far replica is another link away.
        let near = peers.filter(|(peer, _)| peer.rack() == vssd.rack());
        for (id, at) in [(vssd, slot)].into_iter().chain(near) {
            let word = self.tables.destination(at).word;
            if word.serves() {
                idle |= !word.collecting();
                let reads = self.loads.reads(now, at);
                let weight = self.weights.collecting;
                let collects = if word.collecting() { weight.or_else(|| self.loads.collecting(at)) } else { Some(0) };
                let collects = collects.unwrap_or(COLLECTING);
                let erases = if self.loads.erases(now, at) { self.weights.erasing } else { 0 };
                let cost = reads + collects + erases;
                if best.is_none_or(|(least, ..)| cost < least) {
                    best = Some((cost, at, id));
                }
            }
        }
        let far = |fit: fn(Word) -> bool| self.tables.peers(slot).any(|(_, to)| fit(to.word));
        let only_far = best.is_none() && far(Word::serves) || !idle && own.word.collecting() && far(Word::idle);
        if only_far && self.far_reads {
            return self.read_elsewhere(slot, own, request);
        }
        let (_, to, chosen) = best.unwrap_or((0, slot, vssd));
        self.loads.sent(now, to);
        let c = &mut self.counters;
        let reached = self.tables.destination(to);
        c.all_collecting += u64::from(own.word.collecting() && reached.word.collecting());
        if chosen == vssd {
            return Verdict::Forward { to: own.server };
        }
        *(if own.word.collecting() { &mut c.redirects } else { &mut c.balanced }) += 1;
        Verdict::Redirect { to: reached.server, vssd: chosen }
    }

    /// A server reports the pending reads of its vSSD.
    pub fn load_reported(&mut self, now: Time, src: NodeId, header: &Header, load: ReadLoad) {
        match self.tables.find(header.vssd).filter(|&slot| self.tables.destination(slot).server == src) {
            Some(slot) => self.loads.report(now, slot, header.incarnation, load),
            None => self.counters.malformed += 1,
        }
    }

    /// Lines 2 and 3.
    #[inline]
    pub fn write(&mut self, vssd: VssdId) -> Verdict {
        self.counters.writes += 1;
        match self.tables.find(vssd) {
            Some(slot) => Verdict::Forward { to: self.tables.destination(slot).server },
            None => self.unknown(),
        }
    }

    #[cold]
    fn unknown(&mut self) -> Verdict {
        self.counters.unknown_vssd += 1;
        Verdict::Drop(DropReason::UnknownVssd)
    }

    /// Lines 10 to 25.
    fn gc_op(&mut self, now: Time, src: NodeId, header: &Header, op: GcOp) -> Verdict {
        let Some(slot) = self.tables.find(header.vssd) else { return self.unknown() };
        // The other rack's switch judges its own vSSDs.
        if (self.tables.destination(slot).server != src && !mutant!("switch.gc.foreign"))
            || header.vssd.rack() != self.rack
        {
            self.counters.gc_foreign += 1;
            return Verdict::Drop(DropReason::ForeignGcOp);
        }
        if matches!(op.field, GcField::Accept | GcField::Delay) {
            self.counters.malformed += 1;
            return Verdict::Drop(DropReason::Malformed);
        }
        let known = self.tables.row(slot).incarnation;
        if header.incarnation > known {
            self.tables.begin_incarnation(slot, header.incarnation);
        }
        if let Some(last) = self.tables.row(slot).last
            && header.incarnation == known
            && op.sequence == last.sequence
            && !mutant!("switch.gc.equal-anew")
            && !last.expired
        {
            self.counters.gc_duplicates += 1;
            return if last.is_pending() {
                Verdict::RequestFar
            } else {
                Verdict::Gc { answer: last.answer, how: GcHow::Duplicate }
            };
        }
        let older = self.tables.row(slot).last.is_some_and(|last| op.sequence < last.sequence);
        let older = older && !mutant!("switch.gc.older-sequence");
        let past = header.incarnation < known && !mutant!("switch.gc.older-incarnation");
        if past || older {
            self.counters.gc_stale += 1;
            return Verdict::Drop(DropReason::StaleGcOp);
        }
        let (answer, state) = self.judge(now, slot, op.field);
        let last = LastOp { sequence: op.sequence, answer, expired: false };
        self.tables.set_state(slot, state, last, now + self.bits_expire);
        if last.is_pending() { Verdict::RequestFar } else { Verdict::Gc { answer, how: GcHow::New } }
    }

    /// The answer to a new operation, and the vSSD's state after it.
    fn judge(&mut self, now: Time, slot: Slot, field: GcField) -> (GcField, State) {
        // The last command of a slice is under way for a moment after the vSSD must collect.
        let swaps = self.tables.destination(slot).word.swaps();
        let collects = if swaps { State::Swaps } else { State::Collects };
        match field {
            GcField::Soft => {
                let may = self.may_collect(slot);
                if self.judge_soft(now, may) { (GcField::Accept, collects) } else { (GcField::Delay, State::Idle) }
            }
            GcField::Swap | GcField::SwapBeside => {
                let may = self.may_collect(slot) && (self.may_swap(now, slot) || mutant!("switch.gc.swaps-together"));
                if may && self.far_decides(slot) && !self.starting(now) {
                    return (field, unless_swapping(field));
                }
                if self.judge_soft(now, may) {
                    (GcField::Accept, State::Swaps)
                } else {
                    (GcField::Delay, unless_swapping(field))
                }
            }
            GcField::Regular => {
                self.counters.gc_regular += 1;
                (GcField::Accept, collects)
            }
            GcField::Background => {
                self.counters.gc_background += 1;
                (GcField::Accept, collects)
            }
            GcField::Heartbeat | GcField::Swapping => {
                self.counters.gc_heartbeats += 1;
                (field, if field == GcField::Swapping { State::Swaps } else { State::Collects })
            }
            GcField::Finish => {
                self.counters.gc_finished += 1;
                (GcField::Finish, State::Idle)
            }
            // Answers never come here.
            GcField::Idle | GcField::Accept | GcField::Delay => {
                self.counters.gc_idles += 1;
                (GcField::Idle, State::Idle)
            }
        }
    }

    /// Whether a soft request is accepted, if the others' states allow it (protocol rules 15, 35): after a start they must be
    /// known first.
    fn judge_soft(&mut self, now: Time, may: bool) -> bool {
        let starts = self.starting(now) && !mutant!("switch.start.no-guard");
        let accepts = !starts && (may || mutant!("switch.gc.soft-always"));
        self.counters.gc_accepted += u64::from(accepts);
        self.counters.gc_delayed += u64::from(!accepts);
        self.counters.gc_delayed_after_start += u64::from(starts);
        accepts
    }

    /// Protocol rule 35: of a set one drive swaps. No peer is known to; and those in this rack are known not to.
    fn may_swap(&self, now: Time, slot: Slot) -> bool {
        let known = |v: VssdId, word: Word| word.heard() || v.rack() != self.rack;
        let still = self.tables.peers(slot).all(|(v, to)| known(v, to.word) && !to.word.swaps());
        still && (!self.tables.spans_racks(slot) || self.none_swaps_beside(now, slot))
    }

    /// A peer in this rack must be idle: the other rack's state is a moment old, and members there may rely on these in
    /// turn. Without a readable peer in this rack, an idle one in the other counts, if two are readable there, which do
    /// not rely on this one. Of two members that are left, one in each rack, only the one in the lower rack relies on
    /// the other.
    fn may_collect(&self, slot: Slot) -> bool {
        let peers = |here: bool| self.tables.peers(slot).filter(move |(v, _)| (v.rack() == self.rack) == here);
        let readable = |here: bool| peers(here).filter(|(_, to)| to.word.readable()).count();
        let idle = |here: bool| peers(here).any(|(_, to)| to.word.idle());
        if readable(true) > 0 {
            return idle(true);
        }
        let first = peers(false).all(|(v, _)| self.rack < v.rack());
        idle(false) && (readable(false) > 1 || first)
    }

    /// The start of this switch; later calls change nothing.
    pub fn start(&mut self, now: Time) {
        if matches!(self.start, StartGuard::Unstarted) {
            let until = now + self.bits_expire * START_GUARD_EXPIRIES;
            self.start = StartGuard::Waiting { until, checked: 0 };
            self.started = Some(now);
        }
    }

    fn starting(&mut self, now: Time) -> bool {
        self.start(now);
        let StartGuard::Waiting { until, checked } = &mut self.start else { return false };
        while now < *until && *checked < self.tables.slots() {
            if !self.tables.set_heard(*checked) {
                return true;
            }
            *checked += 1;
        }
        self.start = StartGuard::Over;
        false
    }

    fn create(
        &mut self,
        now: Time,
        vssd: VssdId,
        incarnation: Incarnation,
        announced: (Epoch, u64),
        row: &VssdRow,
    ) -> RowResult {
        self.start(now);
        match self.tables.create(vssd, incarnation, announced, row) {
            Ok(Created::Stale) => {
                self.counters.rows_stale += u64::from(announced.1 != PROBE);
                RowResult::Stale
            }
            Ok(created) => {
                self.counters.rows_created += u64::from(created == Created::New);
                if let (Created::New, Some(slot)) = (created, self.tables.find(vssd)) {
                    self.loads.forget(slot);
                }
                RowResult::Done
            }
            Err(e) => {
                self.counters.rows_refused += 1;
                RowResult::Refused(e)
            }
        }
    }

    /// Deleting an absent row succeeds: the answer to an earlier `del_vssd` may have been lost.
    fn delete(&mut self, vssd: VssdId, incarnation: Incarnation) -> RowResult {
        let known = self.tables.find(vssd).is_some();
        let deleted = self.tables.delete(vssd, incarnation);
        self.counters.rows_deleted += u64::from(deleted);
        if known && !deleted {
            self.counters.rows_stale += 1;
            return RowResult::Stale;
        }
        RowResult::Done
    }

    /// Forgets the state of one vSSD whose server has been silent for too long, and returns it. To be called until
    /// `None` before anything else at a new `now`.
    pub fn expire_one(&mut self, now: Time) -> Option<(VssdId, bool)> {
        let (vssd, collected) = self.tables.expire_one(now)?;
        self.counters.gc_bits_expired += u64::from(collected);
        self.counters.fell_silent += 1;
        Some((vssd, collected))
    }

    /// When a state expires next; `Time::MAX` if none is known.
    pub fn deadline(&self) -> Time {
        self.tables.deadline()
    }
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// A vSSD's row as it was last announced.
    pub fn announced(&self, vssd: VssdId) -> Option<Announcement> {
        self.tables.announced(vssd)
    }
    /// The state of a vSSD, if it has a row.
    pub fn row_state(&self, vssd: VssdId) -> Option<RowState> {
        self.tables.row_state(vssd)
    }
    /// The last report of every row's server.
    pub fn reported(&self) -> impl Iterator<Item = ReportedState> {
        self.tables.reported()
    }
    /// Increases with every change of rows.
    pub fn generation(&self) -> u64 {
        self.tables.generation()
    }
    pub fn dump(&self) -> Dump {
        Dump { rings: self.rings.dump(), ..self.tables.dump() }
    }
    /// Where reads go from now on.
    pub fn set_redirect(&mut self, redirect: Redirect) {
        self.redirect = redirect;
    }
    pub fn redirect(&self) -> Redirect {
        self.redirect
    }
    /// How many rows the tables hold.
    pub fn rows(&self) -> u32 {
        self.tables.rows()
    }
    /// Whether the tables agree with each other; a test calls it after every packet.
    pub fn check(&self) -> Result<(), CheckError> {
        self.tables.check()
    }
}

fn row_verdict(result: RowResult) -> Verdict {
    match result {
        RowResult::Done => Verdict::Table(Ok(())),
        RowResult::Stale => Verdict::Drop(DropReason::StaleRow),
        RowResult::Refused(e) => Verdict::Table(Err(e)),
    }
}

/// The data plane of the process switch. States that have expired are forgotten by [`Pipeline::expire_one`].
impl DataPlane for Pipeline {
    type Fault = std::convert::Infallible;

    fn position(&self) -> Position {
        self.position
    }
    fn set_position(&mut self, position: Position) {
        self.position = position;
    }
    fn rows_max(&self) -> u32 {
        self.tables.rows_max()
    }
    fn change(&mut self, now: Time, change: &Change) -> Result<RowResult, Self::Fault> {
        Ok(match change {
            Change::Create(Announcement { vssd, incarnation, epoch, request, row }) => {
                self.create(now, *vssd, *incarnation, (*epoch, *request), row)
            }
            Change::Delete { vssd, incarnation } => self.delete(*vssd, *incarnation),
        })
    }
    fn change_ring(&mut self, change: &RingChange) -> Result<Result<(), RingError>, Self::Fault> {
        Ok(match change {
            RingChange::Set(ring) => self.rings.set(ring),
            RingChange::Remove(prefix) => {
                self.rings.remove(*prefix);
                Ok(())
            }
        })
    }
    fn dump(&self, _: Time) -> Result<Dump, Self::Fault> {
        Ok(Pipeline::dump(self))
    }
    fn counters(&self) -> Result<Counters, Self::Fault> {
        Ok(self.counters)
    }
}

/// Index of the idle replica, of `count`, that serves `request`: consecutive requests go to nearly each in turn, and
/// any data plane with a 32-bit multiplication chooses the same.
fn spread(request: u64, count: usize) -> usize {
    let hash = (request as u32).wrapping_mul(0x9e37_79b9);
    ((u64::from(hash) * count as u64) >> 32) as usize
}
