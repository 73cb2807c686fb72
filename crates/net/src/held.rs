//! Servers of a rack with a process per node that were killed on purpose, or refused. A file `server-N.down` in the
//! data directory keeps the supervisor from starting the server, and holds the reason if it was refused. `server start`
//! renames it to `server-N.starting`, which is removed once the metadata service admits the server.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ask::Target;
use rackweave_core::NodeName;
use rackweave_core::admin;
use rackweave_rack::build::BuildError;
use rackweave_runtime::control::{Answer, AskError, Command, Local};

/// A server that does not report its process id within this time hangs, and is not ended here.
const PID_WAIT: Duration = Duration::from_secs(5);
/// Time limit for a starting server to be admitted or refused.
const START_WAIT: Duration = Duration::from_secs(10);
const START_LOOK: Duration = Duration::from_millis(20);

fn marker(data: &Path, server: u32) -> PathBuf {
    data.join(format!("{}.down", NodeName::server(server)))
}
fn starting(data: &Path, server: u32) -> PathBuf {
    data.join(format!("{}.starting", NodeName::server(server)))
}

/// Records that the server is refused. It is not started again until an operator does so.
pub(super) fn refuse(data: &Path, server: u32, why: &str) -> io::Result<()> {
    let path = marker(data, server);
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    rackweave_runtime::datadir::write_durably(data, name, why.as_bytes())?;
    taken_in(data, server);
    Ok(())
}
/// Why it was refused, if it was.
pub(super) fn why_refused(data: &Path, server: u32) -> Option<String> {
    std::fs::read_to_string(marker(data, server)).ok().filter(|why| !why.is_empty())
}
/// The server was admitted: ends the wait for it.
pub(super) fn taken_in(data: &Path, server: u32) {
    let _ = std::fs::remove_file(starting(data, server));
}

/// Whether this node must not be started now.
pub(super) fn is_held(data: &Path, name: NodeName) -> bool {
    name.as_server().is_some_and(|i| marker(data, i).exists())
}

/// Whether an operator waits for the server to start.
pub(super) fn is_starting(data: &Path, server: u32) -> bool {
    starting(data, server).exists()
}

/// Lets the server be started. If the file cannot be removed, that shows when the server does not start.
pub(super) fn release(data: &Path, server: u32) {
    let _ = std::fs::remove_file(marker(data, server));
    taken_in(data, server);
}

/// The data directory of a rack that `rackweave up` started.
fn supervised(way: &Target) -> Result<&Path, String> {
    let Target::Data(data) = way else {
        return Err(
            "servers are killed on their own host only, by the process that started them: use --data there".into()
        );
    };
    if !way.names().iter().any(|n| n.starts_with("gateway-")) || !data.join(super::processes::NODES_FILE).exists() {
        return Err("`rackweave up` did not start these servers: end their processes by hand".into());
    }
    Ok(data)
}

/// The data directory; an error if the rack has no such server.
fn place(way: &Target, server: u32) -> Result<&Path, String> {
    let data = supervised(way)?;
    let servers = way.names().iter().filter(|n| n.starts_with("server-")).count();
    if server as usize >= servers {
        return Err(format!("there is no server {server}: the rack has servers 0 to {}", servers.saturating_sub(1)));
    }
    Ok(data)
}

/// `server kill` of a rack with a process per node; returns once the process has ended.
pub(super) fn hold_server(way: &Target, server: u32) -> Result<Answer, AskError> {
    let data = match place(way, server) {
        Ok(data) => data,
        Err(message) => return Ok(Answer::Error { message }),
    };
    let pid = match way.ask_node(&NodeName::server(server).to_string(), &Command::Local(Local::Status), PID_WAIT) {
        Ok(Answer::Status(s)) => s.processes.first().map_or(0, |p| p.pid),
        Err(AskError::NotRunning { .. }) | Ok(_) => 0,
        Err(e) => return Err(e),
    };
    let Some(pid) = i32::try_from(pid).ok().filter(|&p| p > 0) else {
        return Ok(Answer::Error { message: format!("server {server} is not running") });
    };
    let failed = |error| AskError::Io { data: data.into(), error };
    let process = open_process(pid).map_err(failed)?;
    drop(rackweave_device::private::create(&marker(data, server)).map_err(failed)?);
    match kill(&process) {
        Ok(true) => Ok(Answer::Done),
        Ok(false) => {
            Ok(Answer::Error { message: format!("server {server}, process {pid}, was killed and does not end") })
        }
        Err(e) => {
            release(data, server);
            Err(failed(e))
        }
    }
}

fn open_process(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers and returns a new descriptor or an error.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nothing else owns the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Kills the process and waits until it has ended, because an ending one gives no clear answer. Whether it ended in
/// time.
fn kill(process: &OwnedFd) -> io::Result<bool> {
    let fd = process.as_raw_fd();
    // SAFETY: a signal to an open process descriptor, without details.
    if unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, std::ptr::null::<u8>(), 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut ended = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which is open.
    Ok(unsafe { libc::poll(&mut ended, 1, PID_WAIT.as_millis() as i32) } > 0)
}

/// The server's state at the metadata service. If the service does not answer, a server that was there before may start:
/// the service then refuses it if it was removed.
fn state(way: &Target, server: u32) -> Option<String> {
    match way.ask_node(&NodeName::META.to_string(), &Command::Admin(admin::Op::Servers), PID_WAIT) {
        Ok(Answer::Servers(all)) => all.into_iter().find(|s| s.server == server).map(|s| s.state),
        _ => None,
    }
}

/// Starts the process of a server that was added and has never run.
fn start_added(data: &Path, server: u32) -> Result<Answer, AskError> {
    if data.join(super::processes::NAMESPACES_FILE).exists() {
        let message = format!(
            "server {server} is added, and starts with the rack's next start: --netns makes the servers' hosts at its start"
        );
        return Ok(Answer::Error { message });
    }
    let failed = |error| AskError::Io { data: data.into(), error };
    drop(rackweave_device::private::create(&starting(data, server)).map_err(failed)?);
    Ok(wait_until_taken_in(data, server))
}

/// Waits for the server; the supervisor notices the request within a moment.
#[allow(clippy::disallowed_methods, reason = "a command: it waits for other processes")]
fn wait_until_taken_in(data: &Path, server: u32) -> Answer {
    let end = std::time::Instant::now() + START_WAIT;
    while starting(data, server).exists() && std::time::Instant::now() < end {
        std::thread::sleep(START_LOOK);
    }
    match why_refused(data, server) {
        Some(why) => Answer::Error { message: format!("server {server} is refused: {why}") },
        None => Answer::Done,
    }
}

/// `server start` of a rack with a process per node.
pub(super) fn let_server_start(way: &Target, server: u32) -> Result<Answer, AskError> {
    let state = state(way, server);
    let added = state.as_deref() == Some("in") && !way.names().contains(&NodeName::server(server).to_string());
    if let (true, Ok(data)) = (added, supervised(way)) {
        return start_added(data, server);
    }
    Ok(match place(way, server) {
        Ok(_) if state.as_deref() == Some("removed") => {
            Answer::Error { message: BuildError::Removed { server }.to_string() }
        }
        Ok(data) if is_held(data, NodeName::server(server)) => {
            let begun = std::fs::rename(marker(data, server), starting(data, server));
            begun.map_err(|error| AskError::Io { data: data.into(), error })?;
            wait_until_taken_in(data, server)
        }
        Ok(_) => Answer::Error { message: format!("server {server} is running") },
        Err(message) => Answer::Error { message },
    })
}
