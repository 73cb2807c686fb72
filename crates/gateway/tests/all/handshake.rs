//! Option negotiation, as bytes.

use bytes::{BufMut, Bytes};
use rackweave_core::request::Reply;
use rackweave_core::volume;
use rackweave_gateway::Gateway;
use rackweave_gateway::nbd::{CloseReason, OPTION_MAX, OPTIONS_MAX, Session};

use crate::client::{
    Memory, SESSION, SIZE, context, drain, export, greeted, next, option, option_reply, talk, volume as volume_info,
};

const ERR: u32 = 1 << 31;

/// Flags with and without structured replies.
const FLAGS: [u16; 2] = [0b1_0110_1101, 0b1_1110_1101];

fn info_replies(opt: u32, structured: bool) -> Vec<u8> {
    let mut b = vec![0, 0];
    b.put_u64(SIZE);
    b.put_u16(FLAGS[usize::from(structured)]);
    let mut out = option_reply(opt, 3, &b);
    let sizes = [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0];
    out.extend(option_reply(opt, 3, &sizes));
    out.extend(option_reply(opt, 1, b""));
    out
}

#[test]
fn greeting() {
    let mut s = Session::new(SESSION);
    assert_eq!(drain(&mut s), b"NBDMAGICIHAVEOPT\0\x03");
    assert!(s.wants_input() && !s.handshake_done() && s.closed().is_none());
}

#[test]
fn a_whole_handshake() {
    let (mut s, mut m) = (greeted(), Memory::default());
    assert_eq!(talk(&mut s, &mut m, &option(8, b"")), option_reply(8, 1, b""));
    assert_eq!(
        talk(&mut s, &mut m, &option(3, b"")),
        [option_reply(3, 2, b"\0\0\0\x03vm0"), option_reply(3, 2, b"\0\0\0\x03vm1"), option_reply(3, 1, b"")].concat()
    );
    assert_eq!(talk(&mut s, &mut m, &option(6, &export("vm0", &[]))), info_replies(6, true));
    assert!(!s.handshake_done(), "INFO does not end the handshake");
    let listed = [option_reply(9, 4, b"\0\0\0\0base:allocation"), option_reply(9, 1, b"")].concat();
    assert_eq!(talk(&mut s, &mut m, &option(9, &context("vm0", &[]))), listed);
    assert_eq!(talk(&mut s, &mut m, &option(9, &context("vm0", &["base:", "qemu:x"]))), listed);
    let chosen = [option_reply(10, 4, b"\0\0\0\x01base:allocation"), option_reply(10, 1, b"")].concat();
    assert_eq!(talk(&mut s, &mut m, &option(10, &context("vm0", &["base:allocation", "x:y"]))), chosen);
    assert_eq!(talk(&mut s, &mut m, &option(7, &export("vm0", &[3]))), info_replies(7, true));
    assert!(s.handshake_done());
    assert_eq!(s.volume(), Some(volume_info("vm0").id));
}

#[test]
fn the_name_is_repeated_on_request() {
    let (mut s, mut m) = (greeted(), Memory::default());
    let out = talk(&mut s, &mut m, &option(6, &export("vm1", &[1, 3])));
    let name = option_reply(6, 3, b"\0\x01vm1");
    assert!(out.windows(name.len()).any(|w| w == name));
}

/// The protocol's strings have at most 4,096 bytes, and the text of a refusal names the export.
#[test]
fn the_refusal_of_the_longest_name_is_no_longer_than_a_string() {
    let (mut s, mut m) = (greeted(), Memory::default());
    let name = "é".repeat(2048);
    let out = talk(&mut s, &mut m, &option(7, &export(&name, &[])));
    let text = std::str::from_utf8(&out[20..]).expect("whole characters");
    assert!(text.len() <= 4096 && text.contains('é'), "{} bytes", text.len());
    assert_eq!(out, option_reply(7, 0x8000_0006, text.as_bytes()));
}

