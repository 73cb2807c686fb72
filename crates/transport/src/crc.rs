//! CRC32C of 4 KiB blocks (PN3), reading each byte once: a datagram's check is combined from its blocks' CRCs, and
//! bytes that are copied are read while they are copied ([`append`]).

use std::mem::MaybeUninit;

use rackweave_core::BLOCK;

pub(crate) const BLOCK_BYTES: usize = BLOCK as usize;
/// Castagnoli's polynomial, lowest power first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The parts of data at `at` that lie within one block, each with its position.
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

/// By how many powers of x [`POWERS`] are lower than [`combine`]'s factor, which [`multiply_here`] adds.
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

/// Product of two polynomials and x^33 by CPU instructions: the carry-less product of two reflected numbers is one
/// power too high, and its CRC 32.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.2")]
#[inline]
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

/// Whether the CPU has the instructions for the functions named after it.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_instructions() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2")
}

#[inline]
fn multiply_here(a: u32, b: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if has_instructions() {
        // SAFETY: the CPU has the instructions.
        return unsafe { multiply_by_cpu(a, b) };
    }
    multiply_anywhere(a, b)
}

/// The CRC of two concatenated strings from the CRC of each and the length of the second, at most a block.
#[inline]
pub(crate) fn combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    multiply_here(POWERS[second_bytes], first) ^ second
}

/// Below this length the CRC instruction, eight bytes at a time, is faster than folding.
const SHORT_BYTES: usize = 256;

/// CRC32C, also fast for the length of a datagram.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if data.len() < SHORT_BYTES && has_instructions() {
        // SAFETY: the CPU has the instructions.
        return !unsafe { words_by_cpu(!0, data) };
    }
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// The register after these bytes. Each instruction depends on the previous one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[inline]
fn words_by_cpu(mut crc: u32, data: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let (words, rest) = data.as_chunks::<8>();
    for word in words {
        crc = _mm_crc32_u64(u64::from(crc), u64::from_le_bytes(*word)) as u32;
    }
    rest.iter().fold(crc, |crc, byte| _mm_crc32_u8(crc, *byte))
}

/// Copies to a place of the same length and returns the CRC32C. Three thirds are computed at once, because an
/// instruction takes three cycles and one can start in each (Gopal et al., Fast CRC Computation for iSCSI Polynomial
/// Using CRC32 Instruction, 2011).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.2")]
#[inline]
fn copy_by_cpu(from: &[u8], to: &mut [MaybeUninit<u8>]) -> u32 {
    use std::arch::x86_64::_mm_crc32_u64;
    let words = from.len() / 24;
    let (from, from_rest) = from.split_at(words * 24);
    let (to, to_rest) = to.split_at_mut(words * 24);
    let (from_first, from) = from.as_chunks::<8>().0.split_at(words);
    let (from_second, from_last) = from.split_at(words);
    let (to_first, to) = to.as_chunks_mut::<8>().0.split_at_mut(words);
    let (to_second, to_last) = to.split_at_mut(words);
    let (mut first, mut second, mut last) = (u64::from(u32::MAX), 0, 0);
    let all = to_first.iter_mut().zip(from_first).zip(to_second).zip(from_second).zip(to_last).zip(from_last);
    for (((((to_first, from_first), to_second), from_second), to_last), from_last) in all {
        first = _mm_crc32_u64(first, u64::from_le_bytes(*from_first));
        second = _mm_crc32_u64(second, u64::from_le_bytes(*from_second));
        last = _mm_crc32_u64(last, u64::from_le_bytes(*from_last));
        *to_first = from_first.map(MaybeUninit::new);
        *to_second = from_second.map(MaybeUninit::new);
        *to_last = from_last.map(MaybeUninit::new);
    }
    let shift = POWERS[words * 8];
    let crc = multiply_by_cpu(shift, multiply_by_cpu(shift, first as u32) ^ second as u32) ^ last as u32;
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| _ = to.write(*from));
    !words_by_cpu(crc, from_rest)
}

