//! The switches of two racks: what each reports to the other, and how the reports change its decisions.

use rackweave_core::msg::{Body, GcField, Packet, Table};
use rackweave_core::{Effects, Event, Node, NodeId, Span, Time, VssdId};
use rackweave_switch::{Redirect, Switch, SwitchConfig};

use crate::support::{create, gc, packet, read};

/// The switch of the first rack, and that of the second, which has server 5.
const SWITCHES: [NodeId; 2] = [NodeId(1), NodeId(7)];
/// Two vSSDs of the first rack, and the far one.
const A: u32 = 1;
const B: u32 = 17;
const FAR: u32 = 1 << 24 | 49;
const ON: [(u32, u32); 3] = [(A, 2), (B, 3), (FAR, 5)];

struct Racks {
    switches: [Switch; 2],
    now: Time,
    /// Packets between the switches are lost.
    cut: bool,
    /// Packets between the switches, in order.
    between: Vec<Packet>,
}

impl Racks {
    fn new() -> Racks {
        let config = |rack: usize| SwitchConfig {
            rack: rack as u32,
            far: Some(SWITCHES[1 - rack]),
            bits_expire: Span::from_millis(100),
            ..SwitchConfig::new(SWITCHES[rack])
        };
        let switches = [Switch::new(config(0)), Switch::new(config(1))];
        let mut r = Racks { switches, now: Time::ZERO, cut: false, between: Vec::new() };
        r.announce(1);
        r
    }
    /// Every server announces its row, and reports that it is idle.
    fn announce(&mut self, sequence: u64) {
        for (v, server) in ON {
            let peers: Vec<_> = ON.into_iter().filter(|p| p.0 != v).collect();
            self.own(create(v, server, true, &peers));
            self.own(gc(GcField::Idle, v, server, 1, sequence));
        }
    }
    fn own(&mut self, p: Packet) -> Option<Packet> {
        let rack = p.header.vssd.rack() as usize;
        self.send(rack, p)
    }
    /// Returns the answer of the switch of `rack`; its reports to the other switch arrive first.
    fn send(&mut self, rack: usize, p: Packet) -> Option<Packet> {
        let mut fx = Effects::new();
        let p = Packet { dst: SWITCHES[rack], ..p };
        self.switches[rack].handle(self.now, Event::Packet(p), &mut fx);
        self.switches[rack].check().expect("tables agree");
        let (between, mut rest): (Vec<_>, Vec<_>) = fx.packets.drain(..).partition(|p| p.dst == SWITCHES[1 - rack]);
        for p in between {
            self.between.push(p.clone());
            if !self.cut {
                // A request is answered, and then the server; a report gets no answer.
                let request = matches!(&p.body, Body::Table(Table::Gc(op)) if !matches!(
                    op.field, GcField::Idle | GcField::Heartbeat | GcField::Swapping
                ));
                let answer = self.send(1 - rack, p);
                assert!(request || answer.is_none());
                rest.extend(answer);
            }
        }
        assert!(rest.len() <= 1);
        rest.pop()
    }
    fn gc(&mut self, field: GcField, vssd: u32, sequence: u64) -> GcField {
        let server = ON.iter().find(|p| p.0 == vssd).expect("one of them").1;
        match self.own(gc(field, vssd, server, 1, sequence)).expect("answered").body {
            Body::Table(Table::Gc(op)) => op.field,
            other => panic!("{other:?}"),
        }
    }
    fn read_goes_to(&mut self, vssd: u32) -> (u32, u32) {
        let p = self.own(read(vssd, 0)).expect("forwarded");
        (p.header.vssd.0, p.dst.0)
    }
    fn expire(&mut self) {
        self.now += Span::from_millis(101);
        for s in &mut self.switches {
            s.handle(self.now, Event::Timer, &mut Effects::new());
        }
    }
}

