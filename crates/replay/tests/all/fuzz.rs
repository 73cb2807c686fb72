//! Seeded mutations of good input to every reader: each ends with records or an error, without a panic or a hang.

use rackweave_core::Rng;
use rackweave_replay::trace::Format;

use crate::{own, read, vscsi, vscsi2};

const ROUNDS: u64 = 20_000;

fn good(format: Format) -> Vec<u8> {
    let head = |name: &str, lines: usize| {
        let text = std::fs::read(own(name)).unwrap();
        text.split_inclusive(|&c| c == b'\n').take(lines).flatten().copied().collect()
    };
    match format {
        Format::Mqsim => head("tpcc-head.trace", 12),
        Format::OpenCas => head("ycsb-a-head.csv", 12),
        Format::Iolog => head("randrw.iolog", 12),
        Format::Msr => b"128166372003061629,hm,0,Read,383496192,32768,1331\n".repeat(8),
        Format::Alibaba => b"419,W,8792731648,16384,1577808000000626\n".repeat(8),
        Format::Vscsi => (0..8).flat_map(|i| vscsi(4096, 0x2a, 0x100, i * 8, i * 100)).collect(),
    }
}

/// Bytes that readers treat specially, and numbers at the edges.
const SPECIAL: [&[u8]; 12] = [
    b"\n",
    b"\r\n",
    b",",
    b" ",
    b"\0",
    b"-",
    b"0",
    b"18446744073709551615",
    b"18446744073709551616",
    b"R",
    b"\xff",
    b"fio version 3 iolog\n",
];

fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.between(1, 6) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            1 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + rng.below(20) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + rng.below(200) as usize).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = rng.below(bytes.len() as u64 + 1) as usize;
                bytes.splice(to..to, copy);
            }
            _ => {
                bytes.splice(at..at, rng.pick(&SPECIAL).iter().copied());
            }
        }
    }
}

#[test]
fn mutated_traces_never_panic() {
    let version_2 = (0..8).flat_map(|i| vscsi2(4096, 0x2a, 0x200, i * 8, i * 100)).collect();
    let all = Format::ALL.into_iter().map(|f| (f, good(f))).chain([(Format::Vscsi, version_2)]);
    for (i, (format, start)) in all.enumerate() {
        let want = read(&start, None, Some(format)).unwrap_or_else(|e| panic!("{format}: {e}"));
        assert!(want.len() >= 8, "{format}");
        let mut rng = Rng::stream(0x7ace, i as u64);
        let (mut errors, mut reads) = (0, 0);
        for _ in 0..ROUNDS {
            let mut bytes = start.clone();
            mutate(&mut bytes, &mut rng);
            let given = rng.chance(0.7).then_some(format);
            match read(&bytes, Some("x.trace"), given) {
                Ok(_) => reads += 1,
                Err(e) => {
                    errors += 1;
                    assert!(!e.to_string().is_empty());
                }
            }
        }
        assert!(errors > ROUNDS / 20 && reads > 0, "{format}: {errors} errors, {reads} reads");
    }
}

#[test]
fn mutated_zstd_streams_never_panic() {
    let packed = zstd::encode_all(good(Format::Mqsim).as_slice(), 3).unwrap();
    let mut rng = Rng::new(0x57d);
    for _ in 0..ROUNDS {
        let mut bytes = packed.clone();
        mutate(&mut bytes, &mut rng);
        let _ = read(&bytes, Some("x.trace"), None);
    }
}
