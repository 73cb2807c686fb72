//! Queries to a rack with a process per node. Each process has a control socket in its own directory; the answers are
//! combined here, so no intermediate process can be missing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::DistributedError;
use super::channel::Channel;
use super::links;
use super::processes::{self, NODES_FILE};
use rackweave_core::{NodeId, NodeName};
use rackweave_runtime::control::{self, Answer, AskError, Command, Local, Process, Server, Status};
use rackweave_runtime::up;

/// A process that does not report its status within this time hangs.
pub(super) const STATUS_WAIT: Duration = Duration::from_secs(2);

/// How to reach a rack.
pub enum Target {
    /// Through the control sockets in its data directory.
    Data(PathBuf),
    /// Over the control channel of the configuration at this path.
    Channel(PathBuf, Channel),
}

impl Target {
    /// Over the control channel of this configuration; also returns the path of its cluster key file.
    pub fn of_config(path: &Path) -> Result<(Target, Option<PathBuf>), DistributedError> {
        let cfg = up::read_config(path)?;
        let channel = Channel::new(&cfg, path)?;
        Ok((Target::Channel(path.into(), channel), cfg.hosts.and_then(|h| h.key_file)))
    }
    /// Through the sockets in `data`; also returns the path of the key file of the rack started there.
    pub fn of_data(data: &Path) -> (Target, Option<PathBuf>) {
        let cfg = up::read_config(&data.join(NODES_FILE)).ok();
        (Target::Data(data.into()), cfg.and_then(|c| c.hosts).and_then(|h| h.key_file))
    }

    /// Names of the nodes, in the order of their ids; empty if the rack runs in one process.
    pub fn names(&self) -> Vec<String> {
        match self {
            Target::Data(data) => nodes_in(data),
            Target::Channel(_, channel) => channel.names().map(|n| n.to_string()).collect(),
        }
    }
    /// Whether the process that was started there starts servers. Otherwise each is started by hand, on its host.
    pub fn starts_servers(&self) -> bool {
        match self {
            Target::Data(data) => self.names().is_empty() || data.join(NODES_FILE).exists(),
            Target::Channel(..) => false,
        }
    }
    /// The queried path, for messages.
    pub(super) fn place(&self) -> &Path {
        match self {
            Target::Data(path) | Target::Channel(path, _) => path,
        }
    }
    /// Sends a command to one node, waiting at most `timeout` for each read.
    pub fn ask_node(&self, name: &str, command: &Command, timeout: Duration) -> Result<Answer, AskError> {
        match self {
            Target::Data(data) => control::ask(&data.join(name), command, timeout),
            Target::Channel(_, channel) => channel.ask(name, command, timeout),
        }
    }
}

/// Sends a command to a rack, in one process or in several, waiting at most `timeout` for each read.
pub fn ask(way: &Target, command: &Command, timeout: Duration) -> Result<Answer, AskError> {
    let all = way.names();
    if let (Target::Data(data), true) = (way, all.is_empty()) {
        return control::ask(data, command, timeout);
    }
    if *command == Command::Local(Local::Status) {
        let status = gather(way, &all)?;
        return Ok(Answer::Status(Box::new(status)));
    }
    let to = match command {
        Command::Local(Local::ServerKill { server }) => return processes::hold_server(way, *server),
        Command::Local(Local::ServerStart { server }) => return processes::let_server_start(way, *server),
        Command::Local(Local::PolicySet { policy }) => return super::policy::set(way, policy, timeout),
        Command::Local(Local::PolicyShow) => return super::policy::show(way, timeout),
        Command::Local(Local::LinkCut { a, b }) => return links::change(way, &all, (a, b), true, timeout),
        Command::Local(Local::LinkMend { a, b }) => return links::change(way, &all, (a, b), false, timeout),
        _ => NodeName::META.to_string(),
    };
    match way.ask_node(&to, command, timeout) {
        Err(AskError::NotRunning { .. }) => Err(match gather(way, &all) {
            Ok(_) => AskError::NoMeta { data: way.place().into() },
            Err(e) => e,
        }),
        answer => answer,
    }
}

/// Names of the nodes that have a directory in `data`, in the order of their ids. An earlier run may have had more gateways
/// than the one that the process there started.
fn nodes_in(data: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(data) else { return Vec::new() };
    let hosts = up::read_config(&data.join(NODES_FILE)).ok().and_then(|c| c.hosts);
    let gateways = hosts.as_ref().map_or(u32::MAX, |h| h.gateways.len() as u32);
    let layout = hosts.map(|h| h.layout());
    let id = |name: &str| layout.as_ref().zip(name.parse().ok()).and_then(|(l, name)| l.id(name));
    // By kind and number where the configuration does not say.
    let mut all: Vec<(Option<NodeId>, u8, u32, String)> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter_map(|name| {
            let (kind, number) = name.split_once('-').map_or((name.as_str(), Some(0)), |(k, n)| (k, n.parse().ok()));
            let order = ["meta", "switch", "server", "gateway"].iter().position(|k| *k == kind)? as u8;
            let number = number.filter(|n| kind != "gateway" || *n < gateways);
            Some((id(&name), order, number?, name.clone()))
        })
        .collect();
    all.sort();
    all.into_iter().map(|(.., name)| name).collect()
}

