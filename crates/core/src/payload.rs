//! Contents of requests: real bytes, or *elided* contents with an identity per 512 B sector and no bytes, so that
//! terabytes are simulated in megabytes and every sector can still be checked.

use std::sync::Arc;

use bytes::Bytes;

use crate::id::{BLOCK, SECTOR, SECTORS_PER_BLOCK};
use crate::rng::mix64;
use crate::summed::Summed;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const ZEROS: [u8; SECTOR as usize] = [0; SECTOR as usize];

/// Shared identities of sectors: a slice is the same list and a position in it.
#[derive(Clone, Debug)]
pub struct Identities {
    all: Arc<[u64]>,
    first: u32,
    sectors: u32,
}

impl Identities {
    fn slice(&self, first: u32, sectors: u32) -> Identities {
        debug_assert!(first + sectors <= self.sectors);
        Identities { all: self.all.clone(), first: self.first + first, sectors }
    }
}

impl std::ops::Deref for Identities {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.all[self.first as usize..(self.first + self.sectors) as usize]
    }
}

impl<T: Into<Arc<[u64]>>> From<T> for Identities {
    fn from(ids: T) -> Identities {
        let all = ids.into();
        Identities { first: 0, sectors: all.len() as u32, all }
    }
}

/// Shared contents; cloning and slicing copy no data. Lengths are multiples of 512 B.
#[derive(Clone, Debug)]
pub enum Payload {
    Bytes(Bytes),
    /// Bytes with the CRC32C of each block.
    Summed(Summed),
    /// `sectors` zero sectors.
    Zero {
        sectors: u32,
    },
    /// Sector `i` has the identity `mix64(seed + i × STEP)`, so slices keep their identities.
    Elided {
        sectors: u32,
        seed: u64,
    },
    /// One identity per sector; zero means a zero sector.
    Mixed(Identities),
}

