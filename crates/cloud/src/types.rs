//! Ranges of a VDisk, serial numbers, and changes of contents.

pub use rackweave_core::msg::cloud::{Contents, EntryId, Extent, Serial, Write};
