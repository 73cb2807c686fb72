//! Random operations, on the file system and on its model.

use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_core::Rng;
use rackweave_flash::VictimPolicy;
use rackweave_vlfs::{FsError, Made, Owner, RenameHow, SetAttr};

use crate::model::{Body, Model, digest, resolve};
use crate::rig::{Fs, SLOT, config, mount, new, stamp};

/// Upper bounds of directories and names, and of a file's bytes.
const NAMES: u64 = 12;
const FILE_MAX: u64 = 90_000;

/// A file system, its model, and every state since the last sync.
pub struct Run {
    pub fs: Fs,
    pub model: Model,
    /// States that a power cut may leave, oldest first; the last is the current one.
    pub states: Vec<(u64, Model)>,
    /// Those between the last two syncs.
    pub earlier: Vec<(u64, Model)>,
    pub rng: Rng,
    pub now: i64,
    pub refused: u64,
    pub syncs: u64,
}

impl Run {
    pub fn new(fs: Fs, rng: Rng) -> Run {
        let model = Model::new();
        Run {
            fs,
            states: vec![(model.digest(), model.clone())],
            model,
            earlier: Vec::new(),
            rng,
            now: 1,
            refused: 0,
            syncs: 0,
        }
    }
    fn name(&mut self) -> String {
        let n = self.rng.below(NAMES);
        // Some names have the maximum length.
        if n == 0 { "n".repeat(255) } else { format!("n{n}") }
    }
    fn state(&mut self) {
        self.states.push((self.model.digest(), self.model.clone()));
    }
    fn inode(&self, n: u64) -> u64 {
        resolve(&self.fs, &self.model.path(n))
    }
    /// Runs one operation.
    pub fn act(&mut self) -> Result<(), String> {
        self.now += 1;
        let what = self.rng.below(100);
        let done = match what {
            0..=17 => self.make(),
            18..=21 => self.link(),
            22..=35 => self.remove(),
            36..=45 => self.rename(),
            46..=79 => self.write(),
            80..=88 => self.truncate_or_punch(),
            89..=91 => self.chmod(),
            92..=96 => {
                self.fs.sync().map_err(|e| format!("sync: {e}"))?;
                self.synced();
                Ok(())
            }
            _ => self.read_something().map(|()| Ok(()))?,
        };
        match done {
            Ok(()) => {}
            Err(FsError::NoSpace { .. }) => {
                self.refused += 1;
                // A part of a write may have been done: the model takes over the file system's state.
                return self.relearn();
            }
            Err(e) => return Err(format!("operation {what}: {e}")),
        }
        Ok(())
    }
    pub fn synced(&mut self) {
        self.syncs += 1;
        self.earlier = std::mem::replace(&mut self.states, vec![(self.model.digest(), self.model.clone())]);
    }
    fn relearn(&mut self) -> Result<(), String> {
        let seen = digest(&mut self.fs)?;
        let known = self.states.iter().rev().find(|(d, _)| *d == seen);
        let (_, m) = known.ok_or("after ENOSPC the file system is in no state it was in")?;
        self.model = m.clone();
        self.state();
        Ok(())
    }
    fn make(&mut self) -> Result<(), FsError> {
        let dirs = self.model.dirs();
        let parent = *self.rng.pick(&dirs);
        let name = self.name();
        let (inode, now) = (self.inode(parent), stamp(self.now));
        let exists = self.model.dir(parent).contains_key(&name);
        let target = "t".repeat(1 + self.rng.below(200) as usize);
        let (what, body) = match self.rng.below(10) {
            0..=2 if dirs.len() < 8 => (Made::Directory, Body::Dir(BTreeMap::new())),
            3 => (Made::Symlink(target.as_bytes()), Body::Link(target.clone())),
            _ => (Made::File, Body::File(Rc::new(Vec::new()))),
        };
        let made = self.fs.make(inode, name.as_bytes(), (what, 0o640), Owner::default(), now);
        match made {
            Err(FsError::Exists) if exists => return Ok(()),
            other => other?,
        };
        self.model.make(parent, &name, body, 0o640, self.now);
        self.state();
        Ok(())
    }
    fn pick(&mut self) -> Option<(u64, String)> {
        let names = self.model.names();
        if names.is_empty() { None } else { Some(self.rng.pick(&names).clone()) }
    }
    fn link(&mut self) -> Result<(), FsError> {
        let Some((dir, name)) = self.pick() else { return Ok(()) };
        let n = self.model.dir(dir)[&name];
        let dirs = self.model.dirs();
        let (parent, new) = (*self.rng.pick(&dirs), self.name());
        let refused = self.model.is_dir(n) || self.model.dir(parent).contains_key(&new);
        let done = self.fs.link(self.inode(n), self.inode(parent), new.as_bytes(), stamp(self.now));
        if refused {
            assert!(matches!(done, Err(FsError::Exists | FsError::IsADirectory)), "{done:?}");
            return Ok(());
        }
        done?;
        self.model.link(n, parent, &new, self.now);
        self.state();
        Ok(())
    }
    fn remove(&mut self) -> Result<(), FsError> {
        let Some((dir, name)) = self.pick() else { return Ok(()) };
        let n = self.model.dir(dir)[&name];
        let (inode, of, now) = (self.inode(dir), self.inode(n), stamp(self.now));
        if self.model.is_dir(n) {
            assert_eq!(self.fs.unlink(inode, name.as_bytes(), now), Err(FsError::IsADirectory));
            let done = self.fs.rmdir(inode, name.as_bytes(), now);
            if !self.model.dir(n).is_empty() {
                assert_eq!(done, Err(FsError::NotEmpty));
                return Ok(());
            }
            done?;
        } else {
            assert_eq!(self.fs.rmdir(inode, name.as_bytes(), now), Err(FsError::NotADirectory));
            let held = self.rng.chance(0.2);
            if held {
                self.fs.hold(of);
            }
            self.fs.unlink(inode, name.as_bytes(), now).map_err(|e| panic_on_space(e, "unlink"))?;
            if held {
                let mut to = [0; 100];
                self.fs.getattr(of).expect("it is in use");
                let file = matches!(self.model.node(n).body, Body::File(_));
                assert_eq!(self.fs.read(of, 0, &mut to).is_ok(), file, "it is in use");
                self.fs.unhold(of, 1)?;
            }
        }
        self.model.remove(dir, &name, self.now);
        self.state();
        Ok(())
    }
    fn rename(&mut self) -> Result<(), FsError> {
        let Some((dir, name)) = self.pick() else { return Ok(()) };
        let n = self.model.dir(dir)[&name];
        let dirs = self.model.dirs();
        let (to, new) = (*self.rng.pick(&dirs), self.name());
        let old = self.model.dir(to).get(&new).copied();
        let how = *self.rng.pick(&[RenameHow::Replace, RenameHow::Replace, RenameHow::NoReplace, RenameHow::Exchange]);
        let (from, at) = ((self.inode(dir), name.as_bytes()), (self.inode(to), new.as_bytes()));
        let done = self.fs.rename(from, at, how, stamp(self.now));
        let m = &self.model;
        let wanted = match (how, old) {
            (RenameHow::NoReplace, Some(_)) => Err(FsError::Exists),
            (RenameHow::Exchange, None) => Err(FsError::NotFound),
            (_, Some(o)) if o == n => Ok(false),
            _ if m.is_dir(n) && m.is_inside(to, n) => Err(FsError::Invalid),
            (RenameHow::Exchange, Some(o)) if m.is_dir(o) && m.is_inside(dir, o) => Err(FsError::Invalid),
            (RenameHow::Exchange, _) => Ok(true),
            (_, Some(o)) if m.is_dir(o) && !m.is_dir(n) => Err(FsError::IsADirectory),
            (_, Some(o)) if !m.is_dir(o) && m.is_dir(n) => Err(FsError::NotADirectory),
            (_, Some(o)) if m.is_dir(o) && !m.dir(o).is_empty() => Err(FsError::NotEmpty),
            _ => Ok(true),
        };
        match (done, wanted) {
            (Err(FsError::NoSpace { free }), _) => return Err(FsError::NoSpace { free }),
            (Ok(()), Ok(true)) => {}
            (Ok(()), Ok(false)) => return Ok(()),
            (Err(a), Err(b)) if a == b => return Ok(()),
            (a, b) => panic!("rename {how:?}: {a:?} instead of {b:?}"),
        }
        match how {
            RenameHow::Exchange => self.model.exchange((dir, &name), (to, &new), self.now),
            _ => self.model.rename((dir, &name), (to, &new), self.now),
        }
        self.state();
        Ok(())
    }
    fn pick_file(&mut self) -> Option<(u64, Vec<u8>)> {
        let files: Vec<u64> =
            self.model.nodes.iter().filter(|(_, n)| matches!(n.body, Body::File(_))).map(|(n, _)| *n).collect();
        if files.is_empty() {
            return None;
        }
        let n = *self.rng.pick(&files);
        let Body::File(c) = &self.model.node(n).body else { unreachable!() };
        Some((n, c.to_vec()))
    }
    fn set(&mut self, n: u64, contents: Vec<u8>) {
        let now = self.now;
        let node = self.model.change(n);
        node.body = Body::File(Rc::new(contents));
        node.mtime = now;
        self.state();
    }
    fn write(&mut self) -> Result<(), FsError> {
        let Some((n, mut contents)) = self.pick_file() else { return Ok(()) };
        let offset = match self.rng.below(3) {
            0 => contents.len() as u64,
            1 => self.rng.below(FILE_MAX / SLOT) * SLOT,
            _ => self.rng.below(FILE_MAX),
        };
        let len = 1 + if self.rng.chance(0.3) { self.rng.below(40_000) } else { self.rng.below(6000) };
        let len = len.min((FILE_MAX + 20_000).saturating_sub(offset)).max(1);
        let seed = self.rng.next_u64();
        let data: Vec<u8> = (0..len).map(|i| (seed >> (i % 8 * 8)) as u8 ^ (i / 256) as u8).collect();
        let inode = self.inode(n);
        // After a failure the write may have been done up to any slot.
        let mut at = 0;
        let mut states = Vec::new();
        while at < data.len() {
            let upto = (((offset as usize + at) as u64 / SLOT + 1) * SLOT - offset) as usize;
            at = upto.min(data.len());
            let end = offset as usize + at;
            if contents.len() < end {
                contents.resize(end, 0);
            }
            contents[offset as usize..end].copy_from_slice(&data[..at]);
            states.push((at, contents.clone()));
        }
        let done = self.fs.write(inode, offset, &data, stamp(self.now));
        let wrote = done.unwrap_or(0);
        for (_, contents) in states.into_iter().take_while(|(at, _)| *at <= wrote) {
            self.set(n, contents);
        }
        done.map(|_| ())
    }
    fn truncate_or_punch(&mut self) -> Result<(), FsError> {
        let Some((n, mut contents)) = self.pick_file() else { return Ok(()) };
        let inode = self.inode(n);
        if self.rng.chance(0.3) && !contents.is_empty() {
            let at = self.rng.below(contents.len() as u64);
            let len = 1 + self.rng.below(20_000);
            self.fs.punch(inode, at, len, false, stamp(self.now)).map_err(|e| panic_on_space(e, "punch"))?;
            // The edges are zeroed one after the other; then the rest is removed.
            let end = at + len;
            let (first, last) = (at.next_multiple_of(SLOT), end / SLOT * SLOT);
            let parts = if first > last { vec![(at, end)] } else { vec![(at, first), (last, end), (first, last)] };
            for (i, (from, to)) in parts.iter().enumerate() {
                let size = contents.len();
                contents[(*from as usize).min(size)..(*to as usize).min(size)].fill(0);
                self.model.change(n).body = Body::File(Rc::new(contents.clone()));
                if i + 1 < parts.len() || first > last {
                    self.state();
                }
            }
            self.set(n, contents);
            return Ok(());
        }
        let size = self.rng.below(FILE_MAX);
        let how = SetAttr { size: Some(size), ..SetAttr::default() };
        let done = self.fs.setattr(inode, &how, stamp(self.now));
        if size <= contents.len() as u64 {
            done.map_err(|e| panic_on_space(e, "truncate"))?;
        } else {
            done?;
        }
        contents.resize(size as usize, 0);
        self.set(n, contents);
        Ok(())
    }
    fn chmod(&mut self) -> Result<(), FsError> {
        let Some((dir, name)) = self.pick() else { return Ok(()) };
        let n = self.model.dir(dir)[&name];
        let mode = self.rng.below(0o1000) as u32;
        let how = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.fs.setattr(self.inode(n), &how, stamp(self.now))?;
        self.model.change(n).mode = mode;
        self.state();
        Ok(())
    }
    fn read_something(&mut self) -> Result<(), String> {
        let Some((n, contents)) = self.pick_file() else { return Ok(()) };
        let (offset, len) = (self.rng.below(FILE_MAX + 100), 1 + self.rng.below(50_000) as usize);
        let mut to = vec![0xee; len];
        let inode = self.inode(n);
        let got = self.fs.read(inode, offset, &mut to).map_err(|e| format!("read: {e}"))?;
        let wanted = contents.get(offset as usize..).unwrap_or(&[]);
        if to[..got] != wanted[..wanted.len().min(len)] {
            return Err(format!("file {n}, {offset}+{len}: other contents"));
        }
        Ok(())
    }
    /// The file system equals the model.
    pub fn compare(&mut self) -> Result<(), String> {
        self.fs.check()?;
        if digest(&mut self.fs)? == self.model.digest() { Ok(()) } else { Err("not the model's tree".into()) }
    }
}