#[test]
fn export_name_with_and_without_padding() {
    for (flags, pad) in [(1u8, 124), (3, 0)] {
        let (mut s, mut m) = (Session::new(SESSION), Memory::default());
        drain(&mut s);
        s.input(Bytes::copy_from_slice(&[0, 0, 0, flags]));
        let mut want = SIZE.to_be_bytes().to_vec();
        want.put_u16(FLAGS[0]);
        want.put_bytes(0, pad);
        assert_eq!(talk(&mut s, &mut m, &option(1, b"vm0")), want);
        assert!(s.handshake_done());
    }
}

#[test]
fn export_name_cannot_refuse_so_it_closes() {
    for name in [&b"nope"[..], b"", b"\xff\xfe"] {
        let (mut s, mut m) = (greeted(), Memory::default());
        assert_eq!(talk(&mut s, &mut m, &option(1, name)), b"");
        assert!(matches!(s.closed(), Some(CloseReason::Export { .. })), "{:?}", s.closed());
        assert!(s.finished());
    }
}

#[test]
fn abort_is_acknowledged() {
    let (mut s, mut m) = (greeted(), Memory::default());
    s.input(option(2, b"").into());
    assert!(!s.finished(), "the acknowledgement is not written yet");
    assert_eq!(talk(&mut s, &mut m, b"more"), option_reply(2, 1, b""));
    assert_eq!(s.closed(), Some(&CloseReason::Abort));
    assert!(s.finished() && !s.wants_input());
}

/// The kind of the reply; the session stays open.
fn refusal(s: &mut Session, m: &mut Memory, number: u32, data: &[u8]) -> u32 {
    let out = talk(s, m, &option(number, data));
    assert_eq!(out[..12], option_reply(number, 0, b"")[..12]);
    let len = u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize;
    assert_eq!(out.len(), 20 + len, "one reply");
    assert!(std::str::from_utf8(&out[20..]).is_ok());
    assert!(s.closed().is_none() && s.wants_input() && !s.handshake_done());
    u32::from_be_bytes(out[12..16].try_into().unwrap())
}

#[test]
fn every_refusal_keeps_the_session() {
    let (mut s, mut m) = (greeted(), Memory::default());
    let go = export("vm0", &[]);
    let mut expect = |number, data: &[u8], kind: u32| {
        assert_eq!(refusal(&mut s, &mut m, number, data), ERR + kind, "option {number} {data:?}");
    };
    expect(5, b"", 2);
    for unknown in [0, 4, 11, 99, u32::MAX] {
        expect(unknown, b"", 1);
        expect(unknown, b"data", 1);
    }
    expect(3, b"junk", 3);
    expect(8, b"junk", 3);
    for option in [6, 7] {
        expect(option, b"", 3);
        expect(option, b"\0\0", 3);
        expect(option, b"\0\0\0\xffvm0\0\0", 3);
        expect(option, b"\xff\xff\xff\xffvm0\0\0", 3);
        expect(option, b"\0\0\0\x03vm0\0", 3);
        expect(option, b"\0\0\0\x03vm0\0\x02\0\0", 3);
        expect(option, b"\0\0\0\x03\xff\xfe\xfd\0\0", 3);
        expect(option, &[&go[..], b"x"].concat(), 3);
        expect(option, &export("nope", &[]), 6);
        expect(option, &export("", &[]), 6);
        expect(option, &export(&"n".repeat(4097), &[]), 3);
    }
    for option in [9, 10] {
        expect(option, &context("vm0", &["base:allocation"]), 3); // structured replies come first
    }
    assert_eq!(talk(&mut s, &mut m, &option(8, b"")), option_reply(8, 1, b""));
    let mut expect = |number, data: &[u8], kind: u32| {
        assert_eq!(refusal(&mut s, &mut m, number, data), ERR + kind, "option {number} {data:?}");
    };
    for option in [9, 10] {
        expect(option, b"", 3);
        expect(option, b"\0\0\0\x03vm0", 3);
        expect(option, b"\0\0\0\x03vm0\0\0\0\x01", 3);
        expect(option, b"\0\0\0\x03vm0\xff\xff\xff\xff", 3);
        expect(option, b"\0\0\0\x03vm0\0\0\0\x01\0\0\0\x09base:", 3);
        expect(option, &[&context("vm0", &["base:"])[..], b"x"].concat(), 3);
        expect(option, &context("nope", &[]), 6);
    }
    expect(3, &vec![0; OPTION_MAX as usize + 1], 9);
    expect(77, &vec![0; 3 << 20], 9);
}

