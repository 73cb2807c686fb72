//! Erase blocks of a vSSD: their state, what every slot was programmed with, and the choice of a victim.

use crate::drive::FreeBlocks;
use crate::gc_policy::VictimPolicy;

/// No block, slot or list entry.
pub(crate) const NONE: u32 = u32::MAX;
/// Address of a slot that holds nothing: filler, never programmed, or torn.
pub(crate) const PAD: u64 = u64::MAX;
/// Volume half of the address of a slot with range records; the low half is the group's number.
pub(crate) const RANGE_VOLUME: u64 = 0xffff_ffff << 32;

pub(crate) fn is_range(addr: u64) -> bool {
    addr >= RANGE_VOLUME && addr != PAD
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In the free list of its die; to be erased before its first program if `dirty`.
    Free {
        dirty: bool,
    },
    /// A frontier.
    Open,
    /// Being erased for a frontier that waits for it.
    Preparing,
    /// Takes no more programs; some may still be in flight.
    Closed,
    Victim,
    Erasing,
    /// Being copied to another die.
    Moving,
    /// Free, and lends its place to one that moves.
    Reserved,
    /// Failed: never used again. With a table, it is not marked bad yet, durably.
    Retired,
    /// Another vSSD of the channel group has it.
    Elsewhere,
}

/// Record of a slot: one cache line's access reads both fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) addr: u64,
    pub(crate) version: u64,
}

const EMPTY: Record = Record { addr: PAD, version: 0 };

/// Division by a number that is known from the start, as a multiplication (Lemire, Kaser, Kurz, "Faster remainder by
/// direct computation", 2019): exact for every 32-bit numerator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    by: u32,
    inverse: u64,
}

impl Divisor {
    /// # Panics
    /// If `by` is zero.
    pub(crate) fn new(by: u32) -> Divisor {
        Divisor { by, inverse: (u64::MAX / u64::from(by)).wrapping_add(1) }
    }
    /// Quotient and remainder.
    #[inline]
    pub(crate) fn split(self, n: u32) -> (u32, u32) {
        let q = self.quotient(n);
        (q, n - q * self.by)
    }
    #[inline]
    pub(crate) fn quotient(self, n: u32) -> u32 {
        // 2⁶⁴ ÷ 1 does not fit.
        if self.by == 1 { n } else { ((u128::from(self.inverse) * u128::from(n)) >> 64) as u32 }
    }
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) state: State,
    /// Sequence of each page; zero: never programmed, or torn. Like the records, dropped with the erase.
    pub(crate) sequence: Option<Box<[u64]>>,
    /// Next page to program.
    pub(crate) next_page: u16,
    /// Programs under way.
    pub(crate) programs: u16,
    /// Host reads under way: an erase waits for them.
    pub(crate) reads: u32,
    pub(crate) holds: Holds,
    /// Failed to program or to erase, or could not be read again after an erase.
    pub(crate) bad: bool,
    pub(crate) flaw: Flaw,
}

/// Whether a page of a block could not be read, since the drive was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flaw {
    #[default]
    No,
    /// Since its last erase: it is to be emptied.
    Found,
    /// Before that.
    Erased,
}

/// Kind of data that a block was opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holds {
    #[default]
    Written,
    /// Host data that replaced short-lived copies.
    Short,
    Moved,
}

/// How a block stands as a victim.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Grows: when the block last became a candidate or lost a valid slot.
    changed: u64,
    valid: u32,
    /// Closed, and nothing in flight.
    candidate: bool,
}

/// The best candidate of a die: fewest valid slots, and of those the one that changed last.
#[derive(Clone, Copy, Debug)]
struct Best {
    /// [`NONE`]: to be looked for, if there are candidates.
    block: u32,
    candidates: u32,
}

