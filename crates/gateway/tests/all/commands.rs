//! Every command and its replies, as bytes.

use bytes::{BufMut, Bytes};
use rackweave_core::VolumeId;
use rackweave_core::request::{Op, Reply};
use rackweave_core::volume;
use rackweave_gateway::Gateway;
use rackweave_gateway::nbd::{BYTES_MAX, CloseReason, IN_FLIGHT_MAX};

use crate::client::{Memory, SIZE, chunk, command, drain, error_chunk, next, serving, serving_simply, simple, talk};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ESHUTDOWN: u32 = 108;

fn write(flags: u16, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [&command(flags, WRITE, cookie, offset, data.len() as u32)[..], data].concat()
}

#[test]
fn write_then_read_both_ways() {
    let mut m = Memory::default();
    let (mut s, mut plain) = (serving(&mut m), serving_simply(&mut m));
    let data = [7u8; 1024];
    assert_eq!(talk(&mut s, &mut m, &write(0, 0xabcd, 512, &data)), simple(0xabcd, 0));
    let mut body = 512u64.to_be_bytes().to_vec();
    body.extend(data);
    assert_eq!(talk(&mut s, &mut m, &command(0, READ, 1, 512, 1024)), chunk(1, 1, &body));
    assert_eq!(talk(&mut s, &mut m, &command(4, READ, 1, 512, 1024)), chunk(1, 1, &body), "with DF, one chunk as well");
    let plain_reply = [simple(2, 0), data.to_vec()].concat();
    assert_eq!(talk(&mut plain, &mut m, &command(0, READ, 2, 512, 1024)), plain_reply);
}

#[test]
fn a_hole_is_a_hole_chunk_or_zeroes() {
    let mut m = Memory::default();
    let (mut s, mut plain) = (serving(&mut m), serving_simply(&mut m));
    let mut body = 4096u64.to_be_bytes().to_vec();
    body.put_u32(8192);
    assert_eq!(talk(&mut s, &mut m, &command(0, READ, 1, 4096, 8192)), chunk(2, 1, &body));
    let out = talk(&mut plain, &mut m, &command(0, READ, 1, 0, SIZE as u32));
    assert_eq!(out, [simple(1, 0), vec![0; SIZE as usize]].concat());
}

#[test]
fn flush_fua_trim_and_zeroes() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    talk(&mut s, &mut m, &write(1, 1, 0, &[1; 65_536]));
    assert_eq!(m.fuas, 1);
    assert_eq!(talk(&mut s, &mut m, &command(0, FLUSH, 2, 0, 0)), simple(2, 0));
    assert_eq!(talk(&mut s, &mut m, &command(1, FLUSH, 2, 0, 0)), simple(2, 0));
    assert_eq!(m.flushes, 2);
    assert_eq!(talk(&mut s, &mut m, &command(1, TRIM, 3, 4096, 4096)), simple(3, 0));
    assert_eq!(talk(&mut s, &mut m, &command(0, ZEROES, 4, 8192, 4096)), simple(4, 0));
    assert_eq!(talk(&mut s, &mut m, &command(3, ZEROES, 5, 16_384, 4096)), simple(5, 0));
    assert_eq!(m.fuas, 3);
    let mut body = vec![0, 0, 0, 1];
    for (len, flags) in [(4096, 0), (8192, 3), (65_536 - 12_288, 0), (4096, 3)] {
        body.put_u32(len);
        body.put_u32(flags);
    }
    assert_eq!(talk(&mut s, &mut m, &command(0, STATUS, 6, 0, 65_536 + 4096)), chunk(5, 6, &body));
    assert_eq!(talk(&mut s, &mut m, &command(8, STATUS, 7, 0, 65_536)), chunk(5, 7, &body[..12]));
}

#[test]
fn an_extent_past_the_range_is_cut_to_it() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    s.input(command(0, STATUS, 1, 512, 1024).into());
    let id = next(&mut s).unwrap().id;
    let extents = vec![rackweave_core::volume::Extent { len: u64::MAX, mapped: true }];
    s.reply(Reply::new(id, Ok(volume::Reply::Extents(extents))).into());
    assert_eq!(drain(&mut s), chunk(5, 1, &[0, 0, 0, 1, 0, 0, 4, 0, 0, 0, 0, 0]));
}

