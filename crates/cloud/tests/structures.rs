//! Data structures against models, with random operations.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_cloud::bloom::CountingBloom;
use rackweave_cloud::index::{Found, Index};
use rackweave_cloud::log::{AppendError, Kind, LogLimits, ReadError, SubLog};
use rackweave_cloud::overlay::Overlay;
use rackweave_cloud::record::{self, Record, RecordError, SegmentKey};
use rackweave_cloud::stripe::{Shape, Striping, StripingError};
use rackweave_cloud::types::{Contents, EntryId, Extent, Serial, Write};
use rackweave_core::journal::Change;
use rackweave_core::rng::seeds;
use rackweave_core::{Epoch, Payload, Rng, Time, VolumeId};

const SECTORS: u64 = 300;

fn extent(rng: &mut Rng, sectors: u64, most: u64) -> Extent {
    let count = rng.between(1, most);
    Extent::new(rng.below(sectors - count + 1), count as u32)
}

fn id(serial: u64) -> EntryId {
    EntryId { serial: Serial(serial), generation: Epoch(1 + serial as u32 / 40) }
}

#[test]
fn the_index_knows_the_newest_entry_of_every_sector() {
    for seed in seeds(0..60) {
        let mut rng = Rng::stream(seed, 1);
        let (mut index, mut model) = (Index::new(), vec![None; SECTORS as usize]);
        let mut live: BTreeMap<Serial, Extent> = BTreeMap::new();
        for serial in 1..200 {
            let e = extent(&mut rng, SECTORS, 40);
            index.insert(id(serial), e, false);
            live.insert(Serial(serial), e);
            model[e.first as usize..e.end() as usize].fill(Some(id(serial)));
            if rng.chance(0.2) {
                let head = Serial(rng.between(serial.saturating_sub(20), serial));
                index.trim(head);
                live.retain(|s, _| *s >= head);
                model.iter_mut().filter(|m| m.is_some_and(|id| id.serial < head)).for_each(|m| *m = None);
            }
            let asked = extent(&mut rng, SECTORS, 80);
            assert!(index.may_overlap(asked) || !live.values().any(|e| e.overlaps(asked)), "seed {seed}");
            if rng.chance(0.5) {
                continue;
            }
            let mut at = asked.first;
            for found in index.find(asked) {
                let (part, id) = match found {
                    Found::Log { part, id } => (part, Some(id)),
                    Found::Store { part } => (part, None),
                };
                assert_eq!(part.first, at, "seed {seed}: parts follow one another");
                assert!((part.first..part.end()).all(|s| model[s as usize] == id), "seed {seed}: {found:?}");
                at = part.end();
            }
            assert_eq!(at, asked.end());
            assert_eq!(index.len(), live.len());
        }
        index.trim(Serial(1_000));
        assert!(index.is_empty() && index.bytes() == 0 && !index.may_overlap(Extent::new(0, 300)), "nothing is left");
    }
}

#[test]
fn the_filter_forgets_what_was_removed_and_nothing_else() {
    let mut rng = Rng::new(3);
    let (mut filter, mut added) = (CountingBloom::default(), Vec::new());
    let (mut wrong, mut clear) = (0, 0);
    for _ in 0..4_000 {
        if added.len() > 300 || rng.chance(0.4) && !added.is_empty() {
            filter.remove(added.swap_remove(rng.below(added.len() as u64) as usize));
        } else {
            added.push(extent(&mut rng, 1 << 30, 128));
            filter.add(*added.last().expect("one"));
        }
        assert!(added.iter().all(|e| filter.may_overlap(*e)));
        let other = extent(&mut rng, 1 << 30, 128);
        if !added.iter().any(|e| e.overlaps(other)) {
            clear += 1;
            wrong += u32::from(filter.may_overlap(other));
        }
    }
    assert!(wrong * 50 < clear, "{wrong} of {clear} are false positives");
}