#[test]
fn a_read_stays_in_its_rack_until_all_there_collect_and_then_goes_to_the_other() {
    let mut r = Racks::new();
    assert_eq!(r.gc(GcField::Soft, A, 2), GcField::Accept);
    assert_eq!(r.read_goes_to(A), (B, 3));
    assert_eq!(r.gc(GcField::Regular, B, 2), GcField::Accept);
    assert_eq!((r.read_goes_to(A), r.read_goes_to(B)), ((FAR, 5), (FAR, 5)));
    assert_eq!(r.switches[0].counters().redirects_far, 2);
    // If the far replica collects too, the read stays where it was sent.
    assert_eq!(r.gc(GcField::Regular, FAR, 2), GcField::Accept);
    assert_eq!((r.read_goes_to(A), r.read_goes_to(FAR)), ((A, 2), (FAR, 5)));
    // The far switch sends reads to this rack as soon as a replica here stops collecting.
    assert_eq!(r.gc(GcField::Finish, B, 3), GcField::Finish);
    assert_eq!(r.read_goes_to(FAR), (B, 3));
}

#[test]
fn where_no_read_is_to_leave_its_rack_all_stay_though_all_there_collect() {
    let mut r = Racks::new();
    let config = SwitchConfig {
        far: Some(SWITCHES[1]),
        far_reads: false,
        bits_expire: Span::from_millis(100),
        ..SwitchConfig::new(SWITCHES[0])
    };
    r.switches[0] = Switch::new(config);
    r.announce(2);
    assert_eq!(r.gc(GcField::Regular, A, 3), GcField::Accept);
    assert_eq!(r.read_goes_to(A), (B, 3));
    assert_eq!(r.gc(GcField::Regular, B, 3), GcField::Accept);
    assert_eq!((r.read_goes_to(A), r.read_goes_to(B)), ((A, 2), (B, 3)));
    let c = r.switches[0].counters();
    assert_eq!((c.redirects, c.redirects_far, c.all_collecting), (1, 0, 2));
}

#[test]
fn a_silent_servers_reads_stay_in_the_rack_if_one_there_speaks_and_else_go_to_the_other() {
    for redirect in [Redirect::Gc, Redirect::Load] {
        let mut r = Racks::new();
        let config = |far_reads| SwitchConfig {
            far: Some(SWITCHES[1]),
            redirect,
            far_reads,
            bits_expire: Span::from_millis(100),
            ..SwitchConfig::new(SWITCHES[0])
        };
        for (far_reads, sequence) in [(true, 10), (false, 20)] {
            r.switches[0] = Switch::new(config(far_reads));
            r.announce(sequence);
            r.expire();
            assert_eq!(r.read_goes_to(A), (A, 2), "all are silent");
            r.gc(GcField::Idle, B, sequence + 1);
            assert_eq!(r.read_goes_to(A), (B, 3), "{redirect:?}");
            r.expire();
            r.gc(GcField::Idle, FAR, sequence + 1);
            let far = if far_reads { (FAR, 5) } else { (A, 2) };
            assert_eq!(r.read_goes_to(A), far, "{redirect:?}");
            r.gc(GcField::Regular, FAR, sequence + 2);
            assert_eq!(r.read_goes_to(A), far, "{redirect:?}: the far replica collects, but is not silent");
            r.now += Span::from_secs(1);
        }
        // This switch never received a report about the far replica, so it does not take it for silent.
        r.cut = true;
        r.switches[0] = Switch::new(config(true));
        r.announce(30);
        assert!(r.send(0, read(FAR, 0)).map(|p| (p.header.vssd.0, p.dst.0)).is_none(), "no row yet");
        for (v, server) in ON {
            let peers: Vec<_> = ON.into_iter().filter(|p| p.0 != v).collect();
            r.send(0, create(v, server, true, &peers));
        }
        assert_eq!(r.send(0, read(FAR, 0)).map(|p| (p.header.vssd.0, p.dst.0)), Some((FAR, 5)), "{redirect:?}");
    }
}

#[test]
fn the_far_one_may_not_collect_while_both_at_home_do_nor_one_at_home_while_the_other_does() {
    let mut r = Racks::new();
    assert_eq!(r.gc(GcField::Soft, A, 2), GcField::Accept);
    assert_eq!(r.gc(GcField::Soft, B, 2), GcField::Delay, "B may not rely on the far replica being idle");
    assert_eq!(r.gc(GcField::Regular, B, 3), GcField::Accept);
    assert_eq!(r.gc(GcField::Soft, FAR, 2), GcField::Delay);
    assert_eq!(r.gc(GcField::Finish, A, 3), GcField::Finish);
    assert_eq!(r.gc(GcField::Soft, FAR, 3), GcField::Accept, "A, in the first rack, is idle");
}

