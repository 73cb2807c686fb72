//! Directories: lookup, create, link, rename, remove, list.

use rackweave_flash::manager::api::VirtualSsds;

use crate::format::{Record, inode_bytes, link_bytes};
use crate::log::OPERATION_BYTES;
use crate::tree::{Attr, Body, Directory, FileKind, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID};
use crate::{Broken, FsError, INODES_MAX, LINK_MAX, NAME_MAX, Owner, Stamp, TARGET_MAX, Vlfs};

/// Kind of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made<'a> {
    File,
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A pipe, socket or device of this type (as in `st_mode`) and number.
    Special {
        kind: u32,
        rdev: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    Replace,
    /// Refused if the new name exists.
    NoReplace,
    /// Both names must exist, and are exchanged.
    Exchange,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub inode: u64,
    pub kind: FileKind,
    /// Position at which a listing continues after it.
    pub next: u64,
}

/// State of a name to rename, or of the name that it replaces.
#[derive(Clone, Copy)]
struct Named {
    inode: u64,
    directory: bool,
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong { bytes: name.len(), max: NAME_MAX });
    }
    let bad = name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0));
    if bad { Err(FsError::BadName) } else { Ok(()) }
}

impl<D: VirtualSsds> Vlfs<D> {
    pub fn getattr(&self, inode: u64) -> Result<Attr, FsError> {
        self.tree.inodes.get(&inode).map(|i| i.attr).ok_or(FsError::NotFound)
    }
    /// Slots of the file that hold data.
    pub fn slots_of_file(&self, inode: u64) -> u64 {
        self.tree.extents(inode).map_or(0, crate::tree::Extents::slots)
    }
    fn dir(&self, inode: u64) -> Result<&Directory, FsError> {
        let i = self.tree.inodes.get(&inode).ok_or(FsError::NotFound)?;
        if let Body::Directory(d) = &i.body { Ok(d) } else { Err(FsError::NotADirectory) }
    }
    /// A directory that still has a name. A removed one takes no new names.
    fn live_dir(&self, inode: u64) -> Result<&Directory, FsError> {
        let d = self.dir(inode)?;
        if self.getattr(inode)?.links == 0 { Err(FsError::NotFound) } else { Ok(d) }
    }
    fn named(&self, parent: u64, name: &[u8]) -> Result<Option<Named>, FsError> {
        let Some(e) = self.dir(parent)?.names.get(name) else { return Ok(None) };
        let directory = self.tree.directory(e.inode).is_some();
        Ok(Some(Named { inode: e.inode, directory }))
    }
    /// Looks a name up in a directory.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<u64, FsError> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong { bytes: name.len(), max: NAME_MAX });
        }
        let d = self.dir(parent)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(d.parent),
            _ => d.names.get(name).map(|e| e.inode).ok_or(FsError::NotFound),
        }
    }
    /// Adds a use by the caller, which keeps the inode after its last name is removed.
    pub fn hold(&mut self, inode: u64) {
        *self.holds.entry(inode).or_default() += 1;
    }
    /// Removes this number of the caller's uses.
    pub fn unhold(&mut self, inode: u64, times: u64) -> Result<(), FsError> {
        if let Some(n) = self.holds.get_mut(&inode) {
            *n = n.saturating_sub(times);
            if *n > 0 {
                return Ok(());
            }
            self.holds.remove(&inode);
        }
        if self.tree.inodes.get(&inode).is_some_and(|i| i.attr.links == 0) {
            self.room(OPERATION_BYTES, 0)?;
            self.drop_inode(inode);
        }
        Ok(())
    }
    fn drop_inode(&mut self, inode: u64) {
        self.dirty.remove(&inode);
        self.note(&Record::Free { inode });
    }
    /// The names of a directory from this position on (0: the start), `.` and `..` first.
    pub fn readdir(&self, inode: u64, from: u64, most: usize) -> Result<Vec<DirEntry>, FsError> {
        let d = self.dir(inode)?;
        let dots = [(".", inode, 1), ("..", d.parent, 2)].into_iter().filter(|(_, _, next)| *next > from);
        let dots = dots.map(|(name, inode, next)| {
            let name = name.as_bytes().to_vec();
            DirEntry { name, inode, kind: FileKind::Directory, next }
        });
        let rest = d.order.range(from.max(2)..).map(|(cookie, name)| {
            let inode = d.names[name].inode;
            let kind = self.tree.inodes[&inode].attr.kind();
            DirEntry { name: name.to_vec(), inode, kind, next: cookie + 1 }
        });
        Ok(dots.chain(rest).take(most).collect())
    }
    pub fn readlink(&self, inode: u64) -> Result<Vec<u8>, FsError> {
        let i = self.tree.inodes.get(&inode).ok_or(FsError::NotFound)?;
        if let Body::Symlink(t) = &i.body { Ok(t.clone()) } else { Err(FsError::Invalid) }
    }

    fn stamp_dir(&mut self, inode: u64, links: i32, now: Stamp) {
        if let Some(i) = self.tree.inodes.get_mut(&inode) {
            (i.attr.mtime, i.attr.ctime) = (now, now);
            i.attr.links = i.attr.links.wrapping_add_signed(links);
        }
        self.touch(inode);
    }
    fn add_links(&mut self, inode: u64, links: i32, now: Stamp) {
        if let Some(i) = self.tree.inodes.get_mut(&inode) {
            i.attr.ctime = now;
            i.attr.links = i.attr.links.wrapping_add_signed(links);
        }
        self.touch(inode);
    }
    /// Creates a file, directory, symbolic link or special file, and returns its inode. `mode` holds the permissions.
    pub fn make(
        &mut self,
        parent: u64,
        name: &[u8],
        (what, mode): (Made<'_>, u32),
        owner: Owner,
        now: Stamp,
    ) -> Result<u64, FsError> {
        check_name(name)?;
        self.writable()?;
        if self.live_dir(parent)?.names.contains_key(name) {
            return Err(FsError::Exists);
        }
        let above = self.getattr(parent)?;
        let (target, kind, rdev) = match what {
            Made::File => (&[][..], S_IFREG, 0),
            Made::Directory => (&[][..], S_IFDIR, 0),
            Made::Symlink(t) => (t, S_IFLNK, 0),
            Made::Special { kind, rdev } => (&[][..], kind & S_IFMT, rdev),
        };
        if target.len() > TARGET_MAX {
            return Err(FsError::NameTooLong { bytes: target.len(), max: TARGET_MAX });
        }
        let directory = what == Made::Directory;
        if directory && above.links >= LINK_MAX + 2 {
            return Err(FsError::TooManyLinks { max: LINK_MAX });
        }
        if self.tree.inodes.len() >= INODES_MAX {
            return Err(FsError::NoSpace { free: 0 });
        }
        self.grow(0, inode_bytes(target.len()) + link_bytes(name.len()))?;
        self.room(OPERATION_BYTES + target.len(), 0)?;
        let inode = self.tree.next_inode;
        let inherits = above.mode & S_ISGID != 0;
        let attr = Attr {
            mode: kind | mode & 0o7777 | if inherits && directory { S_ISGID } else { 0 },
            uid: owner.uid,
            gid: if inherits { above.gid } else { owner.gid },
            links: if directory { 2 } else { 1 },
            size: target.len() as u64,
            rdev,
            atime: now,
            mtime: now,
            ctime: now,
        };
        // Its record is written with the attributes at the batch's end.
        self.tree.apply(&Record::Inode { inode, attr, target: target.to_vec() });
        self.touch(inode);
        self.note(&Record::Link { parent, inode, name: name.to_vec() });
        self.stamp_dir(parent, i32::from(directory), now);
        Ok(inode)
    }
    /// Adds a name to a file that is not a directory.
    pub fn link(&mut self, inode: u64, parent: u64, name: &[u8], now: Stamp) -> Result<(), FsError> {
        check_name(name)?;
        self.writable()?;
        if self.live_dir(parent)?.names.contains_key(name) {
            return Err(FsError::Exists);
        }
        let attr = self.getattr(inode)?;
        if attr.kind() == FileKind::Directory {
            return Err(FsError::IsADirectory);
        }
        if attr.links == 0 {
            return Err(FsError::NotFound);
        }
        if attr.links >= LINK_MAX {
            return Err(FsError::TooManyLinks { max: LINK_MAX });
        }
        self.grow(0, link_bytes(name.len()))?;
        self.room(OPERATION_BYTES + crate::TARGET_MAX, 0)?;
        self.note(&Record::Link { parent, inode, name: name.to_vec() });
        self.add_links(inode, 1, now);
        self.stamp_dir(parent, 0, now);
        Ok(())
    }
    pub fn unlink(&mut self, parent: u64, name: &[u8], now: Stamp) -> Result<(), FsError> {
        self.remove(parent, name, false, now)
    }
    pub fn rmdir(&mut self, parent: u64, name: &[u8], now: Stamp) -> Result<(), FsError> {
        self.remove(parent, name, true, now)
    }
    fn remove(&mut self, parent: u64, name: &[u8], directory: bool, now: Stamp) -> Result<(), FsError> {
        check_name(name)?;
        self.writable()?;
        let old = self.named(parent, name)?.ok_or(FsError::NotFound)?;
        self.replaceable(old, directory)?;
        self.room(OPERATION_BYTES + TARGET_MAX, 0)?;
        self.note(&Record::Unlink { parent, name: name.to_vec() });
        self.drop_name(parent, old, now);
        Ok(())
    }
    /// Whether the name may be replaced by a directory (`directory`), or by another kind of file.
    fn replaceable(&self, old: Named, directory: bool) -> Result<(), FsError> {
        match (old.directory, directory) {
            (false, true) => Err(FsError::NotADirectory),
            (true, false) => Err(FsError::IsADirectory),
            (true, true) if !self.dir(old.inode)?.names.is_empty() => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }
    /// Removes a name of the inode.
    fn drop_name(&mut self, parent: u64, old: Named, now: Stamp) {
        self.stamp_dir(parent, -i32::from(old.directory), now);
        self.add_links(old.inode, if old.directory { -2 } else { -1 }, now);
        let links = self.tree.inodes.get(&old.inode).map_or(0, |i| i.attr.links);
        if links == 0 && !self.holds.contains_key(&old.inode) {
            self.drop_inode(old.inode);
        }
    }

    /// Renames atomically.
    pub fn rename(
        &mut self,
        (parent, name): (u64, &[u8]),
        (to, new): (u64, &[u8]),
        how: RenameHow,
        now: Stamp,
    ) -> Result<(), FsError> {
        check_name(name)?;
        check_name(new)?;
        self.writable()?;
        let moved = self.named(parent, name)?.ok_or(FsError::NotFound)?;
        self.live_dir(to)?;
        let old = self.named(to, new)?;
        match (how, old) {
            (RenameHow::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameHow::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        if old.is_some_and(|o| o.inode == moved.inode) {
            return Ok(());
        }
        let into_itself = |n: Named, dir: u64| n.directory && self.is_inside(dir, n.inode);
        if into_itself(moved, to) || how == RenameHow::Exchange && old.is_some_and(|o| into_itself(o, parent)) {
            return Err(FsError::Invalid);
        }
        if how == RenameHow::Exchange {
            return self.exchange((parent, name, moved), (to, new, old.expect("it exists")), now);
        }
        if let Some(o) = old {
            self.replaceable(o, moved.directory)?;
        }
        let full = self.getattr(to)?.links >= LINK_MAX + 2;
        if moved.directory && parent != to && old.is_none() && full {
            return Err(FsError::TooManyLinks { max: LINK_MAX });
        }
        if old.is_none() && new.len() > name.len() {
            self.grow(0, new.len() - name.len())?;
        }
        self.room(OPERATION_BYTES + 2 * TARGET_MAX, 0)?;
        self.note(&Record::Unlink { parent, name: name.to_vec() });
        if self.broken == Broken::SplitRename {
            self.flush()?;
            self.room(OPERATION_BYTES + 2 * TARGET_MAX, 0)?;
        }
        self.note(&Record::Link { parent: to, inode: moved.inode, name: new.to_vec() });
        if let Some(o) = old {
            self.drop_name(to, o, now);
        }
        self.stamp_dir(parent, -i32::from(moved.directory), now);
        self.stamp_dir(to, i32::from(moved.directory), now);
        self.add_links(moved.inode, 0, now);
        Ok(())
    }
    fn exchange(
        &mut self,
        (parent, name, a): (u64, &[u8], Named),
        (to, new, b): (u64, &[u8], Named),
        now: Stamp,
    ) -> Result<(), FsError> {
        self.room(OPERATION_BYTES + 2 * TARGET_MAX, 0)?;
        self.note(&Record::Link { parent, inode: b.inode, name: name.to_vec() });
        self.note(&Record::Link { parent: to, inode: a.inode, name: new.to_vec() });
        let more = i32::from(b.directory) - i32::from(a.directory);
        self.stamp_dir(parent, more, now);
        self.stamp_dir(to, -more, now);
        self.add_links(a.inode, 0, now);
        self.add_links(b.inode, 0, now);
        Ok(())
    }
    /// Whether the directory is the other one or below it.
    fn is_inside(&self, mut directory: u64, above: u64) -> bool {
        loop {
            if directory == above {
                return true;
            }
            match self.tree.directory(directory).map(|d| d.parent) {
                Some(parent) if parent != directory && directory != crate::ROOT => directory = parent,
                _ => return false,
            }
        }
    }
}