/// The state of the whole rack from all its processes: the metadata service's view of the rack, the servers' of their
/// vSSDs, and the gateways' of their clients.
fn gather(way: &Target, all: &[String]) -> Result<Status, AskError> {
    let mut whole = Status::default();
    let (mut latest, mut answers, mut servers) = (None, 0, Vec::new());
    for name in all {
        match way.ask_node(name, &Command::Local(Local::Status), STATUS_WAIT) {
            Ok(Answer::Status(s)) => {
                answers += 1;
                add(&mut whole, name, *s, &mut servers);
            }
            Ok(Answer::Error { message }) => whole.processes.push(silent(name, message)),
            Ok(_) => whole.processes.push(silent(name, "its answer does not match the command".into())),
            Err(e) => {
                whole.processes.push(silent(name, reason(&e)));
                latest = Some(e);
            }
        }
    }
    if let (0, Some(e)) = (answers, latest) {
        return Err(match e {
            AskError::NotRunning { .. } => AskError::NotRunning { data: way.place().into() },
            e => e,
        });
    }
    for from in servers {
        match whole.servers.iter_mut().find(|s| s.server == from.server) {
            Some(known) => {
                (known.vssds, known.refused, known.drive_fault) = (from.vssds, from.refused, from.drive_fault);
            }
            None => whole.servers.push(from),
        }
    }
    whole.latency = control::Latency::of_all(&whole.latency);
    whole.join();
    leave_out_strangers(&mut whole);
    if let Target::Data(data) = way {
        say_refused(&mut whole, data);
        // Includes links whose ends do not run now.
        whole.rack.links_cut.extend(links::listed(data, all));
        whole.rack.links_cut.sort();
        whole.rack.links_cut.dedup();
    }
    whole.rack.data = way.place().display().to_string();
    Ok(whole)
}

/// Leaves out the processes of removed servers, and of those that were not added yet: they do not run. Only the metadata
/// service knows them.
fn leave_out_strangers(whole: &mut Status) {
    let meta = NodeName::META.to_string();
    if !whole.processes.iter().any(|p| p.name == meta && p.error.is_none()) {
        return;
    }
    let known: Vec<u32> = whole.servers.iter().map(|s| s.server).collect();
    let server = |p: &Process| p.name.parse().ok().and_then(NodeName::as_server);
    whole.processes.retain(|p| p.error.is_none() || server(p).is_none_or(|server| known.contains(&server)));
}

/// Adds servers that were refused and do not run, with the reason.
fn say_refused(whole: &mut Status, data: &Path) {
    for p in whole.processes.iter_mut().filter(|p| p.error.is_some()) {
        let Some(server) = p.name.parse().ok().and_then(NodeName::as_server) else { continue };
        let Some(why) = super::held::why_refused(data, server) else { continue };
        p.error = Some("refused; not running".into());
        if let Some(s) = whole.servers.iter_mut().find(|s| s.server == server) {
            s.drive_fault = Some(format!("refused: {why}. Mend it, then: rackweave server start {server}"));
        }
    }
}

fn add(whole: &mut Status, name: &str, s: Status, servers: &mut Vec<Server>) {
    whole.processes.extend(s.processes);
    whole.clients.extend(s.clients);
    sum(&mut whole.counters, s.counters);
    sum(&mut whole.network, s.network);
    whole.switch = match (whole.switch.take(), s.switch) {
        (Some(first), Some(second)) => Some(first.of(&NodeName::SWITCH.to_string()).with(second.of(name))),
        (one, other) => one.or(other),
    };
    if name == NodeName::META.to_string() {
        let nbd = std::mem::take(&mut whole.rack.nbd);
        let resp = std::mem::take(&mut whole.rack.resp);
        let links = std::mem::take(&mut whole.rack.links_cut);
        whole.rack = s.rack;
        (whole.rack.nbd, whole.rack.resp) = (nbd, resp);
        whole.rack.links_cut.extend(links);
        (whole.servers, whole.sets, whole.volumes) = (s.servers, s.sets, s.volumes);
    } else if name.starts_with("server-") {
        servers.extend(s.servers);
        whole.rack.links_cut.extend(s.rack.links_cut);
        whole.rack.timing = s.rack.timing;
    } else if name.starts_with("gateway-") {
        whole.rack.nbd.extend(s.rack.nbd);
        whole.rack.resp.extend(s.rack.resp);
        whole.rack.links_cut.extend(s.rack.links_cut);
        whole.rack.http = s.rack.http.or(whole.rack.http.take());
        whole.rack.connections += s.rack.connections;
        whole.latency.extend(s.latency);
        if whole.volumes.is_empty() {
            whole.volumes = s.volumes;
        }
    }
}

fn sum(all: &mut Vec<(String, u64)>, more: Vec<(String, u64)>) {
    for (name, n) in more {
        match all.iter_mut().find(|(have, _)| *have == name) {
            Some((_, have)) => *have += n,
            None => all.push((name, n)),
        }
    }
}

/// Why a node did not answer, without its location.
pub(super) fn reason(e: &AskError) -> String {
    match e {
        AskError::NotRunning { .. } => "it does not run".into(),
        AskError::Io { error, .. } | AskError::Channel { error, .. } => error.to_string(),
        e => e.to_string(),
    }
}

fn silent(name: &str, error: String) -> Process {
    Process { name: name.into(), error: Some(error), ..Process::default() }
}

/// Whether every replica set has `min_copies` serving members, every process answers, and clients can connect.
pub(super) fn serves(s: &Status, min_copies: usize) -> bool {
    let serving = |set| s.servers.iter().flat_map(|s| &s.vssds).filter(|v| v.set == set && v.serving).count();
    s.processes.iter().all(|p| p.error.is_none())
        && !s.sets.is_empty()
        && !s.rack.nbd.is_empty()
        && s.sets.iter().all(|s| serving(s.set) >= min_copies)
}
