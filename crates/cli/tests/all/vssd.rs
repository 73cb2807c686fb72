//! Virtual SSDs of a drive in a file.

use rackweave_core::device::{Backend, BlockOob, DeviceData, DeviceOp};
use rackweave_core::media_faults::MediaFaults;
use rackweave_device::drive;
use serde_json::Value;

use crate::harness::{Temp, rackweave, text};

fn run(drive: &str, args: &[&str]) -> (bool, String, String) {
    let mut all = vec!["vssd", "--drive", drive, "--profile", "femu", "--drive-size", "1G"];
    all.extend(args);
    let out = rackweave(&all).output().expect("runs");
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn virtual_ssds_of_all_kinds_are_made_shown_and_deleted() {
    let dir = Temp::new();
    let path = dir.path("a.rwk");
    let drive = path.to_str().expect("a name");
    let (ok, _, why) = run(drive, &["list"]);
    assert!(!ok && why.contains("there is no drive"), "{why}");
    for (isolation, shown, capacity) in [
        ("channel", " channel ", "200M"),
        ("die", " die ", "10M"),
        ("software", " software ", "1M"),
        ("unisolated", " none ", "1M"),
    ] {
        let (ok, said, why) = run(drive, &["create", "--isolation", isolation, "--capacity", capacity]);
        assert!(ok && said.contains(shown), "{said}{why}");
    }
    let (ok, said, _) = run(drive, &["list", "--json"]);
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert!(ok && all.as_array().map(Vec::len) == Some(4), "{said}");
    // A channel has 8 dies of 14 blocks of 1 MiB: two hold 200 MiB.
    assert_eq!(
        (&all[0]["isolation"], &all[0]["units"], &all[0]["capacity"]),
        (&"channel".into(), &serde_json::json!([0, 1]), &(224u64 << 20).into())
    );
    let (ok, said, _) = run(drive, &["list"]);
    assert!(ok && said.contains("free: 5 channels, 6 dies and"), "{said}");
    let (ok, _, why) = run(drive, &["create", "--isolation", "channel", "--capacity", "100G"]);
    assert!(!ok && why.contains("5 available") && why.contains("would fit"), "{why}");
    let (ok, _, why) = run(drive, &["delete", "9"]);
    assert!(!ok && why.contains("vssd9 was never allocated"), "{why}");
    assert!(run(drive, &["delete", "1"]).0);
    let (ok, _, why) = run(drive, &["delete", "1"]);
    assert!(!ok && why.contains("vssd1 was deallocated"), "{why}");
    let (ok, _, why) = run(drive, &["info", "1"]);
    assert!(!ok && why.contains("vssd1"), "{why}");
    let (ok, said, _) = run(drive, &["info", "2", "--json"]);
    assert!(ok, "{said}");
    let one: Value = serde_json::from_str(&said).expect("JSON");
    // A channel has eight dies.
    assert_eq!((&one[0]["isolation"], &one[0]["dies"]), (&"die".into(), &serde_json::json!([16])));
    assert!(one[0]["erases"]["most"].as_u64() <= Some(1) && one[0]["read_only"] == false, "{said}");
    let pairs: String = (0..300).map(|k| format!("key{}\t{}\n", k % 2, "v".repeat(60_000))).collect();
    std::fs::write(dir.path("pairs"), pairs).expect("written");
    let load = ["kv", "--drive", drive, "--profile", "femu", "--drive-size", "1G", "--vssd", "2", "load"];
    let from = std::fs::File::open(dir.path("pairs")).expect("there");
    let out = rackweave(&load).stdin(from).output().expect("runs");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let (ok, said, _) = run(drive, &["info", "2"]);
    assert!(ok && said.contains("on dies 16; erases per block: ") && said.contains("; 0 failed"), "{said}");
    assert!(!said.contains("erased 0 to 0 times"), "{said}");
    for (args, as_what) in [
        (vec![], "p-ssd scaled to 68719476736 bytes"),
        (vec!["--profile", "femu", "--drive-size", "1100M"], "femu scaled to 1153433600 bytes"),
    ] {
        let other = rackweave(&[vec!["vssd", "--drive", drive], args, vec!["list"]].concat()).output().expect("runs");
        let why = text(&other.stderr);
        let found = why.contains("made as femu scaled to 1073741824 bytes") && why.contains(as_what);
        assert!(!other.status.success() && found, "{why}");
    }
}

#[test]
fn what_a_throughput_level_is_is_the_drives_and_stays_so() {
    let dir = Temp::new();
    let path = dir.path("a.rwk");
    let drive = path.to_str().expect("a name");
    let make = |levels: &[&str], isolation, level| {
        let args = [&["create", "--isolation", isolation, "--capacity", "1M", "--level", level, "--json"], levels];
        run(drive, &args.concat())
    };
    // 8 channels of 8 dies.
    for (levels, why) in [
        (["--channel-levels", "1,9"], "throughput level 1 is 9 channels: it must be 1 to 8, which the drive has"),
        (["--die-levels", "0,1"], "throughput level 0 is 0 dies: it must be 1 to 64"),
        (["--soft-plane-levels", "2,1"], "throughput level 1 is 1 soft-planes, the one below is 2"),
        (["--die-levels", "1,x"], "invalid value 'x'"),
    ] {
        let (ok, _, said) = make(&levels, "die", "0");
        assert!(!ok && said.contains(why), "{levels:?}: {said}");
        assert!(!path.exists(), "{levels:?} made a drive");
    }
    let chosen = ["--die-levels", "3,5", "--channel-levels", "1,3"];
    let units = |said: &str| {
        let all: Value = serde_json::from_str(said).expect("JSON");
        all[0]["units"].as_array().map(Vec::len)
    };
    for (levels, isolation, level, has) in [
        (&chosen[..], "die", "0", 3),
        (&[], "die", "1", 5),
        (&chosen[..], "channel", "1", 3),
        (&[], "software", "2", 4),
    ] {
        let (ok, said, why) = make(levels, isolation, level);
        assert!(ok && units(&said) == Some(has), "{isolation} {level}: {said}{why}");
    }
    let (ok, _, why) = make(&[], "die", "2");
    assert!(!ok && why.contains("level 2"), "{why}");
    let (ok, _, why) = make(&["--die-levels", "1,2"], "die", "0");
    assert!(
        !ok && why.contains("was made with the throughput levels channels 1 3; dies 3 5; soft-planes 1 2"),
        "{why}"
    );
    let (ok, said, _) = run(drive, &["info", "1"]);
    assert!(ok && said.contains("throughput levels of the drive: channels 1 3; dies 3 5; soft-planes 1 2"), "{said}");
    let (_, said, _) = run(drive, &["info", "1", "--json"]);
    let one: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(one[0]["levels"]["dies"], serde_json::json!([3, 5]));
}

/// Makes the first `blocks` erase blocks of the drive, where unwritten, look as if erased this often.
fn age(path: &std::path::Path, blocks: u32, erase_count: u16) {
    let mut device = drive::open(path, "femu", 1 << 30).expect("opens").close().expect("closes");
    device.fail_by(MediaFaults::none());
    for block in 0..blocks {
        if let Ok(DeviceData::Oob { pages: 0, .. }) = device.execute(&DeviceOp::ReadOob { block }) {
            let oob = BlockOob { logical: u64::MAX, erase_count, ..BlockOob::default() };
            device.execute(&DeviceOp::Erase { block, oob }).expect("erased");
        }
    }
    device.close().expect("closes");
}

#[test]
fn a_die_at_the_end_of_its_life_makes_a_virtual_ssd_read_only_and_info_says_so() {
    let dir = Temp::new();
    let path = dir.path("a.rwk");
    let drive = path.to_str().expect("a name");
    let (ok, _, why) = run(drive, &["create", "--isolation", "die", "--capacity", "10M"]);
    assert!(ok && why.is_empty(), "{why}");
    let kv = |args: &[&str]| {
        let first = ["kv", "--drive", drive, "--profile", "femu", "--drive-size", "1G"];
        let out = rackweave(&[&first, args].concat()).output().expect("runs");
        (out.status.success(), text(&out.stdout), text(&out.stderr))
    };
    let read_only = || {
        let (_, json, _) = run(drive, &["info", "1", "--json"]);
        let one: Value = serde_json::from_str(&json).expect("JSON");
        let said = run(drive, &["info", "1"]).1.contains("read-only: a die has no spare erase block left");
        assert_eq!(one[0]["read_only"], said, "{json}");
        said
    };
    assert!(kv(&["put", "a", "1"]).0 && !read_only());
    age(&path, 16, 12_000);
    let (ok, _, why) = kv(&["put", "b", "2"]);
    assert!(!ok && why.contains("vssd1 is worn out and read-only: die 0 has no erase block left for it"), "{why}");
    assert!(read_only());
    assert_eq!(kv(&["get", "a"]).1, "1", "what is there can be read");
    let (_, json, _) = run(drive, &["info", "1", "--json"]);
    let one: Value = serde_json::from_str(&json).expect("JSON");
    assert!(one[0]["bad_blocks"].as_u64() > Some(8), "{json}");
}

#[test]
fn a_drive_too_small_for_its_profile_is_refused_with_the_least_size_and_leaves_no_file() {
    let dir = Temp::new();
    let path = dir.path("a.rwk");
    let create = |profile: &str, size: &str, isolation: &str, capacity: &str| {
        let drive = ["vssd", "--drive", path.to_str().expect("a name"), "--profile", profile, "--drive-size", size];
        let create = ["create", "--isolation", isolation, "--capacity", capacity];
        let out = rackweave(&[&drive[..], &create].concat()).output().expect("runs");
        assert_eq!(out.status.success(), path.exists(), "who is refused leaves nothing behind");
        (out.status.success(), text(&out.stderr))
    };
    for profile in ["p-ssd", "intel-dc", "femu", "optane"] {
        let (ok, why) = create(profile, "1M", "die", "1M");
        let least = why.split("the least is ").nth(1).and_then(|w| w.trim().strip_suffix(" MiB"));
        let least: u32 = least.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{profile}: {why}"));
        assert!(!ok, "{why}");
        let (ok, why) = create(profile, &format!("{}M", least - 1), "die", "1M");
        assert!(
            !ok && why.contains(&format!("is too small for the profile {profile}: the least is {least} MiB")),
            "{why}"
        );
        let (ok, why) = create(profile, &format!("{least}M"), "software", "1M");
        assert!(ok && why.contains("too few for `mount` (10), too few for `kv` (12)"), "{why}");
        std::fs::remove_file(&path).expect("made");
    }
    let (ok, why) = create("femu", "1G", "channel", "100G");
    assert!(!ok && why.contains("would fit"), "{why}");
    let (ok, why) = create("femu", "2G", "channel", "1G");
    assert!(ok && why.is_empty(), "{why}");
}
