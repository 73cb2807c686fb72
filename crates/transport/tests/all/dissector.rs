//! Wireshark's dissector decodes captures like the transport and `wire` do, field by field.

use std::process::Command;

use rackweave_core::msg::{Class, GcField, Op};
use rackweave_core::{NodeId, Time};
use rackweave_transport::header::{self, Kind, Space};
use rackweave_transport::{Config, Endpoint, GroupOptions, KeyId, Keys, Received, SendOptions};
use rackweave_wire::pcap;

use crate::world::message;

const LUA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wireshark/rackweave.lua");

/// Values of these fields, one line per frame; `None` without tshark. `name` is the file's name, unique for each test.
fn dissect(name: &str, capture: &[u8], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let path = std::env::temp_dir().join(format!("rackweave-dissector-{name}-{}.pcap", std::process::id()));
    std::fs::write(&path, capture).expect("a capture");
    let mut c = Command::new("tshark");
    c.args(["-X", &format!("lua_script:{LUA}"), "-T", "fields", "-E", "separator=|", "-r"]).arg(&path);
    fields.iter().for_each(|f| {
        c.args(["-e", f]);
    });
    let out = c.output();
    std::fs::remove_file(&path).expect("removed");
    let Ok(out) = out else {
        println!("SKIP dissector-{name}: tshark is not installed");
        return None;
    };
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !errors.contains("Lua"), "{errors}");
    let text = String::from_utf8_lossy(&out.stdout);
    Some(text.lines().map(|l| l.split('|').map(str::to_string).collect()).collect())
}

/// Datagrams of a message of that size and of its acknowledgements.
fn exchange(keys: &Keys, bytes: usize) -> Vec<Vec<u8>> {
    let cfg = Config { paths: 1, ..Config::default() };
    let end = |n| Endpoint::new(cfg.clone(), NodeId(n), 7, keys.clone(), 1).expect("configuration");
    let (mut ends, mut now, mut all) = ([end(2), end(3)], Time(1), Vec::new());
    let how = SendOptions { deadline: Time::MAX, token: 0 };
    ends[0].send(now, NodeId(3), message(Op::Peer, Class::Silver, 2, 9, 5, 40, bytes), how).expect("taken");
    for _ in 0..100 {
        for from in [0, 1] {
            while let Some(t) = ends[from].poll_transmit(now) {
                all.push(t.bytes.to_vec());
                ends[1 - from].receive(now, Received { datagram: t.bytes[..].into(), at: now, marked: false });
            }
        }
        now = now.max(ends.iter().map(Endpoint::next_deadline).min().unwrap_or(now).min(Time(now.0 + 1_000_000)));
        ends.iter_mut().for_each(|e| e.handle_timeout(now));
    }
    assert_eq!(ends[0].unacknowledged(), 0);
    all
}

/// Datagrams of a message to a group, as its first member receives them.
fn to_group(keys: &Keys) -> Vec<Vec<u8>> {
    let cfg = Config { paths: 1, ..Config::default() };
    let end = |n| Endpoint::new(cfg.clone(), NodeId(n), 7, keys.clone(), 1).expect("configuration");
    let (mut ends, ring, now, mut all) = ([2, 3, 4].map(end), NodeId(0x000a_ffff), Time(1), Vec::new());
    ends[0].set_group(now, ring, &[NodeId(3), NodeId(4)]).expect("a group");
    let how = GroupOptions { quorum: 2, deadline: Time::MAX, token: 0 };
    for turn in 0..20 {
        if turn == 10 {
            ends[0].send_group(now, ring, message(Op::Peer, Class::Silver, 2, 9, 5, 40, 9000), how).expect("taken");
        }
        for from in 0..3 {
            while let Some(t) = ends[from].poll_transmit(now) {
                let members = if t.to == ring { 3..5 } else { t.to.0..t.to.0 + 1 };
                for to in members {
                    let mut copy = t.bytes.to_vec();
                    copy[16..20].copy_from_slice(&to.to_be_bytes());
                    let r = Received { datagram: copy[..].into(), at: now, marked: false };
                    ends[to as usize - 2].receive(now, r);
                    all.push(copy);
                }
            }
            ends[from].handle_timeout(now);
        }
    }
    assert_eq!(ends[0].unacknowledged(), 0);
    all
}

fn text(x: impl ToString) -> String {
    x.to_string()
}

