//! Detection of a trace's format from its first bytes, otherwise from its file name.

use super::fields::{Fields, Separator, number};
use super::{Format, TraceError, error, iolog, opencas, vscsi};

/// The format of a trace that begins with `head` and has the file name `name`.
pub(super) fn detect(head: &[u8], name: Option<&str>) -> Result<Format, TraceError> {
    by_content(head).or_else(|| name.and_then(by_name)).ok_or_else(|| TraceError::UnknownFormat {
        start: error::shown(head.split(|&c| c == b'\n').next().unwrap_or_default()),
    })
}

fn by_content(head: &[u8]) -> Option<Format> {
    if vscsi::version_of(head).is_some() {
        return Some(Format::Vscsi);
    }
    let line = head.split(|&c| c == b'\n').find(|l| !l.trim_ascii().is_empty())?.trim_ascii();
    if line.starts_with(iolog::HEADER_START) {
        return Some(Format::Iolog);
    }
    if line.starts_with(opencas::HEADER_START) {
        return Some(Format::OpenCas);
    }
    let comma: Vec<&[u8]> = split(line, Separator::Comma);
    match comma.as_slice() {
        [_, _, _, op, _, _, _] if op.eq_ignore_ascii_case(b"read") || op.eq_ignore_ascii_case(b"write") => {
            Some(Format::Msr)
        }
        [_, b"R" | b"W", _, _, _] | [b"device_id", ..] => Some(Format::Alibaba),
        [_] => {
            let blank = split(line, Separator::Blank);
            (blank.len() == 5 && blank.iter().all(|f| number(f).is_some())).then_some(Format::Mqsim)
        }
        _ => None,
    }
}

fn split(line: &[u8], separator: Separator) -> Vec<&[u8]> {
    let mut fields = Fields::new(line, separator);
    std::iter::from_fn(|| fields.next()).collect()
}

/// File extensions of formats, so that the error of an empty or damaged file names the line.
fn by_name(name: &str) -> Option<Format> {
    let name = name.strip_suffix(".zst").unwrap_or(name);
    match name.rsplit_once('.')?.1 {
        "trace" | "ascii" => Some(Format::Mqsim),
        "vscsi" => Some(Format::Vscsi),
        "iolog" => Some(Format::Iolog),
        _ => None,
    }
}
