//! A small drive of the flash manager in memory, and its damage.

use arbitrary::{Result, Unstructured};
use rackweave_core::device::{Backend, DeviceData, DeviceOp, PageAddr, SlotRecord};
use rackweave_core::{BLOCK, Payload, SsdId, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::manager::api::VirtualSsds;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_flash::{Geometry, Profile, Timing};

use crate::corrupt::corrupt_in_place;

/// Kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Bits have changed; the drive's checksums have not. A reader gets the written data, or an error.
    Flipped,
    /// Pages are gone, as after a power cut if they are the last.
    Lost,
    /// Bytes have changed, and with them the drive's checksums and the format's own: the only claim is that no panic
    /// occurs.
    Forged,
}

impl Damage {
    pub(super) fn drawn(u: &mut Unstructured<'_>) -> Result<Damage> {
        u.choose(&[Damage::Flipped, Damage::Lost, Damage::Forged]).copied()
    }
}

/// One channel of `dies` dies of `blocks` erase blocks of 8 pages of 8 KiB.
pub(super) fn config(dies: u16, blocks: u32) -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 1,
        dies_per_channel: dies,
        planes_per_die: 1,
        blocks_per_plane: blocks,
        pages_per_block: 8,
        page_bytes: 8192,
    };
    p.device_over_provisioning = 0.1;
    let mut cfg = ManagerConfig::new(SsdId(7), p);
    cfg.timing = Timing::None;
    cfg.soft_planes_per_die = 1;
    cfg
}

/// A new drive with one vSSD.
pub(super) fn new_drive(cfg: &ManagerConfig) -> (BlockingDrive<Memory>, VssdId) {
    let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a new drive");
    let vssd = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    (d, vssd)
}

/// The slot's contents and record, if it was programmed.
fn slot(m: &mut Memory, page: PageAddr, slot: u8) -> Option<(Vec<u8>, SlotRecord)> {
    match m.execute(&DeviceOp::ReadSlot { page, slot }) {
        Ok(DeviceData::Slot(s)) => Some((s.data.to_bytes().to_vec(), s.record)),
        _ => None,
    }
}

/// Damages a few of the slots that are programmed; `reseal` mends the format's own checksums in one.
pub(super) fn damage(
    u: &mut Unstructured<'_>,
    m: &mut Memory,
    cfg: &ManagerConfig,
    how: Damage,
    reseal: impl Fn(&mut [u8]),
) -> Result<()> {
    let g = cfg.profile.geometry;
    let slots = (g.page_bytes / BLOCK) as u8;
    let pages = (0..g.blocks()).flat_map(|block| (0..g.pages_per_block).map(move |page| PageAddr { block, page }));
    let used: Vec<(PageAddr, u8)> =
        pages.flat_map(|p| (0..slots).map(move |s| (p, s))).filter(|(p, s)| slot(m, *p, *s).is_some()).collect();
    for _ in 0..u.int_in_range(1..=3u8)? {
        if used.is_empty() {
            break;
        }
        let (page, at) = used[u.choose_index(used.len())?];
        if how == Damage::Lost {
            m.lose_page(page);
            continue;
        }
        let Some((mut bytes, mut record)) = slot(m, page, at) else { continue };
        // Heads are where parsers look.
        let len = bytes.len();
        let part = if u.ratio(3u8, 4u8)? { &mut bytes[..len.min(256)] } else { &mut bytes[..] };
        corrupt_in_place(u, part)?;
        if how == Damage::Forged {
            reseal(&mut bytes);
        }
        let data = Payload::Bytes(bytes.into());
        record.crc = if how == Damage::Forged { data.crc32c() } else { record.crc };
        m.damage(page, at, data);
        m.misdirect(page, at, record);
    }
    // The drive's own record, kept twice.
    if u.ratio(1u8, 4u8)? {
        let meta = m.meta_mut();
        let n = meta.len();
        corrupt_in_place(u, &mut meta[..n.min(512)])?;
    }
    Ok(())
}
