//! SipHash-2-4 (Aumasson, Bernstein 2012) of whole 64-bit words, as the switch's program computes it.

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

/// Of any bytes; words are little-endian, as in the paper.
pub fn siphash24(key: [u64; 2], data: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let words = data.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    last[7] = data.len() as u8;
    let little = |w: &[u8]| w.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    for word in words.map(little).chain([little(&last)]) {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v.iter().fold(0, |h, w| h ^ w)
}

#[cfg(test)]
mod tests {
    /// The first vector, and the 15-byte vector of the paper's appendix A and reference code.
    #[test]
    fn vectors_of_the_paper() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let data: Vec<u8> = (0..15).collect();
        assert_eq!(super::siphash24(key, &data), 0xa129_ca61_49be_45e5);
        assert_eq!(super::siphash24(key, &[]), 0x726f_db47_dd0e_0e31);
    }
}
