//! Rotation of the cluster key while the rack runs: first every node accepts the new key, then every node sends with
//! it, then the old key is removed. Each step may be repeated, so that an interrupted rotation can be continued.

use std::path::PathBuf;
use std::time::Duration;

use rackweave_transport::KeyId;

use super::ask::Target;
use rackweave_runtime::control::{Answer, AskError, Command, Local};
use rackweave_runtime::key::{KeyChange, KeyFile, KeyFileError, Secret};

/// Longest time for which a datagram sealed with the old key is in flight or retransmitted: a message's deadline.
const SETTLE: Duration = Duration::from_secs(2);
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Why the key was not changed, or not everywhere. Repeating the command continues the rotation.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    #[error("this rack has no cluster key (hosts.key_file)")]
    NoKey,
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error("{path}: drawing a key: {error}")]
    Draw { path: PathBuf, error: std::io::Error },
    #[error("{node}: {error}; the old key stays in use; repeat the command when every node answers")]
    Ask { node: String, error: AskError },
    #[error("{node}: {message}")]
    Refused { node: String, message: String },
}

/// Rotates the key in `file`, which must be the key of every node; returns the new key's id.
pub fn rotate(way: &Target, file: Option<PathBuf>) -> Result<KeyId, RotateError> {
    let path = file.ok_or(RotateError::NoKey)?;
    let mut file = KeyFile::load(&path)?;
    let ids: Vec<KeyId> = file.ids().collect();
    let (old, new) = match ids[..] {
        // An interrupted rotation: the new key follows the old one.
        [a, b] if next(a) == b => (a, b),
        [b, a] => (a, b),
        _ => (ids[0], next(ids[0])),
    };
    // Every node must be reachable before the first step: an unreachable node would have no valid key afterwards.
    let nodes = way.names();
    for node in &nodes {
        ask(way, node, &Command::Local(Local::Status))?;
    }
    let key = match file.secret(new) {
        Some(key) => key,
        None => Secret::draw().map_err(|error| RotateError::Draw { path: path.clone(), error })?,
    };
    let add = KeyChange::Add { id: new.0, key };
    // Written before any node gets it, so that an interrupted rotation continues with the same key. The other steps are
    // written last: the file lists the steps that some node has not taken.
    file.change(&add)?;
    for change in [add, KeyChange::SendWith { id: new.0 }, KeyChange::Remove { id: old.0 }] {
        if let KeyChange::Remove { .. } = change {
            settle();
        }
        for node in &nodes {
            ask(way, node, &Command::Local(Local::KeyChange { change: change.clone() }))?;
        }
        // Local nodes may have changed the file.
        file = KeyFile::load(&path)?;
        file.change(&change)?;
    }
    Ok(new)
}

fn next(id: KeyId) -> KeyId {
    KeyId(id.0 % 255 + 1)
}

fn settle() {
    // SAFETY: a wait without descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, SETTLE.as_millis() as i32) };
}

fn ask(way: &Target, node: &str, command: &Command) -> Result<(), RotateError> {
    match way.ask_node(node, command, ANSWER_WAIT) {
        Ok(Answer::Error { message }) => Err(RotateError::Refused { node: node.into(), message }),
        Ok(_) => Ok(()),
        Err(error) => Err(RotateError::Ask { node: node.into(), error }),
    }
}
