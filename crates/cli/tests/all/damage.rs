//! Bytes that change on the disk.

use crate::harness::{Rack, Temp, flip_byte, wait_for};
use crate::nbd::pattern;

const BLOCKS: u64 = 200;

/// Offsets in a device file that hold a block's contents.
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
        // Two copies of three, not always the same ones.
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

/// Two drives lose some blocks, the third is replaced (protocol rule 29).
#[test]
fn what_two_drives_lost_and_a_third_never_had_is_an_error_and_listed_and_never_zeroes() {
    const ALL: u64 = 1_000;
    let dir = Temp::new();
    let config = dir.path("three.toml");
    std::fs::write(&config, "version = 1\nservers = 3\nreplicas = 3\n").expect("write");
    let config = config.display().to_string();
    let mut r = Rack::on(dir, &["--config", &config]);
    r.volume("v", "64M");
    let mut c = r.connect("v");
    for b in 0..ALL {
        c.write(b * 4096, &pattern(b, 1));
    }
    c.flush();
    drop(c);
    r.stop();
    // Of the first 450 blocks 300 on both drives, and others on one of them.
    let on_both = |b: u64| b < 450 && b % 3 != 2;
    let hit = |drive: usize, b: u64| on_both(b) || (b < 900 && b % 5 == drive as u64);
    for drive in 0..2 {
        let path = r.data().join(format!("ssd-{drive}.rwk"));
        let contents = std::fs::read(&path).expect("read");
        for b in (0..ALL).filter(|b| hit(drive, *b)) {
            let at = places(&contents, b, 1);
            assert!(!at.is_empty(), "block {b} is on drive {drive}");
            at.into_iter().for_each(|at| flip_byte(&path, at + 4000));
        }
    }
    std::fs::remove_file(r.data().join("ssd-2.rwk")).expect("removed");
    r.again_with(&["--replace-ssd", "2"]);
    let mut c = r.connect("v");
    let mut failed = Vec::new();
    for b in 0..ALL {
        match c.try_read(b * 4096, 4096) {
            Ok(got) => assert!(got == pattern(b, 1), "block {b} is other than what was flushed"),
            Err(e) => {
                assert_eq!(e, 5, "block {b}: EIO");
                failed.push(b);
            }
        }
    }
    let lost: Vec<u64> = (0..ALL).filter(|b| on_both(*b)).collect();
    assert_eq!((failed.len(), &failed), (300, &lost), "what one drive has is read");
    let listed = |r: &Rack| -> Vec<u64> {
        let l: serde_json::Value = serde_json::from_str(&r.ok(&["volume", "lost", "v", "--json"])).expect("JSON");
        assert_eq!(l["unnamed"], 0, "{l}");
        let extents = l["extents"].as_array().expect("extents").iter();
        let of = |e: &serde_json::Value| (e["offset"].as_u64().expect("bytes"), e["bytes"].as_u64().expect("bytes"));
        extents.map(of).flat_map(|(at, len)| at / 4096..(at + len) / 4096).collect()
    };
    // When the new drive is whole: it marks what neither of the others could give it.
    wait_for("all are listed", || listed(&r) == lost);
    // A rewritten block is no longer lost, also after a start.
    for &b in &lost[..100] {
        c.write(b * 4096, &pattern(b, 2));
    }
    c.flush();
    drop(c);
    assert_eq!(listed(&r), lost[100..]);
    r.stop();
    r.again();
    assert_eq!(listed(&r), lost[100..]);
    let mut c = r.connect("v");
    for b in 0..ALL {
        match lost.binary_search(&b) {
            Ok(at) if at < 100 => assert!(c.read(b * 4096, 4096) == pattern(b, 2), "block {b}"),
            Ok(_) => assert_eq!(c.try_read(b * 4096, 4096), Err(5), "block {b}"),
            Err(_) => assert!(c.read(b * 4096, 4096) == pattern(b, 1), "block {b}"),
        }
    }
}

#[test]
fn a_scrub_under_writes_finds_nothing_in_a_healthy_rack() {
    let dir = Temp::new();
    let config = dir.path("scrub.toml");
    std::fs::write(&config, "version = 1\nservers = 3\nreplicas = 3\n[scrub]\nevery_days = 0.00005\n").expect("write");
    let config = config.display().to_string();
    let mut r = Rack::on(dir, &["--config", &config]);
    r.volume("v", "64M");
    let mut c = r.connect("v");
    let sum = |r: &Rack, name: &str| -> u64 {
        let servers = r.status()["servers"].as_array().expect("servers").clone();
        let vssds = servers.iter().flat_map(|s| s["vssds"].as_array().expect("vssds").clone());
        vssds.map(|v| v[name].as_u64().expect("a count")).sum()
    };
    // Written one block after the other, so that copies are in a cache here and on flash there.
    let (mut version, from) = (0, std::time::Instant::now());
    while version < 20 || r.count("CopiesCompared") < 30 {
        assert!(from.elapsed().as_secs() < 60, "{}", r.status());
        version += 1;
        for b in 0..400 {
            c.write(b * 4096, &pattern(b, version));
        }
    }
    assert_eq!((sum(&r, "scrub_mismatches"), sum(&r, "scrub_undecided"), r.count("BlockHealed")), (0, 0, 0));
    r.stop();
}

#[test]
fn status_says_when_writes_wait_for_copies() {
    let dir = Temp::new();
    let config = dir.path("three.toml");
    std::fs::write(&config, "version = 1\nservers = 3\nreplicas = 3\n").expect("write");
    let config = config.display().to_string();
    let mut r = Rack::on(dir, &["--config", &config]);
    r.volume("v", "64M");
    assert!(!r.ok(&["status"]).contains("WARNING"));
    // Nothing is refused either: servers announce their rows first.
    assert!(!r.status()["switch"]["counters"].to_string().contains("drop_"), "{}", r.status()["switch"]);
    r.ok(&["server", "kill", "1"]);
    r.ok(&["server", "kill", "2"]);
    wait_for("it is said", || {
        r.ok(&["status"]).contains("WARNING: writes to set 0 1 2 wait: serving copies missing: 1")
    });
    r.ok(&["server", "start", "1"]);
    wait_for("they go on", || !r.ok(&["status"]).contains("WARNING"));
    r.stop();
}
