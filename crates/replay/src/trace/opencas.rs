//! The I/O tracer of Open-CAS as CSV: `t_ns,dev,op(R/W/D),lba_512,len_512,flush,fua,metadata,direct,readahead,latency_ns`.
//! `D` discards. A request with the `flush` mark is preceded by a flush; one without a length is a flush.

use rackweave_core::{SECTOR, Time};

use super::error::{Fault, FieldError};
use super::fields::{Fields, Separator, check_end};
use super::{LineFault, LineParser, Parsed, TraceOp, TraceRecord};

pub(super) const HEADER_START: &[u8] = b"t_ns,dev,op";
const HEADER: &str = "t_ns,dev,op(R/W/D),lba_512,len_512,flush,fua,metadata,direct,readahead,latency_ns";

pub(super) struct OpenCas;

impl LineParser for OpenCas {
    fn parse(&mut self, line: u64, text: &[u8]) -> Result<Parsed, LineFault> {
        if line == 1 {
            return if text.trim_ascii() == HEADER.as_bytes() {
                Ok(Parsed::Nothing)
            } else {
                Err(LineFault::Header { want: HEADER })
            };
        }
        let mut f = Fields::new(text, Separator::Comma);
        let at = Time(f.number("t_ns")?);
        let device = f.number32("dev")?;
        let op = match f.text("op")? {
            b"R" => TraceOp::Read,
            b"W" => TraceOp::Write,
            b"D" => TraceOp::Trim,
            other => return Err(FieldError::new("op", other, Fault::UnknownOp).into()),
        };
        let offset = f.scaled("lba_512", u64::from(SECTOR))?;
        let len = f.scaled("len_512", u64::from(SECTOR))?;
        check_end("len_512", offset, len)?;
        let flush = flag(&mut f, "flush")?;
        let fua = flag(&mut f, "fua")?;
        for name in ["metadata", "direct", "readahead"] {
            flag(&mut f, name)?;
        }
        f.number("latency_ns")?;
        f.end()?;
        let before = TraceRecord { at, device, op: TraceOp::Flush, offset: 0, len: 0, fua: false };
        let request = TraceRecord { at, device, op, offset, len, fua };
        match (flush, len) {
            (true, 0) => Ok(Parsed::One(before)),
            (true, _) => Ok(Parsed::Two(before, request)),
            (false, 0) => Err(FieldError::new("len_512", b"0", Fault::Zero).into()),
            (false, _) => Ok(Parsed::One(request)),
        }
    }
}

fn flag(f: &mut Fields<'_>, field: &'static str) -> Result<bool, FieldError> {
    match f.text(field)? {
        b"0" => Ok(false),
        b"1" => Ok(true),
        other => Err(FieldError::new(field, other, Fault::NotAFlag)),
    }
}
