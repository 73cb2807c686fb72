//! The kernel's questions (FUSE) put to vLFS. The kernel checks permissions, keeps the page cache, and does locks.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rackweave_device::{FileSsd, OsFile};
use rackweave_flash::manager::api::BlockError;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_vlfs::{Attr, FsError, Made, NAME_MAX, Owner, RenameHow, SLOT, SetAttr, Stamp, Vlfs};

use crate::mount::{lock, now};

pub type Fs = Vlfs<BlockingDrive<FileSsd<OsFile>>>;
pub type SharedFs = Arc<Mutex<Fs>>;

/// Validity of names and attributes in the kernel: no other process changes them.
const VALID: Duration = Duration::from_secs(3600);
/// Names requested of a directory at a time: more than a reply holds.
const LISTED: usize = 1024;
/// Inode numbers are not used again.
const GENERATION: Generation = Generation(0);

pub struct Fuse(pub SharedFs);

fn errno(e: FsError) -> Errno {
    match e {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotADirectory => Errno::ENOTDIR,
        FsError::IsADirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong { .. } => Errno::ENAMETOOLONG,
        FsError::TooManyLinks { .. } => Errno::EMLINK,
        FsError::TooBig { .. } => Errno::EFBIG,
        FsError::NoSpace { .. } => Errno::ENOSPC,
        FsError::BadName | FsError::Invalid => Errno::EINVAL,
        FsError::Unsupported => Errno::EOPNOTSUPP,
        FsError::ReadOnly(_) | FsError::Block(BlockError::WornOut { .. }) => Errno::EROFS,
        FsError::Block(_) => Errno::EIO,
    }
}

fn time(t: Stamp) -> SystemTime {
    let (s, ns) = (Duration::from_secs(t.s.unsigned_abs()), Duration::from_nanos(u64::from(t.ns)));
    let at = if t.s < 0 { UNIX_EPOCH.checked_sub(s) } else { UNIX_EPOCH.checked_add(s) };
    at.and_then(|at| at.checked_add(ns)).unwrap_or(UNIX_EPOCH)
}
fn stamp(t: TimeOrNow) -> Stamp {
    let TimeOrNow::SpecificTime(t) = t else { return now() };
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Stamp { s: d.as_secs() as i64, ns: d.subsec_nanos() },
        Err(e) => {
            let d = e.duration();
            let (s, ns) = (-(d.as_secs() as i64), d.subsec_nanos());
            if ns == 0 { Stamp { s, ns } } else { Stamp { s: s - 1, ns: 1_000_000_000 - ns } }
        }
    }
}
fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}
fn owner(req: &Request) -> Owner {
    Owner { uid: req.uid(), gid: req.gid() }
}

impl Fuse {
    fn fs(&self) -> MutexGuard<'_, Fs> {
        lock(&self.0)
    }
}

fn attr(fs: &Fs, inode: u64, a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size: a.size,
        blocks: fs.slots_of_file(inode) * u64::from(SLOT) / 512,
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(a.mode),
        perm: (a.mode & 0o7777) as u16,
        nlink: a.links,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: SLOT,
        flags: 0,
    }
}

