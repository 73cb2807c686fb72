//! Opens a drive's file: checks its identity and layout, and finds what the last run left unfinished.

use crate::io::FileIo;
use crate::layout::{CONVERTING, Displaced, Head, Row, State, Super};
use crate::layout::{Made, PLAIN_VERSION, Shape, VERSION};
use crate::{BlockState, FileSsd, OpenError, SLOT, TABLE_BYTES_MAX, TABLE_SEARCH_BYTES, layout};
use rackweave_core::device::{PageAddr, SlotKind};
use rackweave_core::{BLOCK, DriveId, RackId, SsdId};
use rackweave_flash::isolation::ThroughputLevels;
use rackweave_flash::table::{self, Copy};
use std::collections::{BTreeMap, BTreeSet};
use std::io as sys;

/// Bytes of a file without a first block that are searched for contents: past a partition table, and the superblock of every
/// common file system.
const SEARCHED_BYTES: u64 = 1 << 20;
const LEVELS: (u64, usize) = (layout::LEVELS_AT, layout::LEVELS_LEN);

impl<F: FileIo> FileSsd<F> {
    /// Opens the device in `file`, formatting it if it is blank. Effects of a power cut are repaired with the first
    /// change: reading a device, for instance its identity, does not change it.
    pub fn open(file: F, ssd: SsdId, shape: Shape) -> Result<FileSsd<F>, OpenError> {
        FileSsd::open_as(file, ssd, shape, None)
    }
    /// Whether the file holds no device yet: [`FileSsd::open`] would make a new one, empty.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_blank(file: &F) -> std::io::Result<bool> {
        Ok(matches!(FileSsd::first_block(file)?, Super::Blank))
    }
    fn first_block(file: &F) -> std::io::Result<Super> {
        let mut first = [0; layout::SUPER_LEN];
        file.read_at(&mut first, layout::SUPER_AT)?;
        Ok(match layout::decode_super(&first) {
            Super::Blank if FileSsd::has_contents(file)? => Super::Foreign,
            other => other,
        })
    }
    /// Whether a file without a first block has contents besides those that formatting leaves if it is cut short. An image of
    /// a file system may begin with zeroes.
    fn has_contents(file: &F) -> std::io::Result<bool> {
        let mut head = vec![0; file.len()?.min(SEARCHED_BYTES) as usize];
        file.read_at(&mut head, 0)?;
        for (at, len) in layout::STATE_AT.map(|at| (at, layout::STATE_LEN)).into_iter().chain([LEVELS]) {
            let (from, to) = ((at as usize).min(head.len()), (at as usize + len).min(head.len()));
            head[from..to].fill(0);
        }
        Ok(head.iter().any(|&x| x != 0))
    }
    /// The rack of the drive in the file, if it has one; the file is not changed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn owner(file: &F) -> std::io::Result<Option<RackId>> {
        let mut owner = [0; layout::OWNER_LEN];
        file.read_at(&mut owner, layout::OWNER_AT)?;
        Ok(layout::decode_owner(&owner).map(|o| o.0))
    }
    /// The throughput levels that the drive was made with; `None`: the default ones.
    ///
    /// # Errors
    /// The file cannot be read, or they are damaged.
    pub fn levels(&self) -> Result<Option<ThroughputLevels>, OpenError> {
        let mut b = [0; layout::LEVELS_LEN];
        self.file.read_at(&mut b, layout::LEVELS_AT)?;
        layout::decode_levels(&b).map_err(|()| OpenError::Levels)
    }
    /// Gives the blank file throughput levels, durable when it is opened for the first time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_levels(file: &mut F, levels: Option<&ThroughputLevels>) -> std::io::Result<()> {
        file.write_at(&[&layout::encode_levels(levels)], layout::LEVELS_AT)
    }
    /// As [`FileSsd::open`]. A new device records `made`, and opens with no other.
    pub fn open_as(file: F, ssd: SsdId, shape: Shape, made: Option<Made>) -> Result<FileSsd<F>, OpenError> {
        if shape.page_bytes == 0 || !shape.page_bytes.is_multiple_of(BLOCK) {
            return Err(OpenError::PageSize { page_bytes: shape.page_bytes });
        }
        let first = FileSsd::first_block(&file)?;
        let mut dev = FileSsd::unopened(file, shape);
        match first {
            Super::Blank => dev.format(ssd, made)?,
            Super::Foreign => return Err(OpenError::Foreign),
            Super::Version(found) => return Err(OpenError::Version { found }),
            Super::Damaged => return Err(OpenError::Damaged),
            Super::Found(h) => dev.load_as(&h, ssd, made)?,
        }
        dev.load_owner()?;
        Ok(dev)
    }
    fn unopened(file: F, shape: Shape) -> FileSsd<F> {
        FileSsd {
            file,
            shape,
            meta_bytes: shape.meta_bytes,
            displaced: None,
            blocks: vec![None; shape.blocks as usize],
            extents_used: 0,
            extents_reserved: 0,
            tails: BTreeMap::new(),
            state: State::default(),
            begun: false,
            torn: BTreeSet::new(),
            counter: 0,
            durable: 0,
            extents_durable: 0,
            single: BTreeMap::new(),
            rack: None,
            id: DriveId::NONE,
            id_written: false,
            failed: None,
            spare: vec![0; shape.spare_len()],
            flaws: None,
        }
    }
    /// A drive of [`PLAIN_VERSION`] of this shape, to be converted. Its first block is not read.
    pub(crate) fn plain(file: F, shape: Shape) -> Result<FileSsd<F>, OpenError> {
        let mut dev = FileSsd::unopened(file, shape);
        dev.load()?;
        dev.load_owner()?;
        Ok(dev)
    }
    pub(crate) fn file_mut(&mut self) -> &mut F {
        &mut self.file
    }
    pub(crate) fn extents_in_use(&self) -> u32 {
        self.extents_used
    }
    /// Voids torn pages and leaves the file as after a close, with `extents` extents in use.
    pub(crate) fn settle(&mut self, extents: u32) -> sys::Result<()> {
        self.begin_life()?;
        self.write_state(State { extents, clean: true, ..self.state })?;
        self.file.sync()
    }
    fn load_owner(&mut self) -> Result<(), OpenError> {
        let mut owner = [0; layout::OWNER_LEN];
        self.file.read_at(&mut owner, layout::OWNER_AT)?;
        if let Some((rack, id)) = layout::decode_owner(&owner) {
            (self.rack, self.id, self.id_written) = (Some(rack), id, id != DriveId::NONE);
        }
        Ok(())
    }

    /// The file holds a drive with this head.
    fn load_as(&mut self, h: &Head, ssd: SsdId, made: Option<Made>) -> Result<(), OpenError> {
        if h.version == CONVERTING {
            return Err(OpenError::Converting);
        }
        if let Some((found, wanted)) = h.made.zip(made).filter(|(found, wanted)| found != wanted) {
            return Err(OpenError::Made { found, wanted });
        }
        if (h.shape != self.shape || h.ssd != ssd.0) && !mutant!("device.identity.shape") {
            // A drive of before has no room for the table: it is named first, since nothing else would help.
            if h.version == PLAIN_VERSION && made.is_none() && h.made.is_none() {
                return Err(OpenError::Unconverted);
            }
            if h.shape == self.shape {
                return Err(OpenError::Place { found: SsdId(h.ssd), wanted: ssd });
            }
            return Err(OpenError::Shape { found: h.shape, found_ssd: h.ssd, wanted: self.shape, wanted_ssd: ssd.0 });
        }
        if h.version == PLAIN_VERSION && made.is_none() {
            return Err(OpenError::Unconverted);
        }
        if let Some(d) = h.displaced {
            let extent_bytes = u64::from(self.shape.pages_per_block) * u64::from(self.shape.page_bytes);
            if d.extent > self.shape.blocks || u64::from(d.len) > extent_bytes.min(self.meta_bytes) {
                return Err(OpenError::Damaged);
            }
            self.displace(d);
        }
        self.load()
    }
    /// The head of the checkpoint area lies in an extent of its own.
    fn displace(&mut self, d: Displaced) {
        self.displaced = Some(d);
        self.shape.meta_bytes = self.meta_bytes.saturating_sub(u64::from(d.len));
        self.extents_used = self.extents_used.max(d.extent + 1);
    }

    /// The drive's rack, if it has one.
    pub fn rack(&self) -> Option<RackId> {
        self.rack
    }
    /// The drive's own id; [`DriveId::NONE`] before [`FileSsd::name`] of a drive that has none written down.
    pub fn drive_id(&self) -> DriveId {
        self.id
    }
    /// Gives a drive that has no id this one. [`FileSsd::adopt`] writes it down, once; where a process ended before that, the
    /// drive's table may name it already.
    pub fn name(&mut self, drawn: DriveId) {
        if self.id == DriveId::NONE || mutant!("device.identity.renamed") {
            self.id = self.named_by_table().unwrap_or(drawn);
        }
    }
    fn named_by_table(&self) -> Option<DriveId> {
        let b = self.read_meta(0, TABLE_SEARCH_BYTES).ok()?;
        let copy = |at: usize| match table::decode(&b[at..b.len().min(at + TABLE_BYTES_MAX)]) {
            Copy::Whole(t) => Some(t.drive),
            Copy::Blank | Copy::Damaged | Copy::Version(_) => None,
        };
        (0..b.len()).step_by(SLOT).find_map(copy)
    }
    /// Makes it a drive of `rack`, durably, if it is of none yet; true if it was not. With it goes the drive's id, also on a drive
    /// that has been the rack's since before drives had one.
    ///
    /// # Errors
    /// [`OpenError::Rack`] if it is another's; the file cannot be written.
    pub fn adopt(&mut self, rack: RackId) -> Result<bool, OpenError> {
        match self.rack {
            Some(found) if found != rack && !mutant!("device.identity.rack") => {
                Err(OpenError::Rack { found, wanted: rack })
            }
            Some(_) if self.id_written || self.id == DriveId::NONE => Ok(false),
            found => {
                self.begin_life()?;
                self.file.write_at(&[&layout::encode_owner(rack, self.id)], layout::OWNER_AT)?;
                self.file.sync()?;
                (self.rack, self.id_written) = (Some(rack), self.id != DriveId::NONE);
                Ok(found.is_none())
            }
        }
    }

    /// The state is durable before the first block: a file with a first block has a state. The first block is durable before
    /// all else: a file without one has nothing else.
    fn format(&mut self, ssd: SsdId, made: Option<Made>) -> Result<(), OpenError> {
        self.write_state(State { clean: true, ..State::default() })?;
        self.file.sync()?;
        let version = if made.is_some() { PLAIN_VERSION } else { VERSION };
        let head = Head { version, shape: self.shape, ssd: ssd.0, made, displaced: None, phase: 0 };
        self.file.write_at(&[&layout::encode_super(&head)], layout::SUPER_AT)?;
        self.file.sync()?;
        Ok(())
    }

    fn load(&mut self) -> Result<(), OpenError> {
        let mut states = [None; 2];
        for (s, at) in states.iter_mut().zip(layout::STATE_AT) {
            let mut b = [0; layout::STATE_LEN];
            self.file.read_at(&mut b, at)?;
            *s = layout::decode_state(&b);
        }
        let sound = |s: &State| s.is_of(&self.shape);
        let states = states.into_iter().flatten().filter(sound);
        self.state = states.max_by_key(|s| s.number).ok_or(OpenError::NoState)?;
        let mut taken = vec![false; self.blocks.len()];
        let mut table = vec![0; self.blocks.len() * layout::ROW_LEN];
        self.file.read_at(&mut table, layout::TABLE_AT)?;
        for (block, b) in table.chunks_exact(layout::ROW_LEN).enumerate() {
            let Some((row, copy)) = layout::decode_row(block as u32, b) else {
                if layout::row_was_written(b) && !mutant!("device.row.damaged") {
                    return Err(OpenError::Row { block: block as u32 });
                }
                continue;
            };
            // An extent is one block's.
            if taken.get(row.extent as usize) != Some(&false) {
                return Err(OpenError::Extent { block: block as u32, extent: row.extent });
            }
            taken[row.extent as usize] = true;
            if !layout::row_is_doubled(block as u32, b) {
                self.single.insert(block as u32, row.generation);
            }
            self.blocks[block] = Some(BlockState { row, copy, doubled: false });
            self.extents_used = self.extents_used.max(row.extent + 1);
        }
        let found = self.file.len()?;
        self.extents_reserved = self.shape.extents_within(found);
        let needed = self.durable_len();
        if needed > found && !mutant!("device.file.short") {
            return Err(OpenError::Short { found, needed });
        }
        if !self.state.clean && !mutant!("device.torn.unseen") {
            self.find_torn()?;
        }
        Ok(())
    }

    /// Least length of the file: to the end of everything known to be durable. After a power cut, extents that were
    /// reserved after the last sync may lie past the end.
    fn durable_len(&self) -> u64 {
        let known = |s: &&BlockState| self.state.clean || s.row.generation <= self.state.durable;
        let extents = self.blocks.iter().flatten().filter(known).map(|s| s.row.extent).max();
        let meta = if self.state.clean { self.meta_end() } else { 0 };
        // Numbers drawn in the last run were for blocks with an extent, even if the table of rows is cut off.
        let first = (self.state.durable > self.state.boot << layout::BOOT_SHIFT).then_some(0);
        let last = self.state.extents.checked_sub(1);
        meta.max(extents.max(first).max(last).map_or(0, |e| self.shape.data_at(e, self.shape.pages_per_block)))
    }
    /// End of the part of the checkpoint area that was ever written.
    fn meta_end(&self) -> u64 {
        if self.state.meta_used > 0 { self.shape.meta_at() + self.state.meta_used } else { 0 }
    }
    /// Reserves the space that the state and the rows name: a power cut may have removed it.
    fn reserve_used(&mut self) -> sys::Result<()> {
        let len = self.file.len()?;
        if len < self.meta_end() {
            self.file.allocate(len, self.meta_end() - len)?;
        }
        // State and rows change in place, also where the host's disk is full.
        self.file.allocate(0, self.shape.meta_at())?;
        while self.extents_reserved < self.extents_used {
            let (at, len) = self.shape.group_span(self.extents_reserved);
            self.file.allocate(at, len)?;
            self.extents_reserved = self.shape.extents_within(at + len);
        }
        Ok(())
    }

    /// Checks every program that is not known to be durable. Pages are programmed in order: a page missing before a
    /// durable one is damaged, and no program behind the first torn page was ever acknowledged.
    fn find_torn(&mut self) -> Result<(), OpenError> {
        let spare_len = self.shape.spare_len();
        let mut spares = vec![0; spare_len * usize::from(self.shape.pages_per_block)];
        for block in 0..self.shape.blocks {
            let Some(state) = self.blocks[block as usize] else { continue };
            self.file.read_at(&mut spares, self.shape.spare_at(state.row.extent, 0))?;
            let addr = |page: usize| PageAddr { block, page: page as u16 };
            let head = |(page, b): (usize, &[u8])| layout::decode_spare_head(b, addr(page), state.row.generation);
            let pages = || spares.chunks_exact(spare_len).enumerate();
            let durable = pages().rposition(|p| head(p).is_some_and(|(h, _)| h.stamp <= self.state.durable));
            let mut torn = Vec::new();
            let mut gap = false;
            for (page, b) in pages().skip(durable.map_or(0, |d| d + 1)) {
                let there = head((page, b)).is_some();
                gap |= !there || !self.data_matches(addr(page), state.row, b)?;
                if gap && (there || layout::spare_is_damaged(b, addr(page))) {
                    torn.push(addr(page));
                }
            }
            self.torn.extend(torn);
        }
        Ok(())
    }

    fn data_matches(&self, at: PageAddr, row: Row, spare: &[u8]) -> sys::Result<bool> {
        for slot in 0..self.shape.slots_per_page() {
            let Some((record, repr)) = self.record(spare, slot) else { return Ok(true) };
            let filler = record.kind == SlotKind::Pad;
            if !filler
                && !mutant!("device.torn.contents")
                && self.payload(at, row.extent, slot, repr)?.crc32c() != record.crc
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Before the first change of this opening: voids torn pages. From here on generations and stamps are greater
    /// than any that an earlier one can have written.
    pub(crate) fn begin_life(&mut self) -> sys::Result<()> {
        if self.begun {
            return Ok(());
        }
        let void = vec![0; self.shape.spare_len()];
        for &at in self.torn.iter().filter(|_| !mutant!("device.torn.not-voided")) {
            let Some(state) = self.blocks[at.block as usize] else { continue };
            self.file.write_at(&[&void], self.shape.spare_at(state.row.extent, at.page))?;
        }
        self.reserve_used()?;
        self.file.sync()?;
        let boot = self.state.boot + u64::from(self.state.boot == 0 || !mutant!("device.boot.same-generation"));
        self.counter = boot << layout::BOOT_SHIFT;
        (self.durable, self.extents_durable) = (self.counter, self.extents_used);
        let (durable, extents) = (self.durable, self.extents_durable);
        self.write_state(State { boot, durable, extents, clean: false, ..self.state })?;
        self.file.sync()?;
        (self.begun, self.torn) = (true, BTreeSet::new());
        Ok(())
    }
}