#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) all: Vec<Block>,
    /// By block, a record a slot; none without a table. Apart from the blocks, so that a look-up by slot reads a dense
    /// array of these and the record, nothing else.
    records: Vec<Box<[Record]>>,
    /// By block, and a bit a slot: whether the map points to it. Dense arrays too: every overwrite of a block somewhere
    /// changes both.
    ranks: Vec<Rank>,
    valid_bits: Vec<u64>,
    words: u32,
    /// By die.
    free: Vec<FreeBlocks>,
    pub(crate) free_count: u32,
    /// Blocks that are here, and not elsewhere.
    pub(crate) here: u32,
    best: Vec<Best>,
    changes: u64,
    pub(crate) blocks_per_die: u32,
    pub(crate) pages: u16,
    pub(crate) spp: u32,
    pub(crate) spb: u32,
    by_die: Divisor,
    by_page: Divisor,
    by_block: Divisor,
    spare_tables: Vec<Table>,
    /// Slots counted valid in all blocks.
    pub(crate) valid: u64,
}

/// Sequences of a block's pages, records of its slots.
type Table = (Box<[u64]>, Box<[Record]>);

/// Tables kept for reuse: a frontier's worth, so that steady collection allocates nothing.
const SPARE_TABLES_MAX: usize = 64;

/// State of a block without a table.
const BLOCK_BYTES: usize =
    std::mem::size_of::<Block>() + std::mem::size_of::<Box<[Record]>>() + std::mem::size_of::<Rank>();

impl Blocks {
    /// On `dies`, of which the first `own` are its own: blocks of the others may be borrowed.
    pub(crate) fn new((dies, own): (u32, u32), blocks_per_die: u32, pages: u16, spp: u32) -> Blocks {
        let spb = u32::from(pages) * spp;
        let n = dies * blocks_per_die;
        let words = spb.div_ceil(64);
        let home = own * blocks_per_die;
        let block = |b| Block {
            state: if b < home { State::Free { dirty: true } } else { State::Elsewhere },
            sequence: None,
            next_page: 0,
            programs: 0,
            reads: 0,
            holds: Holds::Written,
            bad: false,
            flaw: Flaw::No,
        };
        let new_die = |d: u32| {
            let mut free = FreeBlocks::new(1, blocks_per_die);
            (d * blocks_per_die..(d + 1) * blocks_per_die).for_each(|b| free.put(0, 0, b));
            free
        };
        Blocks {
            all: (0..n).map(block).collect(),
            records: (0..n).map(|_| Box::default()).collect(),
            ranks: vec![Rank::default(); n as usize],
            valid_bits: vec![0; n as usize * words as usize],
            words,
            free: (0..dies).map(|d| if d < own { new_die(d) } else { FreeBlocks::new(1, 0) }).collect(),
            free_count: home,
            here: home,
            best: vec![Best { block: NONE, candidates: 0 }; dies as usize],
            changes: 0,
            blocks_per_die,
            pages,
            spp,
            spb,
            by_die: Divisor::new(blocks_per_die),
            by_page: Divisor::new(spp),
            by_block: Divisor::new(spb),
            spare_tables: Vec::new(),
            valid: 0,
        }
    }
    pub(crate) fn dies(&self) -> u32 {
        self.free.len() as u32
    }
    #[inline]
    pub(crate) fn die_of(&self, block: u32) -> u32 {
        self.by_die.quotient(block)
    }
    pub(crate) fn within_die(&self, block: u32) -> (u32, u32) {
        self.by_die.split(block)
    }
    pub(crate) fn free_on(&self, die: u32) -> usize {
        self.free[die as usize].len()
    }
    #[inline]
    pub(crate) fn block_of(&self, slot: u32) -> u32 {
        self.by_block.quotient(slot)
    }
    /// Page inside its block, and slot inside the page.
    #[inline]
    pub(crate) fn page_of(&self, slot: u32) -> (u16, u8) {
        let (page, within) = self.by_page.split(self.by_block.split(slot).1);
        (page as u16, within as u8)
    }
    /// Address programmed into the slot; [`PAD`] without one.
    #[inline]
    pub(crate) fn record(&self, slot: u32) -> Record {
        let (block, within) = self.by_block.split(slot);
        self.records[block as usize].get(within as usize).copied().unwrap_or(EMPTY)
    }
    /// Records of a block, slot by slot; none if it has no table.
    pub(crate) fn records(&self, block: u32) -> &[Record] {
        &self.records[block as usize]
    }
    /// Records of `count` slots of one block.
    pub(crate) fn records_from(&self, slot: u32, count: u32) -> &[Record] {
        let (block, within) = self.by_block.split(slot);
        self.records[block as usize].get(within as usize..(within + count) as usize).unwrap_or_default()
    }
    pub(crate) fn records_mut(&mut self, block: u32) -> &mut [Record] {
        &mut self.records[block as usize]
    }
    pub(crate) fn addr(&self, slot: u32) -> u64 {
        self.record(slot).addr
    }
    pub(crate) fn version(&self, slot: u32) -> u64 {
        self.record(slot).version
    }
    pub(crate) fn sequence(&self, slot: u32) -> u64 {
        let (block, within) = self.by_block.split(slot);
        let sequence = self.all[block as usize].sequence.as_ref();
        sequence.map_or(0, |s| s[self.by_page.quotient(within) as usize])
    }

