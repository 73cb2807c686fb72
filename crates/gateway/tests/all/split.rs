//! The same bytes give the same answers in whatever pieces they arrive, and a volume keeps the written data.

use bytes::Bytes;
use proptest::prelude::*;
use rackweave_core::Rng;
use rackweave_gateway::Gateway;
use rackweave_gateway::nbd::Session;

use crate::client::{Memory, SESSION, SIZE, command, context, drain, export, option, serving, simple, talk};

/// A whole session, with every kind of command.
fn script(rng: &mut Rng) -> Vec<u8> {
    let mut b = vec![0, 0, 0, 3];
    b.extend(option(99, b"what"));
    b.extend(option(3, b""));
    b.extend(option(8, b""));
    b.extend(option(10, &context("vm0", &["base:allocation"])));
    b.extend(option(5, &vec![1; 20_000]));
    b.extend(option(7, &export("vm0", &[1, 3])));
    for cookie in 0..rng.between(1, 40) {
        let offset = rng.below(SIZE / 512) * 512;
        let len = (rng.between(1, 64) * 512) as u32;
        let kind = *rng.pick(&[0u16, 0, 1, 1, 1, 3, 4, 6, 7, 9]);
        b.extend(command(rng.below(3) as u16, kind, cookie, offset, len));
        if kind == 1 {
            b.extend(std::iter::repeat_n(cookie as u8 + 1, len as usize));
        }
    }
    b.extend(command(0, 2, 0, 0, 0));
    b
}

/// All messages of the output, sorted, as the order of answers may differ: a refusal does not wait for earlier
/// commands.
fn messages(out: &[u8]) -> Vec<&[u8]> {
    let number = |b: &[u8]| u32::from_be_bytes(b[..4].try_into().unwrap()) as usize;
    let (greeting, mut rest) = out.split_at(18);
    let mut all = vec![greeting];
    while !rest.is_empty() {
        let len = match rest[..4] {
            [0x67, 0x44, 0x66, 0x98] => 16,
            _ => 20 + number(&rest[16..]),
        };
        let (one, more) = rest.split_at(len);
        all.push(one);
        rest = more;
    }
    all.sort();
    all
}

fn play(parts: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let (mut s, mut m) = (Session::new(SESSION), Memory::default());
    let mut out = Vec::new();
    for p in parts {
        out.extend(talk(&mut s, &mut m, p));
    }
    out.extend(drain(&mut s));
    assert!(s.finished(), "{:?}", s.closed());
    (out, m.bytes)
}

proptest! {
    #[test]
    fn cuts_change_nothing(seed: u64) {
        let mut rng = Rng::new(seed);
        let bytes = script(&mut rng);
        let whole = play(&[&bytes]);
        let mut parts = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let most = *rng.pick(&[1u64, 7, 100, 5000]);
            let (a, b) = rest.split_at(rng.between(1, most).min(rest.len() as u64) as usize);
            parts.push(a);
            rest = b;
        }
        let (out, bytes) = play(&parts);
        prop_assert!(messages(&out) == messages(&whole.0), "{} parts", parts.len());
        prop_assert!(bytes == whole.1, "contents differ");
    }

    #[test]
    fn what_is_written_is_read(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut m = Memory::default();
        let mut s = serving(&mut m);
        let mut flat = vec![0u8; SIZE as usize];
        for cookie in 0..60 {
            let offset = rng.below(SIZE / 512) * 512;
            let len = (rng.between(1, 200) * 512).min(SIZE - offset);
            let range = offset as usize..(offset + len) as usize;
            if rng.chance(0.5) {
                let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                flat[range].copy_from_slice(&data);
                s.input(Bytes::from(command(0, 1, cookie, offset, len as u32)));
                prop_assert_eq!(talk(&mut s, &mut m, &data), simple(cookie, 0));
            } else {
                let out = talk(&mut s, &mut m, &command(0, 0, cookie, offset, len as u32));
                let hole = out[6..8] == [0, 2];
                prop_assert_eq!(out.len(), if hole { 32 } else { 28 + len as usize });
                prop_assert_eq!(&out[20..28], &offset.to_be_bytes()[..]);
                let zero = flat[range.clone()].iter().all(|&x| x == 0);
                let same = if hole { zero } else { out[28..] == flat[range] };
                prop_assert!(same);
            }
        }
    }
}
