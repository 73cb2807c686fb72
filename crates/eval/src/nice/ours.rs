//! The nodes, the membership service and the client of `rackweave-kv-replica`, on hosts.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::msg::HEADER_BYTES;
use rackweave_core::{Effects, Event, Incarnation, Message, Node, NodeId, Span, Time, VssdId};
use rackweave_kv_replica::msg::Body as KeyMessage;
use rackweave_kv_replica::types::{Change, Condition, Expires, Item, Partition};
use rackweave_kv_replica::{Config, KvNode, Membership, RingClient};
use rackweave_server::Load;

use super::client::Store;
use super::envelope::{Body, Envelope, To};
use super::net::Carrier;
use super::params::{BITS, POINTS};

/// Bytes of a report of pending gets (`docs/wire.md`).
const LOAD_BYTES: u64 = HEADER_BYTES as u64 + 12;

type Packets = Effects<rackweave_kv_replica::msg::Packet>;

/// Times for a cluster whose links lose nothing: a message of 1 MiB to nine members takes longer than a rack's time until an
/// unanswered message is repeated.
pub fn config() -> Config {
    let retry = Span::from_secs(10);
    let check = Span::from_millis(20);
    let times = Config { check, retry, client_retry: retry, doubt: retry, ..Config::default() };
    Config { bits: BITS, points: POINTS, by_multicast: true, ..times }
}

/// The event for a node of the store; `None` if it is not for one.
fn received(event: Event<Envelope>) -> Option<Event<rackweave_kv_replica::msg::Packet>> {
    Some(match event {
        Event::Packet(Envelope { body: Body::Rackweave(p), .. }) => Event::Packet(p),
        Event::Packet(_) => return None,
        Event::Timer => Event::Timer,
        Event::Stored { tag } => Event::Stored { tag },
        Event::Completion(c) => Event::Completion(c),
        Event::Request(r) => Event::Request(r),
    })
}

/// The members behind addresses of the multicast ring, as the switch and the client's transport know them.
type Groups = BTreeMap<NodeId, Rc<[NodeId]>>;

/// The store's effects become its host's. When its timer is due, if that has changed.
fn pass(from: &mut Packets, groups: &mut Groups, fx: &mut Effects<Envelope>) -> Option<Time> {
    for p in from.packets.drain(..) {
        let to = match (&p.body, groups.get(&p.to)) {
            (KeyMessage::NewView(view), _) if p.to.is_ring() => {
                groups.insert(p.to, view.members.iter().map(|m| m.node).collect());
                continue;
            }
            (_, Some(members)) => To::Group(members.clone()),
            _ if Partition::row_of(p.to).is_some() => To::Share(p.to),
            (_, None) => To::Host(p.to),
        };
        let bytes = u64::from(p.bytes());
        fx.send(Envelope { from: p.from, to, carrier: Carrier::Rackweave, bytes, body: Body::Rackweave(p) });
    }
    fx.take_rest(from);
    let wake = from.take_wake();
    from.clear();
    wake
}

/// A storage node or the membership service.
pub struct Party<N> {
    pub node: N,
    groups: Groups,
    /// When the node's timer is due.
    wake: Time,
    /// What a storage node reports to the switch, if that chooses by load: the row of its log, and its gets.
    load: Option<(VssdId, Load)>,
    me: NodeId,
    fx: Packets,
}

impl<N: Node<rackweave_kv_replica::msg::Packet>> Party<N> {
    pub fn new(me: NodeId, node: N, log: Option<VssdId>) -> Party<N> {
        let load = log.map(|vssd| (vssd, Load::new()));
        Party { node, groups: Groups::new(), wake: Time::ZERO, load, me, fx: Effects::new() }
    }
    /// Counts gets and their answers, and reports them when that is due.
    fn report(&mut self, now: Time, arrived: bool, answered: usize, fx: &mut Effects<Envelope>) {
        let Some((vssd, load)) = &mut self.load else { return };
        if arrived {
            load.arrived(now);
        }
        (0..answered).for_each(|_| load.answered());
        if let Some(report) = load.report(now, || false, false) {
            let body = Body::Load(*vssd, report);
            fx.send(Envelope { from: self.me, to: To::Switch, carrier: Carrier::Datagrams, bytes: LOAD_BYTES, body });
        }
    }
}

impl<N: Node<rackweave_kv_replica::msg::Packet>> Node<Envelope> for Party<N> {
    fn handle(&mut self, now: Time, event: Event<Envelope>, fx: &mut Effects<Envelope>) {
        let Some(event) = received(event) else { return };
        let arrived = matches!(&event, Event::Packet(p) if matches!(p.body, KeyMessage::Get { .. }));
        let mut answered = 0;
        if !matches!(event, Event::Timer) || self.wake <= now {
            if matches!(event, Event::Timer) {
                self.wake = Time::MAX;
            }
            self.node.handle(now, event, &mut self.fx);
            answered = self.fx.packets.iter().filter(|p| matches!(p.body, KeyMessage::GetReply { .. })).count();
            self.wake = pass(&mut self.fx, &mut self.groups, fx).unwrap_or(self.wake);
        }
        self.report(now, arrived, answered, fx);
        let due = self.load.as_ref().map_or(Time::MAX, |(_, load)| load.deadline());
        fx.wake_at(self.wake.min(due));
    }
}

pub type Server = Party<KvNode>;
pub type Meta = Party<Membership>;

pub struct Ring {
    client: RingClient,
    any: Option<usize>,
    zeros: Bytes,
    groups: Groups,
    fx: Packets,
}

impl Ring {
    pub fn new(me: NodeId, meta: NodeId, config: Config, any: Option<usize>, zeros: Bytes) -> Ring {
        let client = RingClient::new(me, meta, config, Incarnation(1));
        Ring { client, any, zeros, groups: Groups::new(), fx: Effects::new() }
    }
    fn pass(&mut self, fx: &mut Effects<Envelope>) {
        if let Some(at) = pass(&mut self.fx, &mut self.groups, fx) {
            fx.wake_at(at);
        }
    }
}

impl Store for Ring {
    fn put(&mut self, now: Time, key: Bytes, bytes: u64, fx: &mut Effects<Envelope>) -> u64 {
        let change = Change::Set { value: self.zeros.slice(..bytes as usize), expires: Expires::Never };
        let item = Item { key, condition: Condition::Always, change: Some(change) };
        let number = self.client.put(now, &mut self.fx, vec![item], self.any).expect("a client has few puts under way");
        self.pass(fx);
        number
    }
    fn get(&mut self, now: Time, key: Bytes, fx: &mut Effects<Envelope>) -> u64 {
        let number = self.client.get(now, &mut self.fx, key, u32::MAX).expect("a short key");
        self.pass(fx);
        number
    }
    fn handle(&mut self, now: Time, event: Event<Envelope>, fx: &mut Effects<Envelope>) {
        let Some(event) = received(event) else { return };
        self.client.handle(now, event, &mut self.fx);
        self.pass(fx);
    }
    fn done(&mut self) -> Vec<u64> {
        // With any-k a put is there twice: the first counts.
        self.client.take_done().iter().map(|d| d.request).collect()
    }
}