/// Bytes of four 512-bit registers, and of one.
#[cfg(target_arch = "x86_64")]
const FOUR: usize = 256;
#[cfg(target_arch = "x86_64")]
const ONE: usize = 64;

/// Whether the CPU multiplies four pairs of numbers at once.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_wide_instructions() -> bool {
    has_instructions() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// As [`copy_by_cpu`], for [`FOUR`] bytes and more. Copied data is folded onto the data `bytes` further on, that is,
/// multiplied by x to the power of that number of bits (Gopal et al., Fast CRC Computation for Generic Polynomials
/// Using PCLMULQDQ Instruction, 2009). Each 128-bit half has its own factor; the product is x^33 too high, which
/// [`POWERS`] leave out.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
#[inline]
fn copy_wide(from: &[u8], to: &mut [MaybeUninit<u8>]) -> u32 {
    use std::arch::x86_64::{
        __m512i, _mm_cvtsi32_si128, _mm_set_epi64x, _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128,
        _mm512_loadu_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
    };
    let factor =
        |bytes: usize| _mm512_broadcast_i32x4(_mm_set_epi64x(i64::from(POWERS[bytes]), i64::from(POWERS[bytes + 8])));
    // Exclusive or of it and the product's halves: truth table 0x96.
    let fold = |x: __m512i, by: __m512i, onto: __m512i| {
        let (low, high) = (_mm512_clmulepi64_epi128::<0x00>(x, by), _mm512_clmulepi64_epi128::<0x11>(x, by));
        _mm512_ternarylogic_epi64::<0x96>(low, high, onto)
    };
    // SAFETY: both have the same length; neither needs alignment.
    let copy = |from: &[u8; ONE], to: &mut [MaybeUninit<u8>; ONE]| unsafe {
        let x = _mm512_loadu_si512(from.as_ptr().cast());
        _mm512_storeu_si512(to.as_mut_ptr().cast(), x);
        x
    };
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<ONE>(), to.as_chunks_mut::<ONE>());
    let ((from, from_ones), (to, to_ones)) = (from.as_chunks::<{ FOUR / ONE }>(), to.as_chunks_mut::<{ FOUR / ONE }>());
    let mut all = from.iter().zip(to);
    let Some((first, place)) = all.next() else { return copy_by_cpu(from_rest, to_rest) };
    let mut x: [__m512i; FOUR / ONE] = std::array::from_fn(|i| copy(&first[i], &mut place[i]));
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
    let by = factor(FOUR);
    for (from, to) in all {
        for i in 0..FOUR / ONE {
            x[i] = fold(x[i], by, copy(&from[i], &mut to[i]));
        }
    }
    let by = factor(ONE);
    let one = fold(fold(fold(x[0], by, x[1]), by, x[2]), by, x[3]);
    let one = from_ones.iter().zip(to_ones).fold(one, |one, (from, to)| fold(one, by, copy(from, to)));
    let mut left = [0u8; ONE];
    // SAFETY: the destination has the same length.
    unsafe { _mm512_storeu_si512(left.as_mut_ptr().cast(), one) };
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| _ = to.write(*from));
    !words_by_cpu(words_by_cpu(0, &left), from_rest)
}

