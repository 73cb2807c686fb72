//! Flash: a solid-state drive as a pure state machine. It decides — NAND rules, timing, page maps, garbage collection,
//! recovery — and emits [`rackweave_core::device::DeviceCommand`]s; a driver executes them on a backend and brings the
//! completions back.
//!
//! - [`profile`], [`geometry`], [`timing`]: what the drive is made of and how long its commands take.
//! - `drive`: the drive under both layers: its clock, commands in flight, erase counts, free blocks, the block map.
//! - [`Ssd`]: the drive and its channel- or die-isolated virtual SSDs (FlashBlox's "high" and "medium" isolation), and swaps
//!   of its dies.
//! - `vssd`: the page layer: block states and victims, page map, range records, collection, syncs, checkpoints,
//!   recovery, ageing.
//! - [`gc_policy`]: which block a collector takes.
//! - [`wear`]: when channels and dies are swapped, and which.
//! - [`table`]: the drive's durable table: which vSSD owns what.
//! - [`oob`]: the bytes of FB5's record; [`format`]: those of checkpoints, journals and range records.
//! - [`isolation`]: kinds of virtual SSDs and their throughput levels.
//! - [`manager`]: FlashBlox's flash manager: vSSDs of all four kinds for programs that lay out their own log.
//! - [`blockmap`]: a volume of 4 KiB blocks on the flash manager's calls.
//! - [`backend`]: contents in memory, or nowhere; [`flaws`]: programs and erases that fail.
//!
//! Why a power cut is harmless: no page is erased before all data that replaced it is durable, no page is programmed
//! twice without an erase, and after a start partly filled blocks take no more programs. Recovery reads the newest
//! complete checkpoint and the spare areas of the blocks that it does not describe; without a checkpoint, of all.

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod backend;
pub mod blockmap;
mod drive;
pub mod gc_policy;
pub mod geometry;
mod hold;
pub mod isolation;
pub mod manager;
pub mod oob;
pub mod profile;
mod ssd;
mod suspend;
pub mod table;
pub mod timing;
pub mod trace;
mod vssd;
pub mod wear;

pub use gc_policy::{Separation, VictimPolicy};
pub use geometry::Geometry;
pub use hold::{Admission, FlashLocation, NoPage, ReadTry};
pub use profile::{Profile, ProfileError, Source, Suspend};
pub use ssd::{
    AllocError, BlockWear, BlockWrite, BlockingUnit, FlashDone, FlashOut, FlashStats, JoinError, LOG_DIES_MAX,
    LoanStatus, Losses, NoFreeBlock, ReadError, RecoveryError, Share, Space, Ssd, SsdConfig, SwapError, Violation,
    area_log_blocks, log_blocks,
};
pub use timing::{Busy, Timing};
pub use vssd::exported_slots;

/// Formats of the page layer's records on flash.
pub mod format {
    pub use crate::vssd::checkpoint::{
        HEADERS_BYTES, Header, JournalEntry, decode_entry, decode_header, decode_piece_head, encode_entry,
        encode_header, encode_piece_head, head_bytes, old_entry_is_whole, old_header,
    };
    pub use crate::vssd::ranges::{RangeRecord, decode_group, encode_group};
}
