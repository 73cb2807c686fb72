//! Hand-written rows of each format, and detection of the format.

use rackweave_core::Time;
use rackweave_replay::trace::{Format, TraceOp, TraceReader, TraceRecord};

use crate::{own, read, vscsi, vscsi2};

fn record(at: u64, device: u32, op: TraceOp, offset: u64, len: u64) -> TraceRecord {
    TraceRecord { at: Time(at), device, op, offset, len, fua: false }
}

#[test]
fn mqsim_rows() {
    let rows = b"938513000 4 264719034 16 0\n938828000\t3 8 1  1\r\n\n";
    let want = [
        record(938_513_000, 4, TraceOp::Write, 264_719_034 * 512, 8192),
        record(938_828_000, 3, TraceOp::Read, 4096, 512),
    ];
    assert_eq!(read(rows, None, None).unwrap(), want);
}

#[test]
fn msr_rows_count_disks_of_all_hosts() {
    let rows = b"128166372003061629,hm,0,Read,383496192,32768,1331\n\
        128166372016382155,hm,1,Write,2822144,4096,58041\n\
        128166372026382245,prxy,0,write,3221266432,512,90\n\
        128166372026382300,hm,0,read,0,512,90";
    let want = [
        record(12_816_637_200_306_162_900, 0, TraceOp::Read, 383_496_192, 32_768),
        record(12_816_637_201_638_215_500, 1, TraceOp::Write, 2_822_144, 4096),
        record(12_816_637_202_638_224_500, 2, TraceOp::Write, 3_221_266_432, 512),
        record(12_816_637_202_638_230_000, 0, TraceOp::Read, 0, 512),
    ];
    assert_eq!(read(rows, None, None).unwrap(), want);
}

#[test]
fn alibaba_rows() {
    let rows = b"419,W,8792731648,16384,1577808000000626\n725,R,512,4096,1577808000000705\n";
    let want = [
        record(1_577_808_000_000_626_000, 419, TraceOp::Write, 8_792_731_648, 16_384),
        record(1_577_808_000_000_705_000, 725, TraceOp::Read, 512, 4096),
    ];
    assert_eq!(read(rows, None, None).unwrap(), want);
    let headed = [b"device_id,opcode,offset,length,timestamp\n".as_slice(), rows].concat();
    assert_eq!(read(&headed, None, None).unwrap(), want);
}

#[test]
fn vscsi_records() {
    let mut bytes = vscsi(512, 0x2a, 0x100, 42_932_745, 5_632_000_000_000);
    bytes.extend(vscsi(69_632, 0x28, 0x101, 8, 5_632_000_000_001));
    bytes.extend(vscsi(0, 0x35, 0x100, 0, 5_632_000_000_002));
    let want = [
        record(5_632_000_000_000_000, 0, TraceOp::Write, 42_932_745 * 512, 512),
        record(5_632_000_000_001_000, 0, TraceOp::Read, 4096, 69_632),
        record(5_632_000_000_002_000, 0, TraceOp::Flush, 0, 0),
    ];
    assert_eq!(read(&bytes, None, None).unwrap(), want);
    let mut bytes = vscsi2(512, 0x2a, 0x200, 42_932_745, 5_632_000_000_000);
    bytes.extend(vscsi2(69_632, 0x28, 0x201, 8, 5_632_000_000_001));
    bytes.extend(vscsi2(0, 0x35, 0x200, 0, 5_632_000_000_002));
    for given in [None, Some(Format::Vscsi)] {
        assert_eq!(read(&bytes, None, given).unwrap(), want);
    }
}

#[test]
fn iolog_version_2_knows_time_by_its_waits() {
    let rows = b"fio version 2 iolog\n/dev/a add\n/dev/b add\n/dev/a open\n/dev/b open\n/dev/b read 0 4096\n\
        /dev/a wait 1500 0\n/dev/a write 512 1024\n/dev/a wait 500 0\n/dev/a trim 4096 8192\n/dev/b datasync 0 0\n/dev/a close\n";
    let want = [
        record(0, 1, TraceOp::Read, 0, 4096),
        record(1_500_000, 0, TraceOp::Write, 512, 1024),
        record(2_000_000, 0, TraceOp::Trim, 4096, 8192),
        record(2_000_000, 1, TraceOp::Flush, 0, 0),
    ];
    assert_eq!(read(rows, None, None).unwrap(), want);
}

