//! MSR Cambridge CSV: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, the times in units of 100 ns,
//! the first since 1601 (Windows filetime).

use rackweave_core::Time;
use rackweave_core::map::{Map, map};

use super::error::{Fault, FieldError};
use super::fields::{Fields, Separator, check_end};
use super::{LineFault, LineParser, Parsed, TraceOp, TraceRecord};

/// Nanoseconds of a filetime tick.
const TICK_NS: u64 = 100;

pub(super) struct Msr {
    /// Disks of all hosts in order of appearance.
    disks: Map<(Box<[u8]>, u32), u32>,
    /// The last line's disk: whole traces have one.
    last: Option<(Box<[u8]>, u32, u32)>,
}

impl Msr {
    pub fn new() -> Msr {
        Msr { disks: map(), last: None }
    }

    fn device(&mut self, host: &[u8], disk: u32) -> u32 {
        if let Some((h, d, device)) = &self.last
            && *d == disk
            && **h == *host
        {
            return *device;
        }
        let next = self.disks.len() as u32;
        let device = *self.disks.entry((host.into(), disk)).or_insert(next);
        self.last = Some((host.into(), disk, device));
        device
    }
}

impl LineParser for Msr {
    fn parse(&mut self, line: u64, text: &[u8]) -> Result<Parsed, LineFault> {
        if line == 1 && text.starts_with(b"Timestamp,") {
            return Ok(Parsed::Nothing);
        }
        let mut f = Fields::new(text, Separator::Comma);
        let at = Time(f.scaled("Timestamp", TICK_NS)?);
        let host = f.text("Hostname")?;
        let disk = f.number32("DiskNumber")?;
        let op = match f.text("Type")? {
            t if t.eq_ignore_ascii_case(b"read") => TraceOp::Read,
            t if t.eq_ignore_ascii_case(b"write") => TraceOp::Write,
            other => return Err(FieldError::new("Type", other, Fault::UnknownOp).into()),
        };
        let offset = f.number("Offset")?;
        let len = f.positive("Size")?;
        check_end("Size", offset, len)?;
        f.number("ResponseTime")?;
        f.end()?;
        Ok(Parsed::One(TraceRecord { at, device: self.device(host, disk), op, offset, len, fua: false }))
    }
}
