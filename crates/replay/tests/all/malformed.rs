//! Malformed and truncated inputs: the error names line, field and value.

use rackweave_replay::trace::{Fault, Format, LINE_MAX, Place, TraceError, TraceReader};

use crate::{own, read, vscsi, vscsi2};

/// Reads `text` as `format`: the first error must be in `line` at `field`, about `value`.
#[track_caller]
fn wrong(format: Format, text: &str, line: u64, field: &str, value: &str, fault: Fault) {
    match read(text.as_bytes(), None, Some(format)) {
        Err(TraceError::Field { at, error }) => {
            assert_eq!(
                (at, error.field, &*error.value, error.fault),
                (Place::Line(line), field, value, fault),
                "{text:?}"
            );
        }
        other => panic!("{text:?} read as {format}: {other:?}"),
    }
}

#[test]
fn mqsim() {
    let f = Format::Mqsim;
    let good = "1 0 8 8 1\n";
    wrong(f, &format!("{good}x 0 8 8 1"), 2, "time", "x", Fault::NotANumber);
    wrong(f, &format!("{good}-1 0 8 8 1"), 2, "time", "-1", Fault::NotANumber);
    wrong(f, "1 4294967296 8 8 1", 1, "device", "4294967296", Fault::TooLarge);
    wrong(f, "1 0 36028797018963968 8 1", 1, "first sector", "36028797018963968", Fault::TooLarge);
    wrong(f, "1 0 8 0 1", 1, "sectors", "0", Fault::Zero);
    wrong(f, "1 0 36028797018963967 36028797018963967 1", 1, "sectors", "18446744073709551104", Fault::TooLarge);
    wrong(f, "1 0 8 8 2", 1, "op", "2", Fault::UnknownOp);
    wrong(f, &format!("{good}\n{good}1 0 8 8"), 4, "op", "", Fault::Missing);
    wrong(f, "1 0 8", 1, "sectors", "", Fault::Missing);
    wrong(f, "1 0 8 8 1 9", 1, "end of line", "9", Fault::Surplus);
    wrong(f, "99999999999999999999 0 8 8 1", 1, "time", "99999999999999999999", Fault::NotANumber);
}

#[test]
fn msr() {
    let f = Format::Msr;
    wrong(f, "184467440737095517,hm,0,Read,0,512,1", 1, "Timestamp", "184467440737095517", Fault::TooLarge);
    wrong(f, "1,,0,Read,0,512,1", 1, "Hostname", "", Fault::Missing);
    wrong(f, "1,hm,a,Read,0,512,1", 1, "DiskNumber", "a", Fault::NotANumber);
    wrong(f, "1,hm,0,Erase,0,512,1", 1, "Type", "Erase", Fault::UnknownOp);
    wrong(f, "1,hm,0,Read,0x10,512,1", 1, "Offset", "0x10", Fault::NotANumber);
    wrong(f, "1,hm,0,Read,0,0,1", 1, "Size", "0", Fault::Zero);
    wrong(f, "1,hm,0,Read,18446744073709551615,512,1", 1, "Size", "512", Fault::TooLarge);
    wrong(f, "1,hm,0,Read,0,512,1\n1,hm,0,Read,0,512", 2, "ResponseTime", "", Fault::Missing);
    wrong(f, "1,hm,0,Read,0,512,1,", 1, "end of line", "", Fault::Surplus);
}

#[test]
fn alibaba() {
    let f = Format::Alibaba;
    wrong(f, "a,R,0,512,1", 1, "device_id", "a", Fault::NotANumber);
    wrong(f, "1,r,0,512,1", 1, "opcode", "r", Fault::UnknownOp);
    wrong(f, "1,R,,512,1", 1, "offset", "", Fault::Missing);
    wrong(f, "1,R,0,0,1", 1, "length", "0", Fault::Zero);
    wrong(f, "1,R,0,512,1\n1,R,0,512,1.5", 2, "timestamp", "1.5", Fault::NotANumber);
    wrong(f, "1,R,0,512,18446744073709552", 1, "timestamp", "18446744073709552", Fault::TooLarge);
}

#[test]
fn iolog() {
    let f = Format::Iolog;
    let v2 = "fio version 2 iolog\n";
    let v3 = "fio version 3 iolog\n";
    wrong(f, &format!("{v2}/dev/a erase 0 512"), 2, "action", "erase", Fault::UnknownOp);
    wrong(f, &format!("{v2}/dev/a"), 2, "action", "", Fault::Missing);
    wrong(f, &format!("{v2}/dev/a read"), 2, "offset", "", Fault::Missing);
    wrong(f, &format!("{v2}/dev/a read 0"), 2, "length", "", Fault::Missing);
    wrong(f, &format!("{v2}/dev/a add 0"), 2, "end of line", "0", Fault::Surplus);
    wrong(f, &format!("{v3}/dev/a read 0 512"), 2, "timestamp", "/dev/a", Fault::NotANumber);
    wrong(f, &format!("{v3}1 /dev/a wait 0 512"), 2, "action", "wait", Fault::UnknownOp);
    wrong(f, &format!("{v3}1 /dev/a read 0 0"), 2, "length", "0", Fault::Zero);
    let e = read(b"fio version 1 iolog\n", None, None).unwrap_err().to_string();
    assert!(e.contains("line 1") && e.contains("version 1"), "{e}");
}