impl Payload {
    pub fn zero(len: u32) -> Payload {
        Payload::Zero { sectors: len / SECTOR }
    }
    /// Elided contents drawn from `seed`.
    pub fn elided(len: u32, seed: u64) -> Payload {
        Payload::Elided { sectors: len / SECTOR, seed }
    }
    /// Length in sectors.
    pub fn sectors(&self) -> u32 {
        match self {
            Payload::Bytes(b) => (b.len() as u32) / SECTOR,
            Payload::Summed(s) => s.sectors(),
            Payload::Zero { sectors } | Payload::Elided { sectors, .. } => *sectors,
            Payload::Mixed(ids) => ids.len() as u32,
        }
    }
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.sectors() * SECTOR
    }
    /// Sectors `first..first + count`.
    ///
    /// # Panics
    /// If they exceed the payload.
    pub fn slice(&self, first: u32, count: u32) -> Payload {
        assert!(first + count <= self.sectors(), "slice {first}+{count} of {} sectors", self.sectors());
        match self {
            Payload::Bytes(b) => {
                Payload::Bytes(b.slice((first * SECTOR) as usize..((first + count) * SECTOR) as usize))
            }
            Payload::Summed(s) => Payload::Summed(s.slice(first, count)),
            Payload::Zero { .. } => Payload::Zero { sectors: count },
            Payload::Elided { seed, .. } => {
                Payload::Elided { sectors: count, seed: seed.wrapping_add(u64::from(first).wrapping_mul(STEP)) }
            }
            Payload::Mixed(ids) => Payload::Mixed(ids.slice(first, count)),
        }
    }
    /// The `i`-th 4 KiB block.
    pub fn block(&self, i: u32) -> Payload {
        self.slice(i * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK)
    }
    /// The identity of sector `i`: equal contents have equal identities; a zero sector has zero.
    pub fn identity(&self, i: u32) -> u64 {
        if let Some(b) = self.bytes() {
            let s = &b[(i * SECTOR) as usize..((i + 1) * SECTOR) as usize];
            return if s == ZEROS { 0 } else { hash_sector(s) };
        }
        match self {
            Payload::Bytes(_) | Payload::Summed(_) | Payload::Zero { .. } => 0,
            Payload::Elided { seed, .. } => mix64(seed.wrapping_add(u64::from(i).wrapping_mul(STEP))).max(1),
            Payload::Mixed(ids) => ids[i as usize],
        }
    }
    /// This payload overwritten with `patch` from sector `at` on (the merge of a read-modify-write).
    ///
    /// # Panics
    /// If the patch exceeds the payload.
    pub fn merged(&self, at: u32, patch: &Payload) -> Payload {
        let n = self.sectors();
        assert!(at + patch.sectors() <= n, "patch of {} sectors at {at} of {n}", patch.sectors());
        if patch.sectors() == n {
            return patch.clone();
        }
        if matches!((self, patch), (Payload::Zero { .. }, Payload::Zero { .. })) {
            return self.clone();
        }
        if self.has_bytes() || patch.has_bytes() {
            let mut v = vec![0; (n * SECTOR) as usize];
            self.copy_to(&mut v);
            patch.copy_to(&mut v[(at * SECTOR) as usize..((at + patch.sectors()) * SECTOR) as usize]);
            return Payload::Bytes(v.into());
        }
        let end = at + patch.sectors();
        let ids = (0..n).map(|i| if i >= at && i < end { patch.identity(i - at) } else { self.identity(i) });
        Payload::Mixed(ids.collect::<Arc<[u64]>>().into())
    }
    /// Concatenates the parts.
    pub fn concat(parts: &[Payload]) -> Payload {
        if let [one] = parts {
            return one.clone();
        }
        let total: u32 = parts.iter().map(Payload::sectors).sum();
        if parts.iter().all(|p| matches!(p, Payload::Zero { .. })) {
            return Payload::Zero { sectors: total };
        }
        if let Some(joined) = Self::concat_summed(parts) {
            return joined;
        }
        if parts.iter().any(Payload::has_bytes) {
            let mut v = Vec::with_capacity((total * SECTOR) as usize);
            for p in parts {
                match p.bytes() {
                    Some(bytes) => v.extend_from_slice(bytes),
                    None => {
                        let at = v.len();
                        v.resize(at + p.len() as usize, 0);
                        p.copy_to(&mut v[at..]);
                    }
                }
            }
            return Payload::Bytes(v.into());
        }
        if let Some(joined) = Self::concat_elided(parts) {
            return joined;
        }
        // Counted first, so that the list is allocated once.
        let (mut part, mut at) = (0, 0);
        let ids = (0..total).map(|_| {
            while at == parts[part].sectors() {
                (part, at) = (part + 1, 0);
            }
            at += 1;
            parts[part].identity(at - 1)
        });
        Payload::Mixed(ids.collect::<Arc<[u64]>>().into())
    }
    /// Joins consecutive slices of one elided payload.
    fn concat_elided(parts: &[Payload]) -> Option<Payload> {
        let Payload::Elided { seed: first, .. } = *parts.first()? else { return None };
        let mut sectors = 0u32;
        for p in parts {
            let Payload::Elided { sectors: n, seed } = *p else { return None };
            if seed != first.wrapping_add(u64::from(sectors).wrapping_mul(STEP)) {
                return None;
            }
            sectors += n;
        }
        Some(Payload::Elided { sectors, seed: first })
    }
    /// Joins consecutive slices of the same bytes without copying.
    fn concat_summed(parts: &[Payload]) -> Option<Payload> {
        let mut all = parts.iter().map(|p| if let Payload::Summed(s) = p { Some(s) } else { None });
        let first = all.next()??.clone();
        all.try_fold(first, |joined, next| joined.joined(next?)).map(Payload::Summed)
    }
    fn has_bytes(&self) -> bool {
        self.bytes().is_some()
    }
    /// The bytes; `None` for elided contents.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Payload::Bytes(b) => Some(b),
            Payload::Summed(s) => Some(s.bytes()),
            _ => None,
        }
    }
    /// Writes the contents to `to`. An elided sector becomes its identity, repeated.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_to(&self, to: &mut [u8]) {
        match self {
            Payload::Bytes(b) => to.copy_from_slice(b),
            Payload::Summed(s) => to.copy_from_slice(s.bytes()),
            Payload::Zero { .. } => to.fill(0),
            _ => {
                assert_eq!(to.len(), self.len() as usize);
                for (i, s) in to.chunks_exact_mut(SECTOR as usize).enumerate() {
                    let id = self.identity(i as u32).to_le_bytes();
                    s.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&id));
                }
            }
        }
    }
    /// The contents as bytes; see [`Payload::copy_to`] for elided ones.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Payload::Bytes(b) => b.clone(),
            Payload::Summed(s) => s.to_bytes(),
            other => {
                let mut v = vec![0; other.len() as usize];
                other.copy_to(&mut v);
                v.into()
            }
        }
    }
    /// The CRC32C that came with the contents, else [`Payload::crc32c`]: the value to store beside them.
    pub fn sum(&self) -> u32 {
        match self {
            Payload::Summed(s) => s.block_crc().unwrap_or_else(|| self.crc32c()),
            other => other.crc32c(),
        }
    }
    /// CRC32C of the contents, computed now for comparison; for elided ones, of the identities (a stand-in that still
    /// catches mix-ups).
    pub fn crc32c(&self) -> u32 {
        match self {
            Payload::Bytes(b) => crc32c(b),
            Payload::Summed(s) => crc32c(s.bytes()),
            Payload::Zero { sectors } if sectors * SECTOR == BLOCK => ZERO_BLOCK_CRC,
            Payload::Zero { .. } => crc32c(&self.to_bytes()),
            Payload::Elided { sectors, seed } => mix64(*seed ^ u64::from(*sectors)) as u32,
            Payload::Mixed(ids) => ids.iter().fold(0, |c, id| crc32c::crc32c_append(c, &id.to_le_bytes())),
        }
    }
}