    /// Takes a free block of the die. It has an empty table; its state is the caller's to set.
    pub(crate) fn take_free(&mut self, die: u32) -> Option<u32> {
        let b = self.free[die as usize].take(0)?;
        self.free_count -= 1;
        self.give_table(b);
        self.all[b as usize].next_page = 0;
        Some(b)
    }
    fn give_table(&mut self, b: u32) {
        let new = || (vec![0; usize::from(self.pages)].into(), vec![EMPTY; self.spb as usize].into());
        let (sequence, records) = self.spare_tables.pop().unwrap_or_else(new);
        self.records[b as usize] = records;
        self.all[b as usize].sequence = Some(sequence);
    }
    /// Recovery found the block programmed: the sequences of its pages and the records of its slots.
    pub(crate) fn claim(&mut self, block: u32) -> (&mut [u64], &mut [Record]) {
        if matches!(self.all[block as usize].state, State::Free { .. }) {
            self.free_count -= 1;
            self.all[block as usize].state = State::Closed;
        }
        if self.all[block as usize].sequence.is_none() {
            self.give_table(block);
        }
        let sequence = self.all[block as usize].sequence.as_mut().expect("it has one now");
        (sequence, &mut self.records[block as usize])
    }
    /// A free block goes to another vSSD of the group. Returns whether it must be erased before its first program.
    pub(crate) fn depart(&mut self, block: u32) -> bool {
        let dirty = matches!(self.all[block as usize].state, State::Free { dirty: true });
        self.free[self.by_die.quotient(block) as usize].remove(0, block);
        self.free_count -= 1;
        self.here -= 1;
        self.all[block as usize].state = State::Elsewhere;
        dirty
    }
    /// A free block, erased `count` times, arrives or returns.
    pub(crate) fn arrive(&mut self, block: u32, count: u16, dirty: bool) {
        debug_assert_eq!(self.all[block as usize].state, State::Elsewhere);
        self.free[self.by_die.quotient(block) as usize].put(0, count, block);
        self.free_count += 1;
        self.here += 1;
        self.all[block as usize].state = State::Free { dirty };
    }
    /// Takes a free block out: it lends its place. Returns whether that must be erased before its first program.
    pub(crate) fn reserve(&mut self, block: u32) -> bool {
        let dirty = self.all[block as usize].state == State::Free { dirty: true };
        self.free[self.by_die.quotient(block) as usize].remove(0, block);
        self.free_count -= 1;
        self.all[block as usize].state = State::Reserved;
        dirty
    }
    /// A free block has another place, which was erased `count` times.
    pub(crate) fn recount(&mut self, block: u32, count: u16) {
        let free = &mut self.free[self.by_die.quotient(block) as usize];
        free.remove(0, block);
        free.put(0, count, block);
    }
    /// Lists the free blocks anew, with the erase counts of all.
    pub(crate) fn recount_all(&mut self, count: impl Fn(u32) -> u16) {
        self.free.iter_mut().for_each(FreeBlocks::clear);
        for (block, b) in (0..).zip(&self.all) {
            if matches!(b.state, State::Free { .. }) {
                self.free[self.by_die.quotient(block) as usize].put(0, count(block), block);
            }
        }
    }
    /// A bad block goes to another vSSD of the group.
    pub(crate) fn depart_bad(&mut self, block: u32) {
        self.here -= 1;
        self.all[block as usize].state = State::Elsewhere;
        self.all[block as usize].bad = false;
    }
    /// A bad block returns.
    pub(crate) fn arrive_bad(&mut self, block: u32) {
        debug_assert_eq!(self.all[block as usize].state, State::Elsewhere);
        self.here += 1;
        self.all[block as usize].state = State::Retired;
        self.all[block as usize].bad = true;
    }
    /// Recovery found a free block to be bad.
    pub(crate) fn retire_free(&mut self, block: u32) {
        self.free_count -= 1;
        self.all[block as usize].state = State::Retired;
        self.all[block as usize].bad = true;
    }
    /// The free block of the die that would be taken next.
    pub(crate) fn next_free(&self, die: u32) -> Option<u32> {
        self.free[die as usize].first(0)
    }
    /// Back to the free list, erased for the `count`th time.
    pub(crate) fn release(&mut self, block: u32, count: u16) {
        self.unclaim(block);
        self.free[self.by_die.quotient(block) as usize].put(0, count, block);
    }
    /// Recovery knows nothing of the block any more.
    pub(crate) fn unclaim(&mut self, block: u32) {
        self.drop_table(block);
        let b = &mut self.all[block as usize];
        b.state = State::Free { dirty: false };
        b.next_page = 0;
        self.free_count += 1;
    }
    pub(crate) fn drop_table(&mut self, block: u32) {
        let mut records = std::mem::take(&mut self.records[block as usize]);
        let words = self.words_of(block);
        self.valid_bits[words].fill(0);
        if let Some(mut sequence) = self.all[block as usize].sequence.take()
            && self.spare_tables.len() < SPARE_TABLES_MAX
        {
            sequence.fill(0);
            records.fill(EMPTY);
            self.spare_tables.push((sequence, records));
        }
    }
    /// After a start, when all that is programmed is claimed: lists what is free, with the erase counts of all blocks.
    /// A power cut may have left half a program in any that looks erased.
    pub(crate) fn list_free(&mut self, counts: &[u16]) {
        self.free.iter_mut().for_each(FreeBlocks::clear);
        for (block, (b, &count)) in (0..).zip(self.all.iter_mut().zip(counts)) {
            if let State::Free { dirty } = &mut b.state {
                *dirty = true;
                self.free[self.by_die.quotient(block) as usize].put(0, count, block);
            }
        }
    }

