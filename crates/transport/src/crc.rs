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

/// How many powers of x less than in [`combine`]'s factor there are in [`POWERS`]: what [`multiply_here`] adds.
const EXCESS: i32 = 33;

/// x to the power of 8 × i - 33.
static POWERS: [u32; BLOCK_BYTES + 1] = {
    let mut powers = [0; BLOCK_BYTES + 1];
    // x^0, divided by x 33 times.
    let (mut power, mut i) = (1u32 << 31, 0);
    while i < EXCESS {
        power = if power >> 31 == 1 { (power ^ POLYNOMIAL) << 1 | 1 } else { power << 1 };
        i += 1;
    }
    let mut i = 0;
    while i <= BLOCK_BYTES {
        powers[i] = power;
        // x^8.
        power = multiply(power, 1 << 23);
        i += 1;
    }
    powers
};

/// Product of two polynomials and x^33, by the CPU's instructions: the product of two reflected numbers without carries is
/// one power too high, and the CRC of it 32.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn multiply_by_cpu(a: u32, b: u32) -> u32 {
    use std::arch::x86_64::{_mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64};
    let product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(a as i32), _mm_cvtsi32_si128(b as i32), 0);
    _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64) as u32
}

fn multiply_anywhere(a: u32, b: u32) -> u32 {
    // x^33: x^8 four times, and x.
    const X33: u32 = multiply(multiply(1 << 15, 1 << 15), 1 << 30);
    multiply(multiply(a, b), X33)
}

fn multiply_here(a: u32, b: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the CPU has what the function needs.
        return unsafe { multiply_by_cpu(a, b) };
    }
    multiply_anywhere(a, b)
}

/// The CRC of two strings from the CRC of each and the second one's length, a block's at the most.
pub(crate) fn combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    multiply_here(POWERS[second_bytes], first) ^ second
}

/// CRC32C, fast for the length of a datagram, too.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn this_cpu_multiplies_as_any_other() {
        let mut rng = Rng::new(2);
        for _ in 0..1000 {
            let (a, b) = (rng.next_u64() as u32, rng.next_u64() as u32);
            assert_eq!(multiply_here(a, b), multiply_anywhere(a, b), "{a:#x} {b:#x}");
        }
    }

    #[test]
    fn parts_put_together_have_the_crc_of_the_whole() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        let mut rng = Rng::new(1);
        let data: Vec<u8> = (0..20_000).map(|_| rng.next_u64() as u8).collect();
        for _ in 0..200 {
            let (at, len) = (rng.below(10_000) as usize, rng.below(20_000) as usize);
            let whole = parts(at, &data[..len]).fold(0, |c, (_, p)| combine(c, crc32c(p), p.len()));
            assert_eq!(whole, crc32c(&data[..len]), "{len} bytes at {at}");
            assert!(parts(at, &data[..len]).all(|(at, p)| at % BLOCK_BYTES + p.len() <= BLOCK_BYTES));
        }
    }
}