/// Operations that free space are never refused for lack of space.
fn panic_on_space(e: FsError, what: &str) -> FsError {
    assert!(!matches!(e, FsError::NoSpace { .. }), "{what}: {e}");
    e
}

#[test]
fn whatever_is_done_it_is_as_its_model_while_blocks_are_cleaned() {
    for seed in 0..6 {
        // From a drive that is always nearly full to one with free space.
        let cfg = config(13 + 3 * seed as u32);
        let mut r = Run::new(new(&cfg), Rng::new(seed));
        let policy = VictimPolicy::ALL[(seed % 2) as usize];
        r.fs.set_policy(policy);
        let mut moved = 0;
        for i in 0..6000 {
            r.act().unwrap_or_else(|e| panic!("seed {seed}, operation {i}: {e}"));
            if i % 50 == 0 {
                r.compare().unwrap_or_else(|e| panic!("seed {seed}, operation {i}: {e}"));
            }
            if i % 1500 == 1499 {
                moved += r.fs.stats().moved_slots;
                let (drive, synced) = std::mem::replace(&mut r.fs, new(&cfg)).unmount();
                synced.expect("synced");
                let disk = drive.close().expect("closed");
                assert_eq!(disk.disk.violations(), []);
                r.fs = mount(&cfg, (*disk.disk).clone()).expect("mounted again");
                r.fs.set_policy(policy);
                r.compare().unwrap_or_else(|e| panic!("seed {seed}, after mount {i}: {e}"));
            }
        }
        moved += r.fs.stats().moved_slots;
        eprintln!("seed {seed}: {} refused, {moved} slots moved", r.refused);
        assert!(moved > 0, "seed {seed}: nothing was cleaned");
    }
}
