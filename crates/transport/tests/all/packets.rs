//! Whole packets of nodes: encoded in two parts, carried, and decoded without copying their data.

use bytes::Bytes;
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{Block, Body, Header, IoRequest, Mutation, Op, Packet, SectorRange};
use rackweave_core::{Incarnation, Layout, NodeId, Payload, SetId, Span, Time, VolumeId, VssdId};
use rackweave_transport::{Config, KeyId, Keys, Message};
use rackweave_wire::{decode_apart, encode_apart};

use crate::world::{Faults, World};

fn write(sectors: u32, request: u64) -> Packet {
    let bytes: Vec<u8> = (0..sectors * 512).map(|i| (u64::from(i) * 7 + request) as u8).collect();
    let body = Body::Block(Block::Io(IoRequest::Write(Box::new(WriteRequest {
        range: SectorRange { volume: VolumeId(1), first: 8, count: sectors },
        data: Payload::Bytes(Bytes::from(bytes)),
        fua: false,
        attach: 1,
        mutation: Mutation { client: Incarnation(5), sequence: request, floor: 4 },
    }))));
    let header =
        Header { set: SetId(3), incarnation: Incarnation(5), request, ..Header::addressed(Op::Write, VssdId(20)) };
    Packet { src: NodeId(9), dst: Layout::SWITCH, header, body }
}

#[test]
fn packets_cross_with_their_blocks_and_checksums() {
    for datagram_bytes_max in [1472, 8972, 65_507] {
        for keys in [Keys::none(), Keys::one(KeyId(1), [5; 32]).expect("a key")] {
            let mut w = World::new(4, Faults { loss: 0.02, reorder: 0.05, ..Faults::default() });
            for node in [2, 9] {
                w.add(node, Config { datagram_bytes_max, ..Config::default() }, keys.clone());
            }
            w.routes.insert(20, (20, NodeId(2)));
            let packets: Vec<Packet> = [1, 8, 16, 128].into_iter().zip(1..).map(|(s, n)| write(s, n)).collect();
            for p in &packets {
                let mut head = Vec::new();
                let data = encode_apart(p, &mut head).expect("within the bounds");
                w.send(9, 1, Message { head: head.into(), data }, Time::MAX, 0).expect("taken");
            }
            w.settle(Span::from_secs(5));
            let mut got: Vec<_> =
                w.delivered(2).map(|d| (decode_apart(&d.message.head, &d.message.data, d.crcs.clone()), d)).collect();
            got.sort_by_key(|(p, _)| p.as_ref().map(|p| p.header.request).ok());
            assert_eq!(got.len(), packets.len());
            for ((p, d), sent) in got.iter().zip(&packets) {
                let p = p.as_ref().expect("a packet");
                assert_eq!((p.header.lat, p.dst), (800, NodeId(2)), "as the switch rewrote it");
                assert_eq!(p.body, sent.body);
                let Body::Block(Block::Io(IoRequest::Write(write))) = &p.body else { panic!("another body") };
                let Payload::Summed(summed) = &write.data else { panic!("other contents") };
                let bytes = summed.bytes();
                assert_eq!(bytes.as_ptr(), d.message.data.as_ptr(), "not copied");
                assert_eq!(d.crcs, bytes.chunks(4096).map(crc32c::crc32c).collect::<Vec<_>>());
                let blocks = (0..write.data.sectors() / 8).map(|b| write.data.block(b));
                assert!(
                    blocks
                        .enumerate()
                        .all(|(i, b)| matches!(b, Payload::Summed(s) if s.block_crc() == Some(d.crcs[i])))
                );
            }
        }
    }
}
