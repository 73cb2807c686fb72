//! Options of the commands that work on a drive's file, without a rack.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rackweave_config::Size;

use super::{GcVictims, Json, size};

/// A drive in a file; it is opened with what it was made with.
#[derive(Debug, Args)]
pub struct DriveFile {
    /// The file
    #[arg(long, value_name = "FILE", global = true, default_value = "drive.rwk")]
    pub drive: PathBuf,
    /// Its device profile: p-ssd, intel-dc, optane or femu
    #[arg(long, global = true, default_value = "p-ssd")]
    pub profile: String,
    /// Its flash, to which the profile is scaled; the file grows as it is used
    #[arg(long, value_name = "SIZE", value_parser = size, global = true, default_value = "64G")]
    pub drive_size: Size,
}

#[derive(Debug, Args)]
pub struct Mount {
    #[command(flatten)]
    pub file: DriveFile,
    /// The virtual SSD's number, as `vssd list` shows it
    pub vssd: u32,
    /// The directory
    pub dir: PathBuf,
    /// Which blocks cleaning takes
    #[arg(long, value_enum, default_value_t = GcVictims::Greedy)]
    pub gc_victims: GcVictims,
}

/// What a virtual SSD shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IsolationLevel {
    /// Nothing: channels of its own
    Channel,
    /// The channel's bus: dies of its own
    Die,
    /// Dies, by fair shares: soft-planes
    Software,
    /// Dies and their queue
    #[value(alias = "unisolated")]
    None,
}

#[derive(Debug, Subcommand)]
pub enum KvCmd {
    /// Store a value, durably
    Put {
        key: String,
        /// Standard input to its end, if it is left out
        value: Option<String>,
    },
    /// Store a pair for each line of standard input, KEY TAB VALUE; prints each key when its value is durable
    Load,
    /// Write a key's value to standard output
    Get { key: String },
    /// Remove a key, durably
    Delete { key: String },
    /// List keys and values in the order of the keys, KEY TAB VALUE
    Scan {
        /// The key to begin with; default: the first
        #[arg(long, value_name = "KEY", default_value = "")]
        from: String,
        /// Most pairs to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        json: Json,
    },
    /// Show how many keys there are, and what space
    Info(Json),
}

/// What throughput levels are on the drive, of which it keeps what it is made with.
#[derive(Debug, Args)]
pub struct LevelLists {
    /// Channels of throughput level 0, 1 and so on, of a drive that is made with this: 1,2,4,8,16 if not given
    #[arg(long, value_name = "N,N...", value_delimiter = ',')]
    pub channel_levels: Option<Vec<u32>>,
    /// The same in dies: 1,2,4 and so on to 64
    #[arg(long, value_name = "N,N...", value_delimiter = ',')]
    pub die_levels: Option<Vec<u32>>,
    /// The same in soft-planes: 1,2,4 and so on to 256
    #[arg(long, value_name = "N,N...", value_delimiter = ',')]
    pub soft_plane_levels: Option<Vec<u32>>,
}

#[derive(Debug, Subcommand)]
pub enum VssdCmd {
    /// Create a virtual SSD, and the drive if there is none
    Create {
        #[arg(long, value_enum)]
        isolation: IsolationLevel,
        /// Throughput level: if the drive was not made with others, 0 is one unit, each further one twice as many
        #[arg(long, default_value_t = 0)]
        level: u32,
        #[command(flatten)]
        levels: LevelLists,
        /// Bytes, or a number with K, M, G or T (binary)
        #[arg(long, value_parser = size)]
        capacity: Size,
        #[command(flatten)]
        json: Json,
    },
    /// List the drive's virtual SSDs
    List(Json),
    /// Show one
    Info {
        id: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Delete one and everything in it
    Delete { id: u32 },
}
