//! Bytes: stamps, checksums, tags, and malformed packets.

use rackweave_core::msg::{Block, Body, GcField, GcOp, IoReply, Op, Packet, ReadLoad, Table};
use rackweave_core::{Incarnation, Layout, NodeId, Time};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch, Port, PortPlace, Prefix, Reach, Ring, frame};
use rackweave_switch::{Change, DataPlane, Redirect};
use rackweave_transport::KeyId;
use rackweave_transport::auth::{gc_covered, gc_key};
use rackweave_transport::siphash::siphash24;

use crate::control::announcement;
use crate::rig::{TC_DROP, TC_OK, TC_REDIRECT, XDP_DROP, bytes, config, framed, load, skip};
use crate::runner::Plane;
use crate::support::{CLIENT, gc, packet, read, write};

/// vSSDs 1 on node 2 and 2 on node 3, peers, idle.
fn pair(cfg: KernelConfig) -> KernelSwitch {
    let mut s = load(cfg);
    for (v, server, peer) in [(1, 2, (2, 3)), (2, 3, (1, 2))] {
        s.change(Time::ZERO, &Change::Create(announcement(v, server, &[peer]))).unwrap();
        if !cfg.require_mac {
            s.send(Time::ZERO, gc(GcField::Idle, v, server, 1, 0)).pop().unwrap();
        }
    }
    s
}

fn with_lat(mut p: Packet, lat: u32) -> Packet {
    p.header.lat = lat;
    p
}

#[test]
fn tc_latency_grows_by_the_time_in_the_switch_and_saturates() {
    if skip("tc_latency_grows_by_the_time_in_the_switch_and_saturates") {
        return;
    }
    let mut s = pair(config(16));
    for lat in [0, 40, 0x00ff_ffff, 0x7fff_ffff] {
        let out = s.send(Time::ZERO, with_lat(write(1), lat)).pop().unwrap();
        let spent = out.header.lat - lat;
        assert!((1..50_000_000).contains(&spent), "{spent} ns");
    }
    let out = s.send(Time::ZERO, with_lat(write(1), u32::MAX)).pop().unwrap();
    assert_eq!(out.header.lat, u32::MAX);
}

#[test]
fn tc_time_in_a_queue_is_in_the_stamp() {
    if skip("tc_time_in_a_queue_is_in_the_stamp") {
        return;
    }
    let mut s = pair(config(16));
    s.set_port(NodeId(2), Port { ifindex: 1, mac: frame::mac(NodeId(2)), place: PortPlace::Queue }).unwrap();
    for lat in [0, 77, 0x7fff_ffff] {
        let (action, out, _) = s.test_run(&framed(&with_lat(write(1), lat)), 1).unwrap();
        assert_eq!(action, TC_REDIRECT);
        let started = std::time::Instant::now();
        while started.elapsed().as_millis() < 3 {
            std::hint::spin_loop();
        }
        let (action, out, _) = s.test_run_behind_queue(&out).unwrap();
        assert_eq!(action, TC_OK);
        let spent = frame::parse(&out).unwrap().header.lat - lat;
        assert!((3_000_000..500_000_000).contains(&spent), "{spent} ns in a queue of 3 ms");
    }
    // Beyond what can be stamped in progress, it reads as two seconds and more.
    let (_, out, _) = s.test_run(&framed(&with_lat(write(1), u32::MAX)), 1).unwrap();
    let (_, out, _) = s.test_run_behind_queue(&out).unwrap();
    assert!(frame::parse(&out).unwrap().header.lat >= 0x7fff_ffff);
}

/// A stamp that `behind_queue` would not complete is not left open: a message to a ring with another operation.
#[test]
fn tc_a_ring_stamps_what_the_far_end_of_a_queue_completes() {
    if skip("tc_a_ring_stamps_what_the_far_end_of_a_queue_completes") {
        return;
    }
    let mut s = pair(config(16));
    s.set_port(NodeId(2), Port { ifindex: 1, mac: frame::mac(NodeId(2)), place: PortPlace::Queue }).unwrap();
    let address: std::net::Ipv4Addr = [10, 10, 0, 9].into();
    let prefix = Prefix { address, bits: 32 };
    s.set_ring(&Ring { prefix, reach: Reach::All, members: vec![NodeId(2)] }).unwrap();
    let through = |s: &mut KernelSwitch, mut p: Packet| {
        p.dst = NodeId((u32::from(address) & 0xff_ffff) - 1);
        let (action, out, _) = s.test_run(&framed(&p), 1).unwrap();
        assert_eq!(action, TC_REDIRECT);
        let (_, out, _) = s.test_run_behind_queue(&out).unwrap();
        frame::parse(&out).unwrap().header.lat
    };
    let answer = packet(Op::Reply, CLIENT.0, 1, Body::Block(Block::Reply(IoReply::Done)));
    assert_eq!(through(&mut s, with_lat(answer, 77)), 77);
    assert!((78..500_000_000).contains(&through(&mut s, with_lat(write(1), 77))));
}

