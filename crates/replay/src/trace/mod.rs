//! Block traces: one streaming interface over the common formats.
//!
//! [`TraceReader`] is an iterator of [`TraceRecord`]s. It streams (a trace may be larger than memory),
//! decompresses zstd, detects the format unless it is given, and reports a malformed or truncated line with an error
//! that names place and field; after an error it ends.

mod alibaba;
mod detect;
mod error;
mod fields;
mod iolog;
mod mqsim;
mod msr;
mod opencas;
mod vscsi;

use std::fmt;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::str::FromStr;

use rackweave_core::Time;

pub use error::{Fault, FieldError, LINE_MAX, Place, TraceError};

/// One request as the trace has it: not aligned, sorted or mapped yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Time by the trace's own clock, whose zero depends on the format (MSR: the year 1601).
    pub at: Time,
    /// Number of the disk, file or unit; formats that name them count the names in order of appearance.
    pub device: u32,
    pub op: TraceOp,
    /// Bytes.
    pub offset: u64,
    /// Bytes; zero only for [`TraceOp::Flush`].
    pub len: u64,
    /// Forced unit access (writes and trims).
    pub fua: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TraceOp {
    Read,
    Write,
    Trim,
    Flush,
}

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// MQSim and SSDsim: blank-separated `time ns, device, first sector, sectors, op (1 read, 0 write)`.
    Mqsim,
    /// MSR Cambridge: `timestamp (100 ns, Windows filetime),host,disk,Read|Write,offset,size,response time`.
    Msr,
    /// Alibaba block traces: `device_id,opcode R|W,offset,length,timestamp µs`.
    Alibaba,
    /// CloudPhysics: little-endian records of virtual SCSI commands, of version 1 or 2.
    Vscsi,
    /// fio's iolog, version 2 (no times but `wait` lines) or 3 (times in µs).
    Iolog,
    /// The open I/O tracer of Open-CAS, as CSV with a header line.
    OpenCas,
}

