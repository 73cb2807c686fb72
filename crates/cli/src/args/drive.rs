//! Options of the commands that work on a drive's file, without a rack.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rackweave_config::Size;
use rackweave_replay::ycsb::Workload;
use rackweave_runtime::net::Address;

use super::{GcVictims, Json, size};

/// A drive in a file. It is opened with the profile and size that it was created with.
#[derive(Debug, Args)]
pub struct DriveFile {
    /// The drive's file
    #[arg(long, value_name = "FILE", global = true, default_value = "drive.rwk")]
    pub drive: PathBuf,
    /// Device profile: p-ssd, intel-dc, optane or femu
    #[arg(long, global = true, default_value = DriveFile::PROFILE)]
    pub profile: String,
    /// Flash size, to which the profile is scaled; the file grows as it is used
    #[arg(long, value_name = "SIZE", value_parser = size, global = true, default_value_t = DriveFile::SIZE)]
    pub drive_size: Size,
}

impl DriveFile {
    pub const PROFILE: &str = "p-ssd";
    pub const SIZE: Size = Size(64 << 30);
}

/// A drive in a file, in place of a rack.
#[derive(Debug, Args)]
pub struct OtherDrive {
    /// Use a store on this drive's file, without a rack
    #[arg(long, value_name = "FILE", global = true)]
    pub drive: Option<PathBuf>,
    /// With --drive: its device profile [default: p-ssd]
    #[arg(long, global = true)]
    pub profile: Option<String>,
    /// With --drive: its flash size [default: 64G]
    #[arg(long, value_name = "SIZE", value_parser = size, global = true)]
    pub drive_size: Option<Size>,
    /// With --drive: id of the virtual SSD; an empty one is an empty store [default: 1]
    #[arg(long, value_name = "ID", global = true)]
    pub vssd: Option<u32>,
}

#[derive(Debug, Args)]
pub struct Mount {
    #[command(flatten)]
    pub file: DriveFile,
    /// Id of the virtual SSD
    pub vssd: u32,
    /// Mount point
    pub dir: PathBuf,
    /// Victims of cleaning
    #[arg(long, value_enum, default_value_t = GcVictims::Greedy)]
    pub gc_victims: GcVictims,
}

/// The isolation of a volume of a rack.
pub(super) fn rack_level(text: &str) -> Result<IsolationLevel, String> {
    if text == "soft-plane" {
        return Ok(IsolationLevel::SoftPlane);
    }
    let unknown = |_| "there are the levels channel, die, software, soft-plane and none".into();
    IsolationLevel::from_str(text, false).map_err(unknown)
}

/// Units that a virtual SSD shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IsolationLevel {
    /// Channels of its own
    Channel,
    /// Dies of its own on shared channels
    Die,
    /// Soft-planes on shared dies, by fair shares
    Software,
    /// As `software`: a rack's own word for soft-planes, since its `software` is dies on shared channels
    #[value(skip)]
    SoftPlane,
    /// Shared dies without fair shares
    #[value(alias = "unisolated")]
    None,
}

#[derive(Debug, Subcommand)]
pub enum KvCmd {
    /// Store a value durably
    #[command(after_help = "Example:\n  rackweave kv put hello world")]
    Put {
        key: OsString,
        /// The value [default: standard input]
        value: Option<OsString>,
    },
    /// Store the pairs of standard input (KEY TAB VALUE lines) and print each key once durable
    #[command(after_help = "Example:\n  rackweave kv load < pairs.tsv")]
    Load,
    /// Write a key's value to standard output
    #[command(after_help = "Example:\n  rackweave kv get hello")]
    Get { key: OsString },
    /// Remove a key durably
    #[command(alias = "del", after_help = "Example:\n  rackweave kv delete hello")]
    Delete { key: OsString },
    /// List pairs in key order (KEY TAB VALUE lines); of a rack this reads the names of all keys
    #[command(after_help = "Example:\n  rackweave kv scan --from h --limit 10")]
    Scan {
        /// First key to list [default: the first key]
        #[arg(long, value_name = "KEY", default_value = "")]
        from: OsString,
        /// Largest number of pairs
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        json: Json,
    },
    /// Show the number of keys and the space
    #[command(after_help = "Example:\n  rackweave kv info")]
    Info(Json),
    /// Measure gets and puts of random keys of the running rack, or a workload of YCSB; the keys (bench:N, userN) stay
    #[command(
        after_help = "Examples:\n  rackweave kv bench --clients 16 --seconds 10\n  rackweave kv bench --ycsb b --keys 100000"
    )]
    Bench(KvBench),
    /// Serve the store of a drive to Redis clients until SIGINT or SIGTERM
    #[command(after_help = "Example:\n  rackweave kv serve --drive drive.rwk --resp 127.0.0.1:6379")]
    Serve {
        /// Where Redis clients connect: HOST:PORT or unix:PATH
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379")]
        resp: Address,
        /// Permit FLUSHALL and FLUSHDB, which delete every key
        #[arg(long)]
        flushall: bool,
    },
}

#[derive(Debug, Args)]
pub struct KvBench {
    /// Core workload of the Yahoo Cloud Serving Benchmark: its operations, popularity, and records of 1,000 bytes
    #[arg(long, value_name = "WORKLOAD", value_parser = KvBench::workload, conflicts_with_all = ["reads", "value_bytes"])]
    pub ycsb: Option<Workload>,
    /// Connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub clients: u32,
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Percentage of gets
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: u8,
    /// Number of keys, which are created first
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub keys: u64,
    /// Length of a value
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    pub value_bytes: usize,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub json: Json,
}

impl KvBench {
    fn workload(name: &str) -> Result<Workload, String> {
        let found =
            Workload::ALL.into_iter().zip('a'..).find(|(_, letter)| name.eq_ignore_ascii_case(&letter.to_string()));
        found.map(|(w, _)| w).ok_or_else(|| "the workloads are a to f".into())
    }
}

/// The drive's throughput levels, fixed when it is created.
#[derive(Debug, Args)]
pub struct LevelLists {
    /// Channels of throughput levels 0, 1, … of a new drive [default: 1,2,4,8,16]
    #[arg(long, value_name = "N,N...", value_delimiter = ',')]
    pub channel_levels: Option<Vec<u32>>,
    /// The same in dies [default: 1,2,4 to 64]
    #[arg(long, value_name = "N,N...", value_delimiter = ',')]
    pub die_levels: Option<Vec<u32>>,
    /// The same in soft-planes [default: 1,2,4 to 256]
    #[arg(long, value_name = "N,N...", value_delimiter = ',')]
    pub soft_plane_levels: Option<Vec<u32>>,
}

#[derive(Debug, Subcommand)]
pub enum VssdCmd {
    /// Create a virtual SSD, and the drive if there is none
    #[command(after_help = "Example:\n  rackweave vssd create --isolation die --capacity 1G")]
    Create {
        #[arg(long, value_enum)]
        isolation: IsolationLevel,
        /// Throughput level: by default 0 is one unit, and each further level twice as many
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
    #[command(after_help = "Example:\n  rackweave vssd list")]
    List(Json),
    /// Show one virtual SSD with its dies and wear
    #[command(after_help = "Example:\n  rackweave vssd info 1")]
    Info {
        id: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Delete a virtual SSD and its data
    #[command(after_help = "Example:\n  rackweave vssd delete 1")]
    Delete { id: u32 },
}
