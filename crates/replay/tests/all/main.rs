//! All integration tests of `replay` in one binary.

mod fuzz;
mod malformed;
mod rack;
mod readers;
mod real_data;
mod replay;
mod round_trip;
mod workload;

use std::io::Cursor;
use std::path::PathBuf;

use rackweave_replay::trace::{Format, TraceError, TraceReader, TraceRecord};

/// Reads `bytes` as a trace until its end or first error.
fn read(bytes: &[u8], name: Option<&str>, format: Option<Format>) -> Result<Vec<TraceRecord>, TraceError> {
    TraceReader::new(Cursor::new(bytes.to_vec()), name, format)?.collect()
}

/// A file of `crates/replay/data`.
fn own(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// A file of the shared data, or `None` with a line on stdout that the test is skipped.
fn shared(test: &str, name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("RACKWEAVE_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    println!("SKIP {test}: no {}", path.display());
    None
}

/// One vSCSI record.
fn vscsi(len: u32, command: u16, version: u16, block: u64, us: u64) -> Vec<u8> {
    let mut v = Vec::new();
    v.extend(7u32.to_le_bytes());
    v.extend(len.to_le_bytes());
    v.extend(1u32.to_le_bytes());
    v.extend(command.to_le_bytes());
    v.extend(version.to_le_bytes());
    v.extend(block.to_le_bytes());
    v.extend(us.to_le_bytes());
    v
}

/// One vSCSI record of version 2.
fn vscsi2(len: u32, command: u16, version: u16, block: u64, us: u64) -> Vec<u8> {
    let mut v = Vec::new();
    v.extend(command.to_le_bytes());
    v.extend(version.to_le_bytes());
    v.extend(7u32.to_le_bytes());
    v.extend(len.to_le_bytes());
    v.extend(1u32.to_le_bytes());
    v.extend(block.to_le_bytes());
    v.extend(us.to_le_bytes());
    v.extend(us.saturating_add(300).to_le_bytes());
    v
}