#[test]
fn stripes_divide_a_disk_and_sizes_that_do_not_divide_are_refused() {
    let s = Striping::new(1 << 20, 256 << 10, 4096).expect("it divides");
    assert_eq!((s.segments(), s.stripe()), (4, 8));
    let mut of = vec![0; 4];
    for sector in 0..s.sectors() {
        of[s.segment_of(sector) as usize] += 1;
    }
    assert_eq!(of, [512; 4]);
    let pieces: Vec<Extent> = s.pieces(Extent::new(5, 20)).collect();
    assert_eq!(pieces, [Extent::new(5, 3), Extent::new(8, 8), Extent::new(16, 8), Extent::new(24, 1)]);
    assert!(pieces.iter().all(|p| s.is_piece(*p)));
    assert!(!s.is_piece(Extent::new(7, 2)) && !s.contains(Extent::new(u64::MAX, 2)));
    assert_eq!(Striping::new(1 << 20, 256 << 10, 1000), Err(StripingError::Stripe { stripe: 1000 }));
    assert_eq!(Striping::new(1 << 20, 5000, 4096), Err(StripingError::Segment { segment: 5000, stripe: 4096 }));
    assert_eq!(Striping::new(1000, 8192, 4096), Err(StripingError::Size { bytes: 1000 }));
}

/// A store, as a driver keeps it.
#[derive(Default)]
struct Saved(BTreeMap<Bytes, Bytes>);

impl Saved {
    fn apply(&mut self, changes: Vec<Change>) {
        for (k, v) in changes {
            match v {
                Some(v) => drop(self.0.insert(k, v)),
                None => drop(self.0.remove(&k)),
            }
        }
    }
    fn records(&self) -> Vec<Record> {
        self.0.iter().map(|(k, v)| record::read(k, v).expect("its own")).collect()
    }
}

/// Contents with bytes or, in some seeds, without.
fn bytes(rng: &mut Rng, seed: u64, sectors: u32) -> Payload {
    let fill = rng.between(1, 255) as u8;
    if seed % 4 == 1 {
        return Payload::elided(sectors * 512, rng.below(1 << 40));
    }
    Payload::Bytes((0..sectors * 512).map(|i| fill ^ (i / 512) as u8).collect::<Vec<_>>().into())
}

fn identities(p: &Payload) -> Vec<u64> {
    (0..p.sectors()).map(|i| p.identity(i)).collect()
}

