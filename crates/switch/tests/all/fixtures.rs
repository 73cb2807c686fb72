//! Runs the files of `fixtures/` through the node.

use rackweave_core::msg::{Body, GcField, GcOp, Op, Packet, TableError};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Span, Time, VssdId};
use rackweave_switch::{Switch, SwitchConfig};

use crate::support::{CLIENT, create, gc, packet, read, send, write};

const FIELDS: [(&str, GcField); 8] = [
    ("soft", GcField::Soft),
    ("regular", GcField::Regular),
    ("bg", GcField::Background),
    ("accept", GcField::Accept),
    ("delay", GcField::Delay),
    ("finish", GcField::Finish),
    ("heartbeat", GcField::Heartbeat),
    ("idle", GcField::Idle),
];

fn field(name: &str) -> GcField {
    FIELDS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("gc field {name:?}")).1
}
fn field_name(field: GcField) -> &'static str {
    FIELDS.iter().find(|(_, f)| *f == field).unwrap().0
}
fn place(text: &str) -> (u32, u32) {
    let (v, s) = text.split_once('@').unwrap_or_else(|| panic!("{text:?} is not V@S"));
    (v.parse().unwrap(), s.parse().unwrap())
}

/// `key=value` words of a line.
struct Words<'a>(Vec<&'a str>);

impl Words<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
    }
    fn number(&self, key: &str, default: u64) -> u64 {
        self.get(key).map_or(default, |v| v.parse().unwrap())
    }
}

struct Runner {
    switch: Switch,
    now: Time,
}

impl Runner {
    fn new(rows: u64) -> Runner {
        let cfg = SwitchConfig {
            rows_max: rows as u32,
            bits_expire: Span::from_secs(1),
            ..SwitchConfig::new(Layout::SWITCH)
        };
        let mut switch = Switch::new(cfg);
        switch.handle(Time::ZERO, Event::Timer, &mut Effects::new());
        Runner { switch, now: Time::ZERO }
    }

    fn send(&mut self, p: Packet) -> String {
        let (asked, src) = (p.header, p.src);
        let Some(out) = send(&mut self.switch, self.now, p) else { return "drop".into() };
        assert_eq!(out.header.request, asked.request);
        assert_eq!(out.header.incarnation, asked.incarnation);
        match (out.header.op, &out.body) {
            (Op::Read | Op::Write, _) if out.header.vssd == asked.vssd => out.dst.0.to_string(),
            (Op::Read, _) => {
                assert_eq!(out.header.original_vssd, asked.vssd);
                assert_eq!(out.src, CLIENT);
                format!("{}@{}", out.header.vssd.0, out.dst.0)
            }
            (Op::GcOp, Body::Gc(op)) => {
                assert_eq!((out.src, out.dst), (Layout::SWITCH, src), "answered to its sender");
                field_name(op.field).into()
            }
            (Op::Reply, Body::Table(result)) => {
                assert_eq!((out.src, out.dst), (Layout::SWITCH, src));
                match result {
                    Ok(()) => "ok",
                    Err(TableError::Full { .. }) => "full",
                    Err(TableError::TooManyPeers { .. }) => "peers",
                    Err(TableError::ZeroId) => "zero",
                }
                .into()
            }
            other => panic!("{other:?}"),
        }
    }

    fn tables(&self) -> String {
        let dump = self.switch.dump();
        let bit = |b| if b { '1' } else { '0' };
        let rows = dump.replica.iter().zip(&dump.destination).map(|(r, d)| {
            assert_eq!(r.vssd, d.vssd);
            format!("{}:{}{}", r.vssd.0, bit(r.collecting), bit(d.collecting))
        });
        rows.collect::<Vec<_>>().join(" ")
    }

    fn tell_idle(&mut self, places: &str) -> String {
        for at in places.split(',') {
            let (v, s) = place(at);
            assert_eq!(self.send(gc(GcField::Idle, v, s, 1, 0)), "idle");
        }
        String::new()
    }

    /// Advances, letting the node's timer run.
    fn at(&mut self, ms: &str) -> String {
        self.now = Time::ZERO + Span::from_millis(ms.parse().unwrap());
        self.switch.handle(self.now, Event::Timer, &mut Effects::new());
        self.switch.check().unwrap();
        String::new()
    }

