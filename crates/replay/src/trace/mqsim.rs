//! MQSim's and SSDsim's ASCII traces: `time ns, device, first sector, sectors, op`, blank-separated; op 1 is a read.

use rackweave_core::{SECTOR, Time};

use super::error::{Fault, FieldError};
use super::fields::{Fields, Separator, check_end, scale};
use super::{LineFault, LineParser, Parsed, TraceOp, TraceRecord};

pub(super) struct Mqsim;

impl LineParser for Mqsim {
    fn parse(&mut self, _line: u64, text: &[u8]) -> Result<Parsed, LineFault> {
        let mut f = Fields::new(text, Separator::Blank);
        let at = Time(f.number("time")?);
        let device = f.number32("device")?;
        let offset = f.scaled("first sector", u64::from(SECTOR))?;
        let len = scale("sectors", f.positive("sectors")?, u64::from(SECTOR))?;
        check_end("sectors", offset, len)?;
        let op = match f.text("op")? {
            b"0" => TraceOp::Write,
            b"1" => TraceOp::Read,
            other => return Err(FieldError::new("op", other, Fault::UnknownOp).into()),
        };
        f.end()?;
        Ok(Parsed::One(TraceRecord { at, device, op, offset, len, fua: false }))
    }
}
