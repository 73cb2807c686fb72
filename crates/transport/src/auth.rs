//! Authentication (protocol rule 18): keys for each sender and incarnation, derived from the cluster key.
//!
//! Datagrams: AES-128-GCM (NIST SP 800-38D), with everything as additional data when payloads are not encrypted (GMAC).
//! The nonce is the datagram's counter, which begins with the key's id and never repeats in an incarnation. Fields that
//! a switch may rewrite count as zero. Without keys the tag holds a CRC32C of the same bytes, which detects damage but
//! not forgery.
//!
//! `gc_op` and `load` are handled by the switch in the kernel: their tag is SipHash-2-4 (Aumasson, Bernstein 2012) over
//! 64 bytes.

use std::fmt;
use std::ops::Range;

use rackweave_core::NodeId;
use rackweave_core::map::{Map, map};
use rackweave_wire::header as wire;
use ring::{aead, hkdf};

use crate::crc::{append, combine, crc32c, parts};
use crate::header::{Form, HEAD_BYTES, Kind, Parsed, TAG_BYTES, rewritten};

/// Bytes at the front of a datagram that have all fields that a switch may rewrite.
const HEAD_REWRITTEN: usize = 20;
/// Bytes of a cluster key.
pub const KEY_BYTES: usize = 32;
/// Most derived keys kept: two for each of an endpoint's most peers. Beyond it all are derived again.
const DERIVED_MAX: usize = 8192;

/// Identifies a cluster key in datagrams. Zero is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u8);

/// Why a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("key id 0 stands for no key")]
    Zero,
    #[error("keys {} and {} are live; remove one before adding {}", live[0].0, live[1].0, new.0)]
    TooMany { live: [KeyId; 2], new: KeyId },
    #[error("key {} is live with other contents", id.0)]
    Exists { id: KeyId },
    #[error("key {} is not live", id.0)]
    Unknown { id: KeyId },
    #[error("key {} is the one datagrams are sent with", id.0)]
    InUse { id: KeyId },
}

/// The cluster keys: none, one, or two during a rotation.
///
/// To rotate: `add` the new key on every node, then `send_with` it on every node, then `remove` the old one.
#[derive(Clone, Default)]
pub struct Keys {
    live: Vec<(KeyId, [u8; KEY_BYTES])>,
    sending: Option<KeyId>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<u8> = self.live.iter().map(|(id, _)| id.0).collect();
        write!(f, "Keys {{ live: {ids:?}, sending: {:?} }}", self.sending)
    }
}

impl Keys {
    /// No authentication, for a single machine.
    pub fn none() -> Keys {
        Keys::default()
    }
    pub fn one(id: KeyId, key: [u8; KEY_BYTES]) -> Result<Keys, KeyError> {
        let mut keys = Keys::none();
        keys.add(id, key)?;
        keys.sending = Some(id);
        Ok(keys)
    }
    pub fn is_none(&self) -> bool {
        self.sending.is_none()
    }
    pub fn live(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.live.iter().map(|(id, _)| *id)
    }
    /// The key that seals datagrams.
    pub fn sending(&self) -> Option<KeyId> {
        self.sending
    }
    /// Accepts datagrams with this key from now on.
    pub fn add(&mut self, id: KeyId, key: [u8; KEY_BYTES]) -> Result<(), KeyError> {
        if id.0 == 0 {
            return Err(KeyError::Zero);
        }
        match (self.live.iter().find(|(live, _)| *live == id), &self.live[..]) {
            (Some((_, same)), _) if *same == key => Ok(()),
            (Some(_), _) => Err(KeyError::Exists { id }),
            (None, [(a, _), (b, _), ..]) => Err(KeyError::TooMany { live: [*a, *b], new: id }),
            (None, _) => {
                self.live.push((id, key));
                Ok(())
            }
        }
    }
    /// Seals datagrams with this key from now on.
    pub fn send_with(&mut self, id: KeyId) -> Result<(), KeyError> {
        if !self.live().any(|live| live == id) {
            return Err(KeyError::Unknown { id });
        }
        self.sending = Some(id);
        Ok(())
    }
    /// Refuses datagrams with this key from now on.
    pub fn remove(&mut self, id: KeyId) -> Result<(), KeyError> {
        if self.sending == Some(id) {
            return Err(KeyError::InUse { id });
        }
        let before = self.live.len();
        self.live.retain(|(live, _)| *live != id);
        if self.live.len() == before { Err(KeyError::Unknown { id }) } else { Ok(()) }
    }
    /// The keys of a node's `gc_op`s and `load`s in one incarnation, one per accepted key, for the switch's program.
    pub fn of_gc(&self, node: NodeId, incarnation: u64) -> impl Iterator<Item = (KeyId, [u64; 2])> + '_ {
        self.live.iter().map(move |(id, key)| (*id, gc_key(key, *id, node, incarnation)))
    }
    fn key(&self, id: KeyId) -> Option<&[u8; KEY_BYTES]> {
        self.live.iter().find(|(live, _)| *live == id).map(|(_, key)| key)
    }
}

