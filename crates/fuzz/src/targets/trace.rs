//! Block traces: any bytes give records or an error, and written records are read back.

use std::io::{Cursor, Read};

use arbitrary::{Result, Unstructured};
use rackweave_core::Time;
use rackweave_replay::trace::{Format, TraceError, TraceOp, TraceReader, TraceRecord};

use crate::corrupt::{corrupt, rest};

/// First bytes of a compressed trace.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A compressed trace is read up to here: zstd unpacks a few bytes to gigabytes.
const RECORDS_MAX: usize = 20_000;

pub(super) fn run(input: &[u8]) {
    _ = choose(&mut Unstructured::new(input));
}

fn choose(u: &mut Unstructured<'_>) -> Result<()> {
    let format = *u.choose(&Format::ALL)?;
    let named = u.ratio(2u8, 3u8)?.then_some(format);
    let mut bytes = match u.int_in_range(0..=2u8)? {
        0 => rest(u),
        _ => written(u, format)?,
    };
    corrupt(u, &mut bytes)?;
    any(&bytes, named);
    if bytes.starts_with(&ZSTD_MAGIC) {
        return Ok(());
    }
    let packed = zstd::encode_all(&bytes[..], 1).expect("memory takes everything");
    assert_eq!(read(&packed, named, false), read(&bytes, named, false), "compressed as it is");
    let mut packed = packed;
    corrupt(u, &mut packed)?;
    any(&packed, named);
    Ok(())
}

/// A few records in a format, which must be read as they are.
fn written(u: &mut Unstructured<'_>, format: Format) -> Result<Vec<u8>> {
    let (mut text, mut records) = (Vec::new(), Vec::new());
    for _ in 0..u.int_in_range(1..=12u8)? {
        let write: bool = u.arbitrary()?;
        let (tick, sector) = (u.int_in_range(0..=1u64 << 40)?, u.int_in_range(0..=1u64 << 40)?);
        let (device, sectors) = (u.int_in_range(0..=3u32)?, u.int_in_range(1..=256u64)?);
        let (offset, len) = (sector * 512, sectors * 512);
        let (at, line) = match format {
            Format::Mqsim => (tick, format!("{tick} {device} {sector} {sectors} {}\n", u8::from(!write))),
            Format::Alibaba => {
                let op = if write { "W" } else { "R" };
                (tick * 1000, format!("{device},{op},{offset},{len},{tick}\n"))
            }
            Format::Msr => {
                let op = if write { "Write" } else { "Read" };
                (tick * 100, format!("{tick},h,0,{op},{offset},{len},5\n"))
            }
            _ => return Ok(binary(u, format)),
        };
        text.extend_from_slice(line.as_bytes());
        let device = if format == Format::Msr { 0 } else { device };
        let op = if write { TraceOp::Write } else { TraceOp::Read };
        records.push(TraceRecord { at: Time(at), device, op, offset, len, fua: false });
    }
    assert_eq!(read(&text, Some(format), false), Ok(records));
    Ok(text)
}

/// Of formats whose writers the tree has examples of.
fn binary(u: &mut Unstructured<'_>, format: Format) -> Vec<u8> {
    match format {
        Format::Vscsi => {
            let n = u.int_in_range(0..=6u8).unwrap_or(0);
            (0..n).flat_map(|i| vscsi(u32::from(i) * 512 + 512, 0x2a, u64::from(i) * 8)).collect()
        }
        Format::Iolog => {
            b"fio version 2 iolog\nf add\nf open\nf read 0 4096\nf wait 10 0\nf write 4096 512\nf sync 0 0\n\
            f trim 0 4096\nf close\n"
                .to_vec()
        }
        _ => include_bytes!("../../../replay/data/ycsb-a-head.csv")[..1024].to_vec(),
    }
}

fn vscsi(len: u32, command: u16, block: u64) -> Vec<u8> {
    let mut v = Vec::new();
    for word in [7, len, 1] {
        v.extend(word.to_le_bytes());
    }
    v.extend(command.to_le_bytes());
    v.extend(0x100u16.to_le_bytes());
    v.extend(block.to_le_bytes());
    v.extend((block * 10).to_le_bytes());
    v
}

fn any(bytes: &[u8], format: Option<Format>) {
    assert_eq!(read(bytes, format, false), read(bytes, format, true), "however it is cut");
}

/// Up to [`RECORDS_MAX`] records; an error as its text.
fn read(bytes: &[u8], format: Option<Format>, slowly: bool) -> std::result::Result<Vec<TraceRecord>, String> {
    let input = Cursor::new(bytes.to_vec());
    let text = |e: TraceError| {
        let text = e.to_string();
        assert!(!text.is_empty() && text.len() < 1024, "{text}");
        text
    };
    let reader = match slowly {
        true => TraceReader::new(Slow(input), Some("x.trace"), format),
        false => TraceReader::new(input, Some("x.trace"), format),
    };
    reader.map_err(text)?.take(RECORDS_MAX).map(|r| r.map_err(text)).collect()
}

/// A few bytes at a time.
struct Slow(Cursor<Vec<u8>>);

impl Read for Slow {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = to.len().min(7);
        self.0.read(&mut to[..n])
    }
}
