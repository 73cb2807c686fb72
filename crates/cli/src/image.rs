//! The file of an exported volume: what is not zero, with checksums. A file that was cut, changed or lengthened is not read.
//!
//! All integers are big-endian. Checksums are CRC32C; the digest is CRC-64/NVME of all bytes before the trailer.
//!
//! | bytes | header |
//! |---|---|
//! | 0–7 | `RWVOLUME` |
//! | 8–11 | version u32, 1 |
//! | 12–19 | bytes of the volume u64, a multiple of 4,096 |
//! | 20–23 | checksum u32 of bytes 0 to 19 |
//!
//! | bytes | extent, in ascending order; the rest of the volume is zero |
//! |---|---|
//! | 0–7 | offset u64, a multiple of 4,096 |
//! | 8–11 | length u32, a multiple of 4,096 up to 1 MiB |
//! | 12–15 | checksum u32 of bytes 0 to 11 and of the contents |
//! | 16– | contents |
//!
//! | bytes | trailer, which ends the file |
//! |---|---|
//! | 0–7 | 2^64 − 1 |
//! | 8–15 | extents u64 |
//! | 16–23 | digest u64 |
//! | 24–27 | checksum u32 of bytes 0 to 23 |

use std::io::{self, Read, Write};

use crc_fast::{CrcAlgorithm, Digest};

const MAGIC: &[u8; 8] = b"RWVOLUME";
const VERSION: u32 = 1;
pub const BLOCK: usize = 4096;
/// Longest contents of an extent.
pub const EXTENT_MAX: usize = 1 << 20;
const TRAILER: u64 = u64::MAX;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no exported volume: it begins with {begin:x?}")]
    Magic { begin: [u8; 8] },
    #[error("its format is version {version}: this program reads version {VERSION}")]
    Version { version: u32 },
    #[error("it is cut short after {bytes} bytes")]
    Cut { bytes: u64 },
    #[error("the checksum of its {what} at byte {at} does not match")]
    Checksum { what: &'static str, at: u64 },
    #[error(
        "its extent at byte {offset} with {len} bytes is not between {least} and the volume's {size} bytes, in whole blocks"
    )]
    Extent { offset: u64, len: u64, least: u64, size: u64 },
    #[error("a volume of {size} bytes is not of whole blocks of 4096 bytes")]
    Size { size: u64 },
    #[error("it has {found} extents, and its trailer counts {counted}")]
    Count { found: u64, counted: u64 },
    #[error("the digest of its contents does not match its trailer's")]
    Digest,
    #[error("it goes on behind its trailer at byte {at}")]
    Longer { at: u64 },
}

fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut d = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|p| d.update(p));
    d.finalize() as u32
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}

pub struct Writer<W> {
    to: W,
    digest: Digest,
    extents: u64,
    /// Bytes of extents' contents.
    pub bytes: u64,
}

impl<W: Write> Writer<W> {
    /// # Errors
    /// The file cannot be written.
    pub fn new(to: W, size: u64) -> Result<Writer<W>, Error> {
        if !size.is_multiple_of(BLOCK as u64) {
            return Err(Error::Size { size });
        }
        let mut head = [MAGIC.as_slice(), &VERSION.to_be_bytes(), &size.to_be_bytes()].concat();
        head.extend(crc32c(&[&head]).to_be_bytes());
        let mut w = Writer { to, digest: Digest::new(CrcAlgorithm::Crc64Nvme), extents: 0, bytes: 0 };
        w.put(&head)?;
        Ok(w)
    }
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.digest.update(bytes);
        Ok(self.to.write_all(bytes)?)
    }
    /// The next contents of the volume: whole blocks, at most [`EXTENT_MAX`] bytes. Blocks of zeroes are left out.
    pub fn contents(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut run = 0..0;
        for (at, block) in data.chunks(BLOCK).enumerate().map(|(i, b)| (i * BLOCK, b)) {
            if block.iter().all(|b| *b == 0) {
                self.extent(offset, data, std::mem::take(&mut run))?;
            } else {
                run = if run.is_empty() { at } else { run.start }..at + block.len();
            }
        }
        self.extent(offset, data, run)
    }
    fn extent(&mut self, offset: u64, data: &[u8], run: std::ops::Range<usize>) -> Result<(), Error> {
        if run.is_empty() {
            return Ok(());
        }
        let (offset, data) = (offset + run.start as u64, &data[run]);
        let mut head = [offset.to_be_bytes().as_slice(), &(data.len() as u32).to_be_bytes()].concat();
        head.extend(crc32c(&[&head, data]).to_be_bytes());
        self.put(&head)?;
        self.put(data)?;
        (self.extents, self.bytes) = (self.extents + 1, self.bytes + data.len() as u64);
        Ok(())
    }
    /// Writes the trailer.
    pub fn end(mut self) -> Result<W, Error> {
        let digest = self.digest.finalize();
        let mut trailer = [TRAILER.to_be_bytes(), self.extents.to_be_bytes(), digest.to_be_bytes()].concat();
        trailer.extend(crc32c(&[&trailer]).to_be_bytes());
        self.to.write_all(&trailer)?;
        Ok(self.to)
    }
}

