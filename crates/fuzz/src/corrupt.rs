//! Corruption of valid bytes, chosen by the fuzzer's input.

use arbitrary::{Result, Unstructured};

/// Most edits of one input. More edits make it random.
const EDITS_MAX: u8 = 6;
/// Values at which bounds are often wrong.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// Changes, removes and inserts bytes.
pub fn corrupt(u: &mut Unstructured<'_>, b: &mut Vec<u8>) -> Result<()> {
    for _ in 0..u.int_in_range(0..=EDITS_MAX)? {
        if b.is_empty() {
            return Ok(());
        }
        let at = u.choose_index(b.len())?;
        match u.int_in_range(0..=6u8)? {
            0 => b[at] ^= 1 << u.int_in_range(0..=7u8)?,
            1 => b[at] = u.arbitrary()?,
            2 => edge(u, b, at)?,
            3 => b.truncate(at),
            4 => {
                let n = u.int_in_range(1..=32usize)?;
                b.splice(at..at, (0..n).map(|i| i as u8));
            }
            5 => {
                let end = (at + u.int_in_range(1..=32usize)?).min(b.len());
                let part = b[at..end].to_vec();
                let to = u.choose_index(b.len())?;
                b.splice(to..to, part);
            }
            _ => {
                let end = (at + u.int_in_range(1..=32usize)?).min(b.len());
                b.drain(at..end);
            }
        }
    }
    Ok(())
}

/// Changes bytes in place: lengths stay.
pub fn corrupt_in_place(u: &mut Unstructured<'_>, b: &mut [u8]) -> Result<()> {
    for _ in 0..u.int_in_range(1..=EDITS_MAX)? {
        if b.is_empty() {
            return Ok(());
        }
        let at = u.choose_index(b.len())?;
        match u.int_in_range(0..=2u8)? {
            0 => b[at] ^= 1 << u.int_in_range(0..=7u8)?,
            1 => b[at] = u.arbitrary()?,
            _ => edge(u, b, at)?,
        }
    }
    Ok(())
}

/// A number at an edge, of 1, 2, 4 or 8 bytes in either order.
fn edge(u: &mut Unstructured<'_>, b: &mut [u8], at: usize) -> Result<()> {
    let n = u.choose(&EDGES)?.wrapping_add(u.int_in_range(0..=2u64)?).wrapping_sub(1);
    let width = (1usize << u.int_in_range(0..=3u8)?).min(b.len() - at);
    let bytes = if u.arbitrary()? { n.to_le_bytes() } else { n.to_be_bytes() };
    let from = if bytes == n.to_le_bytes() { 0 } else { 8 - width };
    b[at..at + width].copy_from_slice(&bytes[from..from + width]);
    Ok(())
}

/// Cuts bytes into pieces, as a stream may deliver them.
pub fn pieces<'a>(u: &mut Unstructured<'_>, mut b: &'a [u8]) -> Vec<&'a [u8]> {
    let mut all = Vec::new();
    while !b.is_empty() && all.len() < 64 {
        let n = u.int_in_range(1..=64usize).unwrap_or(1).min(b.len());
        let (piece, rest) = b.split_at(n);
        all.push(piece);
        b = rest;
    }
    if !b.is_empty() {
        all.push(b);
    }
    all
}

/// All remaining bytes.
pub fn rest(u: &mut Unstructured<'_>) -> Vec<u8> {
    let left = u.len();
    u.bytes(left).unwrap_or_default().to_vec()
}