#[test]
fn iolog_version_3_as_fio_recorded_it() {
    let reader = TraceReader::open(&own("randrw.iolog"), None).unwrap();
    assert_eq!(reader.format(), Format::Iolog);
    let records: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
    assert_eq!(records[0], record(193_000, 0, TraceOp::Write, 252_928, 1024));
    let count = |op| records.iter().filter(|r| r.op == op).count();
    assert_eq!((count(TraceOp::Read), count(TraceOp::Write), count(TraceOp::Flush)), (28, 32, 2));
    assert!(records.is_sorted_by_key(|r| r.at));
}

#[test]
fn opencas_rows_with_flush_and_fua() {
    let rows = b"t_ns,dev,op(R/W/D),lba_512,len_512,flush,fua,metadata,direct,readahead,latency_ns\n\
        0,0,W,1652296,256,0,0,0,0,0,83797\n5,1,R,8,2,0,0,0,1,1,10\n7,0,D,0,1024,0,0,0,0,0,9\n9,0,W,0,0,1,0,0,0,0,9\n\
        11,0,W,16,8,1,1,1,0,0,9\n";
    let fua = TraceRecord { fua: true, ..record(11, 0, TraceOp::Write, 8192, 4096) };
    let want = [
        record(0, 0, TraceOp::Write, 1_652_296 * 512, 131_072),
        record(5, 1, TraceOp::Read, 4096, 1024),
        record(7, 0, TraceOp::Trim, 0, 524_288),
        record(9, 0, TraceOp::Flush, 0, 0),
        record(11, 0, TraceOp::Flush, 0, 0),
        fua,
    ];
    assert_eq!(read(rows, None, None).unwrap(), want);
}

#[test]
fn zstd_is_seen_through() {
    let plain = std::fs::read(own("tpcc-head.trace")).unwrap();
    let packed = zstd::encode_all(plain.as_slice(), 3).unwrap();
    let want = read(&plain, None, None).unwrap();
    assert_eq!(want.len(), 1500);
    assert_eq!(read(&packed, None, None).unwrap(), want);
    // Several successive frames form one stream.
    let cut = plain.iter().take(20_000).rposition(|&c| c == b'\n').unwrap() + 1;
    let frames: Vec<u8> =
        [&plain[..cut], &plain[cut..]].iter().flat_map(|p| zstd::encode_all(*p, 3).unwrap()).collect();
    assert_eq!(read(&frames, None, None).unwrap(), want);
}

#[test]
fn contents_say_the_format_whatever_the_name() {
    for (file, format, requests) in [
        ("tpcc-head.trace", Format::Mqsim, 1500),
        ("wsrch-head.trace", Format::Mqsim, 1200),
        ("ycsb-a-head.csv", Format::OpenCas, 599),
    ] {
        let bytes = std::fs::read(own(file)).unwrap();
        for name in [None, Some("x.vscsi"), Some("x.csv.zst")] {
            let reader = TraceReader::new(std::io::Cursor::new(bytes.clone()), name, None).unwrap();
            assert_eq!((reader.format(), reader.count()), (format, requests), "{file} as {name:?}");
        }
    }
}

#[test]
fn names_say_the_format_of_what_contents_do_not() {
    assert_eq!(read(b"", Some("a.trace"), None).unwrap(), []);
    assert_eq!(read(b"", Some("a.vscsi.zst"), None).unwrap(), []);
    assert_eq!(read(b"", None, Some(Format::Alibaba)).unwrap(), []);
    for f in Format::ALL {
        assert_eq!(f.name().parse::<Format>(), Ok(f));
    }
    let e = "spc".parse::<Format>().unwrap_err().to_string();
    assert!(e.contains("\"spc\"") && e.contains("mqsim"), "{e}");
}
