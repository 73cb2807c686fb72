//! Erase blocks of a vSSD: their state, what every slot was programmed with, and the greedy choice of a victim.

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
    /// No more programs; some may still be in flight.
    Closed,
    Victim,
    Erasing,
    /// Failed to read or erase: never used again.
    Retired,
}

/// What was programmed into a slot: one cache line's access tells both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) addr: u64,
    pub(crate) version: u64,
}

const EMPTY: Record = Record { addr: PAD, version: 0 };

/// What else is known of a block's pages and slots; like the records, dropped with its erase.
#[derive(Debug)]
pub(crate) struct Table {
    /// Sequence of each page; zero: never programmed, or torn.
    pub(crate) sequence: Box<[u64]>,
    /// Slots that the map points to.
    pub(crate) valid: Box<[u64]>,
}

impl Table {
    fn new(pages: usize, slots: usize) -> Table {
        Table { sequence: vec![0; pages].into(), valid: vec![0; slots.div_ceil(64)].into() }
    }
    fn reset(&mut self) {
        self.sequence.fill(0);
        self.valid.fill(0);
    }
    pub(crate) fn is_valid(&self, slot: u32) -> bool {
        self.valid[(slot / 64) as usize] >> (slot % 64) & 1 == 1
    }
    /// First valid slot at or after `from`.
    pub(crate) fn next_valid(&self, from: u32) -> Option<u32> {
        let mut word = (from / 64) as usize;
        let mut bits = *self.valid.get(word)? & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(word as u32 * 64 + bits.trailing_zeros());
            }
            word += 1;
            bits = *self.valid.get(word)?;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) state: State,
    pub(crate) table: Option<Table>,
    pub(crate) erase_count: u16,
    pub(crate) erase_time: u64,
    pub(crate) valid: u32,
    /// Next page to program.
    pub(crate) next_page: u16,
    /// Programs under way.
    pub(crate) programs: u16,
    /// Host reads under way: an erase waits for them.
    pub(crate) reads: u32,
    prev: u32,
    next: u32,
    listed: bool,
}

/// Closed blocks of one die, listed by their number of valid slots.
#[derive(Debug)]
struct Buckets {
    heads: Box<[u32]>,
    /// No list below this is occupied.
    least: u32,
    count: u32,
}

#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) all: Vec<Block>,
    /// By block, a record a slot; none without a table. Apart from the blocks, so that a look-up by slot reads a dense
    /// array of these and the record, nothing else.
    records: Vec<Box<[Record]>>,
    free: Vec<Vec<u32>>,
    pub(crate) free_count: u32,
    buckets: Vec<Buckets>,
    pub(crate) blocks_per_die: u32,
    pub(crate) pages: u16,
    pub(crate) spp: u32,
    pub(crate) spb: u32,
    spare_tables: Vec<(Table, Box<[Record]>)>,
    /// Slots counted valid in all blocks.
    pub(crate) valid: u64,
}

/// Tables kept for reuse: a frontier's worth, so that steady collection allocates nothing.
const SPARE_TABLES_MAX: usize = 64;

/// State of a block without a table.
const BLOCK_BYTES: usize = std::mem::size_of::<Block>() + std::mem::size_of::<Box<[Record]>>();

impl Blocks {
    pub(crate) fn new(dies: u32, blocks_per_die: u32, pages: u16, spp: u32) -> Blocks {
        let spb = u32::from(pages) * spp;
        let n = dies * blocks_per_die;
        let block = |_| Block {
            state: State::Free { dirty: true },
            table: None,
            erase_count: 0,
            erase_time: 0,
            valid: 0,
            next_page: 0,
            programs: 0,
            reads: 0,
            prev: NONE,
            next: NONE,
            listed: false,
        };
        let buckets = |_| Buckets { heads: vec![NONE; spb as usize + 1].into(), least: spb + 1, count: 0 };
        Blocks {
            all: (0..n).map(block).collect(),
            records: (0..n).map(|_| Box::default()).collect(),
            // Popped from the end: ascending numbers first.
            free: (0..dies).map(|d| (d * blocks_per_die..(d + 1) * blocks_per_die).rev().collect()).collect(),
            free_count: n,
            buckets: (0..dies).map(buckets).collect(),
            blocks_per_die,
            pages,
            spp,
            spb,
            spare_tables: Vec::new(),
            valid: 0,
        }
    }
    pub(crate) fn dies(&self) -> u32 {
        self.free.len() as u32
    }
    pub(crate) fn die_of(&self, block: u32) -> u32 {
        block / self.blocks_per_die
    }
    pub(crate) fn free_on(&self, die: u32) -> usize {
        self.free[die as usize].len()
    }
    pub(crate) fn block_of(&self, slot: u32) -> u32 {
        slot / self.spb
    }
    /// What was programmed into the slot; [`PAD`] if nothing was.
    pub(crate) fn record(&self, slot: u32) -> Record {
        let (block, within) = (slot / self.spb, slot % self.spb);
        self.records[block as usize].get(within as usize).copied().unwrap_or(EMPTY)
    }
    /// Records of a block, slot by slot; none if it has no table.
    pub(crate) fn records(&self, block: u32) -> &[Record] {
        &self.records[block as usize]
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
        let within = slot % self.spb;
        let table = self.all[(slot / self.spb) as usize].table.as_ref();
        table.map_or(0, |t| t.sequence[(within / self.spp) as usize])
    }

