//! Stops and starts.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::{Rack, rackweave, text, wait_for};
use crate::nbd::pattern;

#[test]
fn a_rack_of_which_no_server_runs_is_not_ready() {
    let mut r = Rack::start();
    r.stop();
    let (data, nbd) = (r.data().display().to_string(), format!("unix:{}", r.socket().display()));
    let absent = ["--absent", "0", "--absent", "1", "--absent", "2", "--absent", "3"];
    let args = [&["up", "--timing", "none", "--data", &data, "--nbd", &nbd][..], &absent].concat();
    let up = rackweave(&args).stdout(Stdio::piped()).spawn().expect("starts");
    // Readiness is checked before anything is answered.
    wait_for("it answers", || r.run(&["status", "--json"]).status.success());
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(up.id() as i32, libc::SIGTERM) };
    let o = up.wait_with_output().expect("ends");
    assert!(o.status.success() && !text(&o.stdout).contains("ready"), "{}", text(&o.stdout));
}

#[test]
fn a_clean_stop_keeps_everything_and_is_quick() {
    let mut r = Rack::start();
    r.volume("v", "64M");
    let mut c = r.connect("v");
    for b in 0..500 {
        c.write(b * 4096, &pattern(b, 1));
    }
    let stop = Instant::now();
    r.stop();
    assert!(stop.elapsed() < Duration::from_secs(5), "{:?}", stop.elapsed());
    assert!(!r.socket().exists(), "the socket goes with the rack");
    r.again();
    let mut c = r.connect("v");
    for b in 0..500 {
        assert!(c.read(b * 4096, 4096) == pattern(b, 1), "block {b}");
    }
}

#[test]
fn an_interrupt_stops_it_too() {
    let mut r = Rack::start();
    r.signal(libc::SIGINT);
    assert!(r.wait().success());
}

#[test]
fn killed_racks_keep_what_was_flushed() {
    let mut r = Rack::start();
    r.volume("v", "64M");
    let mut expected = vec![0u64; 256];
    for round in 1..=5u64 {
        let mut c = r.connect("v");
        for b in (0..256).filter(|b| b % 7 != round % 7) {
            c.write(b * 4096, &pattern(b, round));
            expected[b as usize] = round;
        }
        c.flush();
        c.write_fua(256 * 4096, &pattern(256, round));
        for b in 0..40 {
            c.write(b * 4096, &pattern(b, round << 8));
        }
        r.kill();
        let start = Instant::now();
        r.again();
        assert!(start.elapsed() < Duration::from_secs(5), "up again after {:?}", start.elapsed());
        let mut c = r.connect("v");
        for b in 0..256u64 {
            let got = c.read(b * 4096, 4096);
            let version = expected[b as usize];
            let flushed = if version == 0 { got.iter().all(|&x| x == 0) } else { got == pattern(b, version) };
            let newer = b < 40 && got == pattern(b, round << 8);
            assert!(flushed || newer, "block {b} in round {round}");
            if newer {
                expected[b as usize] = round << 8;
            }
        }
        assert!(c.read(256 * 4096, 4096) == pattern(256, round));
    }
}

#[test]
fn a_second_rack_on_the_same_data_is_refused_with_the_owner() {
    let r = Rack::start();
    let data = r.data().display().to_string();
    let other = r.dir.path("other.sock");
    let o = rackweave(&["up", "--data", &data, "--nbd", &format!("unix:{}", other.display())]).output().expect("runs");
    assert_eq!(o.status.code(), Some(1));
    let e = text(&o.stderr);
    assert!(e.contains(&format!("in use by process {}", r.pid())) && e.contains(" since 2"), "{e}");
    r.status();
}

#[test]
fn other_versions_and_other_shapes_are_refused() {
    let mut r = Rack::start();
    r.stop();
    let data = r.data();
    let up = |extra: &[&str]| {
        let d = data.display().to_string();
        let nbd = format!("unix:{}", r.dir.path("x.sock").display());
        let args: Vec<&str> = ["up", "--data", &d, "--nbd", &nbd].into_iter().chain(extra.iter().copied()).collect();
        let o = rackweave(&args).output().expect("runs");
        assert_eq!(o.status.code(), Some(1));
        text(&o.stderr)
    };
    let e = up(&["--servers", "5"]);
    assert!(e.contains("servers = 5") && e.contains("fixed at 4"), "{e}");
    let e = up(&["--servers", "2"]);
    assert!(e.contains("servers") && e.contains('2'), "{e}");
    std::fs::write(data.join("VERSION"), "rackweave data 7\n").expect("write");
    let e = up(&[]);
    assert!(e.contains("version 7") && e.contains("version 1"), "{e}");
    std::fs::write(data.join("VERSION"), "rackweave data 1\n").expect("write");
    crate::harness::flip_byte(&data.join("ssd-2.rwk"), 8);
    let e = up(&[]);
    assert!(e.contains("ssd-2.rwk") && e.contains("version 19") && e.contains("version 3"), "{e}");
}