/// Answers with an inode, which the kernel knows from then on.
fn entry(fs: &mut Fs, inode: Result<u64, FsError>, reply: ReplyEntry) {
    match inode.and_then(|i| fs.getattr(i).map(|a| (i, a))) {
        Ok((i, a)) => {
            fs.hold(i);
            reply.entry(&VALID, &attr(fs, i, &a), GENERATION);
        }
        Err(e) => reply.error(errno(e)),
    }
}
fn empty(done: Result<(), FsError>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

impl Filesystem for Fuse {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without them the kernel sends one request at a time and directory by directory; nothing else depends on it.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        Ok(())
    }
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let fs = &mut *self.fs();
        let found = fs.lookup(parent.0, name.as_bytes());
        entry(fs, found, reply);
    }
    fn forget(&self, _: &Request, inode: INodeNo, times: u64) {
        // The kernel does not wait for an answer; a failure is reported to the next request.
        let _ = self.fs().unhold(inode.0, times);
    }
    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let fs = self.fs();
        match fs.getattr(inode.0) {
            Ok(a) => reply.attr(&VALID, &attr(&fs, inode.0, &a)),
            Err(e) => reply.error(errno(e)),
        }
    }
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let how = SetAttr { mode, uid, gid, size, atime: atime.map(stamp), mtime: mtime.map(stamp) };
        let mut fs = self.fs();
        match fs.setattr(inode.0, &how, now()) {
            Ok(a) => reply.attr(&VALID, &attr(&fs, inode.0, &a)),
            Err(e) => reply.error(errno(e)),
        }
    }
    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        match self.fs().readlink(inode.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }
    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let what = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => Made::File,
            kind => Made::Special { kind, rdev },
        };
        let fs = &mut *self.fs();
        let made = fs.make(parent.0, name.as_bytes(), (what, mode), owner(req), now());
        entry(fs, made, reply);
    }
    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let fs = &mut *self.fs();
        let made = fs.make(parent.0, name.as_bytes(), (Made::Directory, mode), owner(req), now());
        entry(fs, made, reply);
    }
    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.fs().unlink(parent.0, name.as_bytes(), now()), reply);
    }
    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.fs().rmdir(parent.0, name.as_bytes(), now()), reply);
    }
    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let fs = &mut *self.fs();
        let what = Made::Symlink(target.as_os_str().as_bytes());
        let made = fs.make(parent.0, name.as_bytes(), (what, 0o777), owner(req), now());
        entry(fs, made, reply);
    }
    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = if flags.is_empty() {
            RenameHow::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameHow::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameHow::Exchange
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (from, to) = ((parent.0, name.as_bytes()), (to.0, new.as_bytes()));
        empty(self.fs().rename(from, to, how, now()), reply);
    }
    fn link(&self, _: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let fs = &mut *self.fs();
        let linked = fs.link(inode.0, parent.0, name.as_bytes(), now());
        entry(fs, linked.map(|()| inode.0), reply);
    }
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No other process changes the file: the kernel's cache of it stays valid.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }
    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut to = vec![0; size as usize];
        match self.fs().read(inode.0, offset, &mut to) {
            Ok(n) => reply.data(&to[..n]),
            Err(e) => reply.error(errno(e)),
        }
    }
    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.fs().write(inode.0, offset, data, now()) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(e)),
        }
    }
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(self.fs().sync(), reply);
    }
    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(self.fs().sync(), reply);
    }
    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, from: u64, mut reply: ReplyDirectory) {
        let fs = self.fs();
        let names = match fs.readdir(inode.0, from, LISTED) {
            Ok(names) => names,
            Err(e) => return reply.error(errno(e)),
        };
        for e in names {
            let mode = fs.getattr(e.inode).map_or(0, |a| a.mode);
            if reply.add(INodeNo(e.inode), e.next, kind(mode), OsStr::from_bytes(&e.name)) {
                break;
            }
        }
        reply.ok();
    }
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let s = self.fs().space();
        let inodes_max = rackweave_vlfs::INODES_MAX as u64;
        let inodes_free = inodes_max.saturating_sub(s.inodes);
        reply.statfs(s.slots, s.free, s.free, inodes_max, inodes_free, SLOT, NAME_MAX as u32, SLOT);
    }
    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let fs = &mut *self.fs();
        let made = fs.make(parent.0, name.as_bytes(), (Made::File, mode), owner(req), now());
        match made.and_then(|i| fs.getattr(i).map(|a| (i, a))) {
            Ok((i, a)) => {
                fs.hold(i);
                reply.created(&VALID, &attr(fs, i, &a), GENERATION, FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(e) => reply.error(errno(e)),
        }
    }
    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let done = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE if keep => self.fs().punch(inode.0, offset, length, false, now()),
            libc::FALLOC_FL_ZERO_RANGE => self.fs().punch(inode.0, offset, length, !keep, now()),
            // Room in a log cannot be set apart for a place in a file.
            _ => Err(FsError::Unsupported),
        };
        empty(done, reply);
    }
    fn lseek(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let data = match whence {
            libc::SEEK_DATA => true,
            libc::SEEK_HOLE => false,
            _ => return reply.error(Errno::EINVAL),
        };
        let found = u64::try_from(offset).map_err(|_| FsError::Invalid).and_then(|o| self.fs().seek(inode.0, o, data));
        match found {
            Ok(Some(at)) => reply.offset(at as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(e) => reply.error(errno(e)),
        }
    }
}
