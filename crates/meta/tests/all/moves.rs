//! vSSDs that move: the ids of the new ones.

use rackweave_core::admin::{self, ServerError};
use rackweave_core::msg::control::{DriveRefusal, DriveTable, SlotTable};
use rackweave_core::msg::{Body, Control, Op, Table};
use rackweave_core::{DriveId, Event, Incarnation, Layout, SetId, Span, VssdId};
use rackweave_meta::{codec, ids};

use super::harness::{LEASE, Rack, Scripted, config, divided};

#[test]
fn the_last_id_of_a_vssd_is_used_and_none_after_it() {
    let mut cfg = config();
    (cfg.layout, cfg.servers) = (Layout::new(4, 2), 4);
    let mut r = Rack::new(cfg);
    let (node, first) = (r.cfg.layout.server(3).expect("a server"), r.servers[0].clone());
    r.servers.push(Scripted { node, vssd: ids::first(0, 3, 0), drive: DriveId(0x200), ..first });
    r.saved.insert(codec::next_vssd_key(), codec::encode_next_vssd(ids::LAST_MADE));
    r.restart_meta();
    r.start_all();
    r.run(LEASE);
    let moved =
        |r: &mut Rack, request, i: usize| r.admin(request, admin::Op::VssdMove { vssd: r.servers[i].vssd, to: None });
    assert_eq!(moved(&mut r, 1, 0), Ok(admin::Reply::Done));
    let made = |r: &Rack| r.meta.places().filter(|(_, p)| p.node == node).map(|(_, p)| p.vssd).collect::<Vec<_>>();
    assert_eq!(made(&r), [VssdId(0x00fe_ffff)], "of this rack; those after it stand for partitions of keys");
    let spent = ServerError::NoIds { limit: 0x00fe_0000 };
    for restarted in [false, true] {
        if restarted {
            r.restart_meta();
            r.start_all();
            r.run(LEASE);
        }
        let e = moved(&mut r, 2, 1).expect_err("every id is used");
        assert_eq!(e, spent.clone().into(), "{e}");
        let e = r.admin(3, admin::Op::ServerDrain { server: r.servers[1].node }).expect_err("nothing can leave it");
        assert_eq!(e, spent.clone().into(), "{e}");
    }
    assert_eq!(made(&r).len(), 1);
}

/// The drive of a server whose vSSDs have moved away is replaced: the configuration makes the new one with those vSSDs.
/// The server ends before it has given them back, and may start with them; not once it has.
#[test]
fn a_new_drive_may_start_again_until_it_has_given_back_what_is_not_planned() {
    let mut cfg = config();
    (cfg.layout, cfg.servers) = (Layout::new(4, 2), 4);
    let mut r = Rack::new(cfg);
    let (node, first) = (r.cfg.layout.server(3).expect("a server"), r.servers[0].clone());
    let vssd = ids::first(0, 3, 0);
    let slots = divided(SlotTable { vssd, set: SetId(0), generation: 1, in_use: true });
    let table = DriveTable { generation: 1, digest: 5, known: Incarnation(0), slots };
    r.servers.push(Scripted { node, vssd, drive: DriveId(0x200), table: table.clone(), ..first });
    r.start_all();
    r.run(LEASE);
    for generation in 2..4 {
        let known = r.servers[3].incarnation;
        assert!(known > Incarnation(0));
        r.servers[3].table = DriveTable { generation, known, ..table.clone() };
        r.restart_meta();
        r.start(3);
        r.run(LEASE);
        assert_eq!(r.servers[3].drive_refused, None);
        assert!(r.servers[3].plan.0 > 0 && r.servers[3].plan.1.is_empty(), "{:?}", r.servers[3].plan);
        assert!(r.view().members.iter().all(|m| m.vssd != vssd), "{:?}", r.view());
    }
    let (known, plan) = (r.servers[3].incarnation, r.servers[3].plan.0);
    r.control(node, known, 0, Control::VssdsDone { plan, lost: 0 });
    assert!(r.meta.places().all(|(_, p)| p.node != node));
    the_switch_forgets(&mut r, vssd);
    r.servers[3].table = DriveTable { generation: 6, known, ..table };
    r.start(3);
    assert_eq!(r.servers[3].drive_refused, Some(DriveRefusal::Unknown { vssd }));
}

/// A `create_vssd` that the network held back makes the row again after the first `del_vssd`: it is deleted once more when
/// none can be under way. The answer to the first one does not count then either, however late it comes.
fn the_switch_forgets(r: &mut Rack, vssd: VssdId) {
    let mut answered: Vec<(rackweave_core::Time, rackweave_core::msg::Packet)> = Vec::new();
    for _ in 0..100 {
        r.heard.clear();
        r.run(Span::from_millis(100));
        let Some(mut p) = r.heard.iter().find(|p| p.header.op == Op::DelVssd && p.header.vssd == vssd).cloned() else {
            continue;
        };
        (p.src, p.dst) = (p.dst, p.src);
        (p.header.op, p.body) = (Op::Reply, Body::Table(Table::Answer(Ok(()))));
        // The first answer comes again, and one to the second is lost.
        let late = answered.first().map(|(_, first)| first.clone());
        let lost = answered.len() == 1;
        answered.push((r.now, p.clone()));
        late.into_iter().for_each(|p| r.event(Event::Packet(p)));
        if !lost {
            r.event(Event::Packet(p));
        }
    }
    let [first, second, _] = &answered[..] else { panic!("{answered:?}") };
    assert!((5..=7).contains(&(second.0.since(first.0).0 / 1_000_000_000)), "{answered:?}");
}
