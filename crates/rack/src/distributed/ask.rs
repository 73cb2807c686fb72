//! Asking a rack that runs in several processes: each keeps its control socket in its own directory, the answers are put
//! together here. There is no process in between that could be missing.

use std::path::Path;
use std::time::Duration;

use crate::embedded::control::{self, Answer, AskError, Command, Process, Server, Status};
use crate::hosts::NodeName;

/// A process that does not say how it is by then hangs.
const STATUS_WAIT: Duration = Duration::from_secs(2);

/// Asks the rack that runs on `data`, in one process or in several, waiting at most `timeout` for each read.
pub fn ask(data: &Path, command: &Command, timeout: Duration) -> Result<Answer, AskError> {
    let all = processes(data);
    if all.is_empty() {
        return control::ask(data, command, timeout);
    }
    if *command == Command::Status {
        let status = gather(data, &all)?;
        return Ok(Answer::Status(Box::new(status)));
    }
    match control::ask(&data.join(NodeName::Meta.to_string()), command, timeout) {
        Err(AskError::NotRunning { .. }) => Err(match gather(data, &all) {
            Ok(_) => AskError::NoMeta { data: data.into() },
            Err(e) => e,
        }),
        answer => answer,
    }
}

/// Names of the nodes that have a directory in `data`, in the order of their ids.
fn processes(data: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(data) else { return Vec::new() };
    let mut all: Vec<(u8, u32, String)> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter_map(|name| {
            let (kind, number) = name.split_once('-').map_or((name.as_str(), Some(0)), |(k, n)| (k, n.parse().ok()));
            let order = ["meta", "switch", "server", "gateway"].iter().position(|k| *k == kind)? as u8;
            Some((order, number?, name.clone()))
        })
        .collect();
    all.sort();
    all.into_iter().map(|(_, _, name)| name).collect()
}

/// The state of the whole rack from all its processes: the metadata service's view of it, the servers' of their vSSDs,
/// the gateways' of their clients.
fn gather(data: &Path, all: &[String]) -> Result<Status, AskError> {
    let mut whole = Status::default();
    let (mut latest, mut answers, mut servers) = (None, 0, Vec::new());
    for name in all {
        match control::ask(&data.join(name), &Command::Status, STATUS_WAIT) {
            Ok(Answer::Status(s)) => {
                answers += 1;
                add(&mut whole, name, *s, &mut servers);
            }
            Ok(Answer::Error { message }) => whole.processes.push(silent(name, message)),
            Ok(_) => whole.processes.push(silent(name, "it answered another question".into())),
            Err(e) => {
                whole.processes.push(silent(name, reason(&e)));
                latest = Some(e);
            }
        }
    }
    if let (0, Some(e)) = (answers, latest) {
        return Err(match e {
            AskError::NotRunning { .. } => AskError::NotRunning { data: data.into() },
            e => e,
        });
    }
    for from in servers {
        match whole.servers.iter_mut().find(|s| s.node == from.node) {
            Some(known) => known.vssds = from.vssds,
            None => whole.servers.push(from),
        }
    }
    whole.rack.data = data.display().to_string();
    Ok(whole)
}

fn add(whole: &mut Status, name: &str, s: Status, servers: &mut Vec<Server>) {
    whole.processes.extend(s.processes);
    sum(&mut whole.counters, s.counters);
    sum(&mut whole.network, s.network);
    if name == NodeName::Meta.to_string() {
        let nbd = std::mem::take(&mut whole.rack.nbd);
        whole.rack = s.rack;
        whole.rack.nbd = nbd;
        (whole.servers, whole.sets, whole.volumes) = (s.servers, s.sets, s.volumes);
    } else if name.starts_with("server-") {
        servers.extend(s.servers);
        whole.rack.timing = s.rack.timing;
    } else if name.starts_with("gateway-") {
        whole.rack.nbd.extend(s.rack.nbd);
        whole.rack.http = s.rack.http.or(whole.rack.http.take());
        whole.rack.connections += s.rack.connections;
        // Percentiles of several gateways cannot be added: those of the busiest are shown.
        let requests = |s: &[control::Latency]| s.iter().map(|l| l.count).sum::<u64>();
        if whole.latency.is_empty() || requests(&s.latency) > requests(&whole.latency) {
            whole.latency = s.latency;
        }
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

fn reason(e: &AskError) -> String {
    match e {
        AskError::NotRunning { .. } => "it does not run".into(),
        AskError::Io { error, .. } => error.to_string(),
        e => e.to_string(),
    }
}

fn silent(name: &str, error: String) -> Process {
    Process { name: name.into(), error: Some(error), ..Process::default() }
}

impl Status {
    /// Every replica set has so many members that serve, every process answers, and clients can connect.
    pub(super) fn serves(&self, min_copies: usize) -> bool {
        let serving = |set| self.servers.iter().flat_map(|s| &s.vssds).filter(|v| v.set == set && v.serving).count();
        self.processes.iter().all(|p| p.error.is_none())
            && !self.sets.is_empty()
            && !self.rack.nbd.is_empty()
            && self.sets.iter().all(|s| serving(s.set) >= min_copies)
    }
}