/// Owner of a derived key, which depends on every field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Owner {
    id: KeyId,
    node: NodeId,
    incarnation: u64,
    gc: bool,
}

enum Derived {
    Datagram(Box<aead::LessSafeKey>),
    Gc([u64; 2]),
}

/// Seals and opens datagrams; caches derived keys.
pub(crate) struct Auth {
    keys: Keys,
    derived: Map<Owner, Derived>,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth {{ {:?}, derived: {} }}", self.keys, self.derived.len())
    }
}

/// Why a datagram could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// No accepted key has its id, or it has no key where one is required.
    UnknownKey,
    /// Damaged, forged, or sealed with another key.
    BadTag,
}

struct Length(usize);
impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-SHA-256 (RFC 5869): the salt names the use; the info is the key's id, node and incarnation.
fn derive(cluster: &[u8; KEY_BYTES], owner: &Owner) -> [u8; 16] {
    let use_of: &[u8] = if owner.gc { b"rackweave gc_op 1" } else { b"rackweave datagram 1" };
    let incarnation = if mutant!("transport.key.all-incarnations") { 0 } else { owner.incarnation };
    let (node, incarnation) = (owner.node.0.to_be_bytes(), incarnation.to_be_bytes());
    let info: [&[u8]; 3] = [&[owner.id.0], &node, &incarnation];
    let mut key = [0; 16];
    hkdf::Salt::new(hkdf::HKDF_SHA256, use_of)
        .extract(cluster)
        .expand(&info, Length(16))
        .and_then(|okm| okm.fill(&mut key))
        .expect("16 bytes are within what HKDF gives");
    key
}

/// The key of a node's `gc_op`s, their answers, and its `load`s, as two little-endian words for the switch's program.
pub fn gc_key(cluster: &[u8; KEY_BYTES], id: KeyId, node: NodeId, incarnation: u64) -> [u64; 2] {
    let key = derive(cluster, &Owner { id, node, incarnation, gc: true });
    let word = |i: usize| key[8 * i..8 * i + 8].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
    [word(0), word(1)]
}

/// The 64 bytes of a `gc_op` or `load` that its tag covers: the header without the fields that the switch rewrites, checksum and
/// tag, then the body, then zeros. `None` if it is not one.
pub fn gc_covered(datagram: &[u8]) -> Option<[u8; 64]> {
    if datagram.len() < HEAD_BYTES || datagram.len() > HEAD_BYTES + 16 {
        return None;
    }
    let mut covered = [0; 64];
    covered[0] = datagram[0];
    covered[1..8].copy_from_slice(&datagram[9..16]);
    covered[8..48].copy_from_slice(&datagram[20..60]);
    let body = &datagram[HEAD_BYTES..];
    covered[48..48 + body.len()].copy_from_slice(body);
    Some(covered)
}

impl Auth {
    pub fn new(keys: Keys) -> Auth {
        Auth { keys, derived: map() }
    }
    pub fn keys(&self) -> &Keys {
        &self.keys
    }
    /// Replaces the keys; drops what was derived from removed ones.
    pub fn set_keys(&mut self, keys: Keys) {
        self.derived.retain(|owner, _| keys.key(owner.id).is_some());
        let before = std::mem::replace(&mut self.keys, keys);
        if mutant!("transport.key.not-rotated") {
            self.keys.sending = before.sending;
        }
    }
    /// The counter's byte that identifies the sealing key.
    pub fn sending(&self) -> u8 {
        self.keys.sending.map_or(0, |id| id.0)
    }
    fn derived(&mut self, owner: Owner) -> Option<&Derived> {
        let cluster = self.keys.key(owner.id)?;
        if self.derived.len() >= DERIVED_MAX && !self.derived.contains_key(&owner) {
            self.derived.clear();
        }
        Some(self.derived.entry(owner).or_insert_with(|| {
            if owner.gc {
                return Derived::Gc(gc_key(cluster, owner.id, owner.node, owner.incarnation));
            }
            let key = aead::UnboundKey::new(&aead::AES_128_GCM, &derive(cluster, &owner)).expect("16 bytes");
            Derived::Datagram(Box::new(aead::LessSafeKey::new(key)))
        }))
    }

