//! `rackweave`: the command. Exit status 0: done; 1: it failed, and standard error says why; 2: the command line is
//! wrong; 3: a node is refused, as it will be again until what standard error names is put right.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the outermost program: files, time, threads")]

mod args;
mod ask;
mod evaluate;
mod fuse;
mod image;
mod keyspaces;
mod kv;
mod lost;
mod mount;
mod nbd;
mod show;
mod snapshots;
mod transfer;
mod up;
mod vssd;
mod watch;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::FromArgMatches;
use rackweave_net::{authority, rotate};
use rackweave_runtime::{budget, datadir};

use args::{Cli, Cmd, Keys};

// A simulated rack is ten thousand small objects a millisecond: a fifth faster than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// The allocator keeps what was freed for a while, and an idle process has no later.
unsafe extern "C" {
    fn mi_collect(force: bool);
}

fn give_back() {
    // SAFETY: mimalloc's own; it may be called at any time.
    unsafe { mi_collect(true) }
}

/// An error message; the exit status is 1.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&args::command().get_matches()).unwrap_or_else(|e| e.exit());
    budget::give_back_by(give_back);
    match run(cli) {
        Ok(code) => code,
        // The reader of our output has closed it.
        Err(e) if broken_pipe(e.as_ref()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(io::stderr(), "rackweave: {e}");
            ExitCode::from(1)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let data = || -> Result<PathBuf, Failure> { Ok(cli.data.clone().map_or_else(datadir::default_path, Ok)?) };
    data_is_used(&cli)?;
    match &cli.command {
        Cmd::Up(a) => up::up(&data()?, a)?,
        Cmd::Convert { dir } => up::convert(dir)?,
        Cmd::Node { node } => return up::node(&data()?, node),
        Cmd::Keys { command } => keys(data, command)?,
        Cmd::Volume { way, command } => ask::volume(&ask::way(data, way)?.0, command)?,
        Cmd::Snapshot { way, command } => snapshots::snapshot(&ask::way(data, way)?.0, command)?,
        Cmd::Keyspace { way, command } => keyspaces::keyspace(&ask::way(data, way)?.0, command)?,
        Cmd::Vssd { file, command } => vssd::vssd(file, command)?,
        Cmd::Kv { way, file, keyspace, command } => match (kv::drive_of(file)?, keyspace.as_deref()) {
            (Some(_), _) if way.config.is_some() => return Err("--config: not together with --drive".into()),
            (Some(_), Some(name)) => return Err(format!("--keyspace {name}: a drive's store has one keyspace").into()),
            (Some((file, vssd)), None) => kv::kv(&file, vssd, command)?,
            (None, keyspace) => kv::rack::kv(&ask::way(data, way)?.0, keyspace, command)?,
        },
        Cmd::Mount(a) => mount::mount(a)?,
        Cmd::Set { way, command } => ask::set(&ask::way(data, way)?.0, command)?,
        Cmd::Server { way, command } => ask::server(&ask::way(data, way)?.0, command)?,
        Cmd::Policy { way, command } => ask::policy(&ask::way(data, way)?.0, command)?,
        Cmd::Link { way, command } => ask::link(&ask::way(data, way)?.0, command)?,
        Cmd::Status { way, watch: true, every, json, .. } => {
            watch::watch(&ask::way(data, way)?.0, every.unwrap_or(1.0), json.json)?;
        }
        Cmd::Status { way, metrics: true, .. } => ask::metrics(&ask::way(data, way)?.0)?,
        Cmd::Status { way, json, .. } => ask::status(&ask::way(data, way)?.0, json.json)?,
        Cmd::Replay(a) => return evaluate::replay(a),
        Cmd::Eval(a) => return evaluate::eval(a),
        Cmd::End { end } => rackweave_bench::live::ends::run(end)?,
        Cmd::Sim(a) => return evaluate::sim(a),
        Cmd::Version(j) => version(j.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// No option is ignored: --data stands before commands of every kind.
fn data_is_used(cli: &Cli) -> Result<(), Failure> {
    let Some(data) = &cli.data else { return Ok(()) };
    let refuse = |why: &str| Err(format!("--data {}: {why}", data.display()).into());
    match &cli.command {
        Cmd::Vssd { .. } | Cmd::Mount(_) => refuse("this command takes --drive instead"),
        Cmd::Kv { file, .. } if file.drive.is_some() => refuse("not together with --drive"),
        Cmd::Replay(_) | Cmd::Eval(_) | Cmd::End { .. } | Cmd::Sim(_) | Cmd::Version(_) => {
            refuse("this command has no data directory")
        }
        Cmd::Keys { command: Keys::Init { .. } | Keys::Add { .. } } => {
            refuse("this command takes the directory as an argument")
        }
        Cmd::Keys { command: Keys::Rotate { way } }
        | Cmd::Volume { way, .. }
        | Cmd::Snapshot { way, .. }
        | Cmd::Keyspace { way, .. }
        | Cmd::Kv { way, .. }
        | Cmd::Set { way, .. }
        | Cmd::Server { way, .. }
        | Cmd::Policy { way, .. }
        | Cmd::Link { way, .. }
        | Cmd::Status { way, .. }
            if way.config.is_some() =>
        {
            refuse("not together with --config")
        }
        _ => Ok(()),
    }
}

fn keys(data: impl Fn() -> Result<PathBuf, Failure>, command: &Keys) -> Result<(), Failure> {
    let said = match command {
        Keys::Init { dir } => {
            authority::init(dir)?;
            format!("{}: created cluster key and certificate authority; keep ca-key.pem off the nodes", dir.display())
        }
        Keys::Add { dir, name, days } => {
            let host = authority::add(dir, name, *days)?;
            format!("{}: created; copy it to {} (valid for {days} days)", host.display(), name[0])
        }
        Keys::Rotate { way } => {
            let (way, file) = ask::way(data, way)?;
            let id = rotate::rotate(&way, file)?;
            format!("every node uses key {}; the old key is deleted", id.0)
        }
    };
    writeln!(io::stdout(), "{said}")?;
    Ok(())
}

fn version(json: bool) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let formats = serde_json::json!({
        "rackweave": version,
        "data": datadir::DATA_VERSION,
        "device_file": rackweave_device::VERSION,
        "configuration": rackweave_config::CONFIG_VERSION,
    });
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{formats}")?;
    } else {
        writeln!(out, "rackweave {version}")?;
        for (what, v) in formats.as_object().into_iter().flatten().filter(|(k, _)| *k != "rackweave") {
            writeln!(out, "{what} format {v}")?;
        }
    }
    Ok(())
}

fn broken_pipe(e: &(dyn std::error::Error + 'static)) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
