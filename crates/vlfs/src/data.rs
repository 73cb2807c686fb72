//! Contents and attributes of files.

use rackweave_flash::manager::api::VirtualSsds;

use crate::format::{EXTENT_BYTES, Record};
use crate::log::OPERATION_BYTES;
use crate::tree::{Attr, Body, FileKind, S_IFMT};
use crate::{FILE_BYTES_MAX, FsError, SLOT, Stamp, TARGET_MAX, Vlfs};

const UNIT: u64 = SLOT as u64;

/// Attributes to change; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions; the file type cannot change.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Stamp>,
    pub mtime: Option<Stamp>,
}

impl<D: VirtualSsds> Vlfs<D> {
    fn file(&self, inode: u64) -> Result<Attr, FsError> {
        let attr = self.getattr(inode)?;
        match attr.kind() {
            FileKind::File => Ok(attr),
            FileKind::Directory => Err(FsError::IsADirectory),
            _ => Err(FsError::Invalid),
        }
    }
    pub fn setattr(&mut self, inode: u64, s: &SetAttr, now: Stamp) -> Result<Attr, FsError> {
        self.writable()?;
        let attr = self.getattr(inode)?;
        if let Some(size) = s.size {
            self.truncate(inode, size, now)?;
        }
        self.room(OPERATION_BYTES + TARGET_MAX, 0)?;
        let i = self.tree.inodes.get_mut(&inode).ok_or(FsError::NotFound)?;
        let a = &mut i.attr;
        a.mode = s.mode.map_or(attr.mode, |m| attr.mode & S_IFMT | m & 0o7777);
        a.uid = s.uid.unwrap_or(a.uid);
        a.gid = s.gid.unwrap_or(a.gid);
        a.atime = s.atime.unwrap_or(a.atime);
        a.mtime = s.mtime.unwrap_or(a.mtime);
        a.ctime = now;
        let attr = *a;
        self.touch(inode);
        Ok(attr)
    }
    fn set_size(&mut self, inode: u64, size: u64, now: Stamp) {
        if let Some(i) = self.tree.inodes.get_mut(&inode) {
            i.attr.size = size;
            (i.attr.mtime, i.attr.ctime) = (now, now);
        }
        self.touch(inode);
    }
    fn truncate(&mut self, inode: u64, size: u64, now: Stamp) -> Result<(), FsError> {
        let attr = self.file(inode)?;
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooBig { bytes: size, max: FILE_BYTES_MAX });
        }
        self.room(OPERATION_BYTES, 1)?;
        if size < attr.size {
            // Bytes behind the end of a file are zeroed, so that they read as zeroes when the file grows again.
            self.zero(inode, size, size.next_multiple_of(UNIT))?;
            self.note(&Record::Unmap { inode, from: size.div_ceil(UNIT), to: u64::MAX });
        }
        self.set_size(inode, size, now);
        Ok(())
    }
    /// Zeroes a part of one slot, unless it is a hole. The open batch must have room for the slot.
    fn zero(&mut self, inode: u64, from: u64, to: u64) -> Result<(), FsError> {
        let slot = from / UNIT;
        if from == to || self.tree.extents(inode).is_none_or(|e| e.get(slot).is_none()) {
            return Ok(());
        }
        self.write_slot(inode, slot, (from % UNIT) as usize, &vec![0; (to - from) as usize])
    }
    /// Writes a part of a slot. The open batch must have room for the slot.
    fn write_slot(&mut self, inode: u64, slot: u64, offset: usize, data: &[u8]) -> Result<(), FsError> {
        let lies = self.tree.extents(inode).and_then(|e| e.get(slot)).map(|(at, _)| at);
        if let Some(b) = lies.and_then(|at| self.buffered(at)) {
            b[offset..offset + data.len()].copy_from_slice(data);
            return Ok(());
        }
        if data.len() == SLOT as usize {
            self.put_slot(inode, slot, data);
            return Ok(());
        }
        let mut whole = [0; SLOT as usize];
        if let Some(at) = lies {
            self.read_slots(at, &mut whole)?;
        }
        whole[offset..offset + data.len()].copy_from_slice(data);
        self.put_slot(inode, slot, &whole);
        Ok(())
    }

    /// Reads into `to` from `offset` on; returns the number of bytes before the file's end.
    pub fn read(&mut self, inode: u64, offset: u64, to: &mut [u8]) -> Result<usize, FsError> {
        let attr = self.file(inode)?;
        let len = (to.len() as u64).min(attr.size.saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (slot, inside) = (at / UNIT, (at % UNIT) as usize);
            let Some(Body::File(e)) = self.tree.inodes.get(&inode).map(|i| &i.body) else { break };
            let Some((place, run)) = e.get(slot) else {
                let hole = e.next(slot).map_or(u64::MAX, |n| n.saturating_mul(UNIT) - at);
                let n = ((len - done) as u64).min(hole) as usize;
                to[done..done + n].fill(0);
                done += n;
                continue;
            };
            if inside == 0 && len - done >= SLOT as usize {
                let n = ((len - done) / SLOT as usize).min(run as usize) * SLOT as usize;
                self.read_slots(place, &mut to[done..done + n])?;
                done += n;
            } else {
                let mut one = [0; SLOT as usize];
                self.read_slots(place, &mut one)?;
                let n = (SLOT as usize - inside).min(len - done);
                to[done..done + n].copy_from_slice(&one[inside..inside + n]);
                done += n;
            }
        }
        Ok(len)
    }
    /// Writes; returns the number of bytes written, which is smaller only if space runs out.
    pub fn write(&mut self, inode: u64, offset: u64, data: &[u8], now: Stamp) -> Result<usize, FsError> {
        self.writable()?;
        self.file(inode)?;
        let end = offset.saturating_add(data.len() as u64);
        if end > FILE_BYTES_MAX {
            return Err(FsError::TooBig { bytes: end, max: FILE_BYTES_MAX });
        }
        let mut done = 0;
        while done < data.len() {
            match self.write_part(inode, offset + done as u64, &data[done..], now) {
                Ok(n) => done += n,
                Err(FsError::NoSpace { .. }) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
    /// Writes as much as fits into the open batch.
    fn write_part(&mut self, inode: u64, offset: u64, data: &[u8], now: Stamp) -> Result<usize, FsError> {
        let first = offset / UNIT;
        let slots = (offset + data.len() as u64).div_ceil(UNIT) - first;
        let e = self.tree.extents(inode).ok_or(FsError::NotFound)?;
        // Mapped slots take no further space.
        let few = slots.min(u64::from(crate::log::BATCH_SLOTS_MAX));
        let holes = (first..first + few).filter(|s| e.get(*s).is_none()).count() as u64;
        self.grow(holes, EXTENT_BYTES)?;
        let n = u64::from(self.room(OPERATION_BYTES, few as u32)?);
        let (mut done, mut written) = (0, 0);
        for slot in first..first + n {
            let inside = (offset + done as u64) % UNIT;
            let len = (SLOT as usize - inside as usize).min(data.len() - done);
            self.write_slot(inode, slot, inside as usize, &data[done..done + len])?;
            done += len;
            written += 1;
        }
        self.stats.user_slots += written;
        let size = self.file(inode)?.size.max(offset + done as u64);
        self.set_size(inode, size, now);
        Ok(done)
    }
    /// Makes a hole, as `fallocate` does; `grow` extends the file to the range's end.
    pub fn punch(&mut self, inode: u64, offset: u64, bytes: u64, grow: bool, now: Stamp) -> Result<(), FsError> {
        self.writable()?;
        let attr = self.file(inode)?;
        let end = offset.saturating_add(bytes);
        if bytes == 0 {
            return Err(FsError::Invalid);
        }
        if end > FILE_BYTES_MAX {
            return Err(FsError::TooBig { bytes: end, max: FILE_BYTES_MAX });
        }
        let (first, last) = (offset.next_multiple_of(UNIT), end / UNIT * UNIT);
        let parts = if first > last { [(offset, end), (end, end)] } else { [(offset, first), (last, end)] };
        for (from, to) in parts {
            self.room(OPERATION_BYTES, 1)?;
            self.zero(inode, from, to)?;
        }
        self.room(OPERATION_BYTES, 0)?;
        if first < last {
            self.note(&Record::Unmap { inode, from: first / UNIT, to: last / UNIT });
        }
        self.set_size(inode, if grow { attr.size.max(end) } else { attr.size }, now);
        Ok(())
    }
    /// The first byte from `offset` on that is data (`data`) or in a hole. `None` if there is none before the end.
    pub fn seek(&self, inode: u64, offset: u64, data: bool) -> Result<Option<u64>, FsError> {
        let attr = self.file(inode)?;
        if offset >= attr.size {
            return Ok(None);
        }
        let e = self.tree.extents(inode).ok_or(FsError::NotFound)?;
        let mut slot = offset / UNIT;
        if data {
            return Ok(e.next(slot).map(|s| (s * UNIT).max(offset)).filter(|at| *at < attr.size));
        }
        while let Some((_, run)) = e.get(slot) {
            slot += u64::from(run);
        }
        Ok(Some((slot * UNIT).max(offset).min(attr.size)))
    }
}