    /// Completes the datagram that begins at `start` and whose counter names the key: appends `data`, adds the tag, and
    /// encrypts from `payload_at` on if configured.
    pub fn seal(
        &mut self,
        (node, incarnation): (NodeId, u64),
        d: &mut Vec<u8>,
        start: usize,
        form: Form,
        payload_at: Option<usize>,
        data: &[u8],
    ) {
        let counter = crate::header::u64_at(&d[start..], form.counter_at);
        let owner = Owner { id: KeyId((counter >> 56) as u8), node, incarnation, gc: false };
        let h = &mut d[start..];
        let cleared = clear(h, form);
        let key = if owner.id.0 == 0 { None } else { self.derived(owner) };
        if let Some(Derived::Datagram(key)) = key {
            d.extend_from_slice(data);
            let bytes = d.len() - start;
            let (head, body) = d[start..].split_at_mut(payload_at.unwrap_or(bytes));
            let tag = key.seal_in_place_separate_tag(nonce(counter), aead::Aad::from(&*head), body);
            let tag = tag.expect("a datagram is shorter than GCM allows");
            d[start + form.tag_at..][..TAG_BYTES].copy_from_slice(tag.as_ref());
        } else {
            let head = crc32c(&d[start..]);
            let sum = append(d, 0, data, head, |_, _, _| {});
            d[start + form.tag_at..][..4].copy_from_slice(&sum.to_be_bytes());
        }
        put_back(&mut d[start..], cleared, form);
    }

    /// Checks the tag; decrypts an encrypted payload in place. Fields that the switch rewrote keep their received
    /// values. `known` gets the CRC32C of each part of the data within one block, if they had to be computed.
    pub fn open(&mut self, p: &Parsed, d: &mut [u8], known: &mut Vec<u32>) -> Result<(), OpenError> {
        known.clear();
        let encrypted = p.encrypted.then(|| p.payload.clone());
        self.check(p, p.counter, d, encrypted, |d| checksum(p, d, known))
    }

    /// As [`Auth::open`], for a chunk that differs from the opened `like` only in counter and number and has only data
    /// from `payload_at` on. `put` takes the CRC of the bytes before the data, and the data, stores it, and returns the
    /// CRC of both. It is called once, unless the datagram is encrypted and invalid. After an error the datagram is
    /// unchanged, unless it is encrypted: then its tag is no longer valid.
    pub fn open_onto(
        &mut self,
        like: &Parsed,
        d: &mut [u8],
        payload_at: usize,
        mut put: impl FnMut(u32, &[u8]) -> u32,
    ) -> Result<(), OpenError> {
        let counter = crate::header::u64_at(d, like.form.counter_at);
        if self.keys.is_none() {
            return self.check(like, counter, d, None, |d| put(crc32c(&d[..payload_at]), &d[payload_at..]));
        }
        let encrypted = like.encrypted.then_some(payload_at..d.len());
        self.check(like, counter, d, encrypted, |_| 0)?;
        put(0, &d[payload_at..]);
        Ok(())
    }

    /// `sum` checks a datagram without a key.
    fn check(
        &mut self,
        p: &Parsed,
        counter: u64,
        d: &mut [u8],
        encrypted: Option<Range<usize>>,
        sum: impl FnOnce(&[u8]) -> u32,
    ) -> Result<(), OpenError> {
        let id = KeyId((counter >> 56) as u8);
        if (id.0 == 0) != self.keys.is_none() && !mutant!("transport.key.none") {
            return Err(OpenError::UnknownKey);
        }
        let cleared = clear(d, p.form);
        let mut tag = [0; TAG_BYTES];
        d[p.form.tag_at..][..TAG_BYTES].swap_with_slice(&mut tag);
        let result = if id.0 == 0 {
            let mut want = [0; TAG_BYTES];
            want[..4].copy_from_slice(&sum(d).to_be_bytes());
            if !p.encrypted && (want == tag || mutant!("transport.crc.unchecked")) {
                Ok(())
            } else {
                Err(OpenError::BadTag)
            }
        } else {
            let owner = Owner { id, node: p.source, incarnation: p.incarnation, gc: false };
            self.open_keyed(owner, d, counter, tag, encrypted)
        };
        put_back(d, cleared, p.form);
        if result.is_err() {
            d[p.form.tag_at..][..TAG_BYTES].copy_from_slice(&tag);
        }
        result
    }