#[test]
#[expect(clippy::too_many_lines, reason = "steps of one story")]
fn datagrams_are_shown_as_they_are_parsed() {
    let keyed = Keys::one(KeyId(3), [1; 32]).expect("a key");
    let mut datagrams = exchange(&Keys::none(), 9000);
    datagrams.extend(exchange(&keyed, 9000));
    datagrams.extend(to_group(&keyed));
    let mut capture = pcap::file_header().to_vec();
    for (i, d) in datagrams.iter().enumerate() {
        // Ports of a user's choice, in both address families.
        let at = |host: u8| match i % 2 {
            0 => std::net::SocketAddr::from(([10, 1, 1, host], 4000 + u16::from(host))),
            _ => std::net::SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)], 4000)),
        };
        pcap::datagram(Time(i as u64), at(1), at(2), 0x4a, d, &mut capture);
    }
    let fields = [
        "rackweave.op",
        "rackweave.class",
        "rackweave.source",
        "rackweave.destination",
        "rackweave.key",
        "rackweave.counter",
        "rackweave.ext.version",
        "rackweave.ext.life",
        "rackweave.ext.transfer",
        "rackweave.ext.chunk",
        "rackweave.ext.chunk_bytes",
        "rackweave.ext.body",
        "rackweave.ext.payload",
        "rackweave.ext.encrypted",
        "rackweave.ext.group",
        "rackweave.ack.echo",
        "rackweave.ack.entries",
        "rackweave.ack.group",
        "rackweave.malformed",
    ];
    let Some(shown) = dissect("datagrams", &capture, &fields) else { return };
    assert_eq!(shown.len(), datagrams.len());
    let (mut kinds, mut encrypted, mut groups) = (std::collections::BTreeSet::new(), 0, (0, 0));
    for (d, shown) in datagrams.iter().zip(&shown) {
        let p = header::parse(d).expect("a datagram");
        kinds.insert(d[0]);
        encrypted += u32::from(p.encrypted);
        let mut want = vec![
            text(d[0]),
            text(p.class as u8),
            text(p.source.0),
            text(p.destination.0),
            text(p.counter >> 56),
            text(p.counter & ((1 << 56) - 1)),
            text(p.version),
            text(p.incarnation),
        ];
        match p.kind {
            Kind::Chunk(c) => want.extend([
                text(c.id.number),
                text(c.number),
                text(c.chunk_bytes),
                text(c.body_bytes),
                text(p.payload.len()),
            ]),
            _ => want.extend(vec![String::new(); 5]),
        }
        want.push(text(u8::from(p.encrypted)));
        let group = matches!(p.kind, Kind::Chunk(c) if c.id.space == Space::Group);
        want.push(text(u8::from(group)));
        groups.0 += u32::from(group);
        if p.acks.is_empty() {
            want.extend(vec![String::new(); 3]);
        } else {
            let (head, entries) = header::acks(&d[p.acks.clone()]);
            let groups_of: Vec<String> = entries.map(|e| text(u8::from(e.id.space == Space::Group))).collect();
            groups.1 += u32::from(groups_of.iter().any(|g| g == "1"));
            want.extend([format!("0x{:016x}", head.echo), text(groups_of.len()), groups_of.join(",")]);
        }
        want.push(String::new());
        assert_eq!(shown, &want, "{p:?}");
    }
    // Chunks in both forms, acknowledgements, and the handshake of two incarnations with a key.
    assert!([7, 16, 17, 20, 21].iter().all(|op| kinds.contains(op)), "{kinds:?}");
    assert!(encrypted >= 7, "{encrypted}");
    assert!(groups.0 >= 14 && groups.1 >= 2, "{groups:?}");
}

#[test]
fn packets_of_simulated_racks_are_shown() {
    use rackweave_core::msg::io::WriteRequest;
    use rackweave_core::msg::{Block, Body, GcOp, Header, IoRequest, Mutation, Packet, SectorRange, Table};
    use rackweave_core::{Epoch, Incarnation, Payload, SetId, VolumeId, VssdId};
    let packet = |op, request, body| {
        let (vssd, original_vssd, set, epoch) = (VssdId(8), VssdId(9), SetId(4), Epoch(6));
        let header = Header {
            op,
            vssd,
            lat: 77,
            class: Class::Copper,
            original_vssd,
            set,
            epoch,
            incarnation: Incarnation(5),
            request,
        };
        Packet { src: NodeId(3), dst: NodeId(1), header, body }
    };
    let write = |bytes: u32, data| {
        let range = SectorRange { volume: VolumeId(2), first: 640, count: bytes / 512 };
        let mutation = Mutation { client: Incarnation(11), sequence: 12, floor: 13 };
        Body::Block(Block::Io(IoRequest::Write(Box::new(WriteRequest {
            range,
            data,
            fua: true,
            attach: 14,
            mutation,
        }))))
    };
    let long = Payload::Bytes(vec![3; 65_536].into());
    let packets = [
        packet(Op::Write, 21, write(4096, Payload::elided(4096, 5))),
        packet(Op::Write, 22, write(65_536, long)),
        packet(Op::GcOp, 0, Body::Table(Table::Gc(GcOp { field: GcField::Regular, sequence: 99 }))),
        packet(
            Op::Read,
            23,
            Body::Block(Block::Io(IoRequest::read(SectorRange { volume: VolumeId(2), first: 1, count: 8 }))),
        ),
    ];
    let mut capture = pcap::file_header().to_vec();
    packets.iter().for_each(|p| pcap::record(Time(5), p, &mut capture).expect("a record"));
    let fields = [
        "rackweave.op",
        "rackweave.vssd",
        "rackweave.lat",
        "rackweave.original_vssd",
        "rackweave.set",
        "rackweave.epoch",
        "rackweave.incarnation",
        "rackweave.request",
        "rackweave.volume",
        "rackweave.first",
        "rackweave.count",
        "rackweave.mutation.sequence",
        "rackweave.contents",
        "rackweave.gc.field",
        "rackweave.gc.sequence",
        "rackweave.malformed",
    ];
    let Some(shown) = dissect("packets", &capture, &fields) else { return };
    let want = [
        "4|8|77|9|4|6|5|21|2|640|8|12|2|||",
        "4|8|77|9|4|6|5|22|2|640|128|12|0|||",
        "5|8|77|9|4|6|5|0||||||1|99|",
        "3|8|77|9|4|6|5|23|2|1|8|||||",
    ];
    assert_eq!(shown.iter().map(|s| s.join("|")).collect::<Vec<_>>(), want);
}
