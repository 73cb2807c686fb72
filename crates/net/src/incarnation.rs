//! The incarnation of a node's process towards other nodes: a counter that is durable before the first datagram is sent
//! (protocol rule 32). Datagram keys are derived from it, and nonces count from zero in each, so no incarnation may be
//! reused.
//!
//! [`rackweave_link::incarnation`] decides which one follows.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

use rackweave_link::incarnation::above;
use rackweave_runtime::datadir::{DataDir, write_durably};
use rackweave_runtime::up::random_u64;

/// File name in the node's data directory (docs/format.md).
pub const INCARNATION_FILE: &str = "incarnation";
const PREFIX: &str = "rackweave incarnation 1";

/// Source of a node's incarnations.
pub trait Incarnations: Debug {
    /// A number greater than every earlier one of this node and than `newest`; durable on return.
    fn above(&mut self, newest: u64) -> io::Result<u64>;
}

/// Drawn and not stored, for processes that store nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drawn {
    /// Zero before the first.
    pub last: u64,
}

impl Incarnations for Drawn {
    fn above(&mut self, newest: u64) -> io::Result<u64> {
        self.last = above(self.last, newest, random_u64()).map_err(io::Error::other)?;
        Ok(self.last)
    }
}

/// Stored in a node's data directory.
#[derive(Debug)]
pub struct Kept {
    dir: PathBuf,
    /// Zero if there was none.
    last: u64,
}

impl Kept {
    /// Reads the counter of a directory that this process has locked.
    pub fn open(dir: &DataDir) -> io::Result<Kept> {
        let last = match std::fs::read(dir.file(INCARNATION_FILE)) {
            // An unreadable file counts as missing.
            Ok(bytes) => parse(&bytes).unwrap_or(0),
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
        Ok(Kept { dir: dir.path().into(), last })
    }
    fn write(dir: &Path, incarnation: u64) -> io::Result<()> {
        write_durably(dir, INCARNATION_FILE, line(incarnation).as_bytes())
    }
}

impl Incarnations for Kept {
    fn above(&mut self, newest: u64) -> io::Result<u64> {
        let next = above(self.last, newest, random_u64()).map_err(io::Error::other)?;
        if !mutant!("net.incarnation.not-durable") {
            Kept::write(&self.dir, next)?;
        }
        self.last = next;
        Ok(next)
    }
}

fn line(incarnation: u64) -> String {
    format!("{PREFIX} {incarnation} {:08x}\n", crc32c::crc32c(&incarnation.to_le_bytes()))
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number = text.strip_prefix(PREFIX)?.split_whitespace().next()?.parse().ok()?;
    (number > 0 && (line(number) == text || mutant!("net.incarnation.damaged-counts"))).then_some(number)
}

#[cfg(test)]
#[path = "incarnation_tests.rs"]
mod tests;
