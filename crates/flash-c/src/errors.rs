//! Errors, and their numbers in the header.

use std::ffi::c_int;

use rackweave_core::device::DeviceError;
use rackweave_device::drive::DriveError;
use rackweave_flash::manager::alloc::AllocVssdError;
use rackweave_flash::manager::api::{AllocError, BlockError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a pointer is null, or a text is not UTF-8")]
    Null,
    #[error("a buffer of {size} bytes: none has more than {}", isize::MAX)]
    Size { size: usize },
    #[error(transparent)]
    Open(#[from] DriveError),
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error(transparent)]
    Block(#[from] BlockError),
    #[error("vssd{vssd} has no allocated block from number {from} on")]
    NoMore { vssd: u32, from: u32 },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Error {
    /// Its number (`FBX_E_…`).
    pub fn code(&self) -> c_int {
        match self {
            Error::Null => 1,
            Error::Size { .. } => 30,
            Error::Open(e) => match e {
                DriveError::NoProfile { .. } | DriveError::TooSmall { .. } | DriveError::Profile(_) => 2,
                DriveError::File { .. }
                | DriveError::InUse { .. }
                | DriveError::Format { .. }
                | DriveError::Levels(_)
                | DriveError::OtherLevels { .. } => 3,
                DriveError::Manager(_) => 4,
            },
            Error::Alloc(e) => match e {
                AllocError::Isolation { .. } => 5,
                AllocError::Room(AllocVssdError::Level { .. }) => 6,
                AllocError::Room(AllocVssdError::NoCapacity) => 7,
                AllocError::Room(AllocVssdError::NoRoom { .. } | AllocVssdError::Taken { .. }) => 8,
                AllocError::TooMany { .. } => 9,
                AllocError::NotReady => 29,
                AllocError::Failed(_) => 28,
            },
            Error::Block(e) => block_code(e),
            Error::NoMore { .. } => 14,
            Error::Device(_) => 28,
        }
    }
}

fn block_code(e: &BlockError) -> c_int {
    match e {
        BlockError::UnknownVssd { .. } => 10,
        BlockError::DeadVssd { .. } => 11,
        BlockError::VssdInUse { .. } => 12,
        BlockError::ForeignBlock { .. } => 13,
        BlockError::NoSuchBlock { .. } => 14,
        BlockError::FreedBlock { .. } => 15,
        BlockError::UnalignedLength { .. } => 16,
        BlockError::UnalignedOffset { .. } => 17,
        BlockError::WrittenTwice { .. } => 18,
        BlockError::OutOfOrder { .. } => 19,
        BlockError::PastEnd { .. } => 20,
        BlockError::Sealed { .. } => 21,
        BlockError::Unwritten { .. } => 22,
        BlockError::Busy { .. } => 23,
        BlockError::NoFreeBlock { .. } => 24,
        BlockError::QueueFull { .. } => 25,
        BlockError::WornOut { .. } => 26,
        BlockError::Corrupt { .. } => 27,
        BlockError::Device(_) => 28,
        BlockError::NotReady => 29,
    }
}
