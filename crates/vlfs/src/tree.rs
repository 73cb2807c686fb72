//! The metadata in memory: inodes, names, extents, and the live part of each block of the vSSD.

use std::collections::BTreeMap;

use crate::format::{Addr, EXTENT_BYTES, Record, inode_bytes, link_bytes};
use crate::{LINK_MAX, ROOT, Stamp};

/// Attributes of an inode; `mode` with the type, as in `stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub size: u64,
    pub rdev: u32,
    pub atime: Stamp,
    pub mtime: Stamp,
    pub ctime: Stamp,
}

pub const S_IFMT: u32 = 0o170_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_ISGID: u32 = 0o2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    /// A pipe, socket or device: only its attributes are kept.
    Special,
}

impl Attr {
    pub fn kind(&self) -> FileKind {
        match self.mode & S_IFMT {
            S_IFDIR => FileKind::Directory,
            S_IFREG => FileKind::File,
            S_IFLNK => FileKind::Symlink,
            _ => FileKind::Special,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    count: u32,
    at: Addr,
}

/// The map of a file: extents by first slot.
#[derive(Clone, Debug, Default)]
pub struct Extents(BTreeMap<u64, Piece>);

impl Extents {
    /// The slot's place, and the number of slots from it on that lie together. `None` for a hole.
    pub fn get(&self, slot: u64) -> Option<(Addr, u32)> {
        let (first, p) = self.0.range(..=slot).next_back()?;
        let skip = u32::try_from(slot - first).ok().filter(|s| *s < p.count)?;
        Some((p.at.plus(skip), p.count - skip))
    }
    /// The first slot from this one on that is not a hole.
    pub fn next(&self, slot: u64) -> Option<u64> {
        if self.get(slot).is_some() {
            return Some(slot);
        }
        self.0.range(slot..).next().map(|(first, _)| *first)
    }
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u32, Addr)> {
        self.0.iter().map(|(first, p)| (*first, p.count, p.at))
    }
    pub fn slots(&self) -> u64 {
        self.0.values().map(|p| u64::from(p.count)).sum()
    }
    /// Removes `from..to`; calls `gone` with each extent removed.
    fn remove(&mut self, from: u64, to: u64, gone: &mut impl FnMut(Addr, u32)) {
        let begin = self.0.range(..from).next_back().filter(|(f, p)| *f + u64::from(p.count) > from);
        let begin = begin.map_or(from, |(f, _)| *f);
        let hit: Vec<u64> = self.0.range(begin..to.max(begin)).map(|(f, _)| *f).collect();
        for first in hit {
            let p = self.0.remove(&first).expect("found");
            let end = first + u64::from(p.count);
            let (cut, rest) = (from.max(first), to.min(end));
            let (before, through) = ((cut - first) as u32, (rest - first) as u32);
            if before > 0 {
                self.0.insert(first, Piece { count: before, at: p.at });
            }
            if end > rest {
                self.0.insert(rest, Piece { count: (end - rest) as u32, at: p.at.plus(through) });
            }
            gone(p.at.plus(before), through - before);
        }
    }
    fn insert(&mut self, first: u64, count: u32, at: Addr) {
        let (mut first, mut piece) = (first, Piece { count, at });
        if let Some((f, p)) = self.0.range(..first).next_back().map(|(f, p)| (*f, *p))
            && f + u64::from(p.count) == first
            && p.at.plus(p.count) == at
        {
            (first, piece) = (f, Piece { count: p.count + count, at: p.at });
        }
        let end = first + u64::from(piece.count);
        if let Some(next) = self.0.get(&end).copied()
            && piece.at.plus(piece.count) == next.at
        {
            self.0.remove(&end);
            piece.count += next.count;
        }
        self.0.insert(first, piece);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub inode: u64,
    /// Its position in a listing of the directory, constant while the file system is mounted.
    pub cookie: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Directory {
    pub parent: u64,
    pub names: BTreeMap<Box<[u8]>, Entry>,
    pub order: BTreeMap<u64, Box<[u8]>>,
    next_cookie: u64,
}

#[derive(Clone, Debug)]
pub enum Body {
    File(Extents),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, Debug)]
pub struct Inode {
    pub attr: Attr,
    pub body: Body,
}

impl Inode {
    pub fn target_bytes(&self) -> usize {
        if let Body::Symlink(t) = &self.body { t.len() } else { 0 }
    }
    pub fn record(&self, inode: u64) -> Record {
        let target = if let Body::Symlink(t) = &self.body { t.clone() } else { Vec::new() };
        Record::Inode { inode, attr: self.attr, target }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub inodes: BTreeMap<u64, Inode>,
    pub next_inode: u64,
    /// Live slots of each block of the vSSD that has any; their sum.
    pub live: BTreeMap<u32, u32>,
    pub mapped: u64,
    /// Bytes of the records of a checkpoint.
    pub record_bytes: u64,
}

impl Tree {
    /// A tree with an empty root directory.
    pub fn new(owner: crate::Owner, now: Stamp) -> Tree {
        let mut t = Tree { next_inode: ROOT + 1, ..Tree::default() };
        let (uid, gid) = (owner.uid, owner.gid);
        let attr =
            Attr { mode: S_IFDIR | 0o755, uid, gid, links: 2, atime: now, mtime: now, ctime: now, ..Attr::default() };
        t.apply(&Record::Inode { inode: ROOT, attr, target: Vec::new() });
        t
    }
    pub fn directory(&self, inode: u64) -> Option<&Directory> {
        if let Body::Directory(d) = &self.inodes.get(&inode)?.body { Some(d) } else { None }
    }
    pub fn extents(&self, inode: u64) -> Option<&Extents> {
        if let Body::File(e) = &self.inodes.get(&inode)?.body { Some(e) } else { None }
    }

    /// Applies a record. A record about an unknown inode has no effect: the inode was freed in the same batch.
    pub fn apply(&mut self, r: &Record) {
        match r {
            Record::Inode { inode, attr, target } => self.put(*inode, *attr, target),
            Record::Link { parent, inode, name } => self.link(*parent, *inode, name),
            Record::Unlink { parent, name } => self.unlink(*parent, name),
            Record::Extent { inode, first, count, at } => {
                self.unmap(*inode, *first, first + u64::from(*count));
                self.map(*inode, *first, *count, *at);
            }
            Record::Unmap { inode, from, to } => self.unmap(*inode, *from, *to),
            Record::Free { inode } => self.free(*inode),
        }
    }
    fn put(&mut self, inode: u64, attr: Attr, target: &[u8]) {
        if let Some(i) = self.inodes.get_mut(&inode) {
            i.attr = attr;
            return;
        }
        let body = match attr.kind() {
            FileKind::File => Body::File(Extents::default()),
            FileKind::Directory => Body::Directory(Directory { parent: ROOT, ..Directory::default() }),
            FileKind::Symlink => Body::Symlink(target.to_vec()),
            FileKind::Special => Body::Special,
        };
        let i = Inode { attr, body };
        self.record_bytes += inode_bytes(i.target_bytes()) as u64;
        self.next_inode = self.next_inode.max(inode.saturating_add(1));
        self.inodes.insert(inode, i);
    }
    fn link(&mut self, parent: u64, inode: u64, name: &[u8]) {
        self.unlink(parent, name);
        let Some(Body::Directory(d)) = self.inodes.get_mut(&parent).map(|i| &mut i.body) else { return };
        // 0 and 1 are `.` and `..`.
        let cookie = d.next_cookie + 2;
        d.next_cookie += 1;
        d.names.insert(name.into(), Entry { inode, cookie });
        d.order.insert(cookie, name.into());
        self.record_bytes += link_bytes(name.len()) as u64;
        if let Some(Body::Directory(child)) = self.inodes.get_mut(&inode).map(|i| &mut i.body) {
            child.parent = parent;
        }
    }
    fn unlink(&mut self, parent: u64, name: &[u8]) {
        let Some(Body::Directory(d)) = self.inodes.get_mut(&parent).map(|i| &mut i.body) else { return };
        if let Some(e) = d.names.remove(name) {
            d.order.remove(&e.cookie);
            self.record_bytes -= link_bytes(name.len()) as u64;
        }
    }
    fn map(&mut self, inode: u64, first: u64, count: u32, at: Addr) {
        let Some(Body::File(e)) = self.inodes.get_mut(&inode).map(|i| &mut i.body) else { return };
        let before = e.0.len() as u64;
        e.insert(first, count, at);
        self.record_bytes += e.0.len() as u64 * EXTENT_BYTES as u64;
        self.record_bytes -= before * EXTENT_BYTES as u64;
        self.mapped += u64::from(count);
        *self.live.entry(at.block()).or_default() += count;
    }
    fn unmap(&mut self, inode: u64, from: u64, to: u64) {
        let Some(Body::File(e)) = self.inodes.get_mut(&inode).map(|i| &mut i.body) else { return };
        let before = e.0.len() as u64;
        let (live, mapped) = (&mut self.live, &mut self.mapped);
        e.remove(from, to, &mut |at, count| {
            *mapped -= u64::from(count);
            let of = live.entry(at.block()).or_default();
            *of -= count;
            if *of == 0 {
                live.remove(&at.block());
            }
        });
        self.record_bytes += e.0.len() as u64 * EXTENT_BYTES as u64;
        self.record_bytes -= before * EXTENT_BYTES as u64;
    }
    fn free(&mut self, inode: u64) {
        self.unmap(inode, 0, u64::MAX);
        if let Some(i) = self.inodes.remove(&inode) {
            self.record_bytes -= inode_bytes(i.target_bytes()) as u64;
        }
    }

    /// The records of a checkpoint, in an order in which they can be applied: inodes, then what refers to them.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let inodes = self.inodes.iter().map(|(n, i)| i.record(*n));
        let parts = self.inodes.iter().flat_map(|(&inode, i)| -> Box<dyn Iterator<Item = Record>> {
            match &i.body {
                Body::Directory(d) => Box::new(d.names.iter().map(move |(name, e)| Record::Link {
                    parent: inode,
                    inode: e.inode,
                    name: name.to_vec(),
                })),
                Body::File(e) => {
                    Box::new(e.pieces().map(move |(first, count, at)| Record::Extent { inode, first, count, at }))
                }
                _ => Box::new(std::iter::empty()),
            }
        });
        inodes.chain(parts)
    }

    /// Checks the counts of links, live slots and bytes, and the parents. `holds` lists the inodes in use.
    pub fn check(&self, holds: &BTreeMap<u64, u64>) -> Result<(), String> {
        let mut links: BTreeMap<u64, u32> = BTreeMap::from([(ROOT, 2)]);
        let (mut live, mut mapped, mut bytes) = (BTreeMap::<u32, u32>::new(), 0, 0u64);
        for r in self.records() {
            bytes += r.bytes() as u64;
            if let Record::Extent { count, at, .. } = r {
                *live.entry(at.block()).or_default() += count;
                mapped += u64::from(count);
            }
            let Record::Link { parent, inode, name } = r else { continue };
            let name = String::from_utf8_lossy(&name).into_owned();
            let child = self.inodes.get(&inode).ok_or_else(|| format!("{parent}/{name}: no inode {inode}"))?;
            if let Body::Directory(d) = &child.body {
                *links.entry(parent).or_default() += 1;
                *links.entry(inode).or_default() += 2;
                if d.parent != parent {
                    return Err(format!("{parent}/{name}: its parent is {}", d.parent));
                }
            } else {
                *links.entry(inode).or_default() += 1;
            }
        }
        for (n, i) in &self.inodes {
            let counted = links.get(n).copied().unwrap_or(0);
            if counted != i.attr.links || counted > LINK_MAX + 2 {
                return Err(format!("inode {n} has {counted} links and says {}", i.attr.links));
            }
            if counted == 0 && !holds.contains_key(n) {
                return Err(format!("inode {n} has no name and nobody uses it"));
            }
            if let Body::Directory(d) = &i.body
                && d.names.len() != d.order.len()
            {
                return Err(format!("directory {n}: {} names, {} in order", d.names.len(), d.order.len()));
            }
        }
        if (&live, mapped, bytes) != (&self.live, self.mapped, self.record_bytes) {
            return Err(format!(
                "counted {live:?}, {mapped}, {bytes}: {:?}, {}, {}",
                self.live, self.mapped, self.record_bytes
            ));
        }
        Ok(())
    }
}
