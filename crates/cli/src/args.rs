//! The command line.

mod cloud;
mod drive;
mod evaluate;
mod keyspace;
mod volume;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rackweave_config::Size;
use rackweave_config::hosts::GATEWAYS_MAX;
use rackweave_flash::VictimPolicy;
use rackweave_runtime::net::Address;

pub use cloud::{Cloud, CloudVolume, Snapshot, VolumeKind};
pub use drive::{DriveFile, IsolationLevel, KvBench, KvCmd, LevelLists, Mount, OtherDrive, VssdCmd};
pub use evaluate::{Eval, Replay, Sim};
pub use keyspace::KeyspaceCmd;
pub use volume::{Own, Volume, VolumeClass};

/// Replicated disks and keys from a rack of flash servers and the switch in front of them.
#[derive(Debug, Parser)]
#[command(name = "rackweave", version, max_term_width = 100)]
pub struct Cli {
    /// Data directory of the rack [default: $XDG_DATA_HOME/rackweave or ~/.local/share/rackweave]
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Cmd,
}

/// The command line. A negative number is a value, which its option refuses with the rule; it is never an unknown option.
pub fn command() -> clap::Command {
    fn with_numbers(c: clap::Command) -> clap::Command {
        let numbers = |a: clap::Arg| if a.get_action().takes_values() { a.allow_negative_numbers(true) } else { a };
        c.mut_args(numbers).mut_subcommands(with_numbers)
    }
    with_numbers(<Cli as clap::CommandFactory>::command())
}

