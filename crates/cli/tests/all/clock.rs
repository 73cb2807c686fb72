//! Clocks that are set back, even to before 1970, or stand still: no process is locked out, and no nonce is reused.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::harness::{Rack, Temp};
use crate::processes::{pid_of, signal, wait_for_all_members};

/// Restarted after 1 s; the rest allows for a busy machine. A lock-out would last as long as the step.
const BACK: Duration = Duration::from_secs(15);
/// Of server 1.
const NODE: u32 = 3;

/// libfaketime: a process reads the time from a file when it starts.
fn library() -> Option<PathBuf> {
    let known = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    known.map(|dir| Path::new(dir).join("faketime/libfaketime.so.1")).into_iter().find(|p| p.exists())
}

fn be(b: &[u8]) -> u64 {
    b.iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// Incarnation and counter of each datagram that the node sealed and sent, in order.
fn nonces(capture: &Path) -> Vec<(u64, u64)> {
    let b = fs::read(capture).expect("a capture");
    let (mut at, mut all) = (24, Vec::new());
    while at + 16 <= b.len() {
        let len = u32::from_le_bytes(b[at + 8..at + 12].try_into().expect("4 bytes")) as usize;
        // A process that was killed may have left part of a record.
        let Some(frame) = b.get(at + 16..at + 16 + len) else { break };
        at += 16 + len;
        let d = &frame[14 + 20 + 8..];
        let (counter, extension) = match d[0] {
            1..=9 if d[11] & 0x80 != 0 => (48, 80),
            16..=22 => (20, 44),
            _ => continue,
        };
        if be(&d[12..16]) == u64::from(NODE) {
            all.push((be(&d[extension + 4..extension + 12]), be(&d[counter..counter + 8])));
        }
    }
    all
}

#[test]
fn a_process_started_again_by_another_clock_is_back_at_once_and_repeats_no_nonce() {
    let Some(library) = library() else {
        println!(
            "SKIP a_process_started_again_by_another_clock_is_back_at_once_and_repeats_no_nonce: libfaketime is not installed"
        );
        return;
    };
    let dir = Temp::new();
    let (clock, captures) = (dir.path("clock"), dir.path("captures"));
    fs::write(&clock, "+0").expect("write");
    let (shown, captured) = (clock.display().to_string(), captures.display().to_string());
    let library = library.display().to_string();
    // Only the wall clock is faked: leases and timeouts use clocks that are never set.
    let env = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME_TIMESTAMP_FILE", &shown),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let r = Rack::on_by(dir, &["--processes", "--pcap", &captured], |mut c| {
        c.envs(env);
        c
    });
    wait_for_all_members(&r);
    // An hour back; before 1970, standing still; back to the present.
    for step in ["-3600", "1965-06-01 00:00:00", "1965-06-01 00:00:00", "-1"] {
        fs::write(&clock, step).expect("write");
        let (before, start) = (pid_of(&r.status(), "server-1"), Instant::now());
        signal(before, libc::SIGKILL);
        while [0, before].contains(&pid_of(&r.status(), "server-1")) {
            assert!(start.elapsed() < BACK, "clock {step}: not started again");
            crate::harness::pause();
        }
        wait_for_all_members(&r);
        assert!(start.elapsed() < BACK, "clock {step}: back after {:?}", start.elapsed());
        println!("clock {step}: back after {:?}", start.elapsed());
    }
    let mut files: Vec<PathBuf> =
        fs::read_dir(&captures).expect("captures").map(|e| e.expect("entry").path()).collect();
    files.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("server-1.")));
    assert_eq!(files.len(), 5, "{files:?}");
    let mut used = BTreeSet::new();
    for (incarnation, counter) in files.iter().flat_map(|f| nonces(f)) {
        assert!(used.insert((incarnation, counter)), "incarnation {incarnation}, counter {counter:x}: sealed twice");
    }
    let incarnations: BTreeSet<u64> = used.iter().map(|u| u.0).collect();
    assert!(incarnations.len() >= 5 && used.len() >= 100, "{} in {} incarnations", used.len(), incarnations.len());
}