#[test]
fn what_is_refused_and_how() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    let end = SIZE;
    let cases = [
        (0, READ, end, 512, EINVAL),
        (0, READ, end - 512, 1024, EINVAL),
        (0, READ, u64::MAX - 511, 512, EINVAL),
        (0, READ, 0, 100, EINVAL),
        (0, READ, 100, 512, EINVAL),
        (0, READ, 0, 0, EINVAL),
        (0, READ, 0, (32 << 20) + 512, EINVAL),
        (2, READ, 0, 512, EINVAL),
        (16, READ, 0, 512, EINVAL),
        (0, FLUSH, 512, 0, EINVAL),
        (0, FLUSH, 0, 512, EINVAL),
        (4, FLUSH, 0, 0, EINVAL),
        (0, TRIM, 1, 4096, EINVAL),
        (0, TRIM, end, 4096, EINVAL),
        (0, TRIM, 0, 0, EINVAL),
        (2, TRIM, 0, 512, EINVAL),
        (0, ZEROES, end, 4096, ENOSPC),
        (16, ZEROES, 0, 4096, EINVAL), // FAST_ZERO is not offered
        (0, STATUS, end, 512, EINVAL),
        (0, STATUS, 0, 0, EINVAL),
        (0, 5, 0, 512, EINVAL), // CACHE is not offered
        (0, 8, 0, 512, EINVAL),
        (0, 0xffff, 0, 512, EINVAL),
        (0x8000, ZEROES, 0, 512, EINVAL),
    ];
    for (flags, kind, offset, len, error) in cases {
        let out = talk(&mut s, &mut m, &command(flags, kind, 9, offset, len));
        let chunked = matches!(kind, READ | STATUS);
        let want = if chunked { error_chunk(9, error) } else { simple(9, error) };
        assert_eq!(out, want, "flags {flags} command {kind} at {offset}+{len}");
    }
    assert!(s.closed().is_none());
}

#[test]
fn a_refused_write_s_payload_is_passed_over() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    let after = command(0, FLUSH, 77, 0, 0);
    for (flags, offset, len, error) in [
        (0, SIZE, 512, ENOSPC),
        (0, SIZE - 512, 1024, ENOSPC),
        (0, 1, 512, EINVAL),
        (0, 0, 100, EINVAL),
        (8, 0, 512, EINVAL),
        (0, 0, (32 << 20) + 512, EINVAL),
    ] {
        let mut input = command(flags, WRITE, 5, offset, len);
        // The payload looks like commands; the session must not parse it as commands.
        input
            .extend(std::iter::repeat_n(command(0, DISC, 0, 0, 0), len as usize / 28 + 1).flatten().take(len as usize));
        input.extend(&after);
        assert_eq!(talk(&mut s, &mut m, &input), [simple(5, error), simple(77, 0)].concat());
    }
    let empty = [command(0, WRITE, 5, 0, 0), after].concat();
    assert_eq!(talk(&mut s, &mut m, &empty), [simple(5, EINVAL), simple(77, 0)].concat());
    assert!(m.bytes.iter().all(|&b| b == 0));
}

#[test]
fn status_needs_its_context_and_df_needs_structured_replies() {
    let mut m = Memory::default();
    let mut s = serving_simply(&mut m);
    assert_eq!(talk(&mut s, &mut m, &command(0, STATUS, 1, 0, 4096)), simple(1, EINVAL));
    assert_eq!(talk(&mut s, &mut m, &command(4, READ, 1, 0, 4096)), simple(1, EINVAL));
}

#[test]
fn errors_of_the_rack_have_their_numbers() {
    let volume = VolumeId(1);
    let cases = [
        (volume::Error::NoSpace, ENOSPC, EIO),
        (volume::Error::Io, EIO, EIO),
        (volume::Error::Corrupt, EIO, EIO),
        (volume::Error::Lost { volume }, EIO, EIO),
        (volume::Error::TimedOut { waited: Default::default() }, EIO, EIO),
        (volume::Error::Busy { limit: 1 }, 12, 12),
        (volume::Error::NotAttached { volume }, ESHUTDOWN, ESHUTDOWN),
        (volume::Error::OutOfRange { offset: 0, len: 1, size: 0 }, ENOSPC, EINVAL),
        (volume::Error::Unaligned { offset: 1, len: 1 }, EINVAL, EINVAL),
    ];
    for (e, on_write, on_read) in cases {
        let mut m = Memory::default();
        let mut s = serving(&mut m);
        m.error = Some(e.clone());
        assert_eq!(talk(&mut s, &mut m, &write(0, 1, 0, &[1; 512])), simple(1, on_write), "{e}");
        if e != volume::Error::NoSpace {
            assert_eq!(talk(&mut s, &mut m, &command(0, READ, 1, 0, 512)), error_chunk(1, on_read), "{e}");
        }
    }
}

