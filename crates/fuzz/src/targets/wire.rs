//! Packets: what decodes encodes again to the same bytes, in one piece or two.

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_core::msg::Packet;
use rackweave_wire::header::checksum;
use rackweave_wire::{HEADER_BYTES, decode, decode_apart, decode_shared, encode, encode_apart};

use crate::corrupt::{corrupt, rest};
use crate::cost::within;

#[path = "../../../wire/tests/all/drawn.rs"]
#[allow(dead_code, reason = "the wire crate's tests use the rest")]
mod drawn;

use drawn::Draw;

/// Memory of a value is at most this many times its bytes on the wire (a shortest view: 13 bytes there, 48 here).
const MEMORY_RATIO: usize = 4;
/// The same of messages of keys and cloud disks: a finding of a take-over takes 2 bytes on the wire and 88 here. Its lists are
/// short.
const LISTS_MEMORY_RATIO: usize = 48;

pub(super) fn run(input: &[u8]) {
    _ = choose(&mut Unstructured::new(input));
}

fn choose(u: &mut Unstructured<'_>) -> Result<()> {
    let mode: u8 = u.arbitrary()?;
    if mode.is_multiple_of(2) {
        let mut bytes = rest(u);
        if mode & 2 != 0 {
            mend(&mut bytes);
        }
        any(&bytes);
        return Ok(());
    }
    let drawn = u.arbitrary_len::<u8>()?.min(512);
    let packet = Draw::of(u.bytes(drawn)?).packet();
    let mut bytes = Vec::new();
    if encode(&packet, &mut bytes).is_err() {
        assert!(bytes.is_empty(), "an error leaves the buffer as it was");
        return Ok(());
    }
    same(&decode(&bytes).expect("its own"), &packet);
    corrupt(u, &mut bytes)?;
    if mode & 2 != 0 {
        mend(&mut bytes);
    }
    any(&bytes);
    Ok(())
}

/// Makes length and checksum fit again, so that damage reaches the body's parser.
fn mend(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_BYTES {
        let len = (bytes.len() - HEADER_BYTES) as u32;
        bytes[56..60].copy_from_slice(&len.to_be_bytes());
        let sum = checksum(bytes);
        bytes[60..64].copy_from_slice(&sum.to_be_bytes());
    }
}

fn any(input: &[u8]) {
    let of_lists = input.get(HEADER_BYTES).is_some_and(|kind| *kind >= 136);
    let ratio = if of_lists { LISTS_MEMORY_RATIO } else { MEMORY_RATIO };
    let decoded = within(ratio * input.len() + 512, || decode(input));
    let shared = decode_shared(&Bytes::copy_from_slice(input));
    let packet = match (decoded, shared) {
        (Ok(p), Ok(shared)) => {
            same(&p, &shared);
            p
        }
        (Err(e), Err(shared)) => return assert_eq!(e, shared),
        (p, shared) => panic!("{p:?}, and shared {shared:?}"),
    };
    let mut again = Vec::new();
    encode(&packet, &mut again).expect("what was decoded can be encoded");
    assert_eq!(again, input);
    let mut head = Vec::new();
    let data = encode_apart(&packet, &mut head).expect("as in one piece");
    same(&decode_apart(&head.into(), &data, Vec::new()).expect("as in one piece"), &packet);
}

fn same(a: &Packet, b: &Packet) {
    assert_eq!((a.src, a.dst, a.header), (b.src, b.dst, b.header));
    assert_eq!(a.body, b.body);
}