    /// Takes a free block of the die. It has an empty table; its state is the caller's to set.
    pub(crate) fn take_free(&mut self, die: u32) -> Option<u32> {
        let b = self.free[die as usize].pop()?;
        self.free_count -= 1;
        let (table, records) = self.spare_tables.pop().unwrap_or_else(|| self.new_table());
        self.records[b as usize] = records;
        let block = &mut self.all[b as usize];
        block.table = Some(table);
        block.next_page = 0;
        Some(b)
    }
    fn new_table(&self) -> (Table, Box<[Record]>) {
        let (pages, slots) = (usize::from(self.pages), self.spb as usize);
        (Table::new(pages, slots), vec![EMPTY; slots].into())
    }
    /// Takes this free block, as recovery does for one that it found programmed.
    pub(crate) fn claim(&mut self, block: u32) -> (&mut Table, &mut [Record]) {
        if matches!(self.all[block as usize].state, State::Free { .. }) {
            let die = self.die_of(block) as usize;
            self.free[die].retain(|&b| b != block);
            self.free_count -= 1;
            self.all[block as usize].state = State::Closed;
        }
        if self.all[block as usize].table.is_none() {
            let (table, records) = self.new_table();
            self.all[block as usize].table = Some(table);
            self.records[block as usize] = records;
        }
        let table = self.all[block as usize].table.as_mut().expect("it has one now");
        (table, &mut self.records[block as usize])
    }
    /// Back to the free list, erased.
    pub(crate) fn release(&mut self, block: u32) {
        let die = self.die_of(block) as usize;
        self.drop_table(block);
        let b = &mut self.all[block as usize];
        b.state = State::Free { dirty: false };
        b.next_page = 0;
        self.free[die].push(block);
        self.free_count += 1;
    }
    pub(crate) fn drop_table(&mut self, block: u32) {
        let mut records = std::mem::take(&mut self.records[block as usize]);
        if let Some(mut t) = self.all[block as usize].table.take()
            && self.spare_tables.len() < SPARE_TABLES_MAX
        {
            t.reset();
            records.fill(EMPTY);
            self.spare_tables.push((t, records));
        }
    }
    /// After a start: a power cut may have left half a program in any block that looks erased.
    pub(crate) fn mark_all_free_dirty(&mut self) {
        for b in &mut self.all {
            if let State::Free { dirty } = &mut b.state {
                *dirty = true;
            }
        }
    }

    pub(crate) fn set_valid(&mut self, slot: u32) {
        let (b, within) = (slot / self.spb, slot % self.spb);
        if self.all[b as usize].listed {
            self.unlist(b);
            self.mark(b, within);
            self.list(b);
        } else {
            self.mark(b, within);
        }
    }
    fn mark(&mut self, b: u32, within: u32) {
        let block = &mut self.all[b as usize];
        let t = block.table.as_mut().expect("a programmed block has a table");
        debug_assert!(!t.is_valid(within));
        t.valid[(within / 64) as usize] |= 1 << (within % 64);
        block.valid += 1;
        self.valid += 1;
    }
    pub(crate) fn clear_valid(&mut self, slot: u32) {
        let (b, within) = (slot / self.spb, slot % self.spb);
        let listed = self.all[b as usize].listed;
        if listed {
            self.unlist(b);
        }
        let block = &mut self.all[b as usize];
        let t = block.table.as_mut().expect("a programmed block has a table");
        debug_assert!(t.is_valid(within));
        t.valid[(within / 64) as usize] &= !(1 << (within % 64));
        block.valid -= 1;
        self.valid -= 1;
        if listed {
            self.list(b);
        }
    }

    /// Makes a closed block without programs in flight a candidate.
    pub(crate) fn list(&mut self, b: u32) {
        let die = (b / self.blocks_per_die) as usize;
        let k = self.all[b as usize].valid;
        let buckets = &mut self.buckets[die];
        let head = buckets.heads[k as usize];
        buckets.heads[k as usize] = b;
        buckets.least = buckets.least.min(k);
        buckets.count += 1;
        if head != NONE {
            self.all[head as usize].prev = b;
        }
        let block = &mut self.all[b as usize];
        (block.prev, block.next, block.listed) = (NONE, head, true);
    }
    pub(crate) fn unlist(&mut self, b: u32) {
        let die = (b / self.blocks_per_die) as usize;
        let block = &mut self.all[b as usize];
        debug_assert!(block.listed);
        let (prev, next, k) = (block.prev, block.next, block.valid);
        block.listed = false;
        if prev == NONE {
            self.buckets[die].heads[k as usize] = next;
        } else {
            self.all[prev as usize].next = next;
        }
        if next != NONE {
            self.all[next as usize].prev = prev;
        }
        self.buckets[die].count -= 1;
    }
    /// Fewest valid slots among the candidates of a die, and the block.
    pub(crate) fn least_on(&mut self, die: u32) -> Option<(u32, u32)> {
        let b = &mut self.buckets[die as usize];
        if b.count == 0 {
            b.least = self.spb + 1;
            return None;
        }
        while b.heads[b.least as usize] == NONE {
            b.least += 1;
        }
        Some((b.least, b.heads[b.least as usize]))
    }
    /// Collecting a block with this many valid slots gains at least a page.
    pub(crate) fn worth(&self, valid: u32) -> bool {
        valid.div_ceil(self.spp) < u32::from(self.pages)
    }
    pub(crate) fn is_listed(&self, b: u32) -> bool {
        self.all[b as usize].listed
    }
    /// Bytes of state.
    pub(crate) fn state_bytes(&self) -> u64 {
        let table = u64::from(self.spb) * 16 + u64::from(self.pages) * 8 + u64::from(self.spb / 8);
        let tables = self.all.iter().filter(|b| b.table.is_some()).count() + self.spare_tables.len();
        let lists = self.buckets.len() as u64 * (u64::from(self.spb) + 1) * 4;
        tables as u64 * table + (self.all.len() * BLOCK_BYTES) as u64 + lists
    }
}
