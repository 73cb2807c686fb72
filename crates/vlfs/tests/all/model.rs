//! The model of a file system: a tree in memory, with a digest of every state.

use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_core::rng::mix64;
use rackweave_vlfs::{FileKind, ROOT};

use crate::rig::Fs;

#[derive(Clone, Debug)]
pub enum Body {
    File(Rc<Vec<u8>>),
    Dir(BTreeMap<String, u64>),
    Link(String),
}

#[derive(Clone, Debug)]
pub struct Node {
    pub body: Body,
    pub mode: u32,
    pub links: u32,
    pub mtime: i64,
}

/// Nodes by number; 1 is the root.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<u64, Rc<Node>>,
    next: u64,
}

fn hash(bytes: &[u8]) -> u64 {
    u64::from(crc32c::crc32c(bytes)) << 32 | bytes.len() as u64
}
fn mix(digest: &mut u64, v: u64) {
    *digest = mix64(*digest ^ v).wrapping_add(v);
}

impl Model {
    pub fn new() -> Model {
        let root = Node { body: Body::Dir(BTreeMap::new()), mode: 0o755, links: 2, mtime: 1 };
        Model { nodes: BTreeMap::from([(1, Rc::new(root))]), next: 2 }
    }
    pub fn node(&self, n: u64) -> &Node {
        &self.nodes[&n]
    }
    pub fn change(&mut self, n: u64) -> &mut Node {
        Rc::make_mut(self.nodes.get_mut(&n).expect("it is there"))
    }
    pub fn dir(&self, n: u64) -> &BTreeMap<String, u64> {
        match &self.node(n).body {
            Body::Dir(d) => d,
            _ => panic!("{n} is no directory"),
        }
    }
    fn dir_mut(&mut self, n: u64) -> &mut BTreeMap<String, u64> {
        match &mut self.change(n).body {
            Body::Dir(d) => d,
            _ => panic!("{n} is no directory"),
        }
    }
    pub fn is_dir(&self, n: u64) -> bool {
        matches!(self.node(n).body, Body::Dir(_))
    }
    pub fn dirs(&self) -> Vec<u64> {
        self.nodes.keys().copied().filter(|n| self.is_dir(*n)).collect()
    }
    pub fn names(&self) -> Vec<(u64, String)> {
        self.dirs()
            .into_iter()
            .flat_map(|d| self.dir(d).keys().map(move |n| (d, n.clone())).collect::<Vec<_>>())
            .collect()
    }
    pub fn make(&mut self, parent: u64, name: &str, body: Body, mode: u32, now: i64) -> u64 {
        let n = self.next;
        self.next += 1;
        let dir = matches!(body, Body::Dir(_));
        self.nodes.insert(n, Rc::new(Node { body, mode, links: 1 + u32::from(dir), mtime: now }));
        self.dir_mut(parent).insert(name.into(), n);
        self.change(parent).links += u32::from(dir);
        self.change(parent).mtime = now;
        n
    }
    pub fn link(&mut self, n: u64, parent: u64, name: &str, now: i64) {
        self.dir_mut(parent).insert(name.into(), n);
        self.change(n).links += 1;
        self.change(parent).mtime = now;
    }
    pub fn remove(&mut self, parent: u64, name: &str, now: i64) {
        let n = self.dir_mut(parent).remove(name).expect("it is there");
        self.change(parent).mtime = now;
        self.gone(parent, n);
    }
    fn gone(&mut self, parent: u64, n: u64) {
        if self.is_dir(n) {
            self.change(parent).links -= 1;
            self.nodes.remove(&n);
            return;
        }
        self.change(n).links -= 1;
        if self.node(n).links == 0 {
            self.nodes.remove(&n);
        }
    }
    pub fn rename(&mut self, (parent, name): (u64, &str), (to, new): (u64, &str), now: i64) {
        let n = self.dir_mut(parent).remove(name).expect("it is there");
        if let Some(old) = self.dir_mut(to).insert(new.into(), n) {
            self.gone(to, old);
        }
        if self.is_dir(n) {
            self.change(parent).links -= 1;
            self.change(to).links += 1;
        }
        self.change(parent).mtime = now;
        self.change(to).mtime = now;
    }
    pub fn exchange(&mut self, (parent, name): (u64, &str), (to, new): (u64, &str), now: i64) {
        let (a, b) = (self.dir(parent)[name], self.dir(to)[new]);
        self.dir_mut(parent).insert(name.into(), b);
        self.dir_mut(to).insert(new.into(), a);
        let (a, b) = (u32::from(self.is_dir(a)), u32::from(self.is_dir(b)));
        self.change(parent).links = self.node(parent).links + b - a;
        self.change(to).links = self.node(to).links + a - b;
        self.change(parent).mtime = now;
        self.change(to).mtime = now;
    }
    pub fn is_inside(&self, dir: u64, above: u64) -> bool {
        dir == above
            || self.is_dir(above) && self.dir(above).values().any(|n| self.is_dir(*n) && self.is_inside(dir, *n))
    }
    pub fn path(&self, n: u64) -> Vec<String> {
        fn find(m: &Model, at: u64, n: u64, path: &mut Vec<String>) -> bool {
            if at == n {
                return true;
            }
            if !m.is_dir(at) {
                return false;
            }
            m.dir(at).iter().any(|(name, c)| {
                path.push(name.clone());
                find(m, *c, n, path) || {
                    path.pop();
                    false
                }
            })
        }
        let mut path = Vec::new();
        assert!(find(self, 1, n, &mut path), "{n} has no path");
        path
    }
    pub fn digest(&self) -> u64 {
        fn walk(m: &Model, n: u64, digest: &mut u64) {
            let node = m.node(n);
            for v in [u64::from(node.mode), u64::from(node.links), node.mtime as u64] {
                mix(digest, v);
            }
            match &node.body {
                Body::File(c) => mix(digest, hash(c)),
                Body::Link(t) => mix(digest, hash(t.as_bytes()) ^ 1),
                Body::Dir(d) => {
                    for (name, c) in d {
                        mix(digest, hash(name.as_bytes()));
                        walk(m, *c, digest);
                    }
                    mix(digest, 99);
                }
            }
        }
        let mut digest = 0;
        walk(self, 1, &mut digest);
        digest
    }
}

