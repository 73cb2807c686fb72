//! Commands about volumes.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use rackweave_config::Size;

use super::{Cloud, CloudVolume, IOPS_MAX, IsolationLevel, Json, MBPS_MAX, drive, limit, size};

/// Traffic class of a volume's I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumeClass {
    Online,
    Offline,
}

/// Units of a volume's own.
#[derive(Debug, Default, Args)]
pub struct Own {
    /// Channels of its own, each in as many replicas; the rack must have set some aside (ssd.own_channels)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["dies", "soft_planes"])]
    pub channels: Option<u32>,
    /// Dies of its own (ssd.own_dies); with --isolation software on channels that it shares with volumes that chose the same
    /// (ssd.own_software_dies)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "soft_planes")]
    pub dies: Option<u32>,
    /// Soft-planes of its own, each a quarter of a die with as much of its time (ssd.own_soft_planes)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub soft_planes: Option<u32>,
    /// Units of its own by bandwidth level, as those of `vssd create --level`: 1, 2, 4, 8 or 16 channels for 0 to 4; 1 to 64
    /// dies for 0 to 6 with --isolation die or software; 1 to 256 soft-planes for 0 to 8 with --isolation soft-plane
    #[arg(long, value_name = "LEVEL", conflicts_with_all = ["channels", "dies", "soft_planes"])]
    pub bandwidth: Option<usize>,
    /// No units of its own: it lies on shared sets [default]
    #[arg(long, conflicts_with_all = ["channels", "dies", "soft_planes", "bandwidth"])]
    pub shared: bool,
    /// Replicas of each of its units [default: the rack's replicas]
    #[arg(long, value_name = "R")]
    pub replicas: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Create a thin volume
    #[command(
        after_help = "Examples:\n  rackweave volume create vm0 --size 4G\n  rackweave volume create bulk --size 16G --class offline\n  rackweave volume create db --size 1G --channels 2 --replicas 2\n  rackweave volume create web --size 1G --bandwidth 1\n  rackweave volume create dev --size 1G --isolation software --dies 2\n  rackweave volume create disk --size 1G --kind cloud --segment 256M"
    )]
    Create {
        name: String,
        /// Bytes, or a number with K, M, G or T (binary); a multiple of 4096
        #[arg(long, value_parser = size)]
        size: Size,
        /// Traffic class: offline I/O yields to online I/O everywhere
        #[arg(long, value_enum, default_value_t = VolumeClass::Online)]
        class: VolumeClass,
        /// Isolation of its virtual SSDs: `channel`, `die`, `software`, `none`, or `soft-plane` with --soft-planes or --bandwidth
        /// [default: that of its units; on shared sets the rack's first level]
        #[arg(long, value_name = "LEVEL", value_parser = drive::rack_level)]
        isolation: Option<IsolationLevel>,
        #[command(flatten)]
        own: Own,
        #[command(flatten)]
        cloud: Cloud,
        #[command(flatten)]
        json: Json,
    },
    /// Show whether such a volume could be created now, and where units for volumes alone are free
    #[command(after_help = "Example:\n  rackweave volume explain --size 1G --channels 2")]
    Explain {
        /// Bytes, or a number with K, M, G or T (binary); a multiple of 4096
        #[arg(long, value_parser = size)]
        size: Size,
        /// Isolation of its virtual SSDs, as for `create`
        #[arg(long, value_name = "LEVEL", value_parser = drive::rack_level)]
        isolation: Option<IsolationLevel>,
        #[command(flatten)]
        own: Own,
        #[command(flatten)]
        json: Json,
    },
    /// Change a volume's traffic class, effective at the next attach
    #[command(after_help = "Example:\n  rackweave volume class vm0 offline")]
    Class {
        name: String,
        class: VolumeClass,
        #[command(flatten)]
        json: Json,
    },
    /// Limit a volume's I/O, effective at once, or give it another number of units of its own while it serves
    #[command(
        after_help = "Examples:\n  rackweave volume set vm0 --iops 5000 --mbps none\n  rackweave volume set db --channels 4"
    )]
    #[command(group = ArgGroup::new("change").required(true).multiple(true).args(["iops", "mbps", "channels", "dies"]))]
    Set {
        name: String,
        /// Reads, writes and trims per second; `none` or 0: unlimited
        #[arg(long, value_name = "N", value_parser = |t: &str| limit(t, IOPS_MAX))]
        iops: Option<u64>,
        /// Megabytes (10^6 bytes) read and written per second; `none` or 0: unlimited
        #[arg(long, value_name = "N", value_parser = |t: &str| limit(t, MBPS_MAX))]
        mbps: Option<u64>,
        /// Channels of its own from now on, if it has channels
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["dies", "iops", "mbps"])]
        channels: Option<u32>,
        /// Dies of its own from now on, if it has dies
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["iops", "mbps"])]
        dies: Option<u32>,
        #[command(flatten)]
        json: Json,
    },
    /// List the volumes
    #[command(after_help = "Example:\n  rackweave volume list")]
    List(Json),
    /// Show one volume
    #[command(after_help = "Example:\n  rackweave volume info vm0")]
    Info {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// List the lost extents of a volume: reads fail until whole blocks are written or trimmed
    #[command(after_help = "Example:\n  rackweave volume lost vm0")]
    Lost {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    #[command(flatten)]
    Cloud(CloudVolume),
    /// Enlarge a volume
    #[command(after_help = "Example:\n  rackweave volume grow vm0 --size 8G")]
    Grow {
        name: String,
        /// New size
        #[arg(long, value_parser = size)]
        size: Size,
        #[command(flatten)]
        json: Json,
    },
    /// Delete a volume and its data
    #[command(after_help = "Example:\n  rackweave volume delete vm0")]
    Delete {
        name: String,
        /// Also while a client uses it: fence the client first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        json: Json,
    },
}
