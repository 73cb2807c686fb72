//! Device commands: a server's commands to a flash device, and the answers of the backend behind it.
//!
//! `flash` decides (rules, timing, maps) and emits commands; the driver executes them on a [`Backend`]. A program or
//! erase is complete when its completion arrives and durable after a later `Sync` completed. Only the sending node
//! orders commands in flight.

use std::sync::Arc;

use bytes::Bytes;

use crate::id::{BlockAddr, SsdId, Timestamp};
use crate::payload::Payload;
use crate::time::Time;

/// A NAND page: erase block (numbered over the whole device) and page inside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageAddr {
    pub block: u32,
    pub page: u16,
}

/// Contents of a 4 KiB slot of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SlotKind {
    /// Filler of a page that was programmed before it was full.
    #[default]
    Pad = 0,
    /// Contents of one block.
    Data = 1,
    /// Range records (trim, write zeroes; protocol rule 10), encoded in the slot's contents.
    Ranges = 2,
}

/// The page layer's record of one 4 KiB slot, kept in the page's spare area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotRecord {
    pub kind: SlotKind,
    pub addr: BlockAddr,
    pub version: Timestamp,
    /// CRC32C of the slot's contents ([`Payload::crc32c`]).
    pub crc: u32,
    /// Owner of the page ([`BlockOob::owner`]); it is kept once for the page, in its block's record.
    pub owner: u32,
}

/// One 4 KiB slot: contents and record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub data: Payload,
    pub record: SlotRecord,
}

/// FB5's 16 bytes of an erase block, written with its erase and again with its first program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockOob {
    /// Logical address: whose the block is (high 24 bits), and which it is.
    pub logical: u64,
    pub erase_count: u16,
    /// 48 bits: µs of the run at the erase.
    pub erase_time: u64,
}

impl BlockOob {
    /// Owner of the block: index (8 bits) and generation (16) of an entry of the drive's table (protocol rule 30).
    pub fn owner(&self) -> u32 {
        (self.logical >> OWNER_AT) as u32
    }
}
/// Bits of a logical address below its owner.
const OWNER_AT: u32 = 40;

/// A page as it is programmed: slots in order, and its sequence among all pages of the vSSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageImage {
    /// Grows by one with every page a vSSD programs; recovery takes the copy of a block with the greater one when the
    /// versions are equal.
    pub sequence: u64,
    pub oob: BlockOob,
    /// Shared with who has to program it again if its block fails.
    pub slots: Arc<[Slot]>,
}

/// The spare areas of one page, as the recovery scan reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSpare {
    pub page: u16,
    pub sequence: u64,
    pub records: Box<[SlotRecord]>,
}

/// Operation of a device.
#[derive(Clone, Debug)]
pub enum DeviceOp {
    /// One slot of a page. Answer: [`DeviceData::Slot`].
    ReadSlot {
        page: PageAddr,
        slot: u8,
    },
    /// Two or more slots of a page, side by side. Answer: [`DeviceData::Page`] with these.
    ReadSlots {
        page: PageAddr,
        first: u8,
        count: u8,
    },
    /// A whole page. Answer: [`DeviceData::Page`].
    ReadPage {
        page: PageAddr,
    },
    Program {
        page: PageAddr,
        image: Box<PageImage>,
    },
    Erase {
        block: u32,
        oob: BlockOob,
    },
    /// Takes the block out of use for good: nothing that was in it is found again, and every later command to it fails with
    /// [`DeviceError::BadBlock`].
    MarkBad {
        block: u32,
    },
    /// Everything that completed before this was submitted is durable when this completes.
    Sync,
    /// Out-of-band area of a block and the spare areas of its programmed pages (torn pages left out), and which pages were durably
    /// programmed and have none that can be read.
    /// Answer: [`DeviceData::Spares`].
    ReadSpares {
        block: u32,
    },
    /// Out-of-band area of a block, and how many of its pages, from the first on, hold a complete program.
    /// Answer: [`DeviceData::Oob`].
    ReadOob {
        block: u32,
    },
    /// Writes `data` at byte `offset` of the checkpoint area (reserved blocks outside every vSSD).
    WriteMeta {
        offset: u64,
        data: Bytes,
    },
    /// Answer: [`DeviceData::Meta`], shorter than `len` where nothing was ever written.
    ReadMeta {
        offset: u64,
        len: u32,
    },
}

impl DeviceOp {
    /// The erase block that the command reads or changes; none for syncs and for the checkpoint area.
    pub fn block(&self) -> Option<u32> {
        match self {
            DeviceOp::ReadSlot { page, .. }
            | DeviceOp::ReadSlots { page, .. }
            | DeviceOp::ReadPage { page }
            | DeviceOp::Program { page, .. } => Some(page.block),
            DeviceOp::Erase { block, .. }
            | DeviceOp::MarkBad { block }
            | DeviceOp::ReadSpares { block }
            | DeviceOp::ReadOob { block } => Some(*block),
            DeviceOp::Sync | DeviceOp::WriteMeta { .. } | DeviceOp::ReadMeta { .. } => None,
        }
    }
}

/// A command to one device. Its completion has the same `tag`.
#[derive(Clone, Debug)]
pub struct DeviceCommand {
    pub ssd: SsdId,
    pub tag: u64,
    pub op: DeviceOp,
    /// When the modelled device is done with it. The completion is delivered then, or when the backend is done if
    /// that is later.
    pub done_at: Time,
}

#[derive(Clone, Debug)]
pub enum DeviceData {
    None,
    Slot(Slot),
    Page(Box<[Slot]>),
    Spares { oob: BlockOob, pages: Box<[PageSpare]>, unreadable: Box<[u16]> },
    Oob { oob: BlockOob, pages: u16 },
    Meta(Bytes),
}

/// Why a device command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The page was never programmed since its erase, or was torn by a power cut.
    #[error("page {page:?} holds no complete program")]
    Unwritten { page: PageAddr },
    /// The backend failed; the command may have been executed or not. Final for a `Sync` (protocol rule 12).
    #[error("the device's backend failed (OS error {os_error})")]
    Backend { os_error: i32 },
    /// The block failed to program or to erase: what it held before can be read still, it takes nothing more. Or it is
    /// marked bad.
    #[error("erase block {block} failed to program or to erase, or is marked bad")]
    BadBlock { block: u32 },
    /// The host's disk is full. The command was not executed, and may be repeated.
    #[error("the device's backend has no space left")]
    NoSpace,
}

/// The answer to a [`DeviceCommand`].
#[derive(Clone, Debug)]
pub struct Completion {
    pub ssd: SsdId,
    pub tag: u64,
    pub result: Result<DeviceData, DeviceError>,
}

/// Where a device's contents live: nowhere, in memory, in a file. Executes one command at once; the driver delivers
/// the answer at the command's `done_at`. Backends return payloads as they were programmed (an elided one stays
/// elided), because checksums cover the representation.
pub trait Backend {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError>;
}
