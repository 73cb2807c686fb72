//! Virtual SSDs of a drive in a file.

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
    assert!(!ok && why.contains("5 can be had") && why.contains("would fit"), "{why}");
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
    assert!(
        ok && said.contains("on dies 16; their erase blocks were erased ") && said.contains("; 0 failed"),
        "{said}"
    );
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
