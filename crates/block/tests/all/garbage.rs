//! Malformed packets: the client neither panics nor takes them for answers.

use rackweave_core::admin;
use rackweave_core::msg::{Block, Body, Control, IoError, IoReply, Packet, RackMap, SetRoute};
use rackweave_core::volume::{self, Extent, VolumeInfo, VolumeLimits};
use rackweave_core::{Epoch, Incarnation, Payload, Rng, SetId, Span, VolumeId};

use super::rack::{CLIENT, Faults, Rack, VOLUME, vssd};

fn reply(rng: &mut Rng) -> IoReply {
    match rng.below(9) {
        0 => IoReply::Data(Payload::zero(rng.below(40) as u32 * 512)),
        1 => IoReply::Done,
        2 => IoReply::Extents(Box::new([])),
        3 => IoReply::Extents(vec![Extent { len: rng.below(9) * 1000, mapped: true }; 3].into()),
        4 => IoReply::Failed(IoError::NotServing),
        5 => IoReply::Failed(IoError::Fenced { attach: rng.below(3) as u32 }),
        6 => IoReply::Failed(IoError::Corrupt),
        7 => IoReply::Failed(IoError::Malformed),
        _ => IoReply::Failed(IoError::NoSpace),
    }
}

fn control(rng: &mut Rng) -> Control {
    let info = VolumeInfo {
        id: VolumeId(rng.between(6, 9) as u32),
        name: "v".into(),
        size: rng.next_u64() >> rng.below(64),
        attach: rng.below(4) as u32,
        sets: (0..rng.below(4)).map(|_| SetId(rng.below(2) as u32)).collect(),
        stripe_blocks: rng.below(20) as u32,
        class: rackweave_core::msg::Class::Silver,
        limits: VolumeLimits { iops: rng.below(3), bytes_per_s: rng.below(3) },
        used: 0,
        own: None,
        own_change: None,
        flattening: None,
        cloud: None,
        frozen: None,
        snapshots: Vec::new(),
    };
    let set = SetId(rng.below(5) as u32);
    let members = (0..rng.below(5)).map(|_| vssd(set.0, rng.below(5) as u32)).collect();
    match rng.below(8) {
        6 => Control::VolumeLimited {
            volume: VOLUME,
            limits: VolumeLimits {
                iops: rng.next_u64() >> rng.below(64),
                bytes_per_s: rng.next_u64() >> rng.below(64),
            },
        },
        0 => Control::Attached(Ok(Box::new(info))),
        1 => Control::Attached(Err(Box::new(admin::VolumeError::BadSize { size: 1 }))),
        2 => Control::AdminReply(Ok(Box::new(admin::Reply::from(info)))),
        3 => Control::AdminReply(Ok(Box::new(admin::Reply::Done))),
        4 => Control::VolumeChanged { volume: VOLUME, size: rng.next_u64() },
        5 => Control::Map(Box::new(RackMap { generation: 1, sets: vec![SetRoute { set, epoch: Epoch(1), members }] })),
        _ => Control::ClientWelcome {
            nonce: rng.below(99),
            incarnation: Incarnation(rng.next_u64()),
            map: Box::default(),
        },
    }
}

#[test]
fn senseless_packets_do_not_break_it() {
    for seed in 0..300 {
        let mut r = Rack::attached(2, 16, 1 << 20, seed);
        r.faults = Faults { loss: 0.1, ..Faults::default() };
        let mut rng = Rng::stream(seed, 2);
        for i in 0..150 {
            if i % 3 == 0 {
                let offset = rng.below(200) * 4096;
                r.submit(match rng.below(5) {
                    0 => volume::Op::Read { volume: VOLUME, offset, len: 8192 },
                    1 => volume::Op::Flush { volume: VOLUME },
                    2 => volume::Op::BlockStatus { volume: VOLUME, offset, len: 8192 },
                    3 => volume::Op::Attach { name: "v".into() },
                    _ => volume::Op::Write { volume: VOLUME, offset, data: Payload::elided(8192, i), fua: false },
                });
            }
            // Half of the packets carry the number of a real request.
            let Some(asked) = r.sent.last().map(|p| p.header) else { continue };
            let mut header = asked;
            if rng.chance(0.5) {
                header.request = rng.next_u64() >> rng.below(64);
            }
            let body = if rng.chance(0.6) {
                Body::Block(Block::Reply(reply(&mut rng)))
            } else {
                Body::Control(control(&mut rng))
            };
            r.inject(Packet { src: CLIENT, dst: CLIENT, header, body });
            r.run_for(Span(rng.below(50_000)));
        }
    }
}
