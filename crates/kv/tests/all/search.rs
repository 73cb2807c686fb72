//! Searches for power cuts after which a store has lost a change, has a deleted value back, or reads a value that was
//! never written. Runs random requests on one or two stores of a drive while they compact and write checkpoints, with
//! power cuts at any time, recovery included. A seed names a run.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::{Rng, SsdId, VssdId};
use rackweave_flash::gc_policy::VictimPolicy;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::{Done, ManagerConfig};
use rackweave_flash::{Geometry, Profile, Timing};
use rackweave_kv::store::format::VALUE_MAX;
use rackweave_kv::store::{Answer, Broken, Durability, Flash, PutError, Store, StoreConfig};

use crate::power_drive::PowerDrive;

mod order;
mod seen;

pub use seen::Seen;

/// 2 channels of 2 dies of 22 blocks of 4 pages of 8 KiB: a channel-isolated store has 19 blocks of 64 KiB.
pub fn config() -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes_per_die: 1,
        blocks_per_plane: 22,
        pages_per_block: 4,
        page_bytes: 8192,
    };
    let mut cfg = ManagerConfig::new(SsdId(7), p);
    cfg.timing = Timing::None;
    cfg.soft_planes_per_die = 1;
    cfg
}

/// A change of a key: its value afterwards.
#[derive(Clone, Debug)]
struct Change {
    value: Option<Bytes>,
    forced: bool,
    /// The change was refused.
    void: bool,
    /// Changes of a store have rising tokens; the initial value has zero.
    token: u64,
}

/// Changes of a key, in the order of the requests; the first is the initial value.
#[derive(Clone, Debug)]
struct History {
    changes: Vec<Change>,
    /// The last change that is certainly durable.
    durable: usize,
    /// The last change that was answered, durable or not.
    answered: usize,
}

impl History {
    fn of(value: Option<Bytes>) -> History {
        History { changes: vec![Change { value, forced: true, void: false, token: 0 }], durable: 0, answered: 0 }
    }
    /// The newest change from `first` on that leaves this value.
    fn find(&self, first: usize, value: Option<&Bytes>) -> Option<usize> {
        (first..self.changes.len()).rev().find(|i| !self.changes[*i].void && self.changes[*i].value.as_ref() == value)
    }
}

#[derive(Clone, Debug)]
enum Asked {
    Change { key: Vec<u8>, index: usize },
    Batch(Vec<(Vec<u8>, usize)>),
    Get { key: Vec<u8>, from: usize },
    Scan { from: Vec<u8>, limit: usize, before: BTreeMap<Vec<u8>, usize> },
}

struct Side {
    vssd: VssdId,
    user: u16,
    victims: VictimPolicy,
    store: Option<Store>,
    open: bool,
    keys: BTreeMap<Vec<u8>, History>,
    asked: BTreeMap<u64, Asked>,
    /// Batches since the last start: keys, and the numbers of their changes.
    batches: Vec<Vec<(Vec<u8>, usize)>>,
    value_max: u64,
}

struct Run {
    broken: Option<Broken>,
    /// Batches are about as long as they may be.
    long: bool,
    drive: PowerDrive,
    ready: bool,
    /// vSSDs allocated at the start.
    allocated: Vec<VssdId>,
    sides: Vec<Side>,
    token: u64,
    seen: Seen,
}

/// Runs a seed. `Err` says what was lost or wrong.
pub fn run(cfg: &ManagerConfig, broken: Option<Broken>, seed: u64) -> Result<Seen, String> {
    let mut rng = Rng::new(seed);
    let failures = if rng.chance(0.2) { 0.001 } else { 0.0 };
    let mut r = Run {
        broken,
        // Blocks in which a batch has room for a longer value than recovery reads.
        long: cfg.profile.geometry.block_bytes() > 8 * VALUE_MAX as u64,
        drive: PowerDrive::new(cfg, rng, failures),
        ready: false,
        allocated: Vec::new(),
        sides: Vec::new(),
        token: 0,
        seen: Seen::default(),
    };
    r.boot_drive()?;
    r.make_stores()?;
    for _ in 0..r.drive.rng.between(2, 6) {
        r.boot()?;
        let acts = if r.long { r.drive.rng.between(5, 30) } else { r.drive.rng.between(50, 500) };
        for _ in 0..acts {
            r.act()?;
            for _ in 0..r.drive.rng.below(5) {
                r.step()?;
            }
        }
        r.end()?;
    }
    r.boot()?;
    r.settle()?;
    r.seen.failed_blocks = r.drive.failed_blocks;
    Ok(r.seen)
}

