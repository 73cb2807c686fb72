//! A seeded mutator without coverage, for `make test`, which has no instrumented build.

use rackweave_core::Rng;

/// Length of a random input, bytes.
const DRAWN_MAX: u64 = 600;

/// The next input: one of the corpus with a few changes, two of them joined, or random bytes.
pub fn next(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if corpus.is_empty() || rng.chance(0.1) {
        return (0..rng.below(DRAWN_MAX)).map(|_| rng.next_u64() as u8).collect();
    }
    let mut b = rng.pick(corpus).clone();
    if rng.chance(0.2) {
        let other = rng.pick(corpus);
        b.truncate(rng.below(b.len() as u64 + 1) as usize);
        b.extend_from_slice(&other[rng.below(other.len() as u64 + 1) as usize..]);
    }
    for _ in 0..rng.between(1, 6) {
        if b.is_empty() {
            break;
        }
        let at = rng.below(b.len() as u64) as usize;
        let end = (at + rng.between(1, 24) as usize).min(b.len());
        match rng.below(7) {
            0 => b[at] ^= 1 << rng.below(8),
            1 => b[at] = rng.next_u64() as u8,
            2 => b[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => _ = b.drain(at..end),
            4 => b[at..end].iter_mut().for_each(|x| *x = rng.next_u64() as u8),
            5 => {
                let part = b[at..end].to_vec();
                let to = rng.below(b.len() as u64 + 1) as usize;
                b.splice(to..to, part);
            }
            _ => b[at] = b[at].wrapping_add(rng.between(1, 8) as u8),
        }
    }
    b
}