/// CRC32C of bytes; fastest for a block.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC32C of 4,096 zero bytes.
const ZERO_BLOCK_CRC: u32 = 0x98f9_4189;

/// Equal if all sectors are, whatever the representation.
impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        if let (Some(a), Some(b)) = (self.bytes(), other.bytes()) {
            return a == b;
        }
        self.sectors() == other.sectors() && (0..self.sectors()).all(|i| self.identity(i) == other.identity(i))
    }
}
impl Eq for Payload {}

fn hash_sector(s: &[u8]) -> u64 {
    let h = s
        .chunks_exact(8)
        .fold(0u64, |h, w| mix64(h ^ u64::from_le_bytes(w.try_into().expect("8 bytes"))).wrapping_add(STEP));
    h.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_block_crc_is_the_crc_of_zeros() {
        assert_eq!(crc32c::crc32c(&[0; BLOCK as usize]), ZERO_BLOCK_CRC);
    }

    #[test]
    fn slices_and_joins_keep_identities() {
        let p = Payload::elided(65_536, 7);
        let parts: Vec<_> = (0..16).map(|i| p.block(i)).collect();
        assert_eq!(parts[3].identity(2), p.identity(26));
        assert!(matches!(Payload::concat(&parts), Payload::Elided { sectors: 128, seed: 7 }));
    }

    #[test]
    fn zeroes_over_zeroes_are_zeroes() {
        let merged = Payload::zero(BLOCK).merged(3, &Payload::zero(1024));
        assert!(
            matches!(merged, Payload::Zero { sectors: SECTORS_PER_BLOCK }),
            "kept without contents, with a checksum"
        );
    }

    #[test]
    fn merge_changes_only_the_patch() {
        let base = Payload::elided(BLOCK, 1);
        let patch = Payload::elided(1024, 2);
        let m = base.merged(3, &patch);
        for i in 0..8 {
            let want = if (3..5).contains(&i) { patch.identity(i - 3) } else { base.identity(i) };
            assert_eq!(m.identity(i), want);
        }
        let b = Payload::Bytes(Bytes::from(vec![5; BLOCK as usize]));
        let m = b.merged(0, &Payload::zero(512));
        assert_eq!(m.identity(0), 0);
        assert_eq!(m.identity(1), b.identity(1));
    }
}
