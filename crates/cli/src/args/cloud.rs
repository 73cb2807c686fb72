//! Options of cloud disks, and commands about their snapshots.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rackweave_config::Size;

use super::{Json, size};

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

#[derive(Debug, Subcommand)]
pub enum CloudVolume {
    /// Make a snapshot of a cloud disk; it is a read-only NBD export of its own, VOLUME@SNAPSHOT
    #[command(after_help = "Example:\n  rackweave volume snapshot disk monday")]
    Snapshot {
        name: String,
        snapshot: String,
        #[command(flatten)]
        json: Json,
    },
    /// Create a cloud disk that begins with the contents of a snapshot; both share what neither has changed
    #[command(after_help = "Example:\n  rackweave volume clone disk@monday test")]
    Clone {
        /// As VOLUME@SNAPSHOT
        snapshot: String,
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Give a cloud disk the contents of one of its snapshots again; what was written since is lost
    #[command(after_help = "Example:\n  rackweave volume rollback disk@monday")]
    Rollback {
        /// As VOLUME@SNAPSHOT
        snapshot: String,
        #[command(flatten)]
        json: Json,
    },
    /// Copy what a cloud disk shares, so that it needs no other disk's snapshot, and nothing of its own removed ones
    #[command(after_help = "Example:\n  rackweave volume flatten test")]
    Flatten {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Show the bytes on flash of a volume and of each of its snapshots: those that return when it alone goes, and shared ones
    #[command(after_help = "Example:\n  rackweave volume du disk")]
    Du {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Write the contents of a volume or a snapshot to a new file, with checksums; zeroes take no room
    #[command(after_help = "Example:\n  rackweave volume export disk@monday disk.rwv")]
    Export {
        /// A volume, or VOLUME@SNAPSHOT; while clients write, only a snapshot is one state of the disk
        volume: String,
        file: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Create a volume with the contents of an exported file; a damaged file is refused and leaves no volume behind
    #[command(after_help = "Example:\n  rackweave volume import disk.rwv copy --kind cloud")]
    Import {
        file: PathBuf,
        name: String,
        #[command(flatten)]
        cloud: Cloud,
        #[command(flatten)]
        json: Json,
    },
    /// Rename a volume that no client uses, and with it its snapshots
    #[command(after_help = "Example:\n  rackweave volume rename disk old-disk")]
    Rename {
        name: String,
        to: String,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// List the snapshots of a cloud disk, or of all
    #[command(after_help = "Example:\n  rackweave snapshot ls disk")]
    Ls {
        volume: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Remove a snapshot of which there are no clones
    #[command(after_help = "Example:\n  rackweave snapshot rm disk@monday")]
    Rm {
        /// As VOLUME@SNAPSHOT
        snapshot: String,
        #[command(flatten)]
        json: Json,
    },
}
