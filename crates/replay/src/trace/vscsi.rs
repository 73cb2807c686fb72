//! CloudPhysics' virtual SCSI records, little-endian, of version 1 (32 bytes) or 2 (40 bytes); a trace has one of them.
//!
//! | v1 | v2 | type | what |
//! |---|---|---|---|
//! | 0 | 4 | u32 | serial number |
//! | 4 | 8 | u32 | length in bytes |
//! | 8 | 12 | u32 | scatter-gather segments |
//! | 12 | 0 | u16 | SCSI command |
//! | 14 | 2 | u16 | version, in the high byte |
//! | 16 | 16 | u64 | first block of 512 bytes |
//! | 24 | 24 | u64 | time in µs; of version 2, when the command was issued |
//! | | 32 | u64 | time in µs when it was answered (not used) |

use std::io::BufRead;

use rackweave_core::{SECTOR, Time};

use super::error::{Fault, FieldError, Place, TraceError};
use super::fields::{check_end, scale};
use super::{TraceOp, TraceRecord, read_at};

/// Offsets of the fields that differ between versions.
#[derive(Debug)]
pub(super) struct Layout {
    number: u16,
    record: usize,
    length: usize,
    command: usize,
    version: usize,
}

const VERSION_1: Layout = Layout { number: 1, record: 32, length: 4, command: 12, version: 14 };
const VERSION_2: Layout = Layout { number: 2, record: RECORD_MAX, length: 8, command: 0, version: 2 };
const RECORD_MAX: usize = 40;
const BLOCK_AT: usize = 16;
const TIME_AT: usize = 24;

/// SCSI operation codes of reads and writes of 6, 10, 12 and 16 bytes, and other commands of a disk.
const READS: [u16; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u16; 4] = [0x0a, 0x2a, 0xaa, 0x8a];
const SYNCHRONIZE_CACHE: [u16; 2] = [0x35, 0x91];
const UNMAP: u16 = 0x42;

/// The version whose layout all whole records of `head` have, with a known command.
pub(super) fn version_of(head: &[u8]) -> Option<&'static Layout> {
    let fits = |l: &&Layout| {
        let mut records = head.chunks_exact(l.record).peekable();
        let has = |r: &[u8]| word(r, l.version) >> 8 == l.number && op_of(word(r, l.command)).is_some();
        records.peek().is_some() && records.all(has)
    };
    [&VERSION_1, &VERSION_2].into_iter().find(fits)
}

/// Layout of a trace that is declared to be of this format: detected from its first record.
pub(super) fn layout_of(head: &[u8]) -> &'static Layout {
    let second = head.len() >= RECORD_MAX && word(head, VERSION_1.version) >> 8 != VERSION_1.number;
    let second = second && word(head, VERSION_2.version) >> 8 == VERSION_2.number;
    version_of(head).unwrap_or(if second { &VERSION_2 } else { &VERSION_1 })
}

fn word(r: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([r[at], r[at + 1]])
}

fn op_of(command: u16) -> Option<TraceOp> {
    match command {
        c if READS.contains(&c) => Some(TraceOp::Read),
        c if WRITES.contains(&c) => Some(TraceOp::Write),
        c if SYNCHRONIZE_CACHE.contains(&c) => Some(TraceOp::Flush),
        UNMAP => Some(TraceOp::Trim),
        _ => None,
    }
}

/// The next record; `record` counts those read.
pub(super) fn next(
    input: &mut dyn BufRead,
    layout: &Layout,
    record: &mut u64,
) -> Result<Option<TraceRecord>, TraceError> {
    let want = layout.record;
    let offset = *record * want as u64;
    let at = Place::Record { record: *record + 1, offset };
    let mut bytes = [0u8; RECORD_MAX];
    let got = read_up_to(input, &mut bytes[..want]).map_err(read_at(at))?;
    if got == 0 {
        return Ok(None);
    }
    *record += 1;
    if got < want {
        return Err(TraceError::Truncated { record: *record, offset, got, want });
    }
    parse(layout, &bytes).map(Some).map_err(|error| TraceError::Field { at, error })
}

fn read_up_to(input: &mut dyn BufRead, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match input.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

fn parse(l: &Layout, r: &[u8; RECORD_MAX]) -> Result<TraceRecord, FieldError> {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| r[at + i]));
    let hex = |field, v: u16, fault| FieldError::new(field, format!("{v:#x}").as_bytes(), fault);
    let (version, command) = (word(r, l.version), word(r, l.command));
    if version >> 8 != l.number {
        return Err(hex("version", version, Fault::UnknownVersion));
    }
    let op = op_of(command).ok_or_else(|| hex("command", command, Fault::UnknownOp))?;
    let at = Time(scale("time", long(TIME_AT), 1_000)?);
    if op == TraceOp::Flush {
        return Ok(TraceRecord { at, device: 0, op, offset: 0, len: 0, fua: false });
    }
    let len = long(l.length) & u64::from(u32::MAX);
    if len == 0 {
        return Err(FieldError::new("length", b"0", Fault::Zero));
    }
    let offset = scale("block", long(BLOCK_AT), u64::from(SECTOR))?;
    check_end("length", offset, len)?;
    Ok(TraceRecord { at, device: 0, op, offset, len, fua: false })
}
