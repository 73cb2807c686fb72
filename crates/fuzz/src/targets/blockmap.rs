//! The page-mapped block layer: summaries; and recovery of a damaged log.

use arbitrary::{Result, Unstructured};
use rackweave_core::{BLOCK, Payload, VssdId};
use rackweave_flash::VictimPolicy;
use rackweave_flash::backend::Memory;
use rackweave_flash::blockmap::summary::{self, Entry, MAGIC, NONE, Summary};
use rackweave_flash::blockmap::{BlockMap, BlockMapConfig, Io, MapDone, MapError};
use rackweave_flash::manager::driver::BlockingDrive;

use super::stored::{Damage, config, damage, new_drive};
use crate::corrupt::{corrupt_in_place, rest};
use crate::cost::within;

const SLOT: usize = BLOCK as usize;
/// 4 KiB blocks of the volume.
const BLOCKS: u32 = 40;

/// Summaries: what is written is read; what is corrupted and sealed again is refused or has entries in order.
pub(super) fn summary(input: &[u8]) {
    _ = summaries(&mut Unstructured::new(input));
}

fn summaries(u: &mut Unstructured<'_>) -> Result<()> {
    let page_slots = u.int_in_range(1..=4usize)?;
    if u.arbitrary()? {
        let mut page = vec![0; page_slots * SLOT];
        let last = page.len() - SLOT;
        let raw = rest(u);
        let n = raw.len().min(SLOT);
        page[last..last + n].copy_from_slice(&raw[..n]);
        page[last..last + 8].copy_from_slice(&MAGIC);
        seal(&mut page);
        any(&page);
        return Ok(());
    }
    let (previous, page_number) = (u.int_in_range(0..=3u32)?, u.int_in_range(0..=63u32)?);
    let previous = if previous == 0 || previous > page_number { NONE } else { page_number - previous };
    let first = if previous == NONE { 0 } else { (previous + 1) * page_slots as u32 };
    let mut s = Summary {
        vssd: u.arbitrary()?,
        block: u.arbitrary()?,
        page: page_number,
        previous,
        exported: u.arbitrary()?,
        copies: u.arbitrary()?,
        entries: Vec::new(),
    };
    let (mut sequence, mut slot) = (u.arbitrary::<u64>()? >> 8, first);
    for _ in 0..u.int_in_range(0..=24u8)? {
        sequence += u.int_in_range(0..=1u64 << 40)?;
        let trim = u.arbitrary()? || slot >= page_number * page_slots as u32;
        s.entries.push(Entry { sequence, lba: u.int_in_range(0..=1000u32)?, slot: if trim { NONE } else { slot } });
        slot += u32::from(!trim);
    }
    let bytes = summary::encode(&s);
    let mut page = vec![0xaa; page_slots * SLOT];
    let at = page.len() - bytes.len();
    page[at..].copy_from_slice(&bytes);
    assert_eq!(summary::decode(&page), Ok(s));
    corrupt_in_place(u, &mut page[at..])?;
    seal(&mut page);
    any(&page);
    Ok(())
}

/// Makes the checksum of a page's summary right.
fn seal(page: &mut [u8]) {
    let head = page.len() - SLOT;
    if page[head..head + 8] != MAGIC {
        return;
    }
    let slots = usize::from(page[head + 10]);
    page[head + 12..head + 16].fill(0);
    if let Some(first) = page.len().checked_sub(slots * SLOT).filter(|f| *f <= head) {
        let crc = crc32c::crc32c(&[&page[head..], &page[first..head]].concat());
        page[head + 12..head + 16].copy_from_slice(&crc.to_le_bytes());
    }
}

fn any(page: &[u8]) {
    // Five bytes an entry on flash, 24 in memory, in a list that doubles.
    let Ok(s) = within(16 * page.len() + 4096, || summary::decode(page)) else { return };
    assert!(s.entries.windows(2).all(|e| e[0].sequence <= e[1].sequence));
}

struct Map {
    drive: BlockingDrive<Memory>,
    map: BlockMap,
    token: u64,
}

