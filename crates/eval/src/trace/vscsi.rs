//! CloudPhysics' virtual SCSI records, 32 bytes, little-endian:
//!
//! | byte | type | what |
//! |---|---|---|
//! | 0 | u32 | serial number |
//! | 4 | u32 | length in bytes |
//! | 8 | u32 | scatter-gather segments |
//! | 12 | u16 | SCSI command |
//! | 14 | u16 | version: 1 in the high byte |
//! | 16 | u64 | first block of 512 bytes |
//! | 24 | u64 | time in µs |

use std::io::BufRead;

use rackweave_core::{SECTOR, Time};

use super::error::{Fault, FieldError, Place, TraceError};
use super::fields::{check_end, scale};
use super::{TraceOp, TraceRecord, read_at};

const RECORD: usize = 32;
const VERSION: u16 = 1;

/// SCSI operation codes of reads and writes of 6, 10, 12 and 16 bytes, and of the others a disk gets.
const READS: [u16; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u16; 4] = [0x0a, 0x2a, 0xaa, 0x8a];
const SYNCHRONIZE_CACHE: [u16; 2] = [0x35, 0x91];
const UNMAP: u16 = 0x42;

/// Whether the whole records of `head` carry this version and a known command.
pub(super) fn looks_like(head: &[u8]) -> bool {
    let mut records = head.chunks_exact(RECORD).peekable();
    records.peek().is_some()
        && records.all(|r| {
            let word = |at: usize| u16::from_le_bytes([r[at], r[at + 1]]);
            word(14) >> 8 == VERSION && op_of(word(12)).is_some()
        })
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
pub(super) fn next(input: &mut dyn BufRead, record: &mut u64) -> Result<Option<TraceRecord>, TraceError> {
    let offset = *record * RECORD as u64;
    let at = Place::Record { record: *record + 1, offset };
    let mut bytes = [0u8; RECORD];
    let got = read_up_to(input, &mut bytes).map_err(read_at(at))?;
    if got == 0 {
        return Ok(None);
    }
    *record += 1;
    if got < RECORD {
        return Err(TraceError::Truncated { record: *record, offset, got, want: RECORD });
    }
    parse(&bytes).map(Some).map_err(|error| TraceError::Field { at, error })
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

fn parse(r: &[u8; RECORD]) -> Result<TraceRecord, FieldError> {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| r[at + i]));
    let word = |at: usize| u16::from_le_bytes([r[at], r[at + 1]]);
    let hex = |field, v: u16, fault| FieldError::new(field, format!("{v:#x}").as_bytes(), fault);
    if word(14) >> 8 != VERSION {
        return Err(hex("version", word(14), Fault::UnknownVersion));
    }
    let op = op_of(word(12)).ok_or_else(|| hex("command", word(12), Fault::UnknownOp))?;
    let at = Time(scale("time", long(24), 1_000)?);
    if op == TraceOp::Flush {
        return Ok(TraceRecord { at, device: 0, op, offset: 0, len: 0, fua: false });
    }
    let len = long(4) & u64::from(u32::MAX);
    if len == 0 {
        return Err(FieldError::new("length", b"0", Fault::Zero));
    }
    let offset = scale("block", long(16), u64::from(SECTOR))?;
    check_end("length", offset, len)?;
    Ok(TraceRecord { at, device: 0, op, offset, len, fua: false })
}
