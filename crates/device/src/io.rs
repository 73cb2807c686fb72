//! Positioned file I/O as a layer: the operating system's file at the bottom, or memory; anything may be put between
//! it and the device ([`crate::layers`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use crate::private;

/// A file written and read at positions. Writes are durable only after [`FileIo::sync`] has succeeded; unsynced ones
/// may be lost or torn by a power cut, in any order.
pub trait FileIo {
    /// Bytes from the start to the last one ever written or allocated.
    fn len(&self) -> io::Result<u64>;
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `to` from `offset`; what lies past the end of the file reads as zeroes.
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes the parts one after another from `offset`. After an error any of it may have been written.
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()>;
    /// Reserves space, so that later writes there cannot fail for want of it and change no file length.
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Everything written before is durable (fdatasync).
    fn sync(&mut self) -> io::Result<()>;
    /// The descriptor that an asynchronous fdatasync may use in the place of [`FileIo::sync`], if there is one.
    fn sync_fd(&self) -> Option<RawFd> {
        None
    }
}

impl<F: FileIo> FileIo for &mut F {
    fn len(&self) -> io::Result<u64> {
        F::len(self)
    }
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        F::read_at(self, to, offset)
    }
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        F::write_at(self, parts, offset)
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        F::allocate(self, offset, len)
    }
    fn sync(&mut self) -> io::Result<()> {
        F::sync(self)
    }
    fn sync_fd(&self) -> Option<RawFd> {
        F::sync_fd(self)
    }
}

/// Parts that one pwritev takes (IOV_MAX).
const PARTS_MAX: usize = 1024;

/// A file of the operating system.
#[derive(Debug)]
pub struct OsFile(File);

impl OsFile {
    /// Opens the file, and creates it if it is missing. Only its owner may read or write it.
    pub fn open(path: &Path) -> io::Result<OsFile> {
        Ok(OsFile(private::open(path)?))
    }
}

impl OsFile {
    /// Locks the file for this process until it is closed. False: another process has locked it.
    pub fn lock(&self) -> io::Result<bool> {
        match self.0.try_lock() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(e)) => Err(e),
        }
    }
}

impl FileIo for OsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let mut done = 0;
        while done < to.len() {
            match self.0.read_at(&mut to[done..], offset + done as u64) {
                // A short read within the file is an error: the rest would look like zeroes.
                Ok(0) if self.len()? > offset + done as u64 => {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                Ok(0) => {
                    to[done..].fill(0);
                    return Ok(());
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for group in parts.chunks(PARTS_MAX) {
            at += pwritev(self.0.as_raw_fd(), group, at)?;
        }
        Ok(())
    }

    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        allocate(&self.0, offset, len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_fd(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }
}

/// Reserves space, as [`FileIo::allocate`].
pub fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    loop {
        // SAFETY: a plain system call on a descriptor that `file` keeps open.
        let r = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, len as libc::off_t) };
        if r == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EINTR) => {}
            // The file system cannot reserve: the file grows by being written.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                return if file.metadata()?.len() < offset + len { file.set_len(offset + len) } else { Ok(()) };
            }
            _ => return Err(e),
        }
    }
}

/// Free bytes of the file's file system.
pub fn bytes_left(file: &File) -> io::Result<u64> {
    // SAFETY: all zeroes is a value of it, which the kernel fills.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor that `file` keeps open, and a place for the answer.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.f_bavail * found.f_frsize)
}

/// Writes all of `parts` at `offset`; returns their length.
fn pwritev(fd: RawFd, parts: &[&[u8]], offset: u64) -> io::Result<u64> {
    let total: usize = parts.iter().map(|p| p.len()).sum();
    let mut done = 0usize;
    while done < total {
        let mut skip = done;
        let mut iov: Vec<libc::iovec> = Vec::with_capacity(parts.len());
        for p in parts {
            if skip >= p.len() {
                skip -= p.len();
                continue;
            }
            let rest = &p[skip..];
            skip = 0;
            iov.push(libc::iovec { iov_base: rest.as_ptr() as *mut libc::c_void, iov_len: rest.len() });
        }
        // SAFETY: the vectors point into `parts`, which outlive the call; the kernel only reads them.
        let n =
            unsafe { libc::pwritev(fd, iov.as_ptr(), iov.len() as libc::c_int, (offset + done as u64) as libc::off_t) };
        match n {
            n if n > 0 => done += n as usize,
            0 => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            _ => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(total as u64)
}

const PAGE: u64 = 4096;

/// A file in memory, sparse; a clone shares its pages until one of the two changes them.
#[derive(Clone, Debug, Default)]
pub struct MemFile {
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
    len: u64,
}

impl MemFile {
    fn write_part(&mut self, mut part: &[u8], mut at: u64) {
        while !part.is_empty() {
            let in_page = (at % PAGE) as usize;
            let n = part.len().min(PAGE as usize - in_page);
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[in_page..in_page + n].copy_from_slice(&part[..n]);
            part = &part[n..];
            at += n as u64;
        }
        self.len = self.len.max(at);
    }

    /// Flips the bits of `mask` in the byte at `offset`.
    pub fn flip(&mut self, offset: u64, mask: u8) {
        let mut b = [0u8];
        self.read_part(&mut b, offset);
        self.write_part(&[b[0] ^ mask], offset);
    }

    fn read_part(&self, to: &mut [u8], offset: u64) {
        let mut done = 0;
        while done < to.len() {
            let at = offset + done as u64;
            let in_page = (at % PAGE) as usize;
            let n = (to.len() - done).min(PAGE as usize - in_page);
            match self.pages.get(&(at / PAGE)) {
                Some(p) => to[done..done + n].copy_from_slice(&p[in_page..in_page + n]),
                None => to[done..done + n].fill(0),
            }
            done += n;
        }
    }
}

impl FileIo for MemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_part(to, offset);
        Ok(())
    }
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for p in parts {
            self.write_part(p, at);
            at += p.len() as u64;
        }
        Ok(())
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.len = self.len.max(offset + len);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}
