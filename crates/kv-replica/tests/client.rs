//! The client as a node of the rack.

use bytes::Bytes;
use rackweave_core::kv::{Error, Op};
use rackweave_core::msg::{Body, Control, Packet, RackMap};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Effects, Event, Incarnation, Layout, Node, NodeId, Time};
use rackweave_kv_replica::msg::Body as Message;
use rackweave_kv_replica::{Config, KvClient};

const ME: NodeId = NodeId(9);

fn get(n: u64) -> Event {
    Event::Request(Request::new(RequestId(n), Op::Get { key: Bytes::from_static(b"k"), room: 10, latest: false }))
}

#[test]
fn requests_wait_for_the_incarnation_that_the_metadata_service_gives() {
    let mut c = KvClient::new(ME, Some(Config::default()), 5);
    let mut fx = Effects::new();
    c.handle(Time(1), Event::Timer, &mut fx);
    let hello = fx.packets.pop().expect("a hello");
    assert_eq!((hello.dst, &hello.body), (Layout::META, &Body::Control(Control::ClientHello { nonce: 5 })));
    c.handle(Time(2), get(1), &mut fx);
    assert!(fx.packets.is_empty() && fx.replies.is_empty());
    let mut welcome = |nonce| {
        let body = Body::Control(Control::ClientWelcome {
            nonce,
            incarnation: Incarnation(3),
            map: Box::new(RackMap { generation: 1, sets: Vec::new() }),
        });
        let packet = Packet { src: Layout::META, dst: ME, body, header: hello.header };
        fx.clear();
        c.handle(Time(3), Event::Packet(packet), &mut fx);
        fx.packets.clone()
    };
    assert!(welcome(4).is_empty(), "another run's");
    let sent = welcome(5);
    let Body::Keys(keys) = &sent[0].body else { panic!("{sent:?}") };
    assert_eq!((sent.len(), &*keys.0), (1, &Message::Lookup), "it asks where the key is");
}

#[test]
fn a_rack_without_keys_serves_none() {
    let mut c = KvClient::new(ME, None, 5);
    let mut fx = Effects::new();
    c.handle(Time(1), Event::Timer, &mut fx);
    c.handle(Time(2), get(1), &mut fx);
    assert!(fx.packets.is_empty());
    assert_eq!(Op::result(fx.replies.remove(0).result), Some(Err(Error::NotServed)));
}
