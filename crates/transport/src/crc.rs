//! CRC32C of 4 KiB blocks (PN3), each byte looked at once: what checks a datagram is put together from its blocks' CRCs.

use rackweave_core::BLOCK;

pub(crate) const BLOCK_BYTES: usize = BLOCK as usize;
/// Castagnoli's polynomial, lowest power first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The parts of data at `at` that lie in one block each, with where they begin.
pub(crate) fn parts(at: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let first = (BLOCK_BYTES - at % BLOCK_BYTES).min(data.len());
    let (first, rest) = data.split_at(first);
    let rest_at = at + first.len();
    let rest = rest.chunks(BLOCK_BYTES).enumerate().map(move |(i, part)| (rest_at + i * BLOCK_BYTES, part));
    std::iter::once((at, first)).chain(rest).filter(|(_, part)| !part.is_empty())
}

/// Product of two polynomials modulo Castagnoli's, as zlib's crc32_combine computes it.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut bit, mut product) = (1u32 << 31, 0);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 1 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
}

/// x to the power of 8 × i.
static POWERS: [u32; BLOCK_BYTES + 1] = {
    let mut powers = [0; BLOCK_BYTES + 1];
    // x^0.
    powers[0] = 1 << 31;
    let mut i = 1;
    while i <= BLOCK_BYTES {
        // x^8.
        powers[i] = multiply(powers[i - 1], 1 << 23);
        i += 1;
    }
    powers
};

/// The CRC of two strings from the CRC of each and the second one's length, a block's at the most.
pub(crate) fn combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    multiply(POWERS[second_bytes], first) ^ second
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn parts_put_together_have_the_crc_of_the_whole() {
        let mut rng = Rng::new(1);
        let data: Vec<u8> = (0..20_000).map(|_| rng.next_u64() as u8).collect();
        for _ in 0..200 {
            let (at, len) = (rng.below(10_000) as usize, rng.below(20_000) as usize);
            let whole = parts(at, &data[..len]).fold(0, |c, (_, p)| combine(c, crc32c::crc32c(p), p.len()));
            assert_eq!(whole, crc32c::crc32c(&data[..len]), "{len} bytes at {at}");
            assert!(parts(at, &data[..len]).all(|(at, p)| at % BLOCK_BYTES + p.len() <= BLOCK_BYTES));
        }
    }
}