/// `frame::parse` checks both checksums, here for every alignment and carry of the rewritten fields.
#[test]
fn tc_checksums_are_right_whatever_is_rewritten() {
    if skip("tc_checksums_are_right_whatever_is_rewritten") {
        return;
    }
    let mut s = pair(config(16));
    s.send(Time::ZERO, gc(GcField::Regular, 1, 2, 1, 1)).pop().unwrap();
    let mut rng = rackweave_core::Rng::new(3);
    for _ in 0..2_000 {
        let mut p = with_lat(read(1, rng.next_u64()), rng.next_u64() as u32);
        p.src = NodeId(95 + rng.below(15) as u32);
        let out = s.send(Time::ZERO, p.clone()).pop().unwrap();
        assert_eq!((out.dst, out.header.vssd.0, out.src), (NodeId(3), 2, p.src));
    }
    // Without a UDP checksum there is none to preserve.
    let mut f = framed(&read(1, 0));
    f[40..42].fill(0);
    let (action, out, _) = s.test_run(&f, 1).unwrap();
    assert_eq!((action, &out[40..42]), (TC_REDIRECT, &[0, 0][..]));
}

/// Sealed as by the transport: key id at byte 48, tag at 64.
fn sealed(p: &Packet, key_id: u8, key: [u64; 2]) -> Vec<u8> {
    let mut b = bytes(p);
    b[48] = key_id;
    let tag = tag(&b, key);
    b[64..72].copy_from_slice(&tag.to_be_bytes());
    frame::around(p.src, p.dst, &b)
}

/// As the transport computes it.
fn tag(b: &[u8], key: [u64; 2]) -> u64 {
    siphash24(key, &gc_covered(b).expect("a gc_op"))
}

#[test]
fn tc_only_a_right_tag_moves_a_bit() {
    if skip("tc_only_a_right_tag_moves_a_bit") {
        return;
    }
    let mut s = pair(KernelConfig { require_mac: true, ..config(16) });
    let key = gc_key(&[0x5c; 32], KeyId(7), NodeId(2), 1);
    s.set_key(7, NodeId(2), Incarnation(1), key).unwrap();
    let ask = gc(GcField::Regular, 1, 2, 1, 1);
    let forged = [
        framed(&ask),
        sealed(&ask, 7, [key[0], key[1] ^ 1]),
        sealed(&ask, 8, key),
        sealed(&gc(GcField::Regular, 1, 2, 2, 1), 7, key),
        sealed(&gc(GcField::Regular, 2, 3, 1, 1), 7, key),
    ];
    for (i, f) in forged.iter().enumerate() {
        assert_eq!(s.test_run(f, 1).unwrap().0, TC_DROP, "forgery {i}");
    }
    assert_eq!(DataPlane::counters(&s).unwrap().bad_mac, forged.len() as u64);
    assert!(Plane::dump(&s, Time::ZERO).replica.iter().all(|r| !r.collecting));
    let (action, out, _) = s.test_run(&sealed(&ask, 7, key), 1).unwrap();
    assert_eq!(action, TC_REDIRECT);
    let ours = &out[frame::HEAD_BYTES..];
    assert_eq!(
        (ours[48], &ours[64..72]),
        (7, &tag(ours, key).to_be_bytes()[..]),
        "the answer is sealed with the same key"
    );
    let mut plain = ours.to_vec();
    plain[48] = 0;
    plain[64..72].fill(0);
    let answer = frame::parse(&frame::around(Layout::SWITCH, NodeId(2), &plain)).unwrap();
    assert_eq!(answer.body, Body::Table(Table::Gc(GcOp { field: GcField::Accept, sequence: 1 })));
    assert_eq!((answer.src, answer.dst), (Layout::SWITCH, NodeId(2)));
    // Any flipped bit of the covered bytes, with correct checksums, is detected.
    let sealed = bytes_of(&sealed(&gc(GcField::Finish, 1, 2, 1, 2), 7, key));
    for at in (9..16).chain(20..48).chain(80..89) {
        let mut b = sealed.clone();
        b[at] ^= 1;
        let sum = checksum(&b);
        b[60..64].copy_from_slice(&sum.to_be_bytes());
        let (action, ..) = s.test_run(&frame::around(NodeId(2), Layout::SWITCH, &b), 1).unwrap();
        assert_eq!(action, TC_DROP, "byte {at}");
    }
    assert!(Plane::dump(&s, Time::ZERO).replica[0].collecting);
}

