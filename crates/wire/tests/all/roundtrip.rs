//! Decoding returns the packet that was encoded.

use bytes::Bytes;
use proptest::prelude::*;
use rackweave_core::msg::Packet;
use rackweave_wire::{decode, decode_apart, decode_shared, encode, encode_apart};

use crate::drawn::Draw;

fn bytes_of(p: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(p, &mut bytes).expect("drawn within the bounds");
    bytes
}

/// Payloads must also have the same representation: checksums cover it.
fn assert_same(a: &Packet, b: &Packet) {
    assert_eq!(format!("{a:?}"), format!("{b:?}"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn packets_survive(seed: u64) {
        let packet = Draw::new(seed).packet();
        let bytes = bytes_of(&packet);
        assert_same(&decode(&bytes).unwrap(), &packet);
        assert_same(&decode_shared(&Bytes::from(bytes)).unwrap(), &packet);
    }

    #[test]
    fn packets_survive_in_two_parts(seed: u64) {
        let packet = Draw::new(seed).packet();
        let mut head = Vec::new();
        let data = encode_apart(&packet, &mut head).expect("drawn within the bounds");
        let mut whole = bytes_of(&packet);
        if !data.is_empty() {
            whole[60..64].fill(0);
        }
        prop_assert_eq!([&head[..], &data].concat(), whole);
        let head = Bytes::from(head);
        assert_same(&decode_apart(&head, &data, Vec::new()).unwrap(), &packet);
        if !data.is_empty() {
            prop_assert!(decode_apart(&head, &data.slice(1..), Vec::new()).is_err());
            prop_assert!(decode_apart(&head, &Bytes::new(), Vec::new()).is_err());
        }
    }

    #[test]
    fn no_proper_prefix_and_no_longer_packet_is_one(seed: u64) {
        let mut bytes = bytes_of(&Draw::new(seed).packet());
        let mut draw = Draw::new(seed ^ 1);
        prop_assert!(decode(&bytes[..draw.below(bytes.len() as u64) as usize]).is_err());
        bytes.push(0);
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn what_the_switch_rewrites_is_not_covered(seed: u64, vssd: u32, lat: u32, dst: u32) {
        let packet = Draw::new(seed).packet();
        let mut bytes = bytes_of(&packet);
        bytes[1..5].copy_from_slice(&vssd.to_be_bytes());
        bytes[5..9].copy_from_slice(&lat.to_be_bytes());
        bytes[16..20].copy_from_slice(&dst.to_be_bytes());
        let got = decode(&bytes).unwrap();
        prop_assert_eq!((got.header.vssd.0, got.header.lat, got.dst.0), (vssd, lat, dst));
        prop_assert_eq!(got.body, packet.body);
    }

    #[test]
    fn any_other_flipped_bit_is_seen(seed: u64) {
        let mut bytes = bytes_of(&Draw::new(seed).packet());
        let mut draw = Draw::new(seed ^ 1);
        let at = draw.below(bytes.len() as u64) as usize;
        if !(1..9).contains(&at) && !(16..20).contains(&at) {
            bytes[at] ^= 1 << draw.below(8);
            prop_assert!(decode(&bytes).is_err());
        }
    }
}

#[test]
fn shared_contents_are_not_copied() {
    use rackweave_core::Payload;
    use rackweave_core::msg::{Block, Body, IoReply, Op};
    let mut packet = Draw::new(1).packet();
    packet.header.op = Op::Reply;
    packet.body = Body::Block(Block::Reply(IoReply::Data(Payload::Bytes(Bytes::from(vec![7; 4096])))));
    let bytes = Bytes::from(bytes_of(&packet));
    let Body::Block(Block::Reply(IoReply::Data(Payload::Bytes(data)))) = decode_shared(&bytes).unwrap().body else {
        panic!()
    };
    assert_eq!(data.as_ptr(), bytes[bytes.len() - 4096..].as_ptr());
}
