//! Datagrams of an attacker that sees all traffic, but has no key: each takes the place of one that was sent, with fields
//! of its own. Nothing of them may count (protocol rule 18).

use bytes::{Bytes, BytesMut};
use rackweave_core::{NodeId, Rng};
use rackweave_transport::header::{self, Kind, LONG, Parsed, Space, TAG_BYTES};

/// Least counter of a forgery, above those of real datagrams: none is taken for a repetition.
const COUNTER_AHEAD: u64 = 1 << 40;
/// Added to transfers' numbers, so that each is a message of its own.
const NUMBER_AHEAD: u64 = 1 << 40;
/// Offset of a transfer's number in the extension of a chunk.
const NUMBER_AT: usize = 12;
/// Offset of the destination.
const DESTINATION_AT: usize = 16;

/// Forgeries after the pattern of a datagram: one without a key, with a valid checksum, and one that names the key but
/// guesses the tag. None if it cannot be parsed.
pub(crate) fn after(datagram: &[u8], rng: &mut Rng) -> Vec<Bytes> {
    let Ok(parsed) = header::parse(datagram) else { return Vec::new() };
    if parsed.kind == Kind::Bare {
        return vec![gc_op(datagram, rng)];
    }
    let mut d = BytesMut::from(datagram);
    let counter = COUNTER_AHEAD + rng.below(COUNTER_AHEAD);
    let key = parsed.counter >> 56 << 56;
    if let Kind::Chunk(c) = parsed.kind {
        put(&mut d, parsed.form.extension_at + NUMBER_AT, c.id.number + NUMBER_AHEAD);
    }
    put(&mut d, parsed.form.counter_at, key | counter);
    d[parsed.form.tag_at..][..TAG_BYTES].fill(rng.next_u64() as u8);
    let guessed = d.clone().freeze();
    if parsed.encrypted {
        return vec![guessed];
    }
    put(&mut d, parsed.form.counter_at, counter);
    let sum = checksum(&d, &parsed);
    let tag = &mut d[parsed.form.tag_at..][..TAG_BYTES];
    tag.fill(0);
    tag[..4].copy_from_slice(&sum.to_be_bytes());
    vec![guessed, d.freeze()]
}

/// A `gc_op`, or the switch's answer, with another sequence and another meaning.
fn gc_op(datagram: &[u8], rng: &mut Rng) -> Bytes {
    let mut d = BytesMut::from(datagram);
    let last = d.len() - 1;
    d[last] ^= 1 << rng.below(8);
    d[LONG.tag_at..][..8].fill(rng.next_u64() as u8);
    d.freeze()
}

/// A train for one node as one for `to`: the attacker writes the destination, as a switch can. None unless it has chunks for one
/// node alone: a switch may send others to any server, and control messages deliver nothing.
pub(crate) fn redirected<'a>(train: impl Iterator<Item = &'a [u8]>, to: NodeId) -> Option<Bytes> {
    let mut all = BytesMut::new();
    for datagram in train {
        let parsed = header::parse(datagram).ok()?;
        let direct = matches!(parsed.kind, Kind::Chunk(c) if c.id.space == Space::Direct);
        if !direct || parsed.source == to {
            return None;
        }
        let at = all.len() + DESTINATION_AT;
        all.extend_from_slice(datagram);
        all[at..at + 4].copy_from_slice(&to.0.to_be_bytes());
    }
    Some(all.freeze())
}

/// The checksum of a datagram without a key, which takes the place of the tag.
fn checksum(datagram: &[u8], parsed: &Parsed) -> u32 {
    let mut covered = datagram.to_vec();
    header::rewritten(datagram, parsed.form).for_each(|range| covered[range].fill(0));
    covered[parsed.form.tag_at..][..TAG_BYTES].fill(0);
    crc32c::crc32c(&covered)
}

fn put(d: &mut [u8], at: usize, word: u64) {
    d[at..at + 8].copy_from_slice(&word.to_be_bytes());
}