#[test]
fn opencas() {
    let f = Format::OpenCas;
    let head = "t_ns,dev,op(R/W/D),lba_512,len_512,flush,fua,metadata,direct,readahead,latency_ns\n";
    wrong(f, &format!("{head}0,0,X,0,8,0,0,0,0,0,1"), 2, "op", "X", Fault::UnknownOp);
    wrong(f, &format!("{head}0,0,W,0,0,0,0,0,0,0,1"), 2, "len_512", "0", Fault::Zero);
    wrong(f, &format!("{head}0,0,W,0,8,2,0,0,0,0,1"), 2, "flush", "2", Fault::NotAFlag);
    wrong(f, &format!("{head}0,0,W,0,8,0,0,0,0,0"), 2, "latency_ns", "", Fault::Missing);
    let e = read(b"t_ns,dev,op,lba\n0,0,W,0", None, None).unwrap_err();
    assert!(matches!(e, TraceError::Header { format: Format::OpenCas, .. }), "{e}");
}

#[test]
fn vscsi_records() {
    type Write = fn(u32, u16, u16, u64, u64) -> Vec<u8>;
    for (write, own, other, size) in [(vscsi as Write, 0x100, 0x200, 32), (vscsi2, 0x200, 0x100, 40)] {
        let good = write(512, 0x2a, own, 1, 1);
        let second = |bytes: Vec<u8>| read(&[good.clone(), bytes].concat(), None, Some(Format::Vscsi)).unwrap_err();
        for (bytes, field, value, fault) in [
            (write(512, 0x12, own, 1, 1), "command", "0x12", Fault::UnknownOp),
            (write(512, 0x2a, other, 1, 1), "version", &*format!("{other:#x}"), Fault::UnknownVersion),
            (write(0, 0x2a, own, 1, 1), "length", "0", Fault::Zero),
            (write(512, 0x2a, own, u64::MAX, 1), "block", "18446744073709551615", Fault::TooLarge),
            (write(512, 0x2a, own, 1, u64::MAX), "time", "18446744073709551615", Fault::TooLarge),
        ] {
            match second(bytes) {
                TraceError::Field { at: Place::Record { record: 2, offset }, error } => {
                    assert_eq!(offset, size);
                    assert_eq!((error.field, &*error.value, error.fault), (field, value, fault));
                }
                other => panic!("{field}: {other:?}"),
            }
        }
        let e = second(good[..31].to_vec());
        assert_eq!(e.to_string(), format!("record 2 at byte {size}: the file ends after 31 of {size} bytes"));
    }
    let damaged = read(&vscsi2(512, 0x12, 0x200, 1, 1), None, Some(Format::Vscsi)).unwrap_err().to_string();
    assert!(damaged.contains("record 1") && damaged.contains("command") && damaged.contains("0x12"), "{damaged}");
}

#[test]
fn errors_name_the_line_and_end_the_trace() {
    let mut r =
        TraceReader::new(std::io::Cursor::new(b"1 0 8 8 1\n1 0 8 zap 1\n1 0 8 8 1\n".to_vec()), None, None).unwrap();
    assert!(r.next().unwrap().is_ok());
    let e = r.next().unwrap().unwrap_err().to_string();
    assert_eq!(e, "line 2: sectors \"zap\": is not a whole number of at most 64 bits");
    assert!(r.next().is_none());
}

#[test]
fn unknown_formats_and_files() {
    let e = read(b"hello world\n", None, None).unwrap_err().to_string();
    assert!(e.contains("hello world") && e.contains("vscsi"), "{e}");
    assert!(matches!(read(&[0xff; 100], None, None), Err(TraceError::UnknownFormat { .. })));
    assert!(matches!(read(b"", Some("x.csv"), None), Err(TraceError::UnknownFormat { .. })));
    let e = TraceReader::open(&own("no-such.trace"), None).unwrap_err();
    assert!(matches!(e, TraceError::Open { .. }) && e.to_string().contains("no-such.trace"), "{e}");
    let e = TraceReader::open(&own(""), None).unwrap_err();
    assert!(matches!(e, TraceError::Read { .. } | TraceError::Open { .. }), "{e}");
}

#[test]
fn a_line_without_end_is_bounded() {
    let mut text = b"1 0 8 8 1\n".to_vec();
    text.extend(std::iter::repeat_n(b'7', 10 * LINE_MAX));
    let e = read(&text, None, None).unwrap_err();
    assert!(matches!(e, TraceError::LineTooLong { line: 2 }), "{e}");
}

#[test]
fn a_damaged_or_truncated_zstd_stream_is_an_error_after_what_came() {
    let plain = std::fs::read(own("tpcc-head.trace")).unwrap();
    let packed = zstd::encode_all(plain.as_slice(), 1).unwrap();
    for cut in [5, packed.len() / 2, packed.len() - 1] {
        let e = read(&packed[..cut], Some("x.trace"), None).unwrap_err();
        assert!(matches!(e, TraceError::Read { .. }), "cut at {cut}: {e}");
    }
}