#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// Run a rack on this machine until SIGINT or SIGTERM
    #[command(
        after_help = "Examples:\n  rackweave up --servers 5 --ssd-size 64G\n  rackweave up --processes --http 127.0.0.1:9100"
    )]
    Up(Up),
    /// Convert the drives of a stopped rack from an earlier version's format, in place
    #[command(after_help = "Example:\n  rackweave convert ~/.local/share/rackweave")]
    Convert {
        /// The rack's data directory
        dir: PathBuf,
    },
    /// Run one node of a rack with a [hosts] section until SIGINT or SIGTERM
    Node {
        #[command(subcommand)]
        node: Node,
    },
    /// Create and rotate the cluster key, create hosts' certificates
    Keys {
        #[command(subcommand)]
        command: Keys,
    },
    /// Create, show, change and delete volumes
    Volume {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Volume,
    },
    /// List and remove snapshots of cloud disks
    Snapshot {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Snapshot,
    },
    /// Create, show and delete keyspaces
    Keyspace {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: KeyspaceCmd,
    },
    /// Create, show and delete virtual SSDs on a drive in a file
    Vssd {
        #[command(flatten)]
        file: DriveFile,
        #[command(subcommand)]
        command: VssdCmd,
    },
    /// Read and write the keys of the running rack, or with --drive those on a virtual SSD of a drive
    #[command(
        after_help = "Examples:\n  rackweave kv put hello world\n  rackweave kv --keyspace users get hello\n  rackweave kv --drive drive.rwk get hello"
    )]
    Kv {
        #[command(flatten)]
        way: Target,
        #[command(flatten)]
        file: OtherDrive,
        /// Keyspace of the rack, by its name or number [default: the first]
        #[arg(long, value_name = "NAME", global = true)]
        keyspace: Option<String>,
        #[command(subcommand)]
        command: KvCmd,
    },
    /// Mount the file system of a virtual SSD; a new virtual SSD gets an empty one
    #[command(after_help = "Example:\n  rackweave mount 2 mnt")]
    Mount(Mount),
    /// Repair replica sets
    Set {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Set,
    },
    /// Show, add, drain, remove, kill and start servers
    Server {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Server,
    },
    /// Show and change the policy of the running rack
    Policy {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: PolicyCmd,
    },
    /// Cut and mend links between nodes
    Link {
        #[command(flatten)]
        way: Target,
        #[command(subcommand)]
        command: Link,
    },
    /// Show faults, servers, vSSDs, volumes and latencies
    #[command(
        after_help = "Examples:\n  rackweave status\n  rackweave status --watch --every 5\n  rackweave status --metrics"
    )]
    Status {
        #[command(flatten)]
        way: Target,
        /// Print activity per interval until SIGINT or the rack's end
        #[arg(long)]
        watch: bool,
        /// Interval of --watch, 0.1 to 3600 seconds [default: 1]
        #[arg(long, value_name = "SECONDS", requires = "watch", value_parser = interval)]
        every: Option<f64>,
        /// Print the whole rack's metrics in Prometheus' text format
        #[arg(long, conflicts_with_all = ["watch", "json"])]
        metrics: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Replay a block trace through a simulated rack under several policies
    #[command(
        after_help = "Example:\n  rackweave replay crates/replay/data/tpcc-head.trace --seed 7 --speed 0.1 --ssd-size 1G --requests 200000"
    )]
    Replay(Box<Replay>),
    /// Repeat a figure of a paper and print its numbers beside ours
    #[command(
        after_help = "Examples:\n  rackweave eval --list\n  rackweave eval fb-table5 --quick\n  rackweave eval --all --quick"
    )]
    Eval(Eval),
    /// One end of a live experiment, started by `eval`
    #[command(hide = true)]
    End {
        #[command(subcommand)]
        end: rackweave_bench::live::ends::End,
    },
    /// Search for faults: one simulated rack with workload and faults drawn from a seed
    #[command(
        after_help = "Examples:\n  rackweave sim --seed 7\n  rackweave sim --seed 7 --kind two-racks --shrink --json"
    )]
    Sim(Sim),
    /// Print the versions of the program and its formats
    #[command(after_help = "Example:\n  rackweave version --json")]
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
    /// Reach the nodes over this configuration's control channel instead of --data
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Up {
    /// NBD address: HOST:PORT or unix:PATH [default: 127.0.0.1:10809; with --netns nbd.sock in the data directory]
    #[arg(long, value_name = "ADDR")]
    pub nbd: Option<Address>,
    /// Address for Redis clients of a rack with keys: HOST:PORT or unix:PATH [default: 127.0.0.1:6379; with --netns resp.sock in the
    /// data directory]
    #[arg(long, value_name = "ADDR")]
    pub resp: Option<Address>,
    /// Give a new rack replicated keys: three copies, on a part of every drive (kv.channels)
    #[arg(long)]
    pub keys: bool,
    /// Servers of a new rack [default: 4]
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// Gateways, with --processes or --netns [default: 1, or hosts.gateways]; all but the first listen on sockets in their
    /// directories, gateway-N/nbd.sock
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(GATEWAYS_MAX as u32)))]
    pub gateways: Option<u32>,
    /// Timing of device commands, for this run
    #[arg(long, value_enum)]
    pub timing: Option<Timing>,
    /// Victims of garbage collection, for this run [default: gc.victims of the configuration]
    #[arg(long, value_enum)]
    pub gc_victims: Option<GcVictims>,
    /// Address of Prometheus metrics: HOST:PORT or unix:PATH [default: none]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    /// Configuration (TOML, docs/configuration.md); options win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Size of each modelled SSD of a new rack [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub ssd_size: Option<Size>,
    /// Replace server N's missing SSD file by an empty one, filled from the other copies
    #[arg(long, value_name = "N")]
    pub replace_ssd: Vec<u32>,
    /// Start without server N, as if it had crashed
    #[arg(long, value_name = "N", conflicts_with_all = ["processes", "netns"])]
    pub absent: Vec<u32>,
    /// Print the addresses as JSON
    #[arg(long)]
    pub json: bool,
    /// Run one process per node, over UDP on loopback
    #[arg(long)]
    pub processes: bool,
    /// As --processes, with each node in a network namespace of its own (root)
    #[arg(long, conflicts_with = "replace_ssd")]
    pub netns: bool,
    /// Implementation of the switch with --netns
    #[arg(long, value_enum, value_name = "KIND", requires = "netns", default_value = "process")]
    pub data_plane: DataPlane,
    /// Capture each process's datagrams into this directory
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Node {
    /// Run the metadata service
    #[command(after_help = "Example:\n  rackweave node meta --config rack.toml --data /var/lib/rackweave")]
    Meta(NodeConfig),
    /// Run the switch: a forwarding process, or programs in the kernel
    #[command(after_help = "Example:\n  rackweave node switch --config rack.toml --data-plane tc")]
    Switch {
        #[command(flatten)]
        config: NodeConfig,
        /// Implementation of the switch, instead of switch.data_plane
        #[arg(long, value_enum, value_name = "KIND")]
        data_plane: Option<DataPlane>,
        /// Number of its rack
        #[arg(long, value_name = "N", default_value_t = 0)]
        id: u32,
    },
    /// Run a storage server
    #[command(after_help = "Example:\n  rackweave node server --config rack.toml --id 0")]
    Server {
        #[command(flatten)]
        config: NodeConfig,
        /// Its index in hosts.servers
        #[arg(long, value_name = "N")]
        id: u32,
        /// Replace the missing SSD file by an empty one, filled from the other copies
        #[arg(long)]
        replace_ssd: bool,
    },
    /// Run a gateway
    #[command(after_help = "Example:\n  rackweave node gateway --config rack.toml --nbd 10.0.1.1:10809")]
    Gateway {
        #[command(flatten)]
        config: NodeConfig,
        /// Its index in hosts.gateways
        #[arg(long, value_name = "N", default_value_t = 0)]
        id: u32,
        /// NBD address: HOST:PORT or unix:PATH
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10809")]
        nbd: Address,
        /// Address for Redis clients of a rack with keys: HOST:PORT or unix:PATH [default: 127.0.0.1:6379]
        #[arg(long, value_name = "ADDR")]
        resp: Option<Address>,
        /// Address of Prometheus metrics: HOST:PORT or unix:PATH [default: none]
        #[arg(long, value_name = "ADDR")]
        http: Option<Address>,
    },
}