#[test]
fn a_swap_in_one_rack_delays_one_in_the_other() {
    let mut r = Racks::new();
    assert_eq!(r.gc(GcField::Swap, A, 2), GcField::Accept);
    assert_eq!(r.gc(GcField::Swap, FAR, 2), GcField::Delay);
    assert_eq!(r.gc(GcField::Soft, FAR, 3), GcField::Accept, "B is idle");
    assert_eq!(r.gc(GcField::SwapBeside, FAR, 4), GcField::Delay);
    assert_eq!(r.gc(GcField::Finish, A, 3), GcField::Finish);
    assert_eq!(r.gc(GcField::SwapBeside, FAR, 5), GcField::Accept);
    assert_eq!(r.gc(GcField::Swap, B, 2), GcField::Delay);
    // It collects on.
    assert_eq!(r.gc(GcField::Heartbeat, FAR, 6), GcField::Heartbeat);
    assert_eq!(r.gc(GcField::Swap, B, 3), GcField::Accept);
}

impl Racks {
    /// The request of the second rack's switch, which has not arrived.
    fn held_back(&mut self, p: Packet) -> Packet {
        self.cut = true;
        assert!(self.own(p).is_none());
        self.cut = false;
        self.between.last().expect("sent").clone()
    }
}

fn field(p: &Packet) -> GcField {
    let Body::Table(Table::Gc(op)) = p.body else { panic!("{p:?}") };
    op.field
}

#[test]
fn a_swap_in_the_second_rack_waits_for_the_first_racks_switch() {
    let mut r = Racks::new();
    let asked = r.held_back(gc(GcField::Swap, FAR, 5, 1, 2));
    assert_eq!((field(&asked), asked.dst), (GcField::Swap, SWITCHES[0]));
    // One at home, which has not heard of it, is first.
    assert_eq!(r.gc(GcField::Swap, A, 2), GcField::Accept);
    let answer = r.send(0, asked).expect("the server's answer");
    assert_eq!((field(&answer), answer.dst, answer.header.vssd), (GcField::Delay, NodeId(5), VssdId(FAR)));
    assert_eq!(r.gc(GcField::Finish, A, 3), GcField::Finish);
    // The request is lost, and the server sends it again.
    r.held_back(gc(GcField::Swap, FAR, 5, 1, 3));
    assert_eq!(r.gc(GcField::Swap, FAR, 3), GcField::Accept);
    assert_eq!(r.gc(GcField::Swap, B, 2), GcField::Delay);
    assert_eq!(r.gc(GcField::Swap, FAR, 3), GcField::Accept, "a repetition");
    assert_eq!(r.gc(GcField::Finish, FAR, 4), GcField::Finish);
    assert_eq!(r.gc(GcField::Swap, B, 3), GcField::Accept);
}

#[test]
fn the_first_racks_late_answer_begins_no_swap() {
    let mut r = Racks::new();
    let asked = r.held_back(gc(GcField::Swap, FAR, 5, 1, 2));
    let mut fx = Effects::new();
    r.switches[0].handle(r.now, Event::Packet(asked.clone()), &mut fx);
    let answer = fx.packets.pop().expect("asked");
    assert_eq!((field(&answer), answer.dst), (GcField::Accept, SWITCHES[1]));
    assert_eq!(r.gc(GcField::Swap, A, 2), GcField::Delay, "the far one may swap");
    assert_eq!(r.gc(GcField::Finish, FAR, 3), GcField::Finish);
    assert!(r.send(1, answer).is_none());
    assert!(r.send(0, asked).is_none(), "an older request");
    assert_eq!(r.gc(GcField::Swap, A, 3), GcField::Accept);
}

#[test]
fn a_swap_that_the_first_rack_accepts_is_delayed_if_no_replica_is_idle_any_more() {
    let mut r = Racks::new();
    let asked = r.held_back(gc(GcField::SwapBeside, FAR, 5, 1, 2));
    for v in [A, B] {
        assert_eq!(r.gc(GcField::Regular, v, 2), GcField::Accept);
    }
    assert_eq!(field(&r.send(0, asked).expect("the server's answer")), GcField::Delay);
    // The first rack's switch has heard so, and the far one collects on.
    r.gc(GcField::Finish, B, 3);
    assert_eq!(r.gc(GcField::Swap, A, 3), GcField::Accept);
    assert_eq!(r.read_goes_to(FAR), (B, 3));
}

