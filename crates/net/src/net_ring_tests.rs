//! Messages to a ring (NI3): a sender, the switch's process and three members over sockets, each behind a relay that
//! drops datagrams.

use rackweave_core::{Layout, Node};
use rackweave_switch::{Prefix, Reach, Ring, Switch, SwitchConfig, Update};

use super::*;

const RING: NodeId = NodeId((11 << 16 | 7) - 1);
const SENDER: u32 = 5;
const MEMBERS: [u32; 3] = [2, 3, 4];

/// The switch's node, as its process hosts it.
struct SwitchNode(Switch);

impl Nodes for SwitchNode {
    fn handle(&mut self, _: NodeId, now: Time, event: NodeEvent, fx: &mut Effects) {
        self.0.handle(now, event, fx);
    }
    fn count(&self) -> u32 {
        6
    }
    fn hosts(&self, node: NodeId) -> bool {
        node == Layout::SWITCH
    }
}

fn plan(quorum: usize) -> RingPlan {
    let prefix = Prefix { address: [10, 11, 0, 0].into(), bits: 24 };
    RingPlan { ring: Ring { prefix, reach: Reach::All, members: MEMBERS.map(NodeId).to_vec() }, quorum }
}

struct Rings {
    clock: Clock,
    ends: Vec<End>,
    switch: (Net, Engine<SwitchNode, MemFile, NoStore>),
    relays: Vec<Relay>,
    sent: u64,
}

impl Rings {
    fn new(keys: &Keys, loss: u64, quorum: usize) -> Rings {
        let (host, seed) = (host(), seed());
        let at = |n: u32| SocketAddr::new(host, 7400 + n as u16);
        // Each node reaches the others through their relays, and itself at its own port.
        let seen_by = |own: u32| (0..6).map(|n| if n == own { at(n) } else { at(10 + n) }).collect::<Vec<_>>();
        let rings = vec![plan(quorum).ring];
        let mut switch = Switch::new(SwitchConfig::new(Layout::SWITCH));
        switch.apply(Time::ZERO, &Update::Full { generation: 1, rows: Vec::new(), rings }).expect("a ring");
        let net = Net::new(Layout::SWITCH, seen_by(1), keys.clone(), 1, 9).expect("net");
        let mut ends: Vec<End> = (2..6).map(|n| End::new(n, seen_by(n), keys.clone(), 1)).collect();
        ends[3].net.set_rings(vec![plan(quorum)], false);
        let relays = (1..6).map(|n| Relay::new(at(10 + n), at(n), Rng::stream(seed, u64::from(n))));
        let mut relays: Vec<Relay> = relays.collect();
        relays.iter_mut().for_each(|r| r.loss = loss);
        let engine = Engine::new(SwitchNode(switch), Vec::new(), NoStore);
        Rings { clock: Clock::of_one_node(), ends, switch: (net, engine), relays, sent: 0 }
    }
    fn turn(&mut self) {
        let now = self.clock.read();
        let (net, engine) = &mut self.switch;
        net.receive(now, engine).expect("receive");
        engine.run(now);
        net.send(now, engine).expect("send");
        for end in &mut self.ends {
            end.net.receive(now, &mut end.engine).expect("receive");
            end.engine.run(now);
            end.net.send(now, &mut end.engine).expect("send");
        }
        self.relays.iter_mut().for_each(Relay::run);
    }
    fn say(&mut self, bytes: usize) {
        let header = Header { request: self.sent, ..Header::addressed(Op::Reply, VssdId(1)) };
        let body = Body::Block(Block::Reply(IoReply::Data(Payload::Bytes(vec![self.sent as u8; bytes].into()))));
        let now = self.clock.read();
        self.ends[3].net.link.send(now, Packet { src: NodeId(SENDER), dst: RING, header, body }, 0);
        self.sent += 1;
    }
    fn has(&self, member: usize, n: u64) -> bool {
        (0..n).all(|i| self.ends[member].engine.nodes.got.get(&i) == Some(&1))
    }
    fn turn_until(&mut self, what: &str, until: impl Fn(&Rings) -> bool) {
        let end = self.clock.read() + LONG;
        while !until(self) {
            assert!(self.clock.read() < end, "{what}: {:?}", self.ends[3].net.counters());
            self.turn();
        }
    }
}

#[test]
fn a_message_to_a_ring_arrives_at_each_member_whatever_is_lost() {
    for (keys, loss) in [(keys(), 0), (keys(), 5), (Keys::none(), 5)] {
        let mut w = Rings::new(&keys, loss, 3);
        for i in 0..60 {
            // Alternately one datagram and several.
            w.say(if i % 2 == 0 { 4096 } else { 65_536 });
            w.turn();
        }
        w.turn_until("all arrive at each", |w| (0..3).all(|m| w.has(m, 60)));
        w.turn_until("all is acknowledged", |w| w.ends[3].net.link.endpoint().unacknowledged() == 0);
        let sent = &w.ends[3];
        assert_eq!((sent.count("group_members_missing"), w.switch.0.counters.forward_dropped), (0, 0));
        assert!(loss == 0 || sent.count("group_repairs") > 0);
        let counted = w.switch.1.nodes.0.counters();
        assert_eq!((counted.unknown_ring, counted.ring_packets * 3), (0, w.switch.0.counters.forwarded));
        assert!(counted.ring_packets > 20, "{:?}", sent.net.counters());
    }
}

/// Without the switch's process members receive messages directly; a member that is away is named.
#[test]
fn a_ring_is_served_without_its_switch_and_without_a_member() {
    let mut w = Rings::new(&keys(), 0, 2);
    w.say(4096);
    w.turn_until("the first", |w| (0..3).all(|m| w.has(m, 1)));
    w.relays[0].loss = 100;
    w.relays[2].loss = 100;
    for n in 0..20 {
        w.say(65_536);
        w.turn_until("two of three have it", |w| w.has(0, n + 2) && w.has(2, n + 2));
    }
    w.turn_until("the third is given up", |w| w.ends[3].net.link.endpoint().unacknowledged() == 0);
    let sender = &w.ends[3];
    assert_eq!((sender.count("group_members_missing"), w.ends[1].engine.nodes.got.len()), (20, 1));
    assert!(sender.count("group_repairs") >= 20, "repaired by the sender: {:?}", sender.net.counters());
}
