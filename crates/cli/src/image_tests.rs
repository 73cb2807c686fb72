use super::*;

const SIZE: u64 = 3 << 20;

/// A volume with two extents that a block of zeroes divides, and one at its end.
fn volume() -> Vec<u8> {
    let mut v = vec![0; SIZE as usize];
    v[BLOCK..3 * BLOCK].fill(7);
    v[4 * BLOCK] = 1;
    v[SIZE as usize - 1] = 9;
    v
}

fn file() -> Vec<u8> {
    let mut w = Writer::new(Vec::new(), SIZE).expect("whole blocks");
    for (i, part) in volume().chunks(EXTENT_MAX).enumerate() {
        w.contents((i * EXTENT_MAX) as u64, part).expect("memory");
    }
    assert_eq!(w.bytes, 4 * BLOCK as u64);
    w.end().expect("memory")
}

fn read(file: &[u8]) -> Result<Vec<u8>, Error> {
    let mut r = Reader::new(file)?;
    let (mut out, mut data) = (vec![0; r.size as usize], Vec::new());
    while let Some(offset) = r.next_extent(&mut data)? {
        out[offset as usize..][..data.len()].copy_from_slice(&data);
    }
    Ok(out)
}

#[test]
fn a_volume_is_read_as_it_was_written() {
    assert!(read(&file()).expect("sound") == volume());
    assert_eq!(file().len(), 24 + 3 * 16 + 4 * BLOCK + 28, "zeroes take no room");
}

#[test]
fn a_file_that_was_cut_changed_or_lengthened_is_refused() {
    let sound = file();
    let places: Vec<usize> =
        (0..100).chain((100..sound.len()).step_by(509)).chain(sound.len() - 60..sound.len()).collect();
    for at in places {
        assert!(matches!(read(&sound[..at]), Err(Error::Cut { .. })), "cut at {at}");
        for bit in 0..8 {
            let mut flipped = sound.clone();
            flipped[at] ^= 1 << bit;
            assert!(read(&flipped).is_err(), "bit {bit} of byte {at}");
        }
    }
    let longer = [sound.clone(), vec![0]].concat();
    assert!(matches!(read(&longer), Err(Error::Longer { at }) if at == sound.len() as u64));
    // Without its first extent, each part is sound by itself.
    let first = 24 + 16 + 2 * BLOCK;
    let without = [&sound[..24], &sound[first..]].concat();
    assert!(matches!(read(&without), Err(Error::Count { found: 2, counted: 3 })));
    // Twice the same extent.
    let twice = [&sound[..first], &sound[24..]].concat();
    assert!(matches!(read(&twice), Err(Error::Extent { .. })));
}

#[test]
fn a_file_of_another_size_or_of_parts_of_two_volumes_is_refused() {
    let sound = file();
    let mut small = Writer::new(Vec::new(), SIZE / 2).expect("whole blocks").end().expect("memory");
    small.truncate(24);
    let other = [&small[..], &sound[24..]].concat();
    assert!(matches!(read(&other), Err(Error::Extent { size, .. }) if size == SIZE / 2));
    let mut large = Writer::new(Vec::new(), SIZE * 2).expect("whole blocks").end().expect("memory");
    large.truncate(24);
    assert!(matches!(read(&[&large[..], &sound[24..]].concat()), Err(Error::Digest)));
    assert!(matches!(Writer::new(Vec::new(), 4097), Err(Error::Size { size: 4097 })));
    assert!(matches!(read(b"#!/usr/bin/env bash"), Err(Error::Magic { .. })));
}

/// Computed apart from this program, from the polynomials.
#[test]
fn a_file_has_these_bytes() {
    let mut w = Writer::new(Vec::new(), 8192).expect("whole blocks");
    w.contents(0, &[[0; BLOCK], [0xab; BLOCK]].concat()).expect("memory");
    let file = w.end().expect("memory");
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&file[..24]), "5257564f4c554d450000000100000000000020004c985325");
    assert_eq!(hex(&file[24..40]), "00000000000010000000100058e39353");
    assert!(file[40..4136].iter().all(|b| *b == 0xab));
    assert_eq!(hex(&file[4136..]), "ffffffffffffffff000000000000000146ccfd0ee62adad16659bd92");
}