#[test]
fn an_overlay_has_what_was_written_and_nothing_else_and_survives_a_restart() {
    const KEY: SegmentKey = SegmentKey { volume: VolumeId(7), segment: 2 };
    const WHOLE: u32 = 128;
    for seed in seeds(0..40) {
        let mut rng = Rng::stream(seed, 2);
        let (mut overlay, mut saved) = (Overlay::new(KEY), Saved::default());
        let mut model: BTreeMap<u64, Vec<Option<u64>>> = BTreeMap::new();
        for step in 0..150 {
            let (stripe, mut changes, now) = (rng.below(6), Vec::new(), Time(step));
            let e = extent(&mut rng, WHOLE.into(), 40);
            let flat = model.entry(stripe).or_insert_with(|| vec![None; WHOLE as usize]);
            let (at, range) = (e.first as u32, e.first as usize..e.end() as usize);
            match rng.below(8) {
                0 => {
                    flat.fill(None);
                    overlay.remove(stripe, &mut changes);
                }
                1 => {
                    flat.fill(Some(0));
                    overlay.zero(now, stripe, (0, WHOLE), WHOLE, &mut changes);
                }
                2 | 3 => {
                    flat[range].fill(Some(0));
                    overlay.zero(now, stripe, (at, e.count), WHOLE, &mut changes);
                }
                _ => {
                    let data = bytes(&mut rng, seed, e.count);
                    flat[range].iter_mut().zip(identities(&data)).for_each(|(s, id)| *s = Some(id));
                    overlay.write(now, stripe, at, &data, &mut changes);
                }
            }
            saved.apply(changes);
            if rng.chance(0.1) {
                overlay = Overlay::new(KEY);
                for r in saved.records() {
                    match r {
                        Record::Block(KEY, s, place, valid, p) => overlay.found(s, place, valid, p),
                        Record::Zeroed(KEY, s) => overlay.found_zeroed(s),
                        other => panic!("{other:?}"),
                    }
                }
            }
            for (stripe, flat) in &model {
                let (mut known, mut runs) = (vec![None; WHOLE as usize], vec![None; WHOLE as usize]);
                let set = |into: &mut Vec<Option<u64>>, at: u32, p: &Payload| {
                    let range = at as usize..(at + p.sectors()) as usize;
                    into[range].iter_mut().zip(identities(p)).for_each(|(s, id)| *s = Some(id));
                };
                overlay.known(*stripe, 0, WHOLE).iter().for_each(|(at, p)| set(&mut known, *at, p));
                for (at, count, data) in overlay.runs(*stripe, WHOLE) {
                    assert!(data.is_some() || at % 8 == 0 && count % 8 == 0, "zeroes of whole blocks");
                    set(&mut runs, at, &data.unwrap_or(Payload::Zero { sectors: count }));
                }
                assert_eq!((&known, &runs), (flat, flat), "seed {seed}, stripe {stripe}");
            }
            let mut keys = Vec::new();
            overlay.keys(&mut keys);
            assert_eq!(keys.iter().collect::<BTreeSet<_>>(), saved.0.keys().collect(), "seed {seed}");
            assert_eq!(overlay.oldest().count(), overlay.stripes().count());
        }
        let mut changes = Vec::new();
        overlay.clear(&mut changes);
        saved.apply(changes);
        assert!(overlay.is_empty() && overlay.bytes() == 0 && saved.0.is_empty(), "seed {seed}: nothing is left");
    }
}

#[test]
fn a_sub_log_keeps_valid_entries_and_their_files_and_no_others() {
    let limits = LogLimits { file: 16 << 10, bytes: 256 << 10, entries: 60 };
    let volume = VolumeId(1);
    let (mut full, mut files) = (0, 0);
    for seed in seeds(0..40) {
        let mut rng = Rng::stream(seed, 3);
        let (mut log, mut saved) = (SubLog::new(volume, limits), Saved::default());
        let mut model: BTreeMap<EntryId, Option<Write>> = BTreeMap::new();
        let mut head = Serial(0);
        for serial in 1..200 {
            let mut changes = Vec::new();
            let e = extent(&mut rng, SECTORS, 30);
            let contents = match rng.below(6) {
                0 => Contents::Zeroes,
                1 => Contents::Discarded,
                _ => Contents::Data(bytes(&mut rng, seed, e.count)),
            };
            let write = Write { extent: e, contents };
            match log.append(id(serial), &write, &mut changes) {
                Ok(new) => assert!(new && model.insert(id(serial), Some(write.clone())).is_none()),
                Err(AppendError::Full { .. }) => {
                    full += 1;
                    assert!(log.is_full() && changes.is_empty());
                }
                Err(e) => panic!("{e}"),
            }
            if rng.chance(0.2) {
                assert_ne!(log.append(id(serial), &write, &mut changes), Ok(true), "not twice");
            }
            let any = id(rng.between(head.0.max(1), serial));
            if rng.chance(0.3) && any.serial >= head {
                log.void(any, &mut changes);
                model.insert(any, None);
                let again = log.append(any, &write, &mut changes);
                assert_eq!(again, Err(AppendError::Void { serial: any.serial }));
            } else if rng.chance(0.6) && model.get(&any).is_some_and(Option::is_some) {
                log.invalidate(any, &mut changes);
                model.insert(any, None);
            }
            if rng.chance(0.1) || log.is_full() {
                head = head.max(Serial(rng.between(serial / 2, serial)));
                log.trim(head, &mut changes);
                model.retain(|id, _| id.serial >= head);
                if let Some(before) = head.0.checked_sub(1) {
                    let late = log.append(id(before), &write, &mut changes);
                    assert!(matches!(late, Err(AppendError::Outdated { .. })));
                }
            }
            saved.apply(changes);
            if rng.chance(0.1) {
                log = reopened(&saved, limits, seed);
                log.trim(head, &mut Vec::new());
            }
            check(&log, &model, seed);
            let inside = saved.0.keys().filter(|k| k[0] == b'd').count();
            let valid = model.values().flatten().filter(|w| matches!(w.contents, Contents::Data(_))).count();
            assert!(valid <= inside && log.files() <= valid + 1, "seed {seed}: {} files of {valid}", log.files());
            files = files.max(log.files());
        }
        let mut changes = Vec::new();
        log.trim(Serial(1_000), &mut changes);
        saved.apply(changes);
        assert!(saved.0.is_empty() && log.bytes() == 0 && log.entries() == 0, "seed {seed}: nothing is left");
    }
    assert!(full > 0 && files > 5, "{full} times full, {files} files");
}

