//! Alibaba block traces: `device_id,opcode,offset,length,timestamp`: bytes, and µs.

use rackweave_core::Time;

use super::error::{Fault, FieldError};
use super::fields::{Fields, Separator, check_end};
use super::{LineFault, LineParser, Parsed, TraceOp, TraceRecord};

pub(super) struct Alibaba;

impl LineParser for Alibaba {
    fn parse(&mut self, line: u64, text: &[u8]) -> Result<Parsed, LineFault> {
        if line == 1 && text.starts_with(b"device_id,") {
            return Ok(Parsed::Nothing);
        }
        let mut f = Fields::new(text, Separator::Comma);
        let device = f.number32("device_id")?;
        let op = match f.text("opcode")? {
            b"R" => TraceOp::Read,
            b"W" => TraceOp::Write,
            other => return Err(FieldError::new("opcode", other, Fault::UnknownOp).into()),
        };
        let offset = f.number("offset")?;
        let len = f.positive("length")?;
        check_end("length", offset, len)?;
        let at = Time(f.scaled("timestamp", 1_000)?);
        f.end()?;
        Ok(Parsed::One(TraceRecord { at, device, op, offset, len, fua: false }))
    }
}