/// Reports of load are authenticated as `gc_op`s are: a forged one leaves the counts as they are.
fn only_a_right_tag_changes_a_count(hook: Hook) {
    let redirect = Redirect::Load;
    let mut s = pair(KernelConfig { hook, redirect, require_mac: true, ..config(16) });
    let dropped = if hook == Hook::Tc { TC_DROP } else { XDP_DROP };
    for (node, vssd) in [(2, 1), (3, 2)] {
        let key = gc_key(&[0x5c; 32], KeyId(7), NodeId(node), 1);
        s.set_key(7, NodeId(node), Incarnation(1), key).unwrap();
        s.test_run(&sealed(&gc(GcField::Idle, vssd, node, 1, 1), 7, key), 1).unwrap();
    }
    let key = gc_key(&[0x5c; 32], KeyId(7), NodeId(2), 1);
    let load = |waiting| {
        let load = ReadLoad { answered: 0, waiting, erasing: false, collecting: 0 };
        packet(Op::Load, 2, 1, Body::Table(Table::Load(load)))
    };
    let reached = |s: &mut KernelSwitch| s.send(Time::ZERO, read(1, 0)).pop().unwrap().header.vssd.0;
    assert_eq!([reached(&mut s), reached(&mut s)], [1, 2], "equal loads");
    let whole = bytes_of(&sealed(&load(9), 7, key));
    let mut forged = vec![framed(&load(9)), sealed(&load(9), 7, [key[0], key[1] ^ 1]), sealed(&load(9), 8, key)];
    // Another node's key.
    forged.push(sealed(&load(9), 7, gc_key(&[0x5c; 32], KeyId(7), NodeId(3), 1)));
    for at in (9..16).chain(20..48).chain(80..92) {
        let mut b = whole.clone();
        b[at] ^= 1;
        let sum = checksum(&b);
        b[60..64].copy_from_slice(&sum.to_be_bytes());
        forged.push(frame::around(NodeId(2), Layout::SWITCH, &b));
    }
    for (i, f) in forged.iter().enumerate() {
        assert_eq!(s.test_run(f, 1).unwrap().0, dropped, "forgery {i}");
    }
    let c = DataPlane::counters(&s).unwrap();
    assert_eq!(c.bad_mac + c.malformed + c.gc_foreign, forged.len() as u64);
    assert_eq!(s.test_run(&frame::around(NodeId(3), Layout::SWITCH, &whole), 1).unwrap().0, dropped);
    assert_eq!([reached(&mut s), reached(&mut s)], [1, 2], "nothing was counted");
    assert_eq!(s.test_run(&sealed(&load(9), 7, key), 1).unwrap().0, dropped, "it is not answered");
    assert!((0..7).all(|_| reached(&mut s) == 2), "nine wait");
}

#[test]
fn tc_only_a_right_tag_changes_a_count() {
    if !skip("tc_only_a_right_tag_changes_a_count") {
        only_a_right_tag_changes_a_count(Hook::Tc);
    }
}

#[test]
fn xdp_only_a_right_tag_changes_a_count() {
    if !skip("xdp_only_a_right_tag_changes_a_count") {
        only_a_right_tag_changes_a_count(Hook::Xdp);
    }
}

fn bytes_of(frame: &[u8]) -> Vec<u8> {
    frame[frame::HEAD_BYTES..].to_vec()
}
/// The key's id does not count.
fn checksum(ours: &[u8]) -> u32 {
    let mut b = ours.to_vec();
    b[48..56].fill(0);
    rackweave_wire::header::checksum(&b)
}

