//! The client, compared with a flat array.

use rackweave_core::rng::seeds;
use rackweave_core::volume;
use rackweave_core::{Payload, Rng};

use super::rack::{Faults, Rack, VOLUME};

/// A volume as an array.
struct Flat {
    sectors: Vec<u64>,
    mapped: Vec<bool>,
}

impl Flat {
    fn new(size: u64) -> Flat {
        Flat { sectors: vec![0; (size / 512) as usize], mapped: vec![false; (size / 4096) as usize] }
    }
    fn write(&mut self, offset: u64, data: &Payload) {
        let first = (offset / 512) as usize;
        for i in 0..data.sectors() {
            self.sectors[first + i as usize] = data.identity(i);
            self.mapped[(first + i as usize) / 8] = true;
        }
    }
    fn unmap(&mut self, offset: u64, len: u64) {
        for b in offset.div_ceil(4096)..(offset + len) / 4096 {
            self.mapped[b as usize] = false;
            self.sectors[b as usize * 8..b as usize * 8 + 8].fill(0);
        }
    }
    fn zero(&mut self, offset: u64, len: u64) {
        for s in offset / 512..(offset + len) / 512 {
            self.sectors[s as usize] = 0;
        }
        let (first, last) = (offset.div_ceil(4096), (offset + len) / 4096);
        if !offset.is_multiple_of(4096) {
            self.mapped[(offset / 4096) as usize] = true;
        }
        if !(offset + len).is_multiple_of(4096) {
            self.mapped[((offset + len) / 4096) as usize] = true;
        }
        (first..last).for_each(|b| self.mapped[b as usize] = false);
    }
}

fn draw(rng: &mut Rng, size: u64, flat: &mut Flat) -> volume::Op {
    let sectors = size / 512;
    let offset = rng.below(sectors) * 512;
    let most = if rng.chance(0.1) { 2048 } else { 40 };
    let mut len = rng.between(1, most).min(sectors - offset / 512) * 512;
    let (offset, aligned) = if rng.chance(0.5) { (offset / 4096 * 4096, true) } else { (offset, false) };
    if aligned {
        len = len.div_ceil(4096) * 4096;
    }
    let fua = rng.chance(0.2);
    match rng.below(10) {
        0 => {
            flat.unmap(offset, len);
            volume::Op::Trim { volume: VOLUME, offset, len, fua }
        }
        1 => {
            flat.zero(offset, len);
            volume::Op::WriteZeroes { volume: VOLUME, offset, len, fua, allocate: false }
        }
        2 => {
            flat.write(offset, &Payload::zero(len as u32));
            volume::Op::WriteZeroes { volume: VOLUME, offset, len, fua, allocate: true }
        }
        3 => volume::Op::Flush { volume: VOLUME },
        _ => {
            let data = Payload::elided(len as u32, rng.next_u64());
            flat.write(offset, &data);
            volume::Op::Write { volume: VOLUME, offset, data, fua }
        }
    }
}

fn compare(rack: &mut Rack, flat: &Flat, size: u64) {
    let got = rack.read(0, size as u32);
    for (i, want) in flat.sectors.iter().enumerate() {
        assert_eq!(got.identity(i as u32), *want, "sector {i}");
    }
    let mut at = 512;
    while at < size {
        let op = volume::Op::BlockStatus { volume: VOLUME, offset: at, len: size - at };
        let Ok(volume::Reply::Extents(extents)) = rack.run(op) else { panic!("status") };
        assert!(!extents.is_empty());
        for e in extents {
            assert!(e.len > 0);
            for b in at / 4096..(at + e.len).div_ceil(4096) {
                assert_eq!(flat.mapped[b as usize], e.mapped, "block {b}");
            }
            at += e.len;
        }
    }
    assert_eq!(at, size);
}

fn bursts(sets: u32, unit: u32, seed: u64, faults: Faults, rounds: u32) {
    let size = 4096 * 700;
    let mut rack = Rack::attached(sets, unit, size, seed);
    rack.faults = faults;
    let mut flat = Flat::new(size);
    let mut rng = Rng::stream(seed, 1);
    for _ in 0..rounds {
        // Concurrent, often overlapping requests must take effect in the order of submission.
        let n = rng.between(1, 30);
        let ids: Vec<u64> = (0..n)
            .map(|_| {
                let op = draw(&mut rng, size, &mut flat);
                rack.submit(op)
            })
            .collect();
        for id in ids {
            assert!(rack.wait(id).is_ok());
        }
        compare(&mut rack, &flat, size);
    }
    assert_eq!(rack.client().requests_waiting(), 0);
}

#[test]
fn is_a_flat_array_whatever_the_stripes() {
    for seed in seeds(0..24) {
        let mut rng = Rng::stream(seed, 2);
        let unit = *rng.pick(&[1, 3, 16, 64]);
        bursts(rng.between(1, 5) as u32, unit, seed, Faults::default(), 6);
    }
}

#[test]
fn is_a_flat_array_whatever_is_lost_doubled_or_refused() {
    for seed in seeds(100..124) {
        let sets = Rng::stream(seed, 2).between(1, 5) as u32;
        bursts(sets, 16, seed, Faults { loss: 0.1, duplicate: 0.1, refuse: 0.1, ..Faults::default() }, 5);
    }
}