impl Map {
    fn open(drive: BlockingDrive<Memory>, vssd: VssdId) -> Option<Map> {
        let cfg = BlockMapConfig { vssd, blocks: BLOCKS, victims: VictimPolicy::Greedy, token_base: 1 << 48 };
        let map = BlockMap::new(cfg, drive.manager()).ok()?;
        let mut m = Map { drive, map, token: 0 };
        m.call(|map, io| {
            map.recover(io);
            Ok(())
        })
        .ok()?;
        let opened = m.settle().into_iter().find_map(|d| match d {
            MapDone::Recovered { result } => Some(result),
            _ => None,
        });
        opened.expect("recovery is answered").map_err(|e| assert!(!e.to_string().is_empty())).ok()?;
        Some(m)
    }
    fn call(
        &mut self,
        f: impl FnOnce(&mut BlockMap, &mut Io) -> std::result::Result<(), MapError>,
    ) -> std::result::Result<(), MapError> {
        let (now, manager, out) = self.drive.parts();
        f(&mut self.map, &mut Io { now, manager, out })
    }
    fn settle(&mut self) -> Vec<MapDone> {
        let mut all = Vec::new();
        let mut idle = 0;
        while idle < 2 {
            let went = self.drive.step();
            let done = self.drive.take_done();
            idle = if went || !done.is_empty() { 0 } else { idle + 1 };
            for d in done {
                _ = self.call(|m, io| {
                    m.handle(io, d);
                    Ok(())
                });
            }
            if self.map.wake().is_some() {
                _ = self.call(|m, io| {
                    m.tick(io);
                    Ok(())
                });
            }
            all.append(&mut self.map.take_done());
        }
        all
    }
    fn next(&mut self) -> u64 {
        self.token += 1;
        self.token
    }
    fn write(&mut self, lba: u32, value: u8) -> bool {
        let token = self.next();
        let data = Payload::Bytes(vec![value; SLOT].into());
        self.call(|m, io| m.write(io, lba, &data, token)).is_ok() && self.done(token).is_some()
    }
    fn trim(&mut self, lba: u32) -> bool {
        let token = self.next();
        self.call(|m, io| m.trim(io, lba, 1, token)).is_ok() && self.done(token).is_some()
    }
    fn flush(&mut self) -> bool {
        let token = self.next();
        self.call(|m, io| m.flush(io, token)).is_ok() && self.done(token).is_some()
    }
    fn read(&mut self, lba: u32) -> Option<Payload> {
        let token = self.next();
        self.call(|m, io| m.read(io, lba, 1, token)).ok()?;
        self.done(token).flatten()
    }
    /// The answer, if it is not an error.
    fn done(&mut self, wanted: u64) -> Option<Option<Payload>> {
        self.settle().into_iter().find_map(|d| match d {
            MapDone::Read { token, result } if token == wanted => result.ok().map(Some),
            MapDone::Written { token, result }
            | MapDone::Trimmed { token, result }
            | MapDone::Flushed { token, result }
                if token == wanted =>
            {
                result.ok().map(|()| None)
            }
            _ => None,
        })
    }
}

pub(super) fn run(input: &[u8]) {
    _ = recovered(&mut Unstructured::new(input));
}

fn recovered(u: &mut Unstructured<'_>) -> Result<()> {
    let cfg = config(1, 40);
    let how = Damage::drawn(u)?;
    let (d, vssd) = new_drive(&cfg);
    let mut m = Map::open(d, vssd).expect("new");
    let (mut last, mut value) = ([0u8; BLOCKS as usize], 0u8);
    for _ in 0..u.int_in_range(1..=60u8)? {
        let lba = u.int_in_range(0..=BLOCKS - 1)?;
        match u.int_in_range(0..=9u8)? {
            0 => _ = m.flush(),
            1 | 2 if m.trim(lba) => last[lba as usize] = 0,
            3.. => {
                value = value.wrapping_add(1).max(1);
                if m.write(lba, value) {
                    last[lba as usize] = value;
                }
            }
            _ => {}
        }
    }
    if !m.flush() {
        return Ok(());
    }
    m.map.check().expect("sound");
    let mut memory = match u.arbitrary()? {
        true => m.drive.close().expect("in order"),
        false => m.drive.backend_mut().clone(),
    };
    damage(u, &mut memory, &cfg, how, |slot| {
        if slot.starts_with(&MAGIC) && slot[10] == 1 {
            seal(slot);
        }
    })?;
    let Ok(d) = BlockingDrive::open(cfg.clone(), memory) else { return Ok(()) };
    let Some(mut m) = Map::open(d, vssd) else { return Ok(()) };
    verify(&mut m, &last, how);
    for lba in [0, 7, 8] {
        if m.write(lba, 255) {
            last[lba as usize] = 255;
        }
    }
    verify(&mut m, &last, how);
    Ok(())
}

/// Unless it was forged, a block has its last contents or cannot be read.
fn verify(m: &mut Map, last: &[u8; BLOCKS as usize], how: Damage) {
    if how != Damage::Forged {
        m.map.check().expect("sound");
    }
    for lba in 0..BLOCKS {
        let Some(data) = m.read(lba) else { continue };
        if how == Damage::Flipped {
            let want = last[lba as usize];
            let bytes = data.to_bytes();
            assert!(bytes.iter().all(|b| *b == want), "block {lba}: {} for {want}, without an error", bytes[0]);
        }
    }
}