#[test]
fn an_ssd_that_is_gone_is_missed_and_its_replacement_filled() {
    let mut r = Rack::start();
    r.volume("v", "64M");
    let mut c = r.connect("v");
    for b in 0..2_000 {
        c.write(b * 4096, &pattern(b, 1));
    }
    c.flush();
    drop(c);
    r.stop();
    let (data, moved) = (r.data(), r.dir.path("old-ssd"));
    let up = |extra: &[&str]| {
        let (d, nbd) = (data.display().to_string(), format!("unix:{}", r.dir.path("x.sock").display()));
        let args: Vec<&str> = ["up", "--data", &d, "--nbd", &nbd].into_iter().chain(extra.iter().copied()).collect();
        let o = rackweave(&args).output().expect("runs");
        assert_eq!(o.status.code(), Some(1));
        text(&o.stderr)
    };
    let fresh = r.dir.path("fresh").display().to_string();
    let o = rackweave(&["up", "--data", &fresh, "--nbd", &format!("unix:{fresh}.sock"), "--replace-ssd", "1"]).output();
    let e = text(&o.expect("runs").stderr);
    assert!(e.contains("--replace-ssd 1: no rack has run in"), "{e}");
    let e = up(&["--replace-ssd", "1"]);
    assert!(e.contains("ssd-1.rwk is still there"), "{e}");
    std::fs::rename(data.join("ssd-1.rwk"), &moved).expect("rename");
    let e = up(&[]);
    assert!(e.contains("ssd-1.rwk is missing or empty") && e.contains("--replace-ssd 1"), "{e}");
    assert!(!data.join("ssd-1.rwk").exists(), "nothing was made in its place");
    // An empty file, or a new drive that holds zeroes only, is not taken for the old one.
    for len in [0, 1 << 20] {
        std::fs::File::create(data.join("ssd-1.rwk")).and_then(|f| f.set_len(len)).expect("an empty file");
        let e = up(&[]);
        assert!(e.contains("ssd-1.rwk is missing or empty") && e.contains("--replace-ssd 1"), "{e}");
    }
    std::fs::remove_file(data.join("ssd-1.rwk")).expect("removed");
    let e = up(&["--replace-ssd", "1", "--replace-ssd", "9"]);
    assert!(e.contains("servers 0 to 3"), "{e}");
    let e = up(&["--replace-ssd", "0", "--replace-ssd", "1", "--replace-ssd", "2"]);
    assert!(e.contains("3 SSDs replaced") && e.contains("of 3 copies"), "{e}");
    r.again_with(&["--replace-ssd", "1"]);
    let mut c = r.connect("v");
    // Several times, because each read may go to another copy.
    for _ in 0..4 {
        for b in 0..2_000 {
            assert!(c.read(b * 4096, 4096) == pattern(b, 1), "block {b}");
        }
    }
    let mapped = |s: &serde_json::Value, server: usize| -> u64 {
        let vssds = s["servers"][server]["vssds"].as_array().expect("vSSDs");
        vssds.iter().map(|v| v["mapped_bytes"].as_u64().expect("number")).sum()
    };
    let s = r.status();
    assert!(mapped(&s, 1) * 2 > mapped(&s, 0), "the new SSD holds its copies again: {s}");
}

#[test]
fn a_drive_of_another_rack_is_refused_and_one_of_none_is_made_its_own() {
    let (mut r, mut other) = (Rack::start(), Rack::start());
    r.volume("v", "16M");
    let mut c = r.connect("v");
    c.write(0, &pattern(7, 1));
    c.flush();
    drop(c);
    r.stop();
    other.stop();
    let owner = |of: &Rack| crate::harness::owner(&of.data().join("ssd-1.rwk"));
    let (own, foreign) = (owner(&r), owner(&other));
    assert_ne!(own, foreign);
    let (data, kept) = (r.data(), r.dir.path("own-ssd"));
    std::fs::rename(data.join("ssd-1.rwk"), &kept).expect("rename");
    std::fs::copy(other.data().join("ssd-1.rwk"), data.join("ssd-1.rwk")).expect("copy");
    let before = std::fs::read(data.join("ssd-1.rwk")).expect("read");
    let (d, nbd) = (data.display().to_string(), format!("unix:{}", r.dir.path("x.sock").display()));
    let o = rackweave(&["up", "--data", &d, "--nbd", &nbd]).output().expect("runs");
    let e = text(&o.stderr);
    assert_eq!(o.status.code(), Some(1), "{e}");
    for named in ["ssd-1.rwk", &own, &foreign, "--replace-ssd"] {
        assert!(e.contains(named), "{named} is not named in {e}");
    }
    assert!(std::fs::read(data.join("ssd-1.rwk")).expect("read") == before, "the other rack's drive was changed");
    // Its own, without an owner as in earlier versions.
    std::fs::rename(&kept, data.join("ssd-1.rwk")).expect("rename");
    crate::harness::disown(&data.join("ssd-1.rwk"));
    r.again();
    assert!(r.connect("v").read(0, 4096) == pattern(7, 1));
    assert_eq!(owner(&r), own);
}

#[test]
fn a_stopped_process_goes_on_where_it_was() {
    let r = Rack::start();
    r.volume("v", "16M");
    let mut c = r.connect("v");
    c.write(0, &pattern(0, 1));
    r.signal(libc::SIGSTOP);
    // Longer than every lease.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        crate::harness::pause();
    }
    r.signal(libc::SIGCONT);
    let start = Instant::now();
    assert_eq!(c.read(0, 4096), pattern(0, 1));
    c.write(4096, &pattern(1, 1));
    c.flush();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(r.status()["rack"]["standstill_s"].as_f64().expect("number") > 2.0);
    assert_eq!(r.count("MemberRemoved"), 0);
}

#[test]
fn an_empty_rack_of_four_times_64_gib_is_up_within_a_second() {
    let dir = crate::harness::Temp::new();
    let start = Instant::now();
    let r = Rack::sized(dir, "64G");
    let took = start.elapsed();
    // Twice the bar, for tests run beside others and unoptimized.
    assert!(took < Duration::from_secs(2), "{took:?}");
    let used: u64 = std::fs::read_dir(r.data())
        .expect("list")
        .map(|e| std::os::unix::fs::MetadataExt::blocks(&e.expect("entry").metadata().expect("metadata")) * 512)
        .sum();
    assert!(used < 64 << 20, "an empty rack takes {used} bytes");
}
