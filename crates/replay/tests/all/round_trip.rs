//! Random requests, written in each format, are read back unchanged.

use rackweave_core::{Rng, Time};
use rackweave_replay::trace::{Format, TraceOp, TraceRecord};

use crate::{read, vscsi};

const REQUESTS: u64 = 2_000;

/// Requests that `format` can express, in order of time.
fn requests(format: Format, rng: &mut Rng) -> Vec<TraceRecord> {
    let tick = match format {
        Format::Mqsim | Format::OpenCas => 1,
        Format::Msr => 100,
        Format::Alibaba | Format::Vscsi | Format::Iolog => 1_000,
    };
    let ops: &[TraceOp] = match format {
        Format::Mqsim | Format::Msr | Format::Alibaba => &[TraceOp::Read, TraceOp::Write],
        Format::Iolog | Format::OpenCas | Format::Vscsi => {
            &[TraceOp::Read, TraceOp::Write, TraceOp::Trim, TraceOp::Flush]
        }
    };
    let mut at = 0;
    (0..REQUESTS)
        .map(|i| {
            at += rng.below(1_000) * tick;
            let op = *rng.pick(ops);
            let flush = op == TraceOp::Flush;
            // Formats with device names number them by first appearance, so first appearances are in order.
            let device = if format == Format::Vscsi { 0 } else { rng.below((i + 1).min(5)) as u32 };
            let device = if i < 5 && format != Format::Vscsi { i as u32 } else { device };
            TraceRecord {
                at: Time(at),
                device,
                op,
                offset: if flush { 0 } else { rng.below(1 << 40) * 512 },
                len: if flush { 0 } else { rng.between(1, 1 << 11) * 512 },
                fua: format == Format::OpenCas && op == TraceOp::Write && rng.chance(0.3),
            }
        })
        .collect()
}

fn line(format: Format, r: &TraceRecord) -> String {
    let TraceRecord { at: Time(at), device, op, offset, len, fua } = *r;
    let letter = match op {
        TraceOp::Read => "R",
        TraceOp::Trim => "D",
        TraceOp::Write | TraceOp::Flush => "W",
    };
    match format {
        Format::Mqsim => format!("{at} {device} {} {} {}", offset / 512, len / 512, u8::from(op == TraceOp::Read)),
        Format::Msr => format!("{},srv,{device},{op:?},{offset},{len},17", at / 100),
        Format::Alibaba => format!("{device},{letter},{offset},{len},{}", at / 1_000),
        Format::Iolog => {
            let action = match op {
                TraceOp::Flush => "datasync".into(),
                op => format!("{op:?}").to_lowercase(),
            };
            format!("{} /dev/sd{device} {action} {offset} {len}", at / 1_000)
        }
        Format::OpenCas => format!(
            "{at},{device},{letter},{},{},{},{},0,0,0,99",
            offset / 512,
            len / 512,
            u8::from(op == TraceOp::Flush),
            u8::from(fua)
        ),
        Format::Vscsi => unreachable!("binary"),
    }
}

fn written(format: Format, requests: &[TraceRecord]) -> Vec<u8> {
    if format == Format::Vscsi {
        let record = |r: &TraceRecord| {
            let command = match r.op {
                TraceOp::Read => 0x88,
                TraceOp::Write => 0x8a,
                TraceOp::Trim => 0x42,
                TraceOp::Flush => 0x91,
            };
            vscsi(r.len as u32, command, 0x100, r.offset / 512, r.at.0 / 1_000)
        };
        return requests.iter().flat_map(record).collect();
    }
    let head = match format {
        Format::Iolog => "fio version 3 iolog\n",
        Format::OpenCas => "t_ns,dev,op(R/W/D),lba_512,len_512,flush,fua,metadata,direct,readahead,latency_ns\n",
        _ => "",
    };
    let lines = requests.iter().map(|r| line(format, r) + "\n");
    std::iter::once(head.to_string()).chain(lines).collect::<String>().into_bytes()
}

#[test]
fn every_format_comes_back_as_it_was_written() {
    for (i, format) in Format::ALL.into_iter().enumerate() {
        let want = requests(format, &mut Rng::stream(11, i as u64));
        let bytes = written(format, &want);
        for given in [None, Some(format)] {
            assert_eq!(read(&bytes, None, given).unwrap(), want, "{format} given as {given:?}");
        }
    }
}
