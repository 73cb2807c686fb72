//! Bytes that change on the disk.

use crate::harness::{Rack, flip_byte};
use crate::nbd::pattern;

const BLOCKS: u64 = 200;

/// Places in a device file that hold a block's contents.
fn places(file: &[u8], block: u64, version: u64) -> Vec<u64> {
    let want = pattern(block, version);
    (0..file.len() / 4096).filter(|i| file[i * 4096..i * 4096 + 4096] == want[..]).map(|i| i as u64 * 4096).collect()
}

#[test]
fn flipped_bytes_are_found_by_their_checksum_and_healed_by_a_replica() {
    let mut r = Rack::start();
    r.volume("v", "64M");
    let mut c = r.connect("v");
    for b in 0..BLOCKS {
        c.write(b * 4096, &pattern(b, 1));
    }
    c.flush();
    r.stop();
    let mut flipped = 0;
    let files: Vec<_> = (0..4).map(|i| r.data().join(format!("ssd-{i}.rwk"))).collect();
    let contents: Vec<_> = files.iter().map(|f| std::fs::read(f).expect("read")).collect();
    for b in 0..BLOCKS {
        // Two copies of three, not always the same two.
        let holders: Vec<usize> = (0..4).filter(|&i| !places(&contents[i], b, 1).is_empty()).collect();
        assert_eq!(holders.len(), 3, "block {b} is on {holders:?}");
        for k in 0..2 {
            let i = holders[(b as usize + k) % 3];
            for at in places(&contents[i], b, 1) {
                flip_byte(&files[i], at + 4000);
                flipped += 1;
            }
        }
    }
    assert!(flipped >= 2 * BLOCKS);
    drop(contents);
    r.again();
    let mut c = r.connect("v");
    for b in 0..BLOCKS {
        assert!(c.read(b * 4096, 4096) == pattern(b, 1), "block {b}");
    }
    assert!(r.count("CrcMismatch") > 0);
    assert!(r.count("BlockHealed") > 0);
}
