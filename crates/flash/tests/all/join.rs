//! vSSDs of several units: entries that are joined and separated, with power cuts.

use std::collections::BTreeMap;

use rackweave_core::device::DeviceError;
use rackweave_core::{Rng, SetId, Timestamp, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::table::EntryState;
use rackweave_flash::{AllocError, FlashDone, JoinError, Share, Ssd, SsdConfig};

use crate::rig::{Rig, contents, small_config};

/// Units of the drive, a die each.
const UNITS: u32 = 4;
const BLOCKS: u64 = 200;

fn config() -> SsdConfig {
    let mut cfg = small_config();
    cfg.profile.geometry.blocks_per_plane = 24;
    cfg
}
/// A drive of free units.
fn drive(cfg: &SsdConfig) -> Ssd {
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    for k in 1..=UNITS {
        ssd.alloc_share(VssdId(k), Share::Dies(1)).expect("a free die");
        ssd.made_for(SetId(u32::MAX), EntryState::Free);
    }
    ssd
}
fn started(cfg: &SsdConfig, disk: Memory, seed: u64) -> Rig {
    let mut rig = Rig::of(drive(cfg), disk, seed);
    rig.boot();
    rig.ssd.take_names();
    rig
}

impl Rig {
    fn set_units(&mut self, vssd: VssdId, units: u8) -> Result<(), JoinError> {
        let begun = self.ssd.set_units(self.now, vssd, units, &mut self.out);
        self.take();
        begun
    }
    fn joined(&mut self) -> bool {
        self.done.drain(..).any(|d| matches!(d, FlashDone::Joined { result: Ok(()), .. }))
    }
}

#[test]
fn joined_units_hold_what_their_sum_does_and_are_free_again() {
    let cfg = config();
    let mut rig = started(&cfg, Memory::new(cfg.profile.geometry), 1);
    let alone = rig.ssd.space(VssdId(2)).exported_slots;
    assert_eq!(rig.set_units(VssdId(2), 3), Ok(()));
    assert_eq!(rig.set_units(VssdId(1), 1), Err(JoinError::Busy), "one at a time");
    rig.settle();
    assert!(rig.joined());
    let units: Vec<u8> = (1..=UNITS).map(|k| rig.ssd.units(VssdId(k))).collect();
    assert_eq!(units, [1, 3, 0, 0]);
    assert!(rig.ssd.space(VssdId(2)).exported_slots >= 3 * alone);
    assert_eq!(rig.ssd.space(VssdId(3)).exported_slots, 0);
    assert_eq!(rig.set_units(VssdId(3), 1), Err(JoinError::Busy), "it has none of its own");
    assert_eq!(rig.set_units(VssdId(1), 2), Err(JoinError::Busy), "the second is another's");
    assert_eq!(rig.set_units(VssdId(2), 4), Err(JoinError::Apart { index: 1, units: 4 }));
    assert_eq!(rig.set_units(VssdId(2), 0), Err(JoinError::Apart { index: 1, units: 0 }));
    rig.vssd = VssdId(2);
    rig.assign();
    rig.program(&[(1, 5)], 1).expect("room");
    rig.sync(2);
    rig.settle();
    assert_eq!(rig.set_units(VssdId(2), 1), Err(JoinError::Busy), "it holds something");
    rig.clear();
    rig.settle();
    assert_eq!(rig.set_units(VssdId(2), 1), Ok(()));
    rig.settle();
    let units: Vec<u8> = (1..=UNITS).map(|k| rig.ssd.units(VssdId(k))).collect();
    assert_eq!(units, [1; 4]);
    assert_eq!(rig.ssd.space(VssdId(4)).exported_slots, alone);
}

#[test]
fn units_of_different_kinds_are_not_joined() {
    let cfg = config();
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    ssd.alloc_share(VssdId(1), Share::Dies(1)).expect("a die");
    ssd.made_for(SetId(u32::MAX), EntryState::Free);
    ssd.alloc_share(VssdId(2), Share::Channels(1)).expect("a channel");
    ssd.made_for(SetId(u32::MAX), EntryState::Free);
    assert!(matches!(ssd.alloc_share(VssdId(3), Share::Channels(1)), Err(AllocError::NoChannels { .. })));
    let mut rig = Rig::of(ssd, Memory::new(cfg.profile.geometry), 1);
    rig.boot();
    assert_eq!(rig.set_units(VssdId(1), 2), Err(JoinError::Apart { index: 0, units: 2 }));
}

#[test]
fn a_block_that_failed_stays_so_in_another_division() {
    let cfg = config();
    let mut rig = started(&cfg, Memory::new(cfg.profile.geometry), 3);
    rig.vssd = VssdId(3);
    rig.assign();
    for token in 1..3 {
        rig.fail = Some(DeviceError::BadBlock { block: 0 });
        rig.program(&[(token as u32, token)], token).expect("room");
        rig.settle();
    }
    assert_eq!(rig.ssd.retired(VssdId(3)), 2);
    rig.clear();
    rig.settle();
    assert_eq!(rig.set_units(VssdId(2), 2), Ok(()));
    rig.settle();
    assert_eq!((rig.ssd.retired(VssdId(2)), rig.ssd.retired(VssdId(3))), (2, 0));
    rig.ssd.check().expect("sound");
    let mut rig = started(&cfg, rig.disk.crash(&mut Rng::new(1)), 4);
    assert_eq!((rig.ssd.units(VssdId(2)), rig.ssd.retired(VssdId(2))), (2, 2), "as a start finds it");
    assert_eq!(rig.set_units(VssdId(2), 1), Ok(()));
    rig.settle();
    assert_eq!((rig.ssd.retired(VssdId(2)), rig.ssd.retired(VssdId(3))), (0, 2));
}

/// The user of the drive: vSSDs by entry, with their units and what they hold durably.
#[derive(Default)]
struct User {
    held: BTreeMap<u32, (u8, BTreeMap<u32, u64>)>,
    version: u64,
}

impl User {
    /// Number of the entry and units of a vSSD that may be made now.
    fn choose(&self, rng: &mut Rng) -> Option<(u32, u8)> {
        let first = 1 + rng.below(u64::from(UNITS)) as u32;
        let units = 1 + rng.below(u64::from(UNITS - first + 1)) as u8;
        let range = first..first + u32::from(units);
        let taken = |k: u32| self.held.iter().any(|(f, (n, _))| (*f..f + u32::from(*n)).contains(&k));
        (!range.into_iter().any(taken)).then_some((first, units))
    }
    fn write(&mut self, rig: &mut Rig, first: u32) {
        rig.vssd = VssdId(first);
        let (_, held) = self.held.get_mut(&first).expect("made");
        for _ in 0..60 {
            self.version += 1;
            let block = rig.rng.below(BLOCKS) as u32;
            while rig.program(&[(block, self.version)], self.version).is_err() {
                rig.gc_start();
                assert!(rig.step(), "no room");
            }
            held.insert(block, self.version);
        }
        rig.sync(self.version);
        rig.settle();
    }
    fn check(&self, rig: &mut Rig) {
        for (first, (units, held)) in &self.held {
            assert_eq!(rig.ssd.units(VssdId(*first)), *units);
            rig.vssd = VssdId(*first);
            for (block, version) in held {
                assert_eq!(rig.fetch(*block), (Timestamp(*version), Ok(contents(*version))), "vSSD {first}, {block}");
            }
        }
        rig.ssd.check().expect("sound");
    }
    /// Separates what is joined and free, as the user's plan says.
    fn tidy(&self, rig: &mut Rig) {
        for k in 1..=UNITS {
            if !self.held.contains_key(&k) && rig.ssd.entry_state(VssdId(k)) == EntryState::Clearing {
                rig.vssd = VssdId(k);
                rig.clear();
                rig.settle();
            }
            if !self.held.contains_key(&k) && rig.ssd.units(VssdId(k)) > 1 {
                assert_eq!(rig.set_units(VssdId(k), 1), Ok(()));
                rig.settle();
            }
        }
    }
    /// Makes a vSSD, or gives one back; false: power failed meanwhile.
    fn change(&mut self, rig: &mut Rig, rng: &mut Rng) -> bool {
        let steps = if rng.chance(0.4) { rng.below(40) } else { u64::MAX };
        let stopped = |rig: &mut Rig| (0..steps).take_while(|_| rig.step()).count() as u64 == steps;
        if let Some((first, units)) = self.choose(rng) {
            assert_eq!(rig.set_units(VssdId(first), units), Ok(()));
            if stopped(rig) {
                return false;
            }
            rig.vssd = VssdId(first);
            rig.assign();
            self.held.insert(first, (units, BTreeMap::new()));
            self.write(rig, first);
        } else if let Some((first, _)) = self.held.pop_first() {
            rig.vssd = VssdId(first);
            rig.clear();
            return !stopped(rig);
        }
        true
    }
}

#[test]
fn divisions_change_under_power_cuts_and_every_vssd_keeps_what_it_holds() {
    let mut cuts = 0;
    for seed in 0..25 {
        let cfg = config();
        let mut rng = Rng::new(seed);
        let mut rig = started(&cfg, Memory::new(cfg.profile.geometry), seed);
        let mut user = User::default();
        for round in 0..20 {
            let whole = user.change(&mut rig, &mut rng);
            cuts += u32::from(!whole);
            if !whole || rng.chance(0.2) {
                rig = started(&cfg, rig.crash(&mut rng), seed << 8 | round);
                for k in 1..=UNITS {
                    let used = user.held.contains_key(&k);
                    if !used && rig.ssd.entry_state(VssdId(k)) == EntryState::InUse {
                        rig.vssd = VssdId(k);
                        rig.clear();
                        rig.settle();
                    }
                }
            }
            user.tidy(&mut rig);
            user.check(&mut rig);
        }
    }
    assert!(cuts > 50, "{cuts}");
}
