//! The command line.

mod drive;
mod evaluate;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use rackweave_config::Size;
use rackweave_flash::VictimPolicy;
use rackweave_runtime::net::Address;

pub use drive::{DriveFile, IsolationLevel, KvCmd, LevelLists, Mount, VssdCmd};
pub use evaluate::{Eval, Replay, Sim};

/// A replicated disk from a rack of flash servers and the switch in front of them.
#[derive(Debug, Parser)]
#[command(name = "rackweave", version, max_term_width = 100)]
pub struct Cli {
    /// Data directory of the rack [default: $XDG_DATA_HOME/rackweave or ~/.local/share/rackweave]
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Cmd,
}

#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// Run a rack on this machine until it is interrupted
    Up(Up),
    /// Bring the drives of a rack made by an earlier version over to this one's format, in place, while the rack is down
    Convert {
        /// The rack's data directory
        dir: PathBuf,
    },
    /// Run one node of a rack whose configuration says where each is, until it is interrupted
    Node {
        #[command(subcommand)]
        node: Node,
    },
    /// Make and change the keys and certificates by which a rack's nodes know each other
    Keys {
        #[command(subcommand)]
        command: Keys,
    },
    /// Create, list, show, grow and delete volumes of the running rack
    Volume {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Volume,
    },
    /// Create, list, show and delete virtual SSDs of a drive in a file
    Vssd {
        #[command(flatten)]
        file: DriveFile,
        #[command(subcommand)]
        command: VssdCmd,
    },
    /// Put, get, delete and list the pairs of a key-value store on a virtual SSD of a drive in a file
    Kv {
        #[command(flatten)]
        file: DriveFile,
        /// The virtual SSD, by its id; an empty one is an empty store
        #[arg(long, value_name = "ID", global = true, default_value_t = 1)]
        vssd: u32,
        #[command(subcommand)]
        command: KvCmd,
    },
    /// Mount the file system of a virtual SSD until it is unmounted or interrupted; a new virtual SSD gets one
    Mount(Mount),
    /// Speak about the running rack's replica sets
    Set {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Set,
    },
    /// Show, add, drain and remove servers of the running rack; end one as a crash would, and start it again
    Server {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Server,
    },
    /// Show how the running rack treats garbage collection, and change it
    Policy {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: PolicyCmd,
    },
    /// Cut links between nodes of the running rack, and mend them, to see what happens
    Link {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Link,
    },
    /// Show servers, vSSDs, garbage collection, volumes and latencies of the running rack
    Status {
        #[command(flatten)]
        way: Target,
        /// Show what happens, until SIGINT or the rack's end
        #[arg(long)]
        watch: bool,
        /// With --watch: after so many seconds each [default: 1]
        #[arg(long, value_name = "SECONDS", requires = "watch", value_parser = interval)]
        every: Option<f64>,
        #[command(flatten)]
        json: Json,
    },
    /// Replay a block trace through a simulated rack, policy against policy
    Replay(Box<Replay>),
    /// Run an experiment: a paper's numbers beside ours
    Eval(Eval),
    /// Run one search for faults: a seed draws a rack, its workload and what goes wrong
    Sim(Sim),
    /// Print the version
    Version(Json),
}