impl Format {
    pub const ALL: [Format; 6] =
        [Format::Mqsim, Format::Msr, Format::Alibaba, Format::Vscsi, Format::Iolog, Format::OpenCas];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Mqsim => "mqsim",
            Format::Msr => "msr",
            Format::Alibaba => "alibaba",
            Format::Vscsi => "vscsi",
            Format::Iolog => "iolog",
            Format::OpenCas => "opencas",
        }
    }

    pub(crate) fn names() -> String {
        Format::ALL.map(Format::name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not a trace format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a trace format (formats: {known})", known = Format::names())]
pub struct UnknownFormatName {
    pub name: Box<str>,
}

impl FromStr for Format {
    type Err = UnknownFormatName;
    fn from_str(s: &str) -> Result<Format, UnknownFormatName> {
        Format::ALL.into_iter().find(|f| f.name() == s).ok_or_else(|| UnknownFormatName { name: s.into() })
    }
}

/// Result of parsing one line.
enum Parsed {
    One(TraceRecord),
    /// A flush and the request that must follow it.
    Two(TraceRecord, TraceRecord),
    /// A line without a request (a header, a file action).
    Nothing,
}

/// Reads one text format line by line; `line` counts from one.
trait LineParser {
    fn parse(&mut self, line: u64, text: &[u8]) -> Result<Parsed, LineFault>;
}

/// Error of a line parser.
enum LineFault {
    Field(FieldError),
    Header { want: &'static str },
}

impl From<FieldError> for LineFault {
    fn from(e: FieldError) -> LineFault {
        LineFault::Field(e)
    }
}

enum Body {
    Lines { parser: Box<dyn LineParser + Send>, line: u64, text: Vec<u8> },
    Records { layout: &'static vscsi::Layout, record: u64 },
}

/// A trace being read. Ends at the end of the trace or after the first error.
pub struct TraceReader {
    input: Box<dyn BufRead + Send>,
    format: Format,
    body: Body,
    pending: Option<TraceRecord>,
    ended: bool,
}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReader").field("format", &self.format).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl TraceReader {
    /// Opens a trace file. The format is detected from contents and file name if `format` is `None`.
    #[allow(clippy::disallowed_types, reason = "evaluation reads its inputs from files; it is no node")]
    pub fn open(path: &Path, format: Option<Format>) -> Result<TraceReader, TraceError> {
        let file = std::fs::File::open(path).map_err(|source| TraceError::Open { path: path.into(), source })?;
        TraceReader::new(file, path.file_name().and_then(|n| n.to_str()), format)
    }

    /// Reads a trace from any reader. The file name `name` helps to detect the format if the contents do not suffice.
    pub fn new(
        input: impl Read + Send + 'static,
        name: Option<&str>,
        format: Option<Format>,
    ) -> Result<TraceReader, TraceError> {
        let raw: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(BUFFER, input));
        let (head, input) = peek(unpacked(raw)?, HEAD_MAX)?;
        let format = match format {
            Some(f) => f,
            None => detect::detect(&head, name)?,
        };
        Ok(TraceReader { input, format, body: body_of(format, &head), pending: None, ended: false })
    }

    /// The format of the trace.
    pub fn format(&self) -> Format {
        self.format
    }

    fn advance(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        if let Some(r) = self.pending.take() {
            return Ok(Some(r));
        }
        match &mut self.body {
            Body::Records { layout, record } => vscsi::next(&mut self.input, layout, record),
            Body::Lines { parser, line, text } => loop {
                if !next_line(&mut self.input, line, text)? {
                    return Ok(None);
                }
                if text.trim_ascii().is_empty() {
                    continue;
                }
                match parser.parse(*line, text) {
                    Ok(Parsed::One(r)) => return Ok(Some(r)),
                    Ok(Parsed::Two(first, second)) => {
                        self.pending = Some(second);
                        return Ok(Some(first));
                    }
                    Ok(Parsed::Nothing) => {}
                    Err(LineFault::Field(error)) => return Err(TraceError::Field { at: Place::Line(*line), error }),
                    Err(LineFault::Header { want }) => {
                        return Err(TraceError::Header { format: self.format, want, start: error::shown(text) });
                    }
                }
            },
        }
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.advance().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Bytes read from a file at a time.
const BUFFER: usize = 64 << 10;

/// First bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes examined to detect the format: a few lines, or a hundred binary records.
const HEAD_MAX: usize = 4096;

/// The contents, decompressed if they are a zstd stream.
fn unpacked(input: Box<dyn BufRead + Send>) -> Result<Box<dyn BufRead + Send>, TraceError> {
    let (head, input) = peek(input, ZSTD_MAGIC.len())?;
    if head != ZSTD_MAGIC {
        return Ok(input);
    }
    let decoder = zstd::Decoder::with_buffer(input).map_err(read_at(Place::Line(0)))?;
    Ok(Box::new(BufReader::with_capacity(BUFFER, decoder)))
}

/// The first bytes, up to `want`, and the whole input.
fn peek(mut rest: Box<dyn BufRead + Send>, want: usize) -> Result<(Vec<u8>, Box<dyn BufRead + Send>), TraceError> {
    let mut head = Vec::with_capacity(want);
    (&mut rest).take(want as u64).read_to_end(&mut head).map_err(read_at(Place::Line(0)))?;
    Ok((head.clone(), Box::new(Cursor::new(head).chain(rest))))
}

fn read_at(at: Place) -> impl Fn(std::io::Error) -> TraceError {
    move |source| TraceError::Read { at, source }
}

fn body_of(format: Format, head: &[u8]) -> Body {
    let parser: Box<dyn LineParser + Send> = match format {
        Format::Vscsi => return Body::Records { layout: vscsi::layout_of(head), record: 0 },
        Format::Mqsim => Box::new(mqsim::Mqsim),
        Format::Msr => Box::new(msr::Msr::new()),
        Format::Alibaba => Box::new(alibaba::Alibaba),
        Format::Iolog => Box::new(iolog::Iolog::new()),
        Format::OpenCas => Box::new(opencas::OpenCas),
    };
    Body::Lines { parser, line: 0, text: Vec::new() }
}

/// Reads the next line into `text`, without its end; false at the end of the input.
fn next_line(input: &mut dyn BufRead, line: &mut u64, text: &mut Vec<u8>) -> Result<bool, TraceError> {
    text.clear();
    let before = Place::Line(*line);
    let read = input.take(LINE_MAX as u64 + 1).read_until(b'\n', text).map_err(read_at(before))?;
    if read == 0 {
        return Ok(false);
    }
    *line += 1;
    if text.last() == Some(&b'\n') {
        text.pop();
    } else if text.len() > LINE_MAX {
        return Err(TraceError::LineTooLong { line: *line });
    }
    Ok(true)
}