#[test]
fn no_swap_in_the_second_rack_is_accepted_while_the_first_racks_switch_is_out_of_reach_or_starts() {
    let mut r = Racks::new();
    r.cut = true;
    assert!(r.own(gc(GcField::Swap, FAR, 5, 1, 2)).is_none());
    r.cut = false;
    r.switches[0] = Switch::new(SwitchConfig { far: Some(SWITCHES[1]), ..SwitchConfig::new(SWITCHES[0]) });
    assert_eq!(r.gc(GcField::Swap, FAR, 3), GcField::Delay, "it has no row of it");
    for (v, server) in [(FAR, 5), (A, 2)] {
        let peers: Vec<_> = ON.into_iter().filter(|p| p.0 != v).collect();
        r.own(create(v, server, true, &peers));
    }
    r.own(gc(GcField::Idle, A, 2, 1, 2));
    assert_eq!(r.gc(GcField::Swap, FAR, 4), GcField::Delay, "it has not heard of B");
    r.own(create(B, 3, true, &[(A, 2), (FAR, 5)]));
    r.own(gc(GcField::Idle, B, 3, 1, 2));
    assert_eq!(r.gc(GcField::Swap, FAR, 5), GcField::Accept);
}

/// The first rack's switch accepted a far swap and restarted; another set announces first, which ends its guard time.
#[test]
fn a_restarted_switch_accepts_no_swap_beside_one_that_it_accepted_before() {
    const OTHERS: [(u32, u32); 2] = [(33, 2), (34, 3)];
    let mut r = Racks::new();
    assert_eq!(r.gc(GcField::Swap, FAR, 2), GcField::Accept);
    let config = SwitchConfig { far: Some(SWITCHES[1]), ..SwitchConfig::new(SWITCHES[0]) };
    let expire = config.bits_expire;
    r.switches[0] = Switch::new(config);
    for (v, server) in OTHERS {
        let peers: Vec<_> = OTHERS.into_iter().filter(|p| p.0 != v).collect();
        r.own(create(v, server, true, &peers));
        r.own(gc(GcField::Idle, v, server, 1, 1));
    }
    let accepts = |p: Option<Packet>| p.is_some_and(|p| field(&p) == GcField::Accept);
    assert!(accepts(r.own(gc(GcField::Soft, OTHERS[0].0, 2, 1, 2))), "all that it knows is known");
    r.cut = true;
    for (v, server) in [(A, 2), (B, 3)] {
        let peers: Vec<_> = ON.into_iter().filter(|p| p.0 != v).collect();
        r.own(create(v, server, true, &peers));
        r.own(gc(GcField::Idle, v, server, 1, 2));
    }
    assert_eq!(r.gc(GcField::Swap, A, 3), GcField::Delay);
    r.now += expire;
    r.own(gc(GcField::Idle, B, 3, 1, 3));
    assert_eq!(r.gc(GcField::Swap, A, 4), GcField::Accept, "nothing that was accepted before the restart stands");
}

/// The first rack's switch has an older row of the far vSSD, without a member that swaps.
#[test]
fn a_swap_is_delayed_beside_one_whose_row_alone_names_it() {
    let mut r = Racks::new();
    let mut older = create(FAR, 5, true, &[(B, 3)]);
    older.header.request = 1;
    older.src = SWITCHES[1];
    r.send(0, older);
    // The report to the second rack's switch is lost.
    r.cut = true;
    assert_eq!(r.gc(GcField::Swap, A, 2), GcField::Accept);
    r.cut = false;
    assert_eq!(r.gc(GcField::Swap, FAR, 2), GcField::Delay);
}

#[test]
fn of_two_that_are_left_in_different_racks_only_one_relies_on_the_other() {
    let mut r = Racks::new();
    let mut unreadable = create(B, 3, false, &[(A, 2), (FAR, 5)]);
    unreadable.header.request = 1;
    r.own(unreadable);
    assert_eq!(r.gc(GcField::Soft, FAR, 2), GcField::Delay);
    assert_eq!(r.gc(GcField::Soft, A, 2), GcField::Accept);
    assert_eq!(r.read_goes_to(A), (FAR, 5));
}