#[test]
fn a_failed_or_foreign_choice_of_contexts_counts_for_nothing() {
    let status = crate::client::command(0, 7, 1, 0, 4096);
    let refused = crate::client::error_chunk(1, 22);
    for spoil in [option(10, b""), option(10, &context("vm0", &[])), option(10, &context("vm1", &["base:allocation"]))]
    {
        let (mut s, mut m) = (greeted(), Memory::default());
        talk(&mut s, &mut m, &option(8, b""));
        talk(&mut s, &mut m, &option(10, &context("vm0", &["base:allocation"])));
        talk(&mut s, &mut m, &spoil);
        talk(&mut s, &mut m, &option(7, &export("vm0", &[])));
        assert_eq!(talk(&mut s, &mut m, &status), refused);
    }
}

#[test]
fn nothing_is_parsed_while_a_request_to_the_rack_is_pending() {
    let (mut s, mut m) = (greeted(), Memory::default());
    s.input([option(6, &export("vm0", &[])), option(99, b"")].concat().into());
    assert!(!s.wants_input());
    assert_eq!(s.output_len(), 0);
    let r = next(&mut s).unwrap();
    assert!(next(&mut s).is_none());
    s.reply(m.answer(r).into());
    assert!(s.wants_input());
    let out = drain(&mut s);
    assert!(out.starts_with(&info_replies(6, false)));
    assert_eq!(out[info_replies(6, false).len()..][8..16], [0, 0, 0, 99, 0x80, 0, 0, 1]);
}

#[test]
fn other_troubles_of_the_rack_are_policy() {
    let mut s = greeted();
    s.input(option(7, &export("vm0", &[])).into());
    let id = next(&mut s).unwrap().id;
    s.reply(Reply::new(id, Err(volume::Error::Busy { limit: 9 })).into());
    let out = drain(&mut s);
    assert_eq!(out[12..16], (ERR + 2).to_be_bytes());
    assert!(s.closed().is_none());
    s.reply(Reply::new(id, Err(volume::Error::Io)).into());
    assert_eq!(drain(&mut s), b"", "an unsolicited answer is dropped");
}

#[test]
fn garbage_closes_with_a_reason() {
    let with = |bytes: &[u8]| {
        let mut s = Session::new(SESSION);
        s.input(Bytes::copy_from_slice(bytes));
        drain(&mut s);
        assert!(s.finished() && !s.wants_input());
        s.closed().cloned().unwrap()
    };
    assert_eq!(with(&[0xff; 4]), CloseReason::ClientFlags { flags: u32::MAX });
    assert_eq!(with(b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n"), CloseReason::OptionMagic { magic: 0x4745_5420_2f20_4854 });
    assert_eq!(with(&[b"\0\0\0\x02", &option(3, b"")[..]].concat()), CloseReason::NotFixed { option: 3 });
    let long = |option: u32, len: u32| {
        let mut b = b"\0\0\0\x03IHAVEOPT".to_vec();
        b.put_u32(option);
        b.put_u32(len);
        b
    };
    assert_eq!(with(&long(3, u32::MAX)), CloseReason::OptionLength { option: 3, len: u32::MAX });
    assert_eq!(with(&long(1, 20_000)), CloseReason::OptionLength { option: 1, len: 20_000 });
    let mut many = b"\0\0\0\x03".to_vec();
    (0..=OPTIONS_MAX).for_each(|_| many.extend(option(99, b"")));
    assert_eq!(with(&many), CloseReason::TooManyOptions);
}

#[test]
fn eof_in_the_middle_of_anything_closes() {
    let mut s = greeted();
    s.input(Bytes::from_static(b"IHAVE"));
    s.input_eof();
    assert_eq!(s.closed(), Some(&CloseReason::Eof));
    assert!(s.finished());
}
