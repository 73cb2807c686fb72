//! A server's requests to replica sets, with members played by the tests.

use std::sync::Arc;

use rackweave_client::SetClientConfig;
use rackweave_cloud::chunk::{ChunkAnswer, ChunkOp, ChunkRequest, Shares};
use rackweave_cloud::replica_sets::ReplicaSets;
use rackweave_cloud::types::Extent;
use rackweave_core::msg::cloud::Backing;
use rackweave_core::msg::{Block, Body, Class, Control, Header, IoError, IoReply, Op, Packet, RackMap, SetRoute};
use rackweave_core::{Effects, Epoch, Incarnation, Layout, NodeId, Payload, SetId, Span, Time, VolumeId, VssdId};

const SET: SetId = SetId(7);
const MEMBERS: [VssdId; 3] = [VssdId(1), VssdId(2), VssdId(3)];
const META: NodeId = Layout::META;
const EXTENT: Extent = Extent { first: 8, count: 8 };

struct Rig {
    sets: ReplicaSets,
    now: Time,
    fx: Effects,
}

impl Rig {
    fn new() -> Rig {
        let sets = ReplicaSets::new(SetClientConfig::new(NodeId(40), 9), Incarnation(5));
        let mut r = Rig { sets, now: Time::ZERO + Span::from_secs(1), fx: Effects::new() };
        r.map(0);
        r
    }
    /// The metadata service answers the `number`th request for the map.
    fn map(&mut self, number: u64) {
        let route = SetRoute { set: SET, epoch: Epoch(3), members: MEMBERS.to_vec() };
        let map = RackMap { generation: number + 1, sets: vec![route] };
        let header = Header { class: Class::Gold, request: number, ..Header::new(Op::Control) };
        let body = Body::Control(Control::Map(Box::new(map)));
        self.sets.handle_packet(self.now, Packet { src: META, dst: NodeId(40), header, body }, &mut self.fx);
    }
    fn ask(&mut self, op: ChunkOp) {
        let backing = Backing::of(VolumeId(3));
        let shares = Arc::new(Shares { sets: vec![SET], stripe: 128, backing, flattens: false });
        let request = ChunkRequest { tag: 1, generation: VolumeId(3), epoch: Epoch(4), shares, op };
        self.sets.request(self.now, request, &mut self.fx);
        self.sets.pump(self.now, &mut self.fx);
    }
    /// Every message to a member fails with this; requests for the map are answered. Until the request is.
    fn fail_all(&mut self, error: IoError) -> ChunkAnswer {
        for _ in 0..100 {
            for p in std::mem::take(&mut self.fx.packets) {
                match p.body {
                    Body::Control(Control::MapRequest { .. }) => self.map(p.header.request),
                    Body::Control(_) => {}
                    _ => {
                        let mut reply = Packet { src: NodeId(9), dst: p.src, ..p };
                        reply.header.op = Op::Reply;
                        reply.body = Body::Block(Block::Reply(IoReply::Failed(error)));
                        self.sets.handle_packet(self.now, reply, &mut self.fx);
                    }
                }
            }
            if let Some((_, answer)) = self.sets.take_answers().pop() {
                return answer;
            }
            self.now += Span::from_millis(50);
            self.sets.handle_timer(self.now, &mut self.fx);
        }
        panic!("no answer after {error:?}");
    }
}

#[test]
fn a_read_that_no_member_has_a_sound_copy_of_is_unreadable() {
    for error in [IoError::Corrupt, IoError::Device] {
        for op in [ChunkOp::Read { extent: EXTENT }, ChunkOp::ReadMap { block: 0 }] {
            let mut r = Rig::new();
            r.ask(op.clone());
            assert_eq!(r.fail_all(error), ChunkAnswer::Unreadable, "{op:?}: {error:?}");
            assert_eq!(r.sets.pending(), 0);
        }
    }
}

#[test]
fn a_change_that_fails_is_not_unreadable() {
    let data = Payload::zero(4096);
    for (op, error) in [
        (ChunkOp::Write { extent: EXTENT, data: data.clone() }, IoError::NoSpace),
        (ChunkOp::Write { extent: EXTENT, data }, IoError::Device),
        (ChunkOp::Zero { extent: EXTENT }, IoError::Fenced { attach: 9 }),
        (ChunkOp::Read { extent: EXTENT }, IoError::Fenced { attach: 9 }),
    ] {
        let mut r = Rig::new();
        r.ask(op.clone());
        assert_eq!(r.fail_all(error), ChunkAnswer::Failed, "{op:?}: {error:?}");
    }
}