#[derive(Debug, Args)]
pub struct NodeConfig {
    /// Configuration with a [hosts] section
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Capture its datagrams into this file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Print heartbeats on standard output, for a supervising process
    #[arg(long)]
    pub supervised: bool,
}

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Create a directory with a new cluster key and certificate authority
    #[command(after_help = "Example:\n  rackweave keys init keys")]
    Init { dir: PathBuf },
    /// Create a host's directory with the cluster key and a certificate
    #[command(after_help = "Example:\n  rackweave keys add keys 10.0.1.2 --days 90")]
    Add {
        /// Directory made by `keys init`
        dir: PathBuf,
        /// Names or addresses of the host
        #[arg(required = true)]
        name: Vec<String>,
        /// Lifetime of the certificate
        #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// Replace the running rack's cluster key without interrupting I/O
    #[command(after_help = "Example:\n  rackweave keys rotate")]
    Rotate {
        #[command(flatten)]
        way: Target,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPlane {
    /// The switch's process
    Process,
    /// BPF programs at the traffic control hook
    Tc,
    /// BPF programs in XDP
    Xdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timing {
    /// As in the device profile
    Real,
    /// No delays
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BlockingUnit {
    /// One collector command
    Page,
    /// A whole victim block
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GcVictims {
    /// Fewest valid slots
    Greedy,
    /// Benefit by cost and age: cold blocks earlier
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

#[derive(Debug, Subcommand)]
pub enum Set {
    /// Recover a crashed set without servers that never return, or from drives that all lost records
    #[command(after_help = "Example:\n  rackweave set recover 3 --without 1,2 --yes")]
    Recover {
        /// Number of the set in `status`
        set: u32,
        /// Servers that never return, separated by commas; omit if the set waits for confirmation only
        #[arg(long, value_name = "SERVERS", value_delimiter = ',')]
        without: Vec<u32>,
        /// Confirm; without it the command only warns
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum Server {
    /// List the servers with their vSSDs and free slots
    #[command(after_help = "Example:\n  rackweave server list")]
    List(Json),
    /// Add a server with an empty SSD and start it
    #[command(after_help = "Example:\n  rackweave server add")]
    Add(Json),
    /// Move all vSSDs of a server to others
    #[command(after_help = "Example:\n  rackweave server drain 2")]
    Drain {
        /// Its number in `status`
        server: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Remove a drained server for good
    #[command(after_help = "Example:\n  rackweave server remove 2")]
    Remove {
        server: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Move one vSSD to another server
    #[command(after_help = "Example:\n  rackweave server move 17 --to 0")]
    Move {
        /// Its number in `status`
        vssd: u32,
        /// Destination [default: the server with the most room]
        #[arg(long, value_name = "SERVER")]
        to: Option<u32>,
        #[command(flatten)]
        json: Json,
    },
    /// Kill a server, as a crash of its process would
    #[command(after_help = "Example:\n  rackweave server kill 1")]
    Kill {
        /// Its number in `status`
        server: u32,
        #[command(flatten)]
        json: Json,
    },
    /// Start a killed or absent server
    #[command(after_help = "Example:\n  rackweave server start 1")]
    Start {
        server: u32,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum PolicyCmd {
    /// Show the policy and the keys that differ from it
    #[command(after_help = "Example:\n  rackweave policy show")]
    Show(Json),
    /// Change the policy without interrupting I/O
    #[command(after_help = "Example:\n  rackweave policy set baseline")]
    Set {
        /// baseline, rackblox, rackweave or ideal
        name: String,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum Link {
    /// Drop everything between two nodes
    #[command(after_help = "Example:\n  rackweave link cut server-2 switch")]
    Cut(Ends),
    /// Undo a cut
    #[command(after_help = "Example:\n  rackweave link mend server-2 switch")]
    Mend(Ends),
}

#[derive(Debug, Args)]
pub struct Ends {
    /// A node: meta, switch, switch-1, server-N or gateway-N
    pub a: String,
    /// The other node; switch: all of the node's links
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
    seconds.ok_or_else(|| format!("{text:?} is not an interval of 0.1 to 3600 seconds"))
}

/// A volume's limit; zero is none.
fn limit(text: &str, most: u64) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        _ => text.parse().ok().filter(|&n| n <= most).ok_or(format!("{text:?} is not a limit: 1 to {most}, or none")),
    }
}

fn size(text: &str) -> Result<Size, String> {
    let s = Size::parse(text).map_err(|e| e.to_string())?;
    if s.0 == 0 {
        return Err(format!("{text:?} is not a size of at least 4096 bytes"));
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
        command().debug_assert();
    }

    /// All pages of the commands.
    const PAGES: &str = concat!(
        include_str!("../../../docs/cli.md"),
        include_str!("../../../docs/cli-rack.md"),
        include_str!("../../../docs/cli-drive.md"),
        include_str!("../../../docs/cli-measure.md"),
    );

    fn shown(c: &clap::Command) -> impl Iterator<Item = &clap::Command> {
        c.get_subcommands().filter(|s| !s.is_hide_set())
    }

    /// Commands without further ones under them, by their names from the program's on.
    fn leaves(c: &clap::Command, above: &str) -> Vec<(String, clap::Command)> {
        let name = format!("{above}{}", c.get_name());
        let below: Vec<_> = shown(c).flat_map(|s| leaves(s, &format!("{name} "))).collect();
        if below.is_empty() { vec![(name, c.clone())] } else { below }
    }

    #[test]
    fn every_option_and_command_is_in_the_docs() {
        fn options(c: &clap::Command) {
            for a in c.get_arguments().filter_map(|a| a.get_long()).filter(|a| !["help", "version"].contains(a)) {
                assert!(PAGES.contains(&format!("`--{a}")), "--{a} of {} is in none of docs/cli*.md", c.get_name());
            }
            shown(c).for_each(options);
        }
        options(&Cli::command());
        for (name, _) in leaves(&Cli::command(), "") {
            assert!(PAGES.contains(&name), "{name} is in none of docs/cli*.md");
        }
    }

    #[test]
    fn every_command_has_an_example_that_it_takes() {
        for (name, c) in leaves(&Cli::command(), "") {
            let help = c.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples: Vec<_> = help.lines().filter_map(|l| l.strip_prefix("  ")).collect();
            assert!(!examples.is_empty(), "no example for {name}");
            for e in examples {
                assert!(e.starts_with(&name), "{e} is no example for {name}");
                let words = e.split(" <").next().expect("one at least").split(' '); // the shell's redirection is no argument
                Cli::try_parse_from(words).unwrap_or_else(|why| panic!("{e}: {why}"));
            }
        }
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
