//! Options of cloud disks.

use clap::{Args, ValueEnum};
use rackweave_config::Size;

use super::size;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum VolumeKind {
    /// Blocks are on replica sets
    #[default]
    Direct,
    /// A cloud disk: bursts of writes are spread over all servers
    Cloud,
}

#[derive(Debug, Args)]
pub struct Cloud {
    /// Where its contents are
    #[arg(long, value_enum, default_value_t = VolumeKind::Direct)]
    pub kind: VolumeKind,
    /// Bytes of a segment of a cloud disk, each of which has its own proxy; a multiple of 64 KiB [default: 64G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment: Option<Size>,
    /// Copies of an entry of a cloud disk's log: 2, or 1, with which a lost server loses answered writes [default: 2]
    #[arg(long, value_name = "N")]
    pub log_copies: Option<u8>,
}
