//! Bytes with the CRC32C of their blocks, computed once on receipt and stored with them on flash (PN3; C3 figure 12).

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::id::{BLOCK, SECTOR, SECTORS_PER_BLOCK};

/// Shared bytes in whole sectors, with the CRC32C of each 4 KiB block counted from their start. Cloning and slicing do
/// not copy; a slice that is exactly one block has that block's CRC.
#[derive(Clone, Debug)]
pub struct Summed {
    all: Arc<All>,
    /// In sectors.
    first: u32,
    sectors: u32,
}

#[derive(Debug)]
struct All {
    bytes: Bytes,
    sums: Sums,
}

#[derive(Debug)]
enum Sums {
    Known(Vec<u32>),
    /// Computed on first use.
    OnDemand(Box<[OnceLock<u32>]>),
}

impl Summed {
    /// `crcs`: one for each 4 KiB of the bytes, the last one for the rest. Returns `bytes` if the number of CRCs is
    /// wrong or the bytes are not whole sectors.
    pub fn new(bytes: Bytes, crcs: Vec<u32>) -> Result<Summed, Bytes> {
        match crcs.len() == bytes.len().div_ceil(BLOCK as usize) {
            true => Summed::of(bytes, |_| Sums::Known(crcs)),
            false => Err(bytes),
        }
    }
    /// Computes a block's CRC on first use, once for all clones. Returns `bytes` if they are not whole sectors.
    pub fn on_demand(bytes: Bytes) -> Result<Summed, Bytes> {
        Summed::of(bytes, |blocks| Sums::OnDemand((0..blocks).map(|_| OnceLock::new()).collect()))
    }
    fn of(bytes: Bytes, sums: impl FnOnce(usize) -> Sums) -> Result<Summed, Bytes> {
        let sectors = match u32::try_from(bytes.len()) {
            Ok(len) if len % SECTOR == 0 => len / SECTOR,
            _ => return Err(bytes),
        };
        let sums = sums(bytes.len().div_ceil(BLOCK as usize));
        Ok(Summed { all: Arc::new(All { bytes, sums }), first: 0, sectors })
    }
    pub fn sectors(&self) -> u32 {
        self.sectors
    }
    pub fn bytes(&self) -> &[u8] {
        &self.all.bytes[self.range()]
    }
    /// The same bytes, shared.
    pub fn to_bytes(&self) -> Bytes {
        self.all.bytes.slice(self.range())
    }
    fn range(&self) -> std::ops::Range<usize> {
        (self.first * SECTOR) as usize..((self.first + self.sectors) * SECTOR) as usize
    }
    /// Sectors `first..first + count`, all of which must be inside.
    pub(crate) fn slice(&self, first: u32, count: u32) -> Summed {
        debug_assert!(first + count <= self.sectors);
        Summed { all: self.all.clone(), first: self.first + first, sectors: count }
    }
    /// Both joined, if they are slices of the same bytes and `next` follows.
    pub(crate) fn joined(&self, next: &Summed) -> Option<Summed> {
        let follows = Arc::ptr_eq(&self.all, &next.all) && self.first + self.sectors == next.first;
        follows.then(|| Summed { sectors: self.sectors + next.sectors, ..self.clone() })
    }
    /// The index of the block that they are exactly; otherwise `None`.
    fn block(&self) -> Option<usize> {
        let one = self.sectors == SECTORS_PER_BLOCK && self.first.is_multiple_of(SECTORS_PER_BLOCK);
        one.then_some((self.first / SECTORS_PER_BLOCK) as usize)
    }
    /// The CRC32C that came with these bytes, if they are exactly one block. Reads the bytes only if the CRC is still
    /// to be computed.
    pub fn block_crc(&self) -> Option<u32> {
        self.block().map(|block| match &self.all.sums {
            Sums::Known(crcs) => crcs[block],
            Sums::OnDemand(crcs) => *crcs[block].get_or_init(|| crate::payload::crc32c(self.bytes())),
        })
    }
    /// Whether [`Summed::block_crc`] returns without reading the bytes.
    pub fn is_known(&self) -> bool {
        self.block().is_some_and(|block| match &self.all.sums {
            Sums::Known(_) => true,
            Sums::OnDemand(crcs) => crcs[block].get().is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(blocks: usize) -> Bytes {
        (0..blocks * BLOCK as usize).map(|i| (i / 512 + i) as u8).collect::<Vec<_>>().into()
    }

    #[test]
    fn a_block_has_the_crc_that_came_with_it() {
        let s = Summed::new(bytes(3), vec![1, 2, 3]).unwrap();
        let crcs: Vec<_> = (0..3).map(|b| s.slice(8 * b, 8).block_crc()).collect();
        assert_eq!(crcs, [Some(1), Some(2), Some(3)]);
        assert_eq!(s.slice(8, 16).slice(8, 8).block_crc(), Some(3), "of a slice of a slice");
        assert_eq!((s.block_crc(), s.slice(4, 8).block_crc(), s.slice(8, 4).block_crc()), (None, None, None));
        assert_eq!(s.slice(12, 8).bytes(), &bytes(3)[6144..10_240]);
    }

    #[test]
    fn a_crc_on_demand_is_computed_once_for_all() {
        let s = Summed::on_demand(bytes(2)).unwrap();
        let (one, same) = (s.slice(8, 8), s.slice(8, 8));
        assert!(!one.is_known());
        assert_eq!(one.block_crc(), Some(crc32c::crc32c(&bytes(2)[4096..])));
        assert!(same.is_known() && !s.slice(0, 8).is_known());
    }

    #[test]
    fn what_does_not_fit_is_given_back() {
        assert_eq!(Summed::new(bytes(1), vec![1, 2]).unwrap_err(), bytes(1));
        assert_eq!(Summed::new(bytes(2), vec![1]).unwrap_err().len(), 8192);
        assert_eq!(Summed::on_demand(bytes(1).slice(..100)).unwrap_err().len(), 100);
    }

    #[test]
    fn neighbours_are_joined_without_a_copy() {
        let s = Summed::new(bytes(3), vec![1, 2, 3]).unwrap();
        let joined = s.slice(0, 8).joined(&s.slice(8, 16)).unwrap();
        assert_eq!(joined.to_bytes().as_ptr(), s.to_bytes().as_ptr());
        assert_eq!(joined.sectors(), 24);
        assert!(s.slice(8, 8).joined(&s.slice(0, 8)).is_none());
        assert!(s.slice(0, 8).joined(&Summed::new(bytes(3), vec![1, 2, 3]).unwrap().slice(8, 8)).is_none());
    }
}