/// The file system's inode at the path.
pub fn resolve(fs: &Fs, path: &[String]) -> u64 {
    path.iter().fold(ROOT, |at, name| fs.lookup(at, name.as_bytes()).unwrap_or_else(|e| panic!("{path:?}: {e}")))
}

/// As [`Model::digest`], of the file system.
pub fn digest(fs: &mut Fs) -> Result<u64, String> {
    fn walk(fs: &mut Fs, inode: u64, digest: &mut u64, text: &mut Vec<String>) -> Result<(), String> {
        let said = |e: rackweave_vlfs::FsError| format!("{}: {e}", text.join("/"));
        let a = fs.getattr(inode).map_err(said)?;
        for v in [u64::from(a.mode & 0o7777), u64::from(a.links), a.mtime.s as u64] {
            mix(digest, v);
        }
        match a.kind() {
            FileKind::File => {
                let mut all = vec![0; a.size as usize];
                fs.read(inode, 0, &mut all).map_err(said)?;
                mix(digest, hash(&all));
            }
            FileKind::Symlink => mix(digest, hash(&fs.readlink(inode).map_err(said)?) ^ 1),
            _ => {
                let mut all = fs.readdir(inode, 0, usize::MAX).map_err(said)?;
                all.drain(..2);
                all.sort_by(|a, b| a.name.cmp(&b.name));
                for e in all {
                    mix(digest, hash(&e.name));
                    text.push(String::from_utf8_lossy(&e.name).into_owned());
                    walk(fs, e.inode, digest, text)?;
                    text.pop();
                }
                mix(digest, 99);
            }
        }
        Ok(())
    }
    let mut digest = 0;
    walk(fs, ROOT, &mut digest, &mut Vec::new())?;
    Ok(digest)
}