#[test]
fn a_fenced_session_never_writes_again() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    m.error = Some(volume::Error::Fenced { volume: VolumeId(1), attach: 1 });
    assert_eq!(talk(&mut s, &mut m, &write(0, 1, 0, &[1; 512])), simple(1, ESHUTDOWN));
    m.error = None; // another connection has attached the volume
    assert_eq!(talk(&mut s, &mut m, &write(0, 1, 0, &[1; 512])), simple(1, ESHUTDOWN));
    assert_eq!(talk(&mut s, &mut m, &command(0, TRIM, 1, 0, 4096)), simple(1, ESHUTDOWN));
    assert_eq!(talk(&mut s, &mut m, &command(0, READ, 1, 0, 512)).len(), 32, "reads still succeed");
    assert!(m.bytes.iter().all(|&b| b == 0));
}

#[test]
fn replies_come_in_the_order_the_rack_answers() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    s.input([command(0, FLUSH, 1, 0, 0), command(0, TRIM, 2, 0, 4096), command(0, FLUSH, 3, 0, 0)].concat().into());
    let mut asked: Vec<_> = std::iter::from_fn(|| next(&mut s)).collect();
    assert_eq!(s.in_flight(), 3);
    asked.rotate_left(1);
    asked.into_iter().for_each(|r| s.reply(m.answer(r).into()));
    assert_eq!(drain(&mut s), [simple(2, 0), simple(3, 0), simple(1, 0)].concat());
}

#[test]
fn goodbye_lets_what_is_under_way_finish() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    s.input([write(0, 1, 0, &[5; 512]), command(0, DISC, 2, 0, 0), command(0, FLUSH, 3, 0, 0)].concat().into());
    assert_eq!(s.closed(), Some(&CloseReason::Disconnect));
    assert!(!s.finished());
    let r = next(&mut s).unwrap();
    assert!(next(&mut s).is_none());
    s.reply(m.answer(r).into());
    assert!(!s.finished());
    assert_eq!(drain(&mut s), simple(1, 0));
    assert!(s.finished());
}

#[test]
fn a_wrong_magic_closes() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    assert_eq!(talk(&mut s, &mut m, &[9; 28]), b"");
    assert_eq!(s.closed(), Some(&CloseReason::RequestMagic { magic: 0x0909_0909 }));
}

#[test]
fn commands_in_flight_are_bounded() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    let n = IN_FLIGHT_MAX * 3;
    s.input((0..n as u64).flat_map(|i| command(0, FLUSH, i, 0, 0)).collect::<Vec<u8>>().into());
    let mut asked = Vec::new();
    let mut answered = 0;
    while answered < n {
        asked.extend(std::iter::from_fn(|| next(&mut s)));
        assert!(asked.len() <= IN_FLIGHT_MAX && s.in_flight() == asked.len());
        assert_eq!(s.wants_input(), asked.len() < IN_FLIGHT_MAX);
        let r = asked.remove(answered % asked.len());
        s.reply(m.answer(r).into());
        answered += 1;
    }
    assert_eq!(drain(&mut s).len(), 16 * n);
    assert!(s.wants_input());
}

