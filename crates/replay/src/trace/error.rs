//! Errors of reading a trace: each names the place (line, or record and byte offset), the field, and the value.

use std::fmt;
use std::path::PathBuf;

use super::Format;

/// Characters of an offending value that an error repeats: enough to find it, bounded for hostile input.
const VALUE_SHOWN_MAX: usize = 60;

/// Why a trace could not be read. A retry does not help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    #[error("{path}: {source}", path = path.display())]
    Open { path: PathBuf, source: std::io::Error },
    /// The file, or the zstd stream in it, could not be read further.
    #[error("after {at}: {source}")]
    Read { at: Place, source: std::io::Error },
    #[error("unknown trace format: the file begins with {start:?} (formats: {known})", known = Format::names())]
    UnknownFormat { start: Box<str> },
    #[error("line 1: a trace of format {format} begins with {want:?}, this file with {start:?}")]
    Header { format: Format, want: &'static str, start: Box<str> },
    #[error("{at}: {error}")]
    Field { at: Place, error: FieldError },
    #[error("line {line}: longer than {LINE_MAX} bytes")]
    LineTooLong { line: u64 },
    #[error("record {record} at byte {offset}: the file ends after {got} of {want} bytes")]
    Truncated { record: u64, offset: u64, got: usize, want: usize },
}

/// Longest line of a text trace: the longest legal ones (an iolog's 4,096-byte path and numbers) fit.
pub const LINE_MAX: usize = 8 << 10;

/// A place in a trace, counted from one (records: and the byte they begin at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Line(u64),
    Record { record: u64, offset: u64 },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(n) => write!(f, "line {n}"),
            Place::Record { record, offset } => write!(f, "record {record} at byte {offset}"),
        }
    }
}

/// Error of one field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value:?}: {fault}")]
pub struct FieldError {
    pub field: &'static str,
    pub value: Box<str>,
    pub fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("is missing")]
    Missing,
    #[error("is not a whole number of at most 64 bits")]
    NotANumber,
    #[error("is too large")]
    TooLarge,
    #[error("must not be zero")]
    Zero,
    #[error("is neither 0 nor 1")]
    NotAFlag,
    #[error("is not a known operation")]
    UnknownOp,
    #[error("is a version this reader does not know")]
    UnknownVersion,
    #[error("is one field too many")]
    Surplus,
}

impl FieldError {
    pub(super) fn new(field: &'static str, value: &[u8], fault: Fault) -> FieldError {
        FieldError { field, value: shown(value), fault }
    }
}

/// The beginning of `value` as text.
pub(super) fn shown(value: &[u8]) -> Box<str> {
    let cut = &value[..value.len().min(VALUE_SHOWN_MAX)];
    String::from_utf8_lossy(cut).into_owned().into_boxed_str()
}