impl Run {
    fn make_stores(&mut self) -> Result<(), String> {
        let two = self.drive.rng.chance(0.3);
        for user in 0..=u16::from(two) {
            let isolation = *self.drive.rng.pick(&Isolation::ALL);
            let call = (isolation, u32::from(isolation != Isolation::Channel), 1);
            self.drive
                .manager
                .alloc_vssd(self.drive.now, call, u64::from(user), &mut self.drive.out)
                .map_err(|e| e.to_string())?;
            while self.allocated.len() <= usize::from(user) {
                if !self.step()? {
                    return Err("no vSSD".into());
                }
            }
        }
        for (i, &vssd) in self.allocated.clone().iter().enumerate() {
            let value_max = *self.drive.rng.pick(&[40, 2000, 6500]);
            let most = *self.drive.rng.pick(&[8, 60, 300]);
            let keys = (0..most).map(|i| {
                let len = self.drive.rng.between(1, 40) as usize;
                let mut key = format!("{i:03}").into_bytes();
                key.resize(3 + len, b'k');
                (key, History::of(None))
            });
            let keys = keys.collect();
            let victims = *self.drive.rng.pick(&VictimPolicy::ALL);
            let user = i as u16 + 1;
            let (store, open, asked) = (None, false, BTreeMap::new());
            let batches = Vec::new();
            self.sides.push(Side { vssd, user, victims, store, open, keys, asked, batches, value_max });
        }
        Ok(())
    }
    /// Delivers one completion. False: none is under way.
    fn step(&mut self) -> Result<bool, String> {
        self.take()?;
        if !self.drive.complete(1_000_000) {
            return Ok(false);
        }
        self.take()?;
        Ok(true)
    }
    fn settle(&mut self) -> Result<(), String> {
        let mut steps = 0;
        while self.step()? {
            steps += 1;
            if steps > 300_000 {
                return Err("it does not come to rest".into());
            }
        }
        for s in &self.sides {
            if let Some(asked) = s.asked.values().next() {
                let space = s.store.as_ref().map(Store::space);
                return Err(format!("at rest and not answered: {asked:?} and {} more; {space:?}", s.asked.len() - 1));
            }
            s.store.as_ref().map_or(Ok(()), Store::check)?;
        }
        Ok(())
    }
    /// Executes the manager's commands, hands its answers to the stores, and takes theirs.
    fn take(&mut self) -> Result<(), String> {
        loop {
            let done = self.drive.take();
            if done.is_empty() {
                break;
            }
            for d in done {
                self.done(d)?;
            }
        }
        for i in 0..self.sides.len() {
            if self.sides[i].store.as_ref().is_some_and(Store::wants_poll) {
                self.on(i, |s, fx| s.poll(fx));
            }
            self.answers(i)?;
        }
        self.drive.sound()
    }
    fn done(&mut self, done: Done) -> Result<(), String> {
        let token = match &done {
            Done::Recovered { result } => {
                self.ready = true;
                return result.map_err(|e| e.to_string());
            }
            Done::VssdAllocated { result, .. } => {
                self.allocated.push(result.clone().map_err(|e| e.to_string())?);
                return Ok(());
            }
            Done::Swapped | Done::VssdFreed { .. } => return Ok(()),
            Done::BlockAllocated { token, .. }
            | Done::Written { token, .. }
            | Done::Read { token, .. }
            | Done::Synced { token, .. } => *token,
        };
        for i in 0..self.sides.len() {
            if self.sides[i].store.as_ref().is_some_and(|s| s.owns(token)) {
                self.on(i, |s, fx| s.handle(fx, done));
                return Ok(());
            }
        }
        Ok(())
    }
    fn on<T>(&mut self, side: usize, f: impl FnOnce(&mut Store, &mut Flash<'_>) -> T) -> T {
        let mut fx = Flash { now: self.drive.now, manager: &mut self.drive.manager, out: &mut self.drive.out };
        f(self.sides[side].store.as_mut().expect("there"), &mut fx)
    }
    fn answers(&mut self, side: usize) -> Result<(), String> {
        let s = &mut self.sides[side];
        let Some(store) = &mut s.store else { return Ok(()) };
        for a in store.answers().collect::<Vec<_>>() {
            match a {
                Answer::Opened { result } => {
                    result.map_err(|e| format!("open: {e}"))?;
                    s.open = true;
                }
                Answer::Put { token, result } => s.changed(token, result.map(|()| true), &mut self.seen)?,
                Answer::Deleted { token, result } => s.changed(token, result, &mut self.seen)?,
                Answer::Got { token, result } => {
                    let Some(Asked::Get { key, from }) = s.asked.remove(&token) else {
                        return Err("a get that was not asked is answered".into());
                    };
                    let value = result.map_err(|e| format!("get: {e}"))?;
                    s.read(&key, from, value.as_ref())?;
                }
                Answer::Loaded { .. } => return Err("a load that was not asked is answered".into()),
                Answer::Scanned { token, result } => {
                    let Some(Asked::Scan { from, limit, before }) = s.asked.remove(&token) else {
                        return Err("a scan that was not asked is answered".into());
                    };
                    let scan = result.map_err(|e| format!("scan: {e}"))?;
                    if scan.entries.len() > limit || !scan.entries.is_sorted_by(|a, b| a.0 < b.0) {
                        return Err("a scan is too long or out of order".into());
                    }
                    let found: BTreeMap<Vec<u8>, Bytes> =
                        scan.entries.into_iter().map(|(k, v)| (k.to_vec(), v)).collect();
                    if found.keys().any(|k| !s.keys.contains_key(k)) {
                        return Err("a scan found a key that never was".into());
                    }
                    let end = scan.more.map(|k| k.to_vec());
                    for (key, first) in before.range(from..) {
                        if end.as_ref().is_some_and(|e| key >= e) {
                            break;
                        }
                        // A deletion is visible before it is durable.
                        let value = found.get(key);
                        if s.keys[key].find(*first, value).is_none() {
                            return Err(format!("scan: {} has {value:?}", String::from_utf8_lossy(key)));
                        }
                    }
                }
            }
        }
        Ok(())
    }
    fn act(&mut self) -> Result<(), String> {
        let side = self.drive.rng.below(self.sides.len() as u64) as usize;
        let keys: Vec<Vec<u8>> = self.sides[side].keys.keys().cloned().collect();
        let key = self.drive.rng.pick(&keys).clone();
        self.token += 1;
        let token = self.token;
        match self.drive.rng.below(100) {
            0..=46 => {
                let value = self.value(side);
                self.change(side, key, Some(value), token)?;
            }
            47..=54 => self.batch(side, &keys, token)?,
            55..=74 => self.change(side, key, None, token)?,
            75..=95 => {
                let from = self.sides[side].keys[&key].answered;
                self.sides[side].asked.insert(token, Asked::Get { key: key.clone(), from });
                self.on(side, |s, fx| s.get(fx, &key, token)).map_err(|e| e.to_string())?;
            }
            _ => {
                let limit = self.drive.rng.between(1, 50) as usize;
                let before = self.sides[side].keys.iter().map(|(k, h)| (k.clone(), h.answered)).collect();
                self.sides[side].asked.insert(token, Asked::Scan { from: key.clone(), limit, before });
                self.on(side, |s, fx| s.scan(fx, &key, limit, token)).map_err(|e| e.to_string())?;
            }
        }
        self.take()
    }
    fn value(&mut self, side: usize) -> Bytes {
        let len = if self.drive.rng.chance(0.1) { 0 } else { self.drive.rng.below(self.sides[side].value_max) };
        self.bytes(len as usize)
    }
    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0u8; len];
        bytes.chunks_mut(8).for_each(|c| c.copy_from_slice(&self.drive.rng.next_u64().to_le_bytes()[..c.len()]));
        bytes.into()
    }
    fn batch(&mut self, side: usize, keys: &[Vec<u8>], token: u64) -> Result<(), String> {
        let mut changes = BTreeMap::new();
        let mut bytes = 0;
        for _ in 0..self.drive.rng.between(1, 5) {
            let key = self.drive.rng.pick(keys).clone();
            let value = if self.drive.rng.chance(0.2) { None } else { Some(self.value(side)) };
            bytes += key.len() + value.as_ref().map_or(0, Bytes::len) + 48;
            if bytes > 8000 {
                break;
            }
            changes.insert(key, value);
        }
        if self.long {
            let most = self.sides[side].store.as_ref().expect("open").batch_max() - bytes;
            let len = most.saturating_sub(self.drive.rng.below(1_400) as usize);
            changes.insert(self.drive.rng.pick(keys).clone(), Some(self.bytes(len)));
        }
        let mut parts = Vec::new();
        for (key, value) in &changes {
            let h = self.sides[side].keys.get_mut(key).expect("known");
            h.changes.push(Change { value: value.clone(), forced: true, void: false, token });
            parts.push((key.clone(), h.changes.len() - 1));
        }
        self.sides[side].asked.insert(token, Asked::Batch(parts.clone()));
        self.sides[side].batches.push(parts.clone());
        let changes = changes.into_iter().map(|(k, v)| (k.into(), v)).collect();
        match self.on(side, |s, fx| s.batch(fx, changes, token)) {
            Ok(()) => Ok(()),
            Err(PutError::Failed(_)) => {
                self.sides[side].asked.remove(&token);
                self.sides[side].void(&parts);
                Ok(())
            }
            Err(PutError::ValueTooLong { .. } | PutError::BatchTooLong { .. }) if self.long => {
                self.sides[side].asked.remove(&token);
                self.sides[side].void(&parts);
                self.seen.too_long += 1;
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        }
    }
    fn change(&mut self, side: usize, key: Vec<u8>, value: Option<Bytes>, token: u64) -> Result<(), String> {
        let forced = self.drive.rng.chance(0.6);
        let durability = if forced { Durability::Forced } else { Durability::Buffered };
        let h = self.sides[side].keys.get_mut(&key).expect("known");
        h.changes.push(Change { value: value.clone(), forced, void: false, token });
        let index = h.changes.len() - 1;
        self.sides[side].asked.insert(token, Asked::Change { key: key.clone(), index });
        let taken = match value {
            Some(v) => self.on(side, |s, fx| s.put(fx, &key, v, durability, token)),
            None => self.on(side, |s, fx| s.delete(fx, &key, durability, token)),
        };
        match taken {
            Ok(()) => Ok(()),
            Err(PutError::Failed(_)) => {
                self.sides[side].asked.remove(&token);
                self.sides[side].keys.get_mut(&key).expect("known").changes[index].void = true;
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// A power cut, or sometimes an orderly close.
    fn end(&mut self) -> Result<(), String> {
        if self.drive.rng.chance(0.2) {
            self.settle()?;
            self.drive.manager.close(self.drive.now, 0, &mut self.drive.out);
            self.settle()?;
            self.seen.closed += 1;
        } else {
            self.seen.cuts += 1;
            let busy = self.sides.iter().any(|s| s.store.as_ref().is_some_and(Store::compacting));
            self.seen.cuts_in_compaction += u64::from(busy);
        }
        for s in &self.sides {
            self.seen.add_stats(s.store.as_ref().expect("open").stats());
        }
        self.cut();
        Ok(())
    }
    fn cut(&mut self) {
        self.drive.cut();
        self.ready = false;
        for s in &mut self.sides {
            (s.store, s.open) = (None, false);
            s.asked.clear();
        }
    }
    fn boot_drive(&mut self) -> Result<(), String> {
        self.drive.manager.boot(self.drive.now, &mut self.drive.out);
        while !self.ready {
            if !self.step()? {
                return Err("the drive does not recover".into());
            }
        }
        Ok(())
    }
    fn boot(&mut self) -> Result<(), String> {
        loop {
            if !self.ready {
                self.boot_drive()?;
            }
            for i in 0..self.sides.len() {
                let s = &mut self.sides[i];
                let usual = StoreConfig::new(s.vssd, s.user);
                let cfg = StoreConfig { victims: s.victims, broken: self.broken.or(usual.broken), ..usual };
                let mut fx = Flash { now: self.drive.now, manager: &mut self.drive.manager, out: &mut self.drive.out };
                s.store = Some(Store::open(cfg, &mut fx).map_err(|e| format!("open: {e}"))?);
            }
            let most = if self.drive.rng.chance(0.3) { self.drive.rng.below(60) } else { u64::MAX };
            for _ in 0..most {
                self.take()?;
                if self.sides.iter().all(|s| s.open) || !self.step()? {
                    break;
                }
            }
            if self.sides.iter().all(|s| s.open) {
                break;
            }
            if most == u64::MAX {
                return Err("recovery does not end".into());
            }
            self.seen.cuts_in_recovery += 1;
            self.cut();
        }
        for i in 0..self.sides.len() {
            self.verify(i)?;
        }
        Ok(())
    }
    /// Every key has its durable value or a newer one.
    fn verify(&mut self, side: usize) -> Result<(), String> {
        self.sides[side].store.as_ref().expect("open").check()?;
        let loaded = self.load(side)?;
        let keys: Vec<Vec<u8>> = self.sides[side].keys.keys().cloned().collect();
        let tokens: BTreeMap<u64, Vec<u8>> = (1 << 32..).zip(keys).collect();
        let mut found = BTreeMap::new();
        for (token, key) in &tokens {
            self.on(side, |s, fx| s.get(fx, key, *token)).map_err(|e| e.to_string())?;
        }
        while found.len() < tokens.len() {
            // `step` would take the answers.
            for a in self.sides[side].store.as_mut().expect("open").answers().collect::<Vec<_>>() {
                let Answer::Got { token, result } = a else { return Err(format!("{a:?} was not asked")) };
                found.insert(tokens[&token].clone(), result.map_err(|e| format!("get: {e}"))?);
            }
            if found.len() < tokens.len() {
                self.deliver()?;
            }
        }
        let there = found.iter().filter_map(|(k, v)| Some((k.clone(), v.clone()?)));
        if loaded != there.collect() {
            return Err(format!("a load of {} brings other keys or values than gets do", self.sides[side].vssd));
        }
        self.sides[side].in_order(&found)?;
        self.sides[side].whole_batches(&found, &mut self.seen)?;
        let s = &mut self.sides[side];
        for (key, value) in found {
            let h = s.keys.get_mut(&key).expect("known");
            let Some(i) = h.find(h.durable, value.as_ref()) else {
                let len = |v: Option<&Bytes>| v.map(Bytes::len);
                let known = h.changes[h.durable..].iter().map(|c| len(c.value.as_ref())).collect::<Vec<_>>();
                return Err(format!(
                    "{} of {} has {:?} bytes after a power cut; could be {known:?}",
                    String::from_utf8_lossy(&key),
                    s.vssd,
                    len(value.as_ref())
                ));
            };
            self.seen.verified += 1;
            self.seen.newer += u64::from(i > h.durable);
            *h = History::of(value);
        }
        Ok(())
    }
    fn load(&mut self, side: usize) -> Result<BTreeMap<Vec<u8>, Bytes>, String> {
        self.on(side, |s, fx| s.load(fx, 0)).map_err(|e| e.to_string())?;
        loop {
            if let Some(a) = self.sides[side].store.as_mut().expect("open").answers().next() {
                let Answer::Loaded { result, .. } = a else { return Err(format!("{a:?} was not asked")) };
                let records = result.map_err(|e| format!("load: {e}"))?;
                return Ok(records.iter().map(|r| (r.key().to_vec(), r.parts().1)).collect());
            }
            self.deliver()?;
        }
    }
    /// As `step`, without taking the stores' answers.
    fn deliver(&mut self) -> Result<(), String> {
        for d in self.drive.take() {
            self.done(d)?;
        }
        if !self.drive.complete(1_000_000) {
            return Err("a get or a load is not answered".into());
        }
        for d in self.drive.take() {
            self.done(d)?;
        }
        for i in 0..self.sides.len() {
            self.on(i, |s, fx| s.poll(fx));
        }
        Ok(())
    }
}

impl Side {
    fn void(&mut self, parts: &[(Vec<u8>, usize)]) {
        for (key, index) in parts {
            self.keys.get_mut(key).expect("known").changes[*index].void = true;
        }
    }
    /// No power cut left one change of a batch and took another. Values tell changes apart, unless they are short.
    fn whole_batches(&mut self, found: &BTreeMap<Vec<u8>, Option<Bytes>>, seen: &mut Seen) -> Result<(), String> {
        for batch in std::mem::take(&mut self.batches) {
            let (mut kept, mut lost, mut answered) = (0, 0, false);
            for (key, index) in batch {
                let h = &self.keys[&key];
                answered |= h.durable >= index;
                let value = found[&key].as_ref();
                if h.changes[index].void
                    || [value, h.changes[index].value.as_ref()].iter().any(|v| v.is_none_or(|v| v.len() < 8))
                {
                    continue;
                }
                match h.find(0, value) {
                    Some(i) if i == index => kept += 1,
                    Some(i) if i < index => lost += 1,
                    _ => {}
                }
            }
            if kept > 0 && lost > 0 {
                return Err(format!("{kept} changes of a batch were kept, and {lost} lost"));
            }
            seen.batches_kept += u64::from(kept > 1 && !answered);
            seen.batches_lost += u64::from(lost > 1);
        }
        Ok(())
    }
    /// A put or delete is answered; of a delete, whether the key was there.
    fn changed(&mut self, token: u64, result: Result<bool, PutError>, seen: &mut Seen) -> Result<(), String> {
        let (key, index) = match self.asked.remove(&token) {
            Some(Asked::Change { key, index }) => (key, index),
            Some(Asked::Batch(parts)) => return self.batch_answered(&parts, result, seen),
            _ => return Err("a change that was not asked is answered".into()),
        };
        let h = self.keys.get_mut(&key).expect("known");
        match result {
            Ok(existed) => {
                let before = h.changes[..index].iter().rfind(|c| !c.void).and_then(|c| c.value.as_ref());
                if h.changes[index].value.is_none() && before.is_some() != existed {
                    return Err(format!("delete: {existed}, but it had {before:?}"));
                }
                seen.deleted += u64::from(h.changes[index].value.is_none() && existed);
                h.answered = h.answered.max(index);
                if h.changes[index].forced {
                    h.durable = h.durable.max(index);
                }
            }
            Err(PutError::Full { .. }) if h.changes[index].value.is_some() => {
                h.changes[index].void = true;
                seen.full += 1;
            }
            // The change may have taken effect.
            Err(PutError::Failed(_)) => {}
            Err(e) => return Err(e.to_string()),
        }
        Ok(())
    }
    fn batch_answered(
        &mut self,
        parts: &[(Vec<u8>, usize)],
        result: Result<bool, PutError>,
        seen: &mut Seen,
    ) -> Result<(), String> {
        match result {
            Ok(_) => {
                for (key, index) in parts {
                    let h = self.keys.get_mut(key).expect("known");
                    h.answered = h.answered.max(*index);
                    h.durable = h.durable.max(*index);
                }
            }
            Err(PutError::Full { .. }) => {
                self.void(parts);
                seen.full += 1;
            }
            // The batch may have taken effect.
            Err(PutError::Failed(_)) => {}
            Err(e) => return Err(e.to_string()),
        }
        Ok(())
    }
    /// The value that a get found; change `from` had been answered when it was requested.
    fn read(&mut self, key: &[u8], from: usize, value: Option<&Bytes>) -> Result<(), String> {
        let h = self.keys.get_mut(key).expect("known");
        let Some(i) = h.find(from, value) else {
            return Err(format!("get: {} has {:?} bytes", String::from_utf8_lossy(key), value.map(Bytes::len)));
        };
        // If the value was written twice, the older change may be the one found.
        let oldest = (h.durable..=i).find(|i| !h.changes[*i].void && h.changes[*i].value.as_ref() == value);
        if let Some(i) = oldest.filter(|i| h.changes[*i].forced) {
            h.durable = h.durable.max(i);
        }
        Ok(())
    }
}