    fn step(&mut self, line: &str) -> String {
        let words = Words(line.split_whitespace().collect());
        let (inc, epoch) = (words.number("inc", 1), words.number("epoch", 1));
        match words.0[0] {
            "at" => self.at(words.0[1]),
            "idle" => self.tell_idle(words.0[1]),
            "tables" => self.tables(),
            "create" => {
                let (v, s) = place(words.0[1]);
                let peers: Vec<_> = words.get("peers").into_iter().flat_map(|p| p.split(',')).map(place).collect();
                let mut p = create(v, s, !words.0.contains(&"unreadable"), &peers);
                (p.header.incarnation, p.header.epoch) = (Incarnation(inc), Epoch(epoch as u32));
                p.header.request = words.number("req", 0);
                self.send(p)
            }
            "del" => {
                let mut p = packet(Op::DelVssd, 2, words.0[1].parse().unwrap(), Body::DelVssd);
                p.header.incarnation = Incarnation(inc);
                self.send(p)
            }
            "read" => self.send(read(words.0[1].parse().unwrap(), words.number("req", 0))),
            "write" => self.send(write(words.0[1].parse().unwrap())),
            "gc" => {
                let (v, s) = place(words.0[2]);
                self.send(gc(field(words.0[1]), v, s, inc, words.number("seq", 0)))
            }
            other => panic!("step {other:?}"),
        }
    }
}

fn run(file: &str, text: &str) -> usize {
    let mut runner = None;
    let (mut case, mut cases) = (String::new(), 0);
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(rest) = line.strip_prefix("case ") {
            let words = Words(rest.split_whitespace().collect());
            case = words.0[0].into();
            runner = Some(Runner::new(words.number("rows", 131_072)));
            cases += 1;
            continue;
        }
        let (input, want) = match line.split_once("->") {
            Some((input, want)) => (input.trim(), want.trim()),
            None if line.starts_with("tables") => ("tables", line["tables".len()..].trim()),
            None => (line, ""),
        };
        let got = runner.as_mut().expect("a case first").step(input);
        assert_eq!(got, want, "{file}:{} in case {case}: {line}", i + 1);
    }
    cases
}

#[test]
fn algorithm1() {
    assert_eq!(run("algorithm1.txt", include_str!("../../fixtures/algorithm1.txt")), 9);
}

#[test]
fn gc_op() {
    assert_eq!(run("gc_op.txt", include_str!("../../fixtures/gc_op.txt")), 10);
}

#[test]
fn rows() {
    assert_eq!(run("rows.txt", include_str!("../../fixtures/rows.txt")), 8);
}

/// Protocol rule 18: a data plane rewrites bytes of the packet in place, and the checksum still holds.
#[test]
fn on_the_wire_only_rewritable_bytes_change() {
    let mut r = Runner::new(8);
    for step in ["create 1@2 peers=2@3", "create 2@3 peers=1@2", "idle 1@2,2@3", "gc soft 1@2 seq=1"] {
        r.step(step);
    }
    for p in [read(1, 77), read(2, 78), write(1)] {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        rackweave_wire::encode(&p, &mut before).unwrap();
        let out = send(&mut r.switch, r.now, p).unwrap();
        rackweave_wire::encode(&out, &mut after).unwrap();
        assert_eq!(before.len(), after.len());
        let changed = (0..before.len()).filter(|&i| before[i] != after[i]);
        assert!(changed.into_iter().all(|i| (1..9).contains(&i) || (16..20).contains(&i)));
    }
}

#[test]
fn a_packet_keeps_what_the_switch_may_not_rewrite() {
    let mut r = Runner::new(8);
    r.step("create 1@2 peers=2@3");
    r.step("create 2@3 peers=1@2");
    r.step("idle 1@2,2@3");
    r.step("gc soft 1@2 seq=1");
    let p = read(1, 77);
    let out = send(&mut r.switch, r.now, p.clone()).unwrap();
    let mut header = p.header;
    (header.vssd, header.lat) = (VssdId(2), out.header.lat);
    assert_eq!((out.header, &out.body, out.src, out.dst), (header, &p.body, p.src, NodeId(3)));
    let op = GcOp { field: GcField::Soft, sequence: 5 };
    let p = packet(Op::GcOp, 3, 2, Body::Gc(op));
    let out = send(&mut r.switch, r.now, p).unwrap();
    assert_eq!(out.body, Body::Gc(GcOp { field: GcField::Delay, sequence: 5 }));
}
