//! Servers of a rack in several processes that were killed on purpose: a file in the data directory, `server-N.down`, says
//! that who starts the processes leaves this one out.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ask::Way;
use crate::build::BuildError;
use crate::embedded::control::{Answer, AskError, Command};
use crate::hosts::NodeName;

/// A server that does not say who it is by then hangs, and is not ended here.
const PID_WAIT: Duration = Duration::from_secs(5);

fn marker(data: &Path, server: u32) -> PathBuf {
    data.join(format!("{}.down", NodeName::Server(server)))
}

/// Whether this node is not to be started now.
pub(super) fn is_held(data: &Path, name: NodeName) -> bool {
    matches!(name, NodeName::Server(i) if marker(data, i).exists())
}

/// Lets it be started. A file that cannot be removed says so when the server does not start.
pub(super) fn release(data: &Path, server: u32) {
    let _ = std::fs::remove_file(marker(data, server));
}

/// The data directory, and whether the server is one of the rack's.
fn place(way: &Way, server: u32) -> Result<&Path, String> {
    let Way::Data(data) = way else {
        return Err("who started the servers can be asked to end them, and only where they run: use --data".into());
    };
    let servers = way.names().iter().filter(|n| n.starts_with("server-")).count();
    if server as usize >= servers {
        return Err(format!("there is no server {server}: the rack's are 0 to {}", servers.saturating_sub(1)));
    }
    if !way.names().iter().any(|n| n.starts_with("gateway-")) || !data.join(super::processes::NODES_FILE).exists() {
        return Err("the servers here were not started by `rackweave up`: end their processes yourself".into());
    }
    Ok(data)
}

/// `server kill` of a rack in several processes; back when the process is gone.
pub(super) fn hold_server(way: &Way, server: u32) -> Result<Answer, AskError> {
    let data = match place(way, server) {
        Ok(data) => data,
        Err(message) => return Ok(Answer::Error { message }),
    };
    let name = NodeName::Server(server).to_string();
    let pid = match way.ask_node(&name, &Command::Status, PID_WAIT) {
        Ok(Answer::Status(s)) => s.processes.first().map_or(0, |p| p.pid),
        Err(AskError::NotRunning { .. }) | Ok(_) => 0,
        Err(e) => return Err(e),
    };
    let Some(pid) = i32::try_from(pid).ok().filter(|&p| p > 0) else {
        return Ok(Answer::Error { message: format!("server {server} is not running") });
    };
    let failed = |error| AskError::Io { data: data.into(), error };
    std::fs::write(marker(data, server), b"").map_err(failed)?;
    // SAFETY: a signal to the process that has just said that it is this server.
    if unsafe { libc::kill(pid, libc::SIGKILL) } != 0 {
        release(data, server);
        return Err(failed(io::Error::last_os_error()));
    }
    // A process that is asked while it ends answers neither yes nor no.
    let end = Instant::now() + PID_WAIT;
    while !matches!(way.ask_node(&name, &Command::Status, PID_WAIT), Err(AskError::NotRunning { .. })) {
        if Instant::now() >= end {
            return Ok(Answer::Error { message: format!("server {server}, process {pid}, was killed and does not end") });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Answer::Done)
}

/// The metadata service took the server out for good. Without its word a server may start: it refuses it itself.
fn removed(way: &Way, server: u32) -> bool {
    match way.ask_node(&NodeName::Meta.to_string(), &Command::ServerList, PID_WAIT) {
        Ok(Answer::Servers(all)) => all.iter().any(|s| s.server == server && s.state == "removed"),
        _ => false,
    }
}

/// `server start` of a rack in several processes.
pub(super) fn let_server_start(way: &Way, server: u32) -> Result<Answer, AskError> {
    Ok(match place(way, server) {
        Ok(_) if removed(way, server) => Answer::Error { message: BuildError::Removed { server }.to_string() },
        Ok(data) if is_held(data, NodeName::Server(server)) => {
            release(data, server);
            Answer::Done
        }
        Ok(_) => Answer::Error { message: format!("server {server} is running") },
        Err(message) => Answer::Error { message },
    })
}