    fn open_keyed(
        &mut self,
        owner: Owner,
        d: &mut [u8],
        counter: u64,
        tag: [u8; TAG_BYTES],
        payload: Option<Range<usize>>,
    ) -> Result<(), OpenError> {
        let Some(Derived::Datagram(key)) = self.derived(owner) else { return Err(OpenError::UnknownKey) };
        let tag = aead::Tag::from(tag);
        let opened = match payload {
            None => key.open_in_place_separate_tag(nonce(counter), aead::Aad::from(&*d), tag, &mut [], 0..).map(drop),
            Some(range) => {
                let (head, body) = d.split_at_mut(range.start);
                key.open_in_place_separate_tag(nonce(counter), aead::Aad::from(&*head), tag, body, 0..).map(drop)
            }
        };
        if opened.is_ok() || mutant!("transport.tag.unchecked") { Ok(()) } else { Err(OpenError::BadTag) }
    }

    /// The tag of a `gc_op` of `owner`'s incarnation, sent by it or answering it.
    fn gc_tag(&mut self, id: KeyId, owner: NodeId, incarnation: u64, d: &[u8]) -> Option<[u8; TAG_BYTES]> {
        let covered = gc_covered(d)?;
        let mut tag = [0; TAG_BYTES];
        if let Some(Derived::Gc(key)) = self.derived(Owner { id, node: owner, incarnation, gc: true }) {
            tag[..8].copy_from_slice(&crate::siphash::siphash24(*key, &covered).to_be_bytes());
        } else if id.0 != 0 {
            return None;
        }
        Some(tag)
    }
    pub fn seal_gc(&mut self, owner: NodeId, incarnation: u64, d: &mut [u8]) {
        let at = crate::header::LONG.counter_at;
        d[at] = self.sending();
        if let Some(tag) = self.gc_tag(KeyId(d[at]), owner, incarnation, d) {
            d[crate::header::LONG.tag_at..][..TAG_BYTES].copy_from_slice(&tag);
        }
    }
    pub fn open_gc(&mut self, owner: NodeId, incarnation: u64, d: &[u8]) -> Result<(), OpenError> {
        let id = KeyId(d[crate::header::LONG.counter_at]);
        if (id.0 == 0) != self.keys.is_none() {
            return Err(OpenError::UnknownKey);
        }
        // Without keys the packet's own checksum guards it, as that of a datagram guards others.
        if id.0 == 0 && !mutant!("transport.gc.unchecked") {
            let sum = wire::checksum(d).to_be_bytes();
            return if d[wire::CHECKSUM_AT..wire::CHECKSUM_AT + 4] == sum { Ok(()) } else { Err(OpenError::BadTag) };
        }
        let want = self.gc_tag(id, owner, incarnation, d).ok_or(OpenError::UnknownKey)?;
        let found = &d[crate::header::LONG.tag_at..][..TAG_BYTES];
        // Compares in constant time.
        let differ = want.iter().zip(found).fold(0, |d, (a, b)| d | (a ^ b));
        if differ == 0 || mutant!("transport.gc.unchecked") { Ok(()) } else { Err(OpenError::BadTag) }
    }
}

/// CRC32C of a datagram, combined from those of its data's parts, which `known` gets.
fn checksum(p: &Parsed, d: &[u8], known: &mut Vec<u32>) -> u32 {
    let Kind::Chunk(c) = p.kind else { return crc32c(d) };
    let (cut, at) = c.data_at();
    let (head, data) = d.split_at(p.payload.start + cut);
    parts(at, data).fold(crc32c(head), |sum, (_, part)| {
        let crc = crc32c(part);
        known.push(crc);
        combine(sum, crc, part.len())
    })
}

fn nonce(counter: u64) -> aead::Nonce {
    let mut n = [0; 12];
    n[4..].copy_from_slice(&counter.to_be_bytes());
    aead::Nonce::assume_unique_for_key(n)
}

/// Zeroes the fields that a switch may rewrite. Returns their bytes for [`put_back`].
#[inline]
fn clear(d: &mut [u8], form: Form) -> [u8; HEAD_REWRITTEN] {
    let mut before = [0; HEAD_REWRITTEN];
    before.copy_from_slice(&d[..HEAD_REWRITTEN]);
    rewritten(d, form).for_each(|field| d[field].fill(0));
    before
}

#[inline]
fn put_back(d: &mut [u8], before: [u8; HEAD_REWRITTEN], form: Form) {
    rewritten(d, form).for_each(|field| d[field.clone()].copy_from_slice(&before[field]));
}