    // Which slots are valid.

    fn words_of(&self, block: u32) -> std::ops::Range<usize> {
        let words = self.words as usize;
        block as usize * words..(block as usize + 1) * words
    }
    /// Bits of a block, a slot each.
    pub(crate) fn valid_words(&self, block: u32) -> &[u64] {
        &self.valid_bits[self.words_of(block)]
    }
    /// The word with the slot's bit.
    pub(crate) fn valid_word(&self, slot: u32) -> u64 {
        let (b, within) = self.by_block.split(slot);
        self.valid_bits[b as usize * self.words as usize + (within / 64) as usize]
    }
    pub(crate) fn valid_of(&self, block: u32) -> u32 {
        self.ranks[block as usize].valid
    }
    pub(crate) fn is_valid(&self, block: u32, within: u32) -> bool {
        self.valid_bits[block as usize * self.words as usize + (within / 64) as usize] >> (within % 64) & 1 == 1
    }
    /// First valid slot of the block at or after `from`.
    pub(crate) fn next_valid(&self, block: u32, from: u32) -> Option<u32> {
        let words = self.valid_words(block);
        let mut word = (from / 64) as usize;
        let mut bits = *words.get(word)? & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(word as u32 * 64 + bits.trailing_zeros());
            }
            word += 1;
            bits = *words.get(word)?;
        }
    }
    pub(crate) fn set_valid(&mut self, slot: u32) {
        let (b, within) = self.by_block.split(slot);
        debug_assert!(!self.is_valid(b, within));
        self.valid_bits[b as usize * self.words as usize + (within / 64) as usize] |= 1 << (within % 64);
        self.valid += 1;
        let rank = &mut self.ranks[b as usize];
        rank.valid += 1;
        if rank.candidate {
            self.changes += 1;
            rank.changed = self.changes;
            self.not_best(b);
        }
    }
    pub(crate) fn clear_valid(&mut self, slot: u32) {
        let (b, within) = self.by_block.split(slot);
        debug_assert!(self.is_valid(b, within));
        self.valid_bits[b as usize * self.words as usize + (within / 64) as usize] &= !(1 << (within % 64));
        self.valid -= 1;
        let rank = &mut self.ranks[b as usize];
        rank.valid -= 1;
        if rank.candidate {
            self.changed(b);
        }
    }

    // Candidates.

    /// The block has become a better candidate than any of its die with as many valid slots.
    fn changed(&mut self, b: u32) {
        self.changes += 1;
        self.ranks[b as usize].changed = self.changes;
        let die = self.die_of(b) as usize;
        let best = self.best[die].block;
        if best != NONE && self.ranks[b as usize].valid <= self.ranks[best as usize].valid {
            self.best[die].block = b;
        }
    }
    fn not_best(&mut self, b: u32) {
        let best = &mut self.best[self.by_die.quotient(b) as usize];
        if best.block == b {
            best.block = NONE;
        }
    }
    /// Makes a closed block without programs in flight a candidate.
    pub(crate) fn list(&mut self, b: u32) {
        debug_assert!(!self.is_listed(b));
        self.ranks[b as usize].candidate = true;
        let best = &mut self.best[self.by_die.quotient(b) as usize];
        best.candidates += 1;
        if best.candidates == 1 {
            best.block = b;
        }
        self.changed(b);
    }
    pub(crate) fn unlist(&mut self, b: u32) {
        debug_assert!(self.is_listed(b));
        self.ranks[b as usize].candidate = false;
        self.best[self.by_die.quotient(b) as usize].candidates -= 1;
        self.not_best(b);
    }
    /// Fewest valid slots among the candidates of a die, and the block.
    pub(crate) fn least_on(&mut self, die: u32) -> Option<(u32, u32)> {
        let Best { block, candidates } = self.best[die as usize];
        if candidates == 0 {
            return None;
        }
        if block != NONE {
            return Some((self.ranks[block as usize].valid, block));
        }
        let first = die * self.blocks_per_die;
        let ranks = &self.ranks[first as usize..][..self.blocks_per_die as usize];
        let candidates = ranks.iter().zip(first..).filter(|(r, _)| r.candidate);
        let (rank, block) = candidates.min_by_key(|(r, _)| (r.valid, u64::MAX - r.changed))?;
        self.best[die as usize].block = block;
        Some((rank.valid, block))
    }
    /// The candidate with the highest score on these dies, if collecting it gains a page; of equal ones the first. Ages
    /// are counted in changes of candidates: what nothing happens to grows old as the others are overwritten. Every
    /// score changes with time, so all are looked at.
    pub(crate) fn best_by(&self, policy: VictimPolicy, on: impl Fn(u32) -> bool) -> Option<u32> {
        let mut best: Option<(f64, u32)> = None;
        for die in (0..self.dies()).filter(|&d| self.best[d as usize].candidates > 0 && on(d)) {
            let first = die * self.blocks_per_die;
            let ranks = &self.ranks[first as usize..][..self.blocks_per_die as usize];
            for (rank, block) in ranks.iter().zip(first..).filter(|(r, _)| r.candidate && self.worth(r.valid)) {
                let age = self.changes - rank.changed;
                let score = policy.score(u64::from(rank.valid), u64::from(self.spb), age);
                if best.is_none_or(|b| score > b.0) {
                    best = Some((score, block));
                }
            }
        }
        best.map(|b| b.1)
    }
    /// Collecting a block with this many valid slots gains at least a page.
    pub(crate) fn worth(&self, valid: u32) -> bool {
        valid.div_ceil(self.spp) < u32::from(self.pages)
    }
    pub(crate) fn is_listed(&self, b: u32) -> bool {
        self.ranks[b as usize].candidate
    }
    /// Bytes of state.
    pub(crate) fn state_bytes(&self) -> u64 {
        let table = u64::from(self.spb) * 16 + u64::from(self.pages) * 8;
        let tables = self.all.iter().filter(|b| b.sequence.is_some()).count() + self.spare_tables.len();
        let bits = self.valid_bits.len() as u64 * 8;
        tables as u64 * table + (self.all.len() * BLOCK_BYTES) as u64 + bits
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