pub struct Reader<R> {
    from: R,
    digest: Digest,
    at: u64,
    extents: u64,
    /// End of the last extent.
    end: u64,
    /// Bytes of the volume.
    pub size: u64,
}

impl<R: Read> Reader<R> {
    /// # Errors
    /// The header is not that of an exported volume.
    pub fn new(from: R) -> Result<Reader<R>, Error> {
        let mut r = Reader { from, digest: Digest::new(CrcAlgorithm::Crc64Nvme), at: 0, extents: 0, end: 0, size: 0 };
        let begin: [u8; 8] = r.take()?;
        if begin != *MAGIC {
            return Err(Error::Magic { begin });
        }
        let version: [u8; 4] = r.take()?;
        if u32_at(&version, 0) != VERSION {
            return Err(Error::Version { version: u32_at(&version, 0) });
        }
        let rest: [u8; 12] = r.take()?;
        if u32_at(&rest, 8) != crc32c(&[&begin, &version, &rest[..8]]) {
            return Err(Error::Checksum { what: "header", at: 0 });
        }
        r.size = u64_at(&rest, 0);
        if !r.size.is_multiple_of(BLOCK as u64) {
            return Err(Error::Size { size: r.size });
        }
        for part in [begin.as_slice(), &version, &rest] {
            r.digest.update(part);
        }
        Ok(r)
    }
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let at = self.at;
        self.from.read_exact(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => Error::Cut { bytes: at },
            _ => Error::Io(e),
        })?;
        self.at += bytes.len() as u64;
        Ok(())
    }
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
    /// The next extent's offset; its contents are in `data`. `None`: the file has ended as it should.
    pub fn next_extent(&mut self, data: &mut Vec<u8>) -> Result<Option<u64>, Error> {
        let begin = self.at;
        let head: [u8; 16] = self.take()?;
        let offset = u64_at(&head, 0);
        if offset == TRAILER {
            return self.trailer(begin, &head).map(|()| None);
        }
        let len = u64::from(u32_at(&head, 8));
        let whole =
            [offset, len].iter().all(|n| n.is_multiple_of(BLOCK as u64)) && (1..=EXTENT_MAX as u64).contains(&len);
        if !whole || offset < self.end || offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(Error::Extent { offset, len, least: self.end, size: self.size });
        }
        data.resize(len as usize, 0);
        self.fill(data)?;
        if u32_at(&head, 12) != crc32c(&[&head[..12], data]) {
            return Err(Error::Checksum { what: "extent", at: begin });
        }
        self.digest.update(&head);
        self.digest.update(data);
        (self.extents, self.end) = (self.extents + 1, offset + len);
        Ok(Some(offset))
    }
    fn trailer(&mut self, begin: u64, head: &[u8; 16]) -> Result<(), Error> {
        let rest: [u8; 12] = self.take()?;
        if u32_at(&rest, 8) != crc32c(&[head, &rest[..8]]) {
            return Err(Error::Checksum { what: "trailer", at: begin });
        }
        let counted = u64_at(head, 8);
        if counted != self.extents {
            return Err(Error::Count { found: self.extents, counted });
        }
        if u64_at(&rest, 0) != self.digest.finalize() {
            return Err(Error::Digest);
        }
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Error::Longer { at: self.at }),
        }
    }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