fn reopened(saved: &Saved, limits: LogLimits, seed: u64) -> SubLog {
    let mut log = SubLog::new(VolumeId(1), limits);
    let (metas, data): (Vec<_>, Vec<_>) = saved.records().into_iter().partition(|r| matches!(r, Record::Meta(..)));
    for r in data.into_iter().chain(metas) {
        match r {
            Record::Data(_, p, d) => log.found_data(p, d),
            Record::Meta(_, m) => assert!(log.found(m), "seed {seed}: the data of {m:?}"),
            other => panic!("{other:?}"),
        }
    }
    log
}

fn check(log: &SubLog, model: &BTreeMap<EntryId, Option<Write>>, seed: u64) {
    for (id, write) in model {
        let whole = write.as_ref().map_or(Extent::new(0, 1), |w| w.extent);
        match (log.read(*id, whole), write) {
            (Ok(c), Some(w)) => assert_eq!(c, w.contents, "seed {seed}"),
            (Err(ReadError::Outdated { .. }), None) => {}
            (got, want) => panic!("seed {seed}: {id:?}: {got:?} for {want:?}"),
        }
    }
    let valid: BTreeSet<EntryId> = log.traverse(Serial(0)).filter(|m| m.valid).map(|m| m.id).collect();
    assert_eq!(valid, model.iter().filter(|(_, w)| w.is_some()).map(|(id, _)| *id).collect(), "seed {seed}");
    let voids = log.traverse(Serial(0)).filter(|m| m.kind == Kind::Void);
    assert!(voids.into_iter().all(|m| model[&m.id].is_none()));
}

#[test]
fn records_that_no_version_wrote_are_refused_with_the_rule() {
    let shape = Shape::new(1 << 20, 64 << 10, 4096, 2);
    let (key, value) = (record::volume_key(VolumeId(3)), record::volume(shape, true));
    assert!(matches!(record::read(&key, &value), Ok(Record::Volume(VolumeId(3), s, true)) if s == shape));
    let odd = record::volume(Shape { segment: 1000, ..shape }, false);
    assert!(matches!(record::read(&key, &odd), Err(RecordError::Malformed { .. })), "segments that do not divide");
    let other = Bytes::from_static(b"?");
    assert!(matches!(record::read(&other, &value), Err(RecordError::Key { .. })));
    assert!(matches!(record::read(&key, &[9, 0, 0]), Err(RecordError::Version { version: 9, .. })));
    let meta = rackweave_cloud::log::Meta {
        id: id(4),
        extent: Extent::new(8, 8),
        position: Default::default(),
        kind: Kind::Data,
        valid: true,
    };
    let (key, value) = (record::meta_key(VolumeId(1), meta.id), record::meta(&meta));
    assert_eq!(value.len(), 24, "a fixed size");
    assert!(matches!(record::read(&key, &value), Ok(Record::Meta(VolumeId(1), m)) if m == meta));
    for cut in 0..value.len() {
        assert!(record::read(&key, &value[..cut]).is_err());
    }
}
