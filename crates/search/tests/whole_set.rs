//! Replica sets that crash as a whole, and an operator who gives up servers that never return (protocol rule 6).

use rackweave_core::admin::{self, SetStatus};
use rackweave_core::msg::ViewState;
use rackweave_core::volume;
use rackweave_core::{Layout, Payload, SetId, Span, VolumeId};
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, has_rig, small};

struct Rack {
    rig: Rig,
}

has_rig!(Rack);

impl Rack {
    fn new(keep_kib: u64) -> Rack {
        let mut cfg = small(3, 64);
        cfg.client.keep_kib = keep_kib;
        Rack { rig: Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(11) }) }
    }
    fn write(&mut self, volume: VolumeId, data: &Payload) {
        let op = volume::Op::Write { volume, offset: 0, data: data.clone(), fua: false };
        assert_eq!(self.ask(op), Ok(volume::Reply::Done));
    }
    fn read(&mut self, volume: VolumeId) -> Payload {
        match self.ask(volume::Op::Read { volume, offset: 0, len: 4096 }) {
            Ok(volume::Reply::Data(d)) => d,
            other => panic!("{other:?}"),
        }
    }
    fn flush(&mut self, volume: VolumeId) -> Result<volume::Reply, volume::Error> {
        self.ask(volume::Op::Flush { volume })
    }
    /// All servers lose power with their unsynced changes, and return.
    fn dark(&mut self) {
        (0..3).for_each(|i| self.power_cut(i));
        self.run(Span::from_millis(20));
        (0..3).for_each(|i| self.start(i));
        self.until("all serve again", |r| members(r) == 3);
    }
    fn set(&mut self) -> SetStatus {
        match self.admin(admin::Op::RackStatus) {
            Ok(admin::Reply::Rack(r)) => r.sets[0].clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// Number of serving members.
fn members(r: &Rig) -> usize {
    let view = r.sim.meta().and_then(|m| m.view(SetId(0))).expect("a set");
    if view.state == ViewState::Normal { r.members(0).len() } else { 0 }
}

#[test]
fn a_set_goes_on_without_who_is_given_up_and_overwrites_it_when_it_returns() {
    let mut r = Rack::new(0);
    let v = r.volume("v", 1 << 20).id;
    let [flushed, unflushed, later] = [1, 2, 3].map(|s| Payload::elided(4096, s << 30));
    r.write(v, &flushed);
    assert_eq!(r.flush(v), Ok(volume::Reply::Done));
    r.write(v, &unflushed);
    (0..3).for_each(|i| r.power_cut(i));
    r.start(0);
    r.start(1);
    r.run(Span::from_secs(5));
    let lost = r.sim.engine().layout().server(2).expect("a server");
    let set = r.set();
    assert_eq!(set.waits_for, [lost], "{set:?}");
    assert!(r.sim.server(0).is_some_and(|s| s.status(r.sim.now()).vssds.iter().all(|v| !v.serving)));
    let word = admin::Op::SetRecover { set: set.set, without: [lost].into() };
    assert_eq!(r.admin(word.clone()), Ok(admin::Reply::Done));
    r.until("two members serve", |r| members(r) == 2);
    assert_eq!(r.admin(word), Err(admin::SetError::NotInSet { set: set.set, server: lost }.into()));
    assert_eq!(r.read(v), flushed, "what was flushed is there");
    r.write(v, &later);
    r.start(2);
    r.until("it is a member again", |r| members(r) == 3);
    // Alone it has what the others agreed on.
    r.power_cut(0);
    r.power_cut(1);
    assert_eq!(r.read(v), later);
}

#[test]
fn a_client_that_lives_on_has_its_unflushed_writes_on_flash_when_its_flush_is_done() {
    let mut r = Rack::new(1024);
    let v = r.volume("v", 1 << 20).id;
    let [first, second] = [1, 2].map(|s| Payload::elided(4096, s << 30));
    r.write(v, &first);
    r.dark();
    assert_eq!(r.flush(v), Ok(volume::Reply::Done));
    r.dark();
    assert_eq!(r.read(v), first);
    r.write(v, &second);
    r.dark();
    assert_eq!(r.read(v), second, "its reads wait until what was lost is there again");
}

#[test]
fn a_client_that_keeps_nothing_is_told_that_its_writes_are_lost() {
    let mut r = Rack::new(0);
    let v = r.volume("v", 1 << 20).id;
    let [first, second] = [1, 2].map(|s| Payload::elided(4096, s << 30));
    r.write(v, &first);
    assert_eq!(r.flush(v), Ok(volume::Reply::Done));
    r.write(v, &second);
    r.dark();
    assert_eq!(r.flush(v), Err(volume::Error::Lost { volume: v }));
    assert_eq!(r.read(v), first);
}

/// Its writer keeps running and was not informed.
#[test]
fn a_deleted_volume_stays_gone_though_all_who_deleted_it_begin_anew() {
    let mut r = Rack::new(0);
    let v = r.volume("v", 1 << 20).id;
    let data = Payload::elided(4096, 1 << 30);
    r.write(v, &data);
    assert_eq!(r.flush(v), Ok(volume::Reply::Done));
    let mapped = |r: &Rig| {
        let of = |s| {
            r.sim.server(s).map_or(0, |s| s.status(r.sim.now()).vssds.iter().map(|v| v.mapped_bytes()).sum::<u64>())
        };
        (0..3).map(of).sum::<u64>()
    };
    assert!(mapped(&r) > 0);
    assert_eq!(r.admin(admin::Op::VolumeDelete { name: "v".into(), force: true }), Ok(admin::Reply::Done));
    r.until("its blocks are gone", |r| mapped(r) == 0);
    // Including the metadata service's record of it.
    r.run(Span::from_secs(1));
    r.sim.crash(Layout::META);
    r.sim.restart(Layout::META).expect("starts");
    r.dark();
    let late = volume::Op::Write { volume: v, offset: 0, data: data.clone(), fua: true };
    let answer = r.ask(late);
    assert!(matches!(answer, Err(volume::Error::Unknown { .. })), "{answer:?}");
    assert_eq!(mapped(&r), 0, "nobody would ever clear that");
    let again = r.volume("v", 1 << 20).id;
    r.write(again, &data);
    assert_eq!((again > v, r.read(again)), (true, data));
}