#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Target {
    /// Ask the nodes of this configuration over its control channel, from any host, instead of by --data
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Up {
    /// Where NBD clients connect: HOST:PORT or unix:PATH [default: 127.0.0.1:10809; with --netns nbd.sock in the data
    /// directory]
    #[arg(long, value_name = "ADDR")]
    pub nbd: Option<Address>,
    /// Servers of a new rack [default: 4]
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// Whether device commands take as long as the modelled flash would
    #[arg(long, value_enum)]
    pub timing: Option<Timing>,
    /// Which blocks garbage collection takes [default: as configured; greedy]
    #[arg(long, value_enum)]
    pub gc_victims: Option<GcVictims>,
    /// Where Prometheus finds metrics: HOST:PORT or unix:PATH [default: nowhere]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    /// Configuration of the rack (TOML); options here win over it, and standard error says which did
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Size of each modelled SSD of a new rack [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub ssd_size: Option<Size>,
    /// Give server N an empty SSD in the place of one whose file is gone; it is filled from the other copies
    #[arg(long, value_name = "N")]
    pub replace_ssd: Vec<u32>,
    /// Leave server N out this time, as if it had crashed
    #[arg(long, value_name = "N", conflicts_with_all = ["processes", "netns"])]
    pub absent: Vec<u32>,
    /// Print where to connect as JSON
    #[arg(long)]
    pub json: bool,
    /// A process for each node, which speak by UDP on loopback, instead of one for all
    #[arg(long)]
    pub processes: bool,
    /// As --processes, each node on a host of its own: network namespaces around a switch, and a second rack
    #[arg(long, conflicts_with = "replace_ssd")]
    pub netns: bool,
    /// What runs the switch's tables there
    #[arg(long, value_enum, value_name = "KIND", requires = "netns", default_value = "process")]
    pub data_plane: DataPlane,
    /// Write each process's datagrams as a capture into this directory
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Node {
    /// The metadata service
    Meta(NodeConfig),
    /// The switch: a process that forwards the others' datagrams, or programs in the kernel
    Switch {
        #[command(flatten)]
        config: NodeConfig,
        /// What runs its tables, in place of switch.data_plane
        #[arg(long, value_enum, value_name = "KIND")]
        data_plane: Option<DataPlane>,
    },
    /// A storage server
    Server {
        #[command(flatten)]
        config: NodeConfig,
        /// Its number: its address is that one of hosts.servers
        #[arg(long, value_name = "N")]
        id: u32,
        /// Begin with an empty SSD in the place of one whose file is gone; it is filled from the other copies
        #[arg(long)]
        replace_ssd: bool,
    },
    /// A gateway
    Gateway {
        #[command(flatten)]
        config: NodeConfig,
        /// Its number: its address is that one of hosts.gateways
        #[arg(long, value_name = "N", default_value_t = 0)]
        id: u32,
        /// Where NBD clients connect: HOST:PORT or unix:PATH
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10809")]
        nbd: Address,
        /// Where Prometheus finds metrics: HOST:PORT or unix:PATH [default: nowhere]
        #[arg(long, value_name = "ADDR")]
        http: Option<Address>,
    },
}

#[derive(Debug, Args)]
pub struct NodeConfig {
    /// Configuration of the rack (TOML), with a [hosts] section
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Write its datagrams as a capture
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Say signs of life on standard output, for the process that started it
    #[arg(long)]
    pub supervised: bool,
}

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Make a directory with a new cluster key and an authority for certificates
    Init { dir: PathBuf },
    /// Make a directory, to be copied to a host, with the cluster key and a certificate for its names
    Add {
        /// The directory that `keys init` made
        dir: PathBuf,
        /// Names or addresses by which others reach the host
        #[arg(required = true)]
        name: Vec<String>,
        /// The certificate ends after so many days
        #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// Give the running rack a new cluster key without a pause
    Rotate {
        #[command(flatten)]
        way: Target,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPlane {
    /// The switch's process, to which packets are sent
    Process,
    /// BPF programs at the traffic control hook of its interfaces
    Tc,
    /// BPF programs before there is a packet buffer
    Xdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timing {
    /// As the device's profile says
    Real,
    /// None but what this program needs
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BlockingUnit {
    /// A page is moved, then reads may come between
    Page,
    /// A whole block is moved and erased
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GcVictims {
    /// The blocks with the least to move
    Greedy,
    /// What is gained by how long it lasts and what it costs: cold blocks earlier
    CostBenefit,
}

impl From<GcVictims> for VictimPolicy {
    fn from(v: GcVictims) -> VictimPolicy {
        match v {
            GcVictims::Greedy => VictimPolicy::Greedy,
            GcVictims::CostBenefit => VictimPolicy::CostBenefit,
        }
    }
}

/// Traffic class of a volume's I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumeClass {
    Online,
    Offline,
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Create a volume; it takes space as it is written
    Create {
        name: String,
        /// Bytes, or a number with K, M, G or T (binary); a multiple of 4096
        #[arg(long, value_parser = size)]
        size: Size,
        /// Traffic class of its I/O: offline I/O goes behind online I/O, and its writes get less the slower reads are
        #[arg(long, value_enum, default_value_t = VolumeClass::Online)]
        class: VolumeClass,
        /// What the virtual SSDs it lies on share with others of their drive [default: what the rack has]
        #[arg(long, value_enum)]
        isolation: Option<IsolationLevel>,
        #[command(flatten)]
        json: Json,
    },
    /// Change the traffic class of a volume's I/O, from the next time a client attaches it
    Class {
        name: String,
        class: VolumeClass,
        #[command(flatten)]
        json: Json,
    },
    /// Limit what all I/O of a volume may do, from now on
    #[command(group = ArgGroup::new("limit").required(true).multiple(true).args(["iops", "mbps"]))]
    Set {
        name: String,
        /// Requests a second: reads, writes and trims; `none` or 0 is no limit
        #[arg(long, value_name = "N", value_parser = |t: &str| limit(t, IOPS_MAX))]
        iops: Option<u64>,
        /// Megabytes (10^6 bytes) read and written a second; `none` or 0 is no limit
        #[arg(long, value_name = "N", value_parser = |t: &str| limit(t, MBPS_MAX))]
        mbps: Option<u64>,
        #[command(flatten)]
        json: Json,
    },
    /// List the volumes
    List(Json),
    /// Show one volume
    Info {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// List what of a volume no copy could give any more: reads of it fail, a write or trim of whole blocks clears it
    Lost {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Make a volume larger
    Grow {
        name: String,
        /// New size
        #[arg(long, value_parser = size)]
        size: Size,
        #[command(flatten)]
        json: Json,
    },
    /// Delete a volume and everything in it
    Delete {
        name: String,
        /// Even while a client has it in use: the client is fenced first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum Set {
    /// Let a set that crashed whole go on without the servers it waits for, or though each of its drives lost records
    Recover {
        /// Number of the set, as `status` shows it
        set: u32,
        /// Servers that never come back, separated by commas; none if the set waits for nobody but your word
        #[arg(long, value_name = "SERVERS", value_delimiter = ',')]
        without: Vec<u32>,
        /// Really do it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum Server {
    /// Show every server: what it holds, and what it has room for
    List(Json),
    /// Make a server more, with an empty SSD, and start it
    Add(Json),
    /// Move every vSSD of a server to others, and give it none any more
    Drain {
        /// Its number, as `status` shows it
        server: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Take a server out of the rack that holds no vSSD any more
    Remove {
        server: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Move one vSSD to another server
    Move {
        /// Its number, as `status` shows it
        vssd: u32,
        /// Where to [default: where there is most room]
        #[arg(long, value_name = "SERVER")]
        to: Option<u32>,
        #[command(flatten)]
        json: Json,
    },
    /// End a server without a word: what its memory held is gone
    Kill {
        /// Its number, as `status` shows it
        server: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Start it again: it comes back with what its SSD held, and is brought up to date before it serves
    Start {
        server: u32,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum PolicyCmd {
    /// Show the policy, and what is otherwise
    Show(Json),
    /// Another policy from now on, without a pause
    Set {
        /// Its name: docs/cli.md lists them
        name: String,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum Link {
    /// From now on nothing gets through
    Cut(Ends),
    /// Packets get through again
    Mend(Ends),
}

#[derive(Debug, Args)]
pub struct Ends {
    /// A node: meta, switch, server-N or gateway-N
    pub a: String,
    /// The other; the switch: all that the node has
    pub b: String,
    #[command(flatten)]
    pub json: Json,
}

/// More than any rack does.
const IOPS_MAX: u64 = 1_000_000_000;
const MBPS_MAX: u64 = 1_000_000;

/// Seconds between two looks.
fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.ok_or_else(|| format!("{text:?} is no interval: 0.1 to 3600 seconds"))
}

/// A volume's limit; zero is none.
fn limit(text: &str, most: u64) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        _ => text.parse().ok().filter(|&n| n <= most).ok_or(format!("{text:?} is no limit: 1 to {most}, or none")),
    }
}

fn size(text: &str) -> Result<Size, String> {
    let s = Size::parse(text).map_err(|e| e.to_string())?;
    if s.0 == 0 {
        return Err(format!("{text:?} is no size: at least 4096 bytes"));
    }
    if !s.0.is_multiple_of(u64::from(rackweave_core::BLOCK)) {
        return Err(format!("{text:?} is {} bytes, not a multiple of 4096", s.0));
    }
    Ok(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_and_command_is_in_the_docs() {
        fn walk(c: &clap::Command, docs: &str) {
            for a in c.get_arguments().filter_map(|a| a.get_long()).filter(|a| !["help", "version"].contains(a)) {
                assert!(docs.contains(&format!("`--{a}")), "--{a} of {} is not in docs/cli.md", c.get_name());
            }
            for s in c.get_subcommands() {
                assert!(docs.contains(s.get_name()), "{} is not in docs/cli.md", s.get_name());
                walk(s, docs);
            }
        }
        walk(&Cli::command(), include_str!("../../../docs/cli.md"));
    }

    #[test]
    fn sizes() {
        assert_eq!(size("4G").map(|s| s.0), Ok(4 << 30));
        assert_eq!(size("8192").map(|s| s.0), Ok(8192));
        for bad in ["0", "-1", "4097", "1.5G", "G", "", "18446744073709551616", "99999999999T", "4 Q"] {
            let e = size(bad).unwrap_err();
            assert!(e.contains(&format!("{bad:?}")), "{bad}: {e}");
        }
    }

    #[test]
    fn limits_are_numbers_or_none_and_one_at_least() {
        assert_eq!((limit("none", 10), limit("0", 10), limit("10", 10)), (Ok(0), Ok(0), Ok(10)));
        for bad in ["11", "-1", "1.5", "fast", "", "99999999999999999999"] {
            let e = limit(bad, 10).unwrap_err();
            assert!(e.contains(&format!("{bad:?}")) && e.contains("1 to 10"), "{bad}: {e}");
        }
        let set = |words: &str| Cli::try_parse_from(["rackweave", "volume", "set"].into_iter().chain(words.split(' ')));
        assert!(set("v --iops 10").is_ok() && set("v --mbps none --iops 0 --json").is_ok());
        assert!(set("v").is_err() && set("v --iops 1000000001").is_err() && set("v --mbps -1").is_err());
    }

    #[test]
    fn a_search_runs_a_seed_or_a_plan_however_it_reports() {
        let sim = |words: &str| Cli::try_parse_from(["rackweave", "sim"].into_iter().chain(words.split(' '))).is_ok();
        assert!(sim("--seed 1 --shrink --json --trace-request 3 --pcap f"));
        assert!(sim("--plan p.json --json"));
        assert!(!sim("--seed 1 --plan p.json") && !sim("--json"));
    }

    #[test]
    fn an_experiment_is_named_or_all_are_listed() {
        let eval = |words: &str| Cli::try_parse_from(["rackweave", "eval"].into_iter().chain(words.split(' '))).is_ok();
        assert!(eval("fb-table5 --quick --seed 2 --json f --svg g") && eval("--list"));
        assert!(!eval("--quick") && !eval("fb-table5 --list"));
    }

    #[test]
    fn options_may_stand_after_the_command() {
        let c =
            Cli::try_parse_from(["rackweave", "volume", "create", "v", "--size", "1M", "--data", "/d"]).expect("ok");
        assert_eq!(c.data, Some("/d".into()));
        assert!(
            matches!(c.command, Cmd::Volume { command: Volume::Create { ref name, size: Size(1_048_576), .. }, .. } if name == "v")
        );
    }
}
