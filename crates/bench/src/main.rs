//! `rackweave-bench NAME`: one experiment. See the library's page.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "benchmarks read clocks and open sockets")]

use std::io;

use clap::{Parser, Subcommand, ValueEnum};
use rackweave_bench::live::ends::{self, End};
use rackweave_bench::live::figures::{self, Effort};
use rackweave_bench::model::{black_holes, loss, multicast, qos, shares};
use rackweave_bench::report::Report;
use rackweave_core::Span;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An experiment of the storage network: prints a table, its bars and the paper's result.
#[derive(Debug, Parser)]
#[command(name = "rackweave-bench")]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    /// Run experiments
    Run {
        #[arg(required = true)]
        names: Vec<Name>,
        /// Print JSON instead of tables
        #[arg(long)]
        json: bool,
        /// Alternating rounds of a live experiment
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Requests of a live run at depth 1
        #[arg(long, default_value_t = 40_000)]
        count: u64,
    },
    #[command(hide = true)]
    End {
        #[command(subcommand)]
        end: End,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// Latency and bandwidth against kernel TCP
    #[value(name = "pn-fig6")]
    Fig6,
    /// 4 KiB write and reply against protobuf RPC
    #[value(name = "pn-fig14a")]
    Fig14a,
    /// Bytes moved by a receive
    #[value(name = "pn-fig14c")]
    Fig14c,
    /// Black holes on one of two equal-cost paths
    #[value(name = "pn-fig14d")]
    Fig14d,
    /// Hosts of unlike speed
    #[value(name = "pn-fig16")]
    Fig16,
    /// Across pods
    #[value(name = "pn-fig17")]
    Fig17,
    /// Online beside offline
    #[value(name = "pn-fig18")]
    Fig18,
    /// Goodput under loss
    #[value(name = "pn-loss")]
    Loss,
    /// A put to three replicas, once to their group or to each
    #[value(name = "pn-multicast")]
    Multicast,
    /// Bulk against plain datagrams
    #[value(name = "pn-bulk")]
    Bulk,
}

fn run(name: Name, effort: Effort) -> io::Result<Report> {
    Ok(match name {
        Name::Fig6 => figures::fig67(effort)?,
        Name::Fig14a => figures::fig14ab(effort)?,
        Name::Fig14c => figures::fig14c()?,
        Name::Bulk => figures::bulk(effort)?,
        Name::Fig14d => black_holes::report(Span::from_secs(10)),
        Name::Fig16 => shares::fig16(Span::from_millis(400)),
        Name::Fig17 => shares::fig17(Span::from_millis(400)),
        Name::Fig18 => qos::report(Span::from_secs(1)),
        Name::Loss => loss::report(Span::from_millis(200)),
        Name::Multicast => multicast::report(Span::from_millis(200)),
    })
}

fn main() -> io::Result<()> {
    match Cli::parse().command {
        Cmd::End { end } => ends::run(&end),
        Cmd::Run { names, json, rounds, count } => {
            for name in names {
                let report = run(name, Effort { rounds, count })?;
                if json {
                    println!("{}", report.to_json());
                } else {
                    report.print();
                }
            }
            Ok(())
        }
    }
}