#[test]
fn tc_what_is_not_for_the_program_or_is_wrong() {
    if skip("tc_what_is_not_for_the_program_or_is_wrong") {
        return;
    }
    let mut s = pair(config(16));
    let mut action = |f: &[u8]| s.test_run(f, 1).unwrap().0;
    // For the control plane's socket.
    assert_eq!(action(&framed(&packet(Op::DelVssd, 2, 1, Body::Table(Table::Delete)))), TC_OK);
    // Between hosts: as it is.
    let mut p = packet(Op::Reply, 2, 1, Body::Block(Block::Reply(IoReply::Done)));
    p.dst = CLIENT;
    assert_eq!(action(&framed(&p)), TC_REDIRECT);
    // No port, other ports, fragments, options, other protocols.
    let f = framed(&read(1, 0));
    let changed = |at: usize, to: u8| {
        let mut f = f.clone();
        f[at] = to;
        f
    };
    assert_eq!(action(&changed(33, 200)), TC_OK, "an address behind no port");
    assert_eq!(action(&changed(36, 1)), TC_OK, "another UDP port");
    assert_eq!(action(&changed(20, 0x20)), TC_OK, "a first fragment");
    assert_eq!(action(&changed(14, 0x46)), TC_OK, "IPv4 options");
    assert_eq!(action(&changed(23, 6)), TC_OK, "TCP");
    assert_eq!(action(&changed(12, 0x86)), TC_OK, "another protocol");
    for len in [frame::HEAD_BYTES + 1, frame::HEAD_BYTES + 79] {
        assert_eq!(action(&f[..len]), TC_DROP, "{len} bytes");
    }
    // gc_ops: damaged, too long, from an address that is not its sender's.
    let g = framed(&gc(GcField::Regular, 1, 2, 1, 9));
    let mut damaged = g.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(action(&damaged), TC_DROP);
    let mut long = g.clone();
    long.push(0);
    assert_eq!(action(&long), TC_DROP);
    let ours = bytes_of(&g);
    assert_eq!(action(&frame::around(NodeId(3), Layout::SWITCH, &ours)), TC_DROP);
    let c = DataPlane::counters(&s).unwrap();
    assert_eq!((c.malformed, c.gc_foreign, c.bad_checksum), (3, 1, 1));
    assert!(Plane::dump(&s, Time::ZERO).replica.iter().all(|r| !r.collecting));
    // Bytes at random.
    let mut rng = rackweave_core::Rng::new(1);
    for _ in 0..3_000 {
        let mut f = if rng.chance(0.5) { g.clone() } else { f.clone() };
        f.truncate(14 + rng.below(f.len() as u64 - 13) as usize);
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(f.len() as u64) as usize;
            f[at] = rng.next_u64() as u8;
        }
        // The kernel's test run itself refuses what no driver would hand over.
        let _ = s.test_run(&f, 1);
    }
    Plane::dump(&s, Time::ZERO);
}

#[test]
fn tc_arp_is_answered_from_the_ports() {
    if skip("tc_arp_is_answered_from_the_ports") {
        return;
    }
    let mut s = load(config(4));
    let ask = |target: NodeId| {
        let mut f = vec![0xff; 6];
        f.extend_from_slice(&frame::mac(CLIENT));
        f.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        f.extend_from_slice(&frame::mac(CLIENT));
        f.extend_from_slice(&CLIENT.ipv4().to_be_bytes());
        f.extend_from_slice(&[0; 6]);
        f.extend_from_slice(&target.ipv4().to_be_bytes());
        f
    };
    let (action, out, _) = s.test_run(&ask(NodeId(3)), 1).unwrap();
    assert_eq!((action, &out[..6], &out[20..22]), (TC_REDIRECT, &frame::mac(CLIENT)[..], &[0, 2][..]));
    assert_eq!((&out[22..28], &out[28..32]), (&frame::mac(NodeId(3))[..], &NodeId(3).ipv4().to_be_bytes()[..]));
    assert_eq!(s.test_run(&ask(NodeId(900)), 1).unwrap().0, TC_OK);
}

#[test]
fn xdp_takes_any_bytes() {
    if skip("xdp_takes_any_bytes") {
        return;
    }
    let mut s = pair(KernelConfig { hook: Hook::Xdp, ..config(16) });
    let before = Plane::dump(&s, Time::ZERO);
    let whole = [framed(&read(1, 0)), framed(&gc(GcField::Regular, 1, 2, 1, 9)), framed(&write(2))];
    let (mut rng, mut met) = (rackweave_core::Rng::new(2), [0; 5]);
    for _ in 0..5_000 {
        let mut f = rng.pick(&whole).clone();
        f.truncate(14 + rng.below(f.len() as u64 - 14) as usize);
        let at = rng.below(f.len() as u64) as usize;
        f[at] ^= 1 << rng.below(8);
        let Ok((action, out, _)) = s.test_run(&f, 1) else { continue };
        assert_eq!(out.len(), f.len());
        met[action as usize] += 1;
    }
    assert!(met[1] > 0 && met[2] > 0 && met[4] > 0 && met[0] + met[3] == 0, "drop, pass, redirect: {met:?}");
    // No gc_op is whole.
    assert_eq!(Plane::dump(&s, Time::ZERO), before);
}
