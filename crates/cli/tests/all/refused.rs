//! A server whose drive is not the expected one (protocol rule 30) reports it, and waits until the right one is back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::harness::{Rack, pause, text, wait_for};
use crate::nbd::pattern;

const BLOCKS: u64 = 200;
/// Longer than the supervisor's first two waits before a restart.
const NO_LOOP: Duration = Duration::from_secs(5);

fn check(r: &Rack) {
    let mut c = r.connect("v");
    (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == pattern(b, 1), "block {b}"));
}

fn all_serve(r: &Rack) {
    wait_for("all replicas serve", || {
        let s = r.status();
        let vssds: Vec<_> =
            s["servers"].as_array().into_iter().flatten().filter_map(|s| s["vssds"].as_array()).collect();
        vssds.iter().map(|v| v.len()).sum::<usize>() == 12
            && vssds.iter().all(|v| v.iter().all(|v| v["serving"] == true))
    });
}

fn write(r: &Rack) {
    r.volume("v", "64M");
    let mut c = r.connect("v");
    (0..BLOCKS).for_each(|b| c.write(b * 4096, &pattern(b, 1)));
    c.flush();
}

/// Server 1 gets a new drive; returns the path of the previous one.
fn replace_drive(r: &mut Rack, dir: &str) -> PathBuf {
    r.stop();
    let old = r.dir.path("old.rwk");
    fs::rename(r.data().join(dir).join("ssd-1.rwk"), &old).expect("moved");
    r.again_with(&["--replace-ssd", "1"]);
    all_serve(r);
    old
}

/// Server 1 is started with this drive, refused with these words, and started with its own.
fn refused_with(r: &Rack, dir: &str, other: &Path, words: &[&str]) {
    let (drive, own) = (r.data().join(dir).join("ssd-1.rwk"), r.dir.path("own.rwk"));
    r.ok(&["server", "kill", "1"]);
    fs::rename(&drive, &own).and_then(|()| fs::copy(other, &drive)).expect("exchanged");
    let before = fs::read(&drive).expect("read");
    let e = r.fails(1, &["server", "start", "1"]);
    for said in [&["server 1 is refused", "ssd-1.rwk"], words].concat() {
        assert!(e.contains(said), "{said}: {e}");
    }
    let shown = r.ok(&["status"]);
    let warning = shown.lines().find(|l| l.starts_with("WARNING: server 1: refused")).unwrap_or_default();
    for said in [&["rackweave server start 1"], words].concat() {
        assert!(warning.contains(said), "{said}: {shown}");
    }
    let lives = || fs::read(r.data().join("server-1/incarnation")).ok();
    let (life, until) = (lives(), Instant::now() + NO_LOOP);
    while Instant::now() < until {
        pause();
    }
    assert_eq!(lives(), life, "it was started again");
    // A process learns the owner of its drive when it has recovered it.
    assert!(!dir.is_empty() || fs::read(&drive).expect("read") == before, "the drive was changed");
    check(r);
    fs::rename(&own, &drive).expect("put back");
    r.ok(&["server", "start", "1"]);
    assert!(!r.ok(&["status"]).contains("server 1: refused"), "{}", r.ok(&["status"]));
    all_serve(r);
    check(r);
}

const OF_ANOTHER: &[&str] = &["put each drive's own file in its place"];
/// An earlier drive of the same server: only the metadata service can detect it.
const EARLIER: &[&str] = &["the server's drive is", "Put that one back"];

fn refuses_until_its_own_drive_is_back(mut r: Rack, dir: &str) {
    write(&r);
    let earlier = replace_drive(&mut r, dir);
    refused_with(&r, dir, &earlier, EARLIER);
    let other = r.data().join(dir.replace('1', "2")).join("ssd-2.rwk");
    refused_with(&r, dir, &other, OF_ANOTHER);
    r.stop();
}

#[test]
fn a_server_that_is_started_with_another_drive_says_why_it_does_not_serve() {
    refuses_until_its_own_drive_is_back(Rack::start(), "");
}

#[test]
fn a_server_s_process_that_is_refused_is_not_started_again_and_again() {
    refuses_until_its_own_drive_is_back(Rack::with(&["--processes"]), "server-1");
}

#[test]
fn a_server_on_a_host_of_its_own_that_is_refused_is_not_started_again_and_again() {
    if !crate::netns::skip("a_server_on_a_host_of_its_own_that_is_refused_is_not_started_again_and_again") {
        let mut r = Rack::with(&["--netns"]);
        write(&r);
        let other = r.data().join("server-2/ssd-2.rwk");
        refused_with(&r, "server-1", &other, OF_ANOTHER);
        r.stop();
    }
}

/// The volumes are unknown: no new store is created in its place.
#[test]
fn a_rack_whose_metadata_is_gone_is_refused() {
    for (extra, meta) in [(&[][..], ""), (&["--processes"], "meta")] {
        let mut r = Rack::with(extra);
        r.volume("v", "16M");
        r.stop();
        let (store, kept) = (r.data().join(meta).join("meta.redb"), r.dir.path("kept.redb"));
        fs::rename(&store, &kept).expect("moved");
        let (data, nbd) = (r.data().display().to_string(), format!("unix:{}", r.dir.path("x.sock").display()));
        let args = [&["up", "--timing", "none", "--data", &data, "--nbd", &nbd], extra].concat();
        let o = crate::harness::rackweave(&args).output().expect("runs");
        let e = text(&o.stderr);
        assert_eq!(o.status.code(), Some(1), "{e}");
        assert!(e.contains("meta.redb is missing, but") && e.contains("put it back"), "{e}");
        assert!(!store.exists(), "nothing was made in its place");
        fs::rename(&kept, &store).expect("put back");
        r.again();
        assert!(r.ok(&["volume", "list"]).contains('v'));
    }
}