#[test]
fn a_command_that_does_not_fit_waits_for_room() {
    let mut m = Memory::default();
    let mut s = serving_simply(&mut m);
    let room = 300_000;
    s.set_limit(room);
    s.input(command(0, READ, 1, 0, 200_000 / 512 * 512).into());
    let first = next(&mut s).expect("it fits");
    s.input(command(0, WRITE, 2, 0, 131_072).into());
    assert!(!s.wants_input() && s.held() <= room, "a payload is not read before it fits the limit");
    let needs = s.needs().expect("it waits");
    assert!(needs > room && needs < 400_000, "{needs}");
    s.set_limit(needs - 1);
    assert!(!s.wants_input());
    s.set_limit(needs);
    assert!(s.wants_input() && s.needs().is_none() && s.held() == needs);
    s.reply(m.answer(first).into());
    assert!(s.waits_for_client());
    // The payload arrives in small pieces, with the next command behind it.
    let mut rest = vec![9; 131_072];
    rest.extend(command(0, READ, 3, 0, 512));
    for part in rest.chunks(777) {
        s.input(bytes::Bytes::copy_from_slice(part));
    }
    let write = next(&mut s).expect("whole");
    s.reply(m.answer(write).into());
    drain(&mut s);
    let read = next(&mut s).expect("room again");
    s.reply(m.answer(read).into());
    let got = drain(&mut s);
    assert!(got[16..] == [9; 512] && s.held() == 0, "{} held", s.held());
}

#[test]
fn a_client_that_does_not_read_is_not_read() {
    let mut m = Memory::default();
    let mut s = serving_simply(&mut m);
    let reads: Vec<u8> = (0..200).flat_map(|i| command(0, READ, i, 0, SIZE as u32)).collect();
    s.input(reads.into());
    while let Some(r) = next(&mut s) {
        s.reply(m.answer(r).into());
        assert!(s.output_len() <= BYTES_MAX + 2 * SIZE as usize);
    }
    assert!(!s.wants_input());
    let mut total = 0;
    while s.output_len() > 0 {
        let part = s.output_len().min(100_000);
        s.written(part);
        total += part;
        while let Some(r) = next(&mut s) {
            s.reply(m.answer(r).into());
        }
    }
    assert_eq!(total, 200 * (16 + SIZE as usize));
    assert!(s.wants_input());
}

#[test]
fn payloads_are_neither_copied_in_nor_out() {
    let mut m = Memory::default();
    let mut s = serving(&mut m);
    let input = Bytes::from(write(0, 1, 0, &[3; 65_536]));
    let at = input[28..].as_ptr();
    s.input(input);
    let r = next(&mut s).unwrap();
    let Op::Volume(volume::Op::Write { data, .. }) = r.op else { panic!() };
    let b = data.to_bytes();
    assert_eq!(b.as_ptr(), at);
    s.reply(Reply::new(r.id, Ok(volume::Reply::Done)).into());
    drain(&mut s);
    s.input(command(0, READ, 2, 0, 65_536).into());
    let r = next(&mut s).unwrap();
    s.reply(Reply::new(r.id, Ok(volume::Reply::Data(rackweave_core::Payload::Bytes(b.clone())))).into());
    assert!(s.output().any(|c| c.as_ptr() == at && c.len() == 65_536));
}

/// Memory with a reference count, which shows whether a slice of it is still held.
struct Piece {
    bytes: Vec<u8>,
    _alive: std::sync::Arc<()>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The slices of an incomplete payload share larger buffers: the session keeps none of these in memory.
#[test]
fn an_unfinished_payload_keeps_only_its_own_memory() {
    let mut m = Memory::default();
    let mut s = serving_simply(&mut m);
    let (alive, payload) = (std::sync::Arc::new(()), vec![5; 512 << 10]);
    let slice = |bytes: &[u8]| {
        let mut piece = bytes.to_vec();
        piece.resize(256 << 10, 0);
        Bytes::from_owner(Piece { bytes: piece, _alive: alive.clone() }).slice(..bytes.len())
    };
    s.input(command(0, WRITE, 1, 0, payload.len() as u32).into());
    let (most, last) = payload.split_at(payload.len() - 1);
    for part in most.chunks(40_000) {
        s.input(slice(part));
        assert_eq!(std::sync::Arc::strong_count(&alive), 1, "a buffer is kept");
    }
    assert!(next(&mut s).is_none());
    let behind = [last, &command(0, READ, 2, 512, 512)].concat();
    s.input(slice(&behind));
    let write = next(&mut s).expect("whole");
    assert!(matches!(&write.op, Op::Volume(volume::Op::Write { data, .. }) if *data.to_bytes() == payload[..]));
    s.reply(m.answer(write).into());
    let read = next(&mut s).expect("the next command");
    s.reply(m.answer(read).into());
    assert_eq!(drain(&mut s)[32..], [5; 512]);
}
