//! Commands about keyspaces.

use clap::{Args, Subcommand, ValueEnum};
use rackweave_core::admin::Isolation;

use super::Json;

/// Isolation of a keyspace's logs from the other virtual SSDs of their drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogIsolation {
    /// Channels of its own
    Channel,
    /// Dies of its own on shared channels
    Die,
}

/// The log of a keyspace on each server's drive.
#[derive(Debug, Args)]
pub struct Logs {
    /// Isolation of the logs [default: that of their units]
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub isolation: Option<LogIsolation>,
    /// Channels of each log [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "dies")]
    pub channels: Option<u32>,
    /// Dies of each log [default: 1 with --isolation die]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub dies: Option<u32>,
}

impl Logs {
    /// # Errors
    /// The units are not those of the isolation.
    pub fn units(&self) -> Result<(Isolation, u32), String> {
        match *self {
            Logs { isolation: Some(LogIsolation::Die), channels: Some(n), .. } => {
                Err(format!("--channels {n} with --isolation die: its units are dies; use --dies {n}"))
            }
            Logs { isolation: Some(LogIsolation::Channel), dies: Some(n), .. } => {
                Err(format!("--dies {n} with --isolation channel: its units are channels; use --channels {n}"))
            }
            Logs { dies: Some(n), .. } => Ok((Isolation::Die, n)),
            Logs { isolation: Some(LogIsolation::Die), .. } => Ok((Isolation::Die, 1)),
            Logs { channels, .. } => Ok((Isolation::Channel, channels.unwrap_or(1))),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum KeyspaceCmd {
    /// Create a keyspace with a log of its own on each server's drive, and wait until it serves
    #[command(
        after_help = "Examples:\n  rackweave keyspace create users --channels 2\n  rackweave keyspace create cache --replicas 1 --isolation die --dies 4"
    )]
    Create {
        name: String,
        /// Replicas of each key [default: kv.replicas]
        #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
        replicas: Option<u32>,
        #[command(flatten)]
        logs: Logs,
        /// Return when it is decided, before it serves
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        json: Json,
    },
    /// List the keyspaces
    #[command(visible_alias = "list", after_help = "Example:\n  rackweave keyspace ls")]
    Ls(Json),
    /// Show one keyspace, by its name or number
    #[command(after_help = "Example:\n  rackweave keyspace info users")]
    Info {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Delete a keyspace, its keys and its logs
    #[command(after_help = "Example:\n  rackweave keyspace delete users")]
    Delete {
        name: String,
        #[command(flatten)]
        json: Json,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Cmd};
    use super::*;

    /// Replicas, and units of a log.
    type Created = (Option<u32>, Result<(Isolation, u32), String>);

    fn create(words: &str) -> Result<Created, clap::Error> {
        let all = ["rackweave", "keyspace", "create"].into_iter().chain(words.split(' '));
        match Cli::try_parse_from(all)?.command {
            Cmd::Keyspace { command: KeyspaceCmd::Create { replicas, logs, .. }, .. } => Ok((replicas, logs.units())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_units_determine_the_isolation_or_the_other_way_round() {
        for (words, expected) in [
            ("k", (None, Isolation::Channel, 1)),
            ("k --channels 3", (None, Isolation::Channel, 3)),
            ("k --isolation channel --replicas 2", (Some(2), Isolation::Channel, 1)),
            ("k --isolation die", (None, Isolation::Die, 1)),
            ("k --dies 4 --no-wait --json", (None, Isolation::Die, 4)),
            ("k --isolation die --dies 2 --replicas 1", (Some(1), Isolation::Die, 2)),
        ] {
            let (replicas, isolation, units) = expected;
            assert_eq!(create(words).expect(words), (replicas, Ok((isolation, units))), "{words}");
        }
    }

    #[test]
    fn units_of_the_other_isolation_are_refused_by_name() {
        for (words, said) in [
            ("k --isolation die --channels 2", "--channels 2 with --isolation die"),
            ("k --isolation channel --dies 2", "--dies 2 with --isolation channel"),
        ] {
            let why = create(words).expect("parsed").1.expect_err(words);
            assert!(why.starts_with(said), "{why}");
        }
        for words in [
            "k --channels 0",
            "k --dies 0",
            "k --replicas 0",
            "k --channels 1 --dies 1",
            "k --isolation software",
            "k --isolation none",
            "k --channels x",
            "k l",
        ] {
            assert!(create(words).is_err(), "{words}");
        }
    }
}