#[test]
fn what_the_other_switch_told_expires_unless_it_is_told_again() {
    let mut r = Racks::new();
    r.gc(GcField::Soft, A, 2);
    r.gc(GcField::Regular, B, 2);
    r.cut = true;
    r.expire();
    // The servers keep reporting to their own switch, which receives nothing from the other rack.
    r.gc(GcField::Heartbeat, A, 3);
    r.gc(GcField::Heartbeat, B, 3);
    assert_eq!(r.read_goes_to(A), (A, 2), "the state of the far replica has expired");
    assert_eq!(r.gc(GcField::Soft, FAR, 2), GcField::Delay, "nor here");
    r.cut = false;
    r.gc(GcField::Idle, FAR, 3);
    assert_eq!(r.read_goes_to(A), (FAR, 5));
}

#[test]
fn what_is_late_or_repeated_between_the_switches_changes_nothing() {
    let mut r = Racks::new();
    r.gc(GcField::Soft, A, 2);
    let collecting = r.between.last().expect("told").clone();
    r.gc(GcField::Finish, A, 3);
    let before = r.switches[1].dump();
    let stale = r.switches[1].counters().gc_stale;
    assert!(r.send(1, collecting).is_none());
    assert_eq!((r.switches[1].dump(), r.switches[1].counters().gc_stale), (before, stale + 1));
    for p in r.between.clone() {
        r.send(usize::from(p.dst == SWITCHES[1]), p);
    }
    let state = |s: &Switch| {
        s.dump().destination.iter().map(|d| (d.vssd, d.server, d.collecting, d.readable, d.heard)).collect::<Vec<_>>()
    };
    assert_eq!(state(&r.switches[0]), state(&r.switches[1]));
}

#[test]
fn a_switch_is_believed_about_its_own_rack_only_and_judges_no_other() {
    let mut r = Racks::new();
    let before = [r.switches[0].dump(), r.switches[1].dump()];
    // The other switch reports on a vSSD of this rack; then a server of the other rack sends to this switch.
    let mut forged = gc(GcField::Heartbeat, A, SWITCHES[1].0, 1, 9);
    forged.src = SWITCHES[1];
    assert!(r.send(0, forged).is_none());
    let mut row = create(A, 5, true, &[]);
    row.src = SWITCHES[1];
    assert!(r.send(0, row).is_none());
    let mut deleted = packet(rackweave_core::msg::Op::DelVssd, SWITCHES[1].0, A, Body::Table(Table::Delete));
    deleted.src = SWITCHES[1];
    assert!(r.send(0, deleted).is_none());
    assert!(r.send(0, gc(GcField::Soft, FAR, 5, 1, 9)).is_none());
    assert_eq!([r.switches[0].dump(), r.switches[1].dump()], before);
    assert_eq!(r.switches[0].counters().gc_foreign, 4);
}

#[test]
fn a_restarted_switch_is_filled_by_its_servers_and_the_other_switch_and_delays_until_then() {
    let mut r = Racks::new();
    let far = Some(SWITCHES[1]);
    r.switches[0] = Switch::new(SwitchConfig { far, ..SwitchConfig::new(SWITCHES[0]) });
    let peers = [(B, 3), (FAR, 5)];
    r.own(create(A, 2, true, &peers));
    r.own(gc(GcField::Idle, A, 2, 1, 2));
    r.own(create(B, 3, true, &[(A, 2), (FAR, 5)]));
    r.own(gc(GcField::Idle, B, 3, 1, 2));
    assert_eq!(r.gc(GcField::Soft, A, 3), GcField::Delay, "the state of the far replica is unknown");
    r.own(create(FAR, 5, true, &[(A, 2), (B, 3)]));
    r.own(gc(GcField::Idle, FAR, 5, 1, 2));
    assert_eq!(r.gc(GcField::Soft, A, 4), GcField::Accept);
    let rows: Vec<VssdId> = r.switches[0].dump().destination.iter().map(|d| d.vssd).collect();
    assert_eq!(rows, [VssdId(A), VssdId(B), VssdId(FAR)]);
}
