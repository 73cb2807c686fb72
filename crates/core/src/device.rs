//! Device commands of a server to a flash device, and the answers of its backend.
//!
//! `flash` decides (rules, timing, maps) and emits commands; the driver executes them on a [`Backend`]. A program or
//! erase is complete when its completion arrives, and durable once a later `Sync` has completed. Only the sending node
//! orders commands in flight.

use std::sync::Arc;

use bytes::Bytes;

use crate::id::{BlockAddr, SsdId, Timestamp};
use crate::payload::Payload;
use crate::time::Time;

/// A NAND page: an erase block (numbered over the whole device) and a page in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageAddr {
    pub block: u32,
    pub page: u16,
}

/// Contents of a 4 KiB slot of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SlotKind {
    /// Padding of a page that was programmed before it was full.
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
    /// Owner of the page ([`BlockOob::owner`]), stored once per page in its block's record.
    pub owner: u32,
}

/// One 4 KiB slot: contents and record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub data: Payload,
    pub record: SlotRecord,
}

/// FB5's 16 bytes of an erase block, written at its erase and again with its first program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockOob {
    /// Logical address: owner (high 24 bits) and number of the block.
    pub logical: u64,
    pub erase_count: u16,
    /// Low 48 bits: time of the erase, in µs of the run.
    pub erase_time: u64,
}

impl BlockOob {
    /// Owner of the block: index (8 bits) and generation (16 bits) of an entry of the drive table (protocol rule 30).
    pub fn owner(&self) -> u32 {
        (self.logical >> OWNER_AT) as u32
    }
}
/// Bits of a logical address below its owner.
const OWNER_AT: u32 = 40;

/// A page to program: its slots in order, and its sequence number among all pages of the vSSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageImage {
    /// Increases with every page that a vSSD programs. Of two copies of a block with equal versions, recovery takes the
    /// one with the greater sequence.
    pub sequence: u64,
    pub oob: BlockOob,
    /// Shared, because a page is programmed again if its block fails.
    pub slots: Arc<[Slot]>,
}

/// The spare areas of one page, as the recovery scan reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSpare {
    pub page: u16,
    pub sequence: u64,
    pub records: Box<[SlotRecord]>,
}

/// A device operation.
#[derive(Clone, Debug)]
pub enum DeviceOp {
    /// Reads one slot of a page. Answer: [`DeviceData::Slot`].
    ReadSlot {
        page: PageAddr,
        slot: u8,
    },
    /// Reads two or more adjacent slots of a page. Answer: [`DeviceData::Page`] with these slots.
    ReadSlots {
        page: PageAddr,
        first: u8,
        count: u8,
    },
    /// Reads a whole page. Answer: [`DeviceData::Page`].
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
    /// Retires the block for good. Its contents are lost, and every later command to it fails with
    /// [`DeviceError::BadBlock`].
    MarkBad {
        block: u32,
    },
    /// When it completes, everything that had completed before it was submitted is durable.
    Sync,
    /// Reads the out-of-band area of a block and the spare areas of its programmed pages, torn pages left out. It also
    /// returns which durably programmed pages have no readable spare area. Answer: [`DeviceData::Spares`].
    ReadSpares {
        block: u32,
    },
    /// Reads the out-of-band area of a block, and counts its complete pages from the first on. Answer:
    /// [`DeviceData::Oob`].
    ReadOob {
        block: u32,
    },
    /// Writes `data` at byte `offset` of the checkpoint area (reserved blocks outside every vSSD).
    WriteMeta {
        offset: u64,
        data: Bytes,
    },
    /// Answer: [`DeviceData::Meta`], shorter than `len` where nothing was written.
    ReadMeta {
        offset: u64,
        len: u32,
    },
}

impl DeviceOp {
    /// The erase block that the command accesses; `None` for syncs and the checkpoint area.
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
    /// The same, to be replaced by another one.
    pub fn block_mut(&mut self) -> Option<&mut u32> {
        match self {
            DeviceOp::ReadSlot { page, .. }
            | DeviceOp::ReadSlots { page, .. }
            | DeviceOp::ReadPage { page }
            | DeviceOp::Program { page, .. } => Some(&mut page.block),
            DeviceOp::Erase { block, .. }
            | DeviceOp::MarkBad { block }
            | DeviceOp::ReadSpares { block }
            | DeviceOp::ReadOob { block } => Some(block),
            DeviceOp::Sync | DeviceOp::WriteMeta { .. } | DeviceOp::ReadMeta { .. } => None,
        }
    }
}

/// A command to one device. Its completion carries the same `tag`.
#[derive(Clone, Debug)]
pub struct DeviceCommand {
    pub ssd: SsdId,
    pub tag: u64,
    pub op: DeviceOp,
    /// When the modelled device is done. The completion is delivered then, or later if the backend takes longer.
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
    /// The page was not programmed since its erase, or was torn by a power cut.
    #[error("page {page:?} holds no complete program")]
    Unwritten { page: PageAddr },
    /// The backend failed; the command may or may not have been executed. Final for a `Sync` (protocol rule 12).
    #[error("the device's backend failed (OS error {os_error})")]
    Backend { os_error: i32 },
    /// The block failed to program or erase, or is marked bad. Earlier contents of a failed block remain readable.
    #[error("erase block {block} failed to program or to erase, or is marked bad")]
    BadBlock { block: u32 },
    /// The host's disk is full. The command was not executed and may be retried.
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

/// Storage of a device's contents: none, memory, or a file. A command is executed at once; the driver delivers its
/// answer at `done_at`. Payloads are returned as they were programmed (an elided one stays elided), because checksums
/// cover the representation.
pub trait Backend {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError>;
}