/// See [`append`]; the destination is as long as the data.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
fn append_wide(
    place: &mut [MaybeUninit<u8>],
    at: usize,
    data: &[u8],
    sum: u32,
    each: impl FnMut(usize, usize, u32),
) -> u32 {
    append_parts(place, at, data, sum, each, |from, to| {
        if from.len() < FOUR { copy_by_cpu(from, to) } else { copy_wide(from, to) }
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn append_by_cpu(
    place: &mut [MaybeUninit<u8>],
    at: usize,
    data: &[u8],
    sum: u32,
    each: impl FnMut(usize, usize, u32),
) -> u32 {
    append_parts(place, at, data, sum, each, |from, to| copy_by_cpu(from, to))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.2")]
#[inline]
fn append_parts(
    mut place: &mut [MaybeUninit<u8>],
    mut at: usize,
    mut data: &[u8],
    mut sum: u32,
    mut each: impl FnMut(usize, usize, u32),
    copy: impl Fn(&[u8], &mut [MaybeUninit<u8>]) -> u32,
) -> u32 {
    while !data.is_empty() {
        let len = (BLOCK_BYTES - at % BLOCK_BYTES).min(data.len());
        let (part, to);
        (part, data) = data.split_at(len);
        (to, place) = place.split_at_mut(len);
        let crc = copy(part, to);
        sum = multiply_by_cpu(POWERS[len], sum) ^ crc;
        each(at, len, crc);
        at += len;
    }
    sum
}

/// Appends data that belongs at `at`, reading it once. Returns the CRC of the bytes with CRC `before` followed by the
/// data; `each` gets position, length and CRC of each part within one block.
#[inline]
pub(crate) fn append(
    to: &mut Vec<u8>,
    at: usize,
    data: &[u8],
    before: u32,
    mut each: impl FnMut(usize, usize, u32),
) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if has_instructions() {
        to.reserve(data.len());
        let place = &mut to.spare_capacity_mut()[..data.len()];
        // SAFETY: the CPU has the instructions; the functions write all of the destination, which is behind the
        // contents of `to`.
        unsafe {
            let sum = if has_wide_instructions() {
                append_wide(place, at, data, before, each)
            } else {
                append_by_cpu(place, at, data, before, each)
            };
            to.set_len(to.len() + data.len());
            return sum;
        }
    }
    to.extend_from_slice(data);
    parts(at, data).fold(before, |sum, (at, part)| {
        let crc = crc32c(part);
        each(at, part.len(), crc);
        combine(sum, crc, part.len())
    })
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

    /// For every length: the CPU's instructions, the library, and both with a copy.
    #[test]
    fn every_length_has_its_crc() {
        let mut rng = Rng::new(3);
        let data: Vec<u8> = (0..BLOCK_BYTES).map(|_| rng.next_u64() as u8).collect();
        for len in (0..2 * SHORT_BYTES).chain(BLOCK_BYTES - 30..=BLOCK_BYTES) {
            let want = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &data[..len]) as u32;
            let mut copy = Vec::new();
            assert_eq!(
                (crc32c(&data[..len]), append(&mut copy, 0, &data[..len], 0, |_, _, _| {})),
                (want, want),
                "{len} bytes"
            );
            assert_eq!(copy, data[..len]);
        }
    }

    /// Copies for CPUs of several generations, at every length and alignment.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn copies_of_every_width_are_alike() {
        let mut rng = Rng::new(4);
        let data: Vec<u8> = (0..BLOCK_BYTES + 64).map(|_| rng.next_u64() as u8).collect();
        for len in (0..4 * FOUR).chain(BLOCK_BYTES - 70..=BLOCK_BYTES) {
            let from = &data[len % 64..][..len];
            let want = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, from) as u32;
            let copied = |by: fn(&[u8], &mut [MaybeUninit<u8>]) -> u32| {
                let mut to = Vec::with_capacity(len);
                let crc = by(from, &mut to.spare_capacity_mut()[..len]);
                // SAFETY: all of it was written.
                unsafe { to.set_len(len) };
                assert!(to == from && crc == want, "{len} bytes: {crc:#x}, {want:#x}");
            };
            if has_instructions() {
                // SAFETY: the CPU has the instructions.
                copied(|from, to| unsafe { copy_by_cpu(from, to) });
            }
            if has_wide_instructions() && len >= FOUR {
                // SAFETY: as above.
                copied(|from, to| unsafe { copy_wide(from, to) });
            }
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
            let (mut copy, mut crcs) = (vec![9], Vec::new());
            let before = crc32c(&copy);
            let sum = append(&mut copy, at, &data[..len], before, |at, len, crc| crcs.push((at, len, crc)));
            assert_eq!((&copy[1..], sum), (&data[..len], crc32c(&copy)), "{len} bytes at {at}");
            assert!(crcs.into_iter().eq(parts(at, &data[..len]).map(|(at, p)| (at, p.len(), crc32c(p)))));
        }
    }
}
