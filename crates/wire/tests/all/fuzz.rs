//! The fuzz target, run briefly from a seed: hostile bytes are refused, or are the one encoding of a packet.

use rackweave_core::Rng;
use rackweave_wire::{HEADER_BYTES, decode, encode, header::checksum};

use crate::allocated;
use crate::drawn::Draw;

const MUTATED: u64 = 600_000;
const RANDOM: u64 = 200_000;

/// Upper bound of a value's memory over its bytes on the wire (a shortest view: 13 bytes on the wire, 48 in memory).
const MEMORY_RATIO: usize = 4;
/// The same of messages of keys and cloud disks: a finding of a take-over takes 2 bytes on the wire and 88 here. Its lists are
/// short.
const LISTS_MEMORY_RATIO: usize = 48;

/// The decoder never panics and allocates in proportion to its input; an accepted packet encodes to the same bytes.
fn target(input: &[u8], again: &mut Vec<u8>) -> bool {
    let before = allocated::bytes();
    let result = decode(input);
    let used = allocated::bytes() - before;
    let of_lists = input.get(rackweave_wire::HEADER_BYTES).is_some_and(|kind| *kind >= 136);
    let ratio = if of_lists { LISTS_MEMORY_RATIO } else { MEMORY_RATIO };
    assert!(used <= ratio * input.len() + 512, "{used} bytes allocated for {}", input.len());
    let Ok(packet) = result else { return false };
    again.clear();
    encode(&packet, again).expect("a decoded packet can be encoded");
    assert_eq!(again, input);
    true
}

/// Corrects length and checksum, so that mutations reach the body's parser.
fn mend(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_BYTES {
        let len = (bytes.len() - HEADER_BYTES) as u32;
        bytes[56..60].copy_from_slice(&len.to_be_bytes());
        let sum = checksum(bytes);
        bytes[60..64].copy_from_slice(&sum.to_be_bytes());
    }
}

fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.between(1, 4) {
        if bytes.is_empty() {
            return;
        }
        // Mostly near the start of the body, where counts and kinds are.
        let span = if rng.chance(0.7) { bytes.len().min(HEADER_BYTES + 48) } else { bytes.len() };
        let at = rng.below(span as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next_u64() as u8,
            2 => bytes[at] = *rng.pick(&[0, 1, 2, 0x7f, 0x80, 0xff]),
            3 => bytes.truncate(at),
            4 => {
                let n = rng.between(1, 16) as usize;
                bytes.splice(at..at, (0..n).map(|i| i as u8));
            }
            _ => {
                let end = (at + rng.between(1, 16) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}

#[test]
fn mutated_packets() {
    let mut rng = Rng::new(0x7769_7265);
    let (mut bytes, mut again, mut accepted) = (Vec::new(), Vec::new(), 0u64);
    for seed in 0..MUTATED {
        bytes.clear();
        encode(&Draw::new(seed).packet(), &mut bytes).unwrap();
        mutate(&mut bytes, &mut rng);
        if rng.chance(0.9) {
            mend(&mut bytes);
        }
        accepted += u64::from(target(&bytes, &mut again));
    }
    // Many mutations only change a value. If all were refused, the target would test only the checksum.
    assert!(accepted > MUTATED / 20, "{accepted} of {MUTATED} accepted");
}

#[test]
fn random_bytes() {
    let mut rng = Rng::new(0x7261_6e64);
    let mut again = Vec::new();
    for _ in 0..RANDOM {
        let mut bytes: Vec<u8> = (0..rng.below(400)).map(|_| rng.next_u64() as u8).collect();
        if bytes.len() >= HEADER_BYTES {
            bytes[0] = rng.between(1, 8) as u8;
            (bytes[9], bytes[10], bytes[11]) = (1, rng.below(3) as u8, rng.below(2) as u8);
            bytes[48..HEADER_BYTES].fill(0);
            mend(&mut bytes);
        }
        target(&bytes, &mut again);
    }
}
