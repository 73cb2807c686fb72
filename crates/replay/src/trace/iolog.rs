//! fio's iolog. Version 2: `file action [offset length]`, with times only in `wait` lines (µs since the previous one).
//! Version 3: a time in µs first. Files are counted in order of appearance.

use rackweave_core::map::{Map, map};
use rackweave_core::{Span, Time};

use super::error::{Fault, FieldError};
use super::fields::{Fields, Separator, check_end};
use super::{LineFault, LineParser, Parsed, TraceOp, TraceRecord};

pub(super) const HEADER_START: &[u8] = b"fio version ";
const HEADER_2: &[u8] = b"fio version 2 iolog";
const HEADER_3: &[u8] = b"fio version 3 iolog";

pub(super) struct Iolog {
    files: Map<Box<[u8]>, u32>,
    timed: bool,
    /// Version 2's clock: the waits so far.
    now: Time,
}

impl Iolog {
    pub fn new() -> Iolog {
        Iolog { files: map(), timed: false, now: Time::ZERO }
    }

    fn header(&mut self, text: &[u8]) -> Result<Parsed, LineFault> {
        self.timed = match text.trim_ascii() {
            HEADER_2 => false,
            HEADER_3 => true,
            _ => return Err(LineFault::Header { want: "fio version 2 iolog\" or \"fio version 3 iolog" }),
        };
        Ok(Parsed::Nothing)
    }

    fn file(&mut self, name: &[u8]) -> u32 {
        if let Some(&n) = self.files.get(name) {
            return n;
        }
        let n = self.files.len() as u32;
        self.files.insert(name.into(), n);
        n
    }
}

impl LineParser for Iolog {
    fn parse(&mut self, line: u64, text: &[u8]) -> Result<Parsed, LineFault> {
        if line == 1 {
            return self.header(text);
        }
        let mut f = Fields::new(text, Separator::Blank);
        let at = if self.timed { Time(f.scaled("timestamp", 1_000)?) } else { self.now };
        let name = f.text("filename")?;
        let action = f.text("action")?;
        let op = match action {
            b"add" | b"open" | b"close" => {
                self.file(name);
                f.end()?;
                return Ok(Parsed::Nothing);
            }
            b"wait" if !self.timed => {
                self.now += Span(f.scaled("wait", 1_000)?);
                f.number("length")?;
                f.end()?;
                return Ok(Parsed::Nothing);
            }
            b"read" => TraceOp::Read,
            b"write" => TraceOp::Write,
            b"trim" => TraceOp::Trim,
            b"sync" | b"datasync" => TraceOp::Flush,
            other => return Err(FieldError::new("action", other, Fault::UnknownOp).into()),
        };
        let device = self.file(name);
        if op == TraceOp::Flush {
            f.number("offset")?;
            f.number("length")?;
            f.end()?;
            return Ok(Parsed::One(TraceRecord { at, device, op, offset: 0, len: 0, fua: false }));
        }
        let offset = f.number("offset")?;
        let len = f.positive("length")?;
        check_end("length", offset, len)?;
        f.end()?;
        Ok(Parsed::One(TraceRecord { at, device, op, offset, len, fua: false }))
    }
}
