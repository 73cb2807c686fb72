//! Volumes and the commands about them.

use crate::harness::{Rack, Temp, rackweave, text, wait_for};
use crate::nbd::pattern;
use serde_json::Value;

#[test]
fn a_volumes_life() {
    let r = Rack::start();
    assert!(r.printed.contains("nbd+unix:///VOLUME?socket="), "{}", r.printed);
    assert!(r.ok(&["volume", "list"]).contains("no volumes"));
    r.volume("vm0", "64M");
    let info: Value = serde_json::from_str(&r.ok(&["volume", "info", "vm0", "--json"])).expect("JSON");
    assert_eq!((&info["size"], &info["isolation"]), (&(64 << 20).into(), &"channel".into()));
    let mut c = r.connect("vm0");
    assert_eq!(c.size, 64 << 20);
    assert_eq!(c.read(0, 4096), vec![0; 4096]);
    c.write(8192, &pattern(2, 1));
    c.flush();
    assert_eq!(c.read(8192, 4096), pattern(2, 1));
    c.trim(8192, 4096);
    assert_eq!(c.read(8192, 4096), vec![0; 4096]);
    drop(c);
    r.ok(&["volume", "grow", "vm0", "--size", "128M"]);
    assert_eq!(r.connect("vm0").size, 128 << 20);
    r.volume("vm1", "4K");
    let list: Value = serde_json::from_str(&r.ok(&["volume", "list", "--json"])).expect("JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    assert!(r.ok(&["volume", "list"]).contains("128M"));
    r.ok(&["volume", "delete", "vm1"]);
    assert!(!r.ok(&["volume", "list"]).contains("vm1"));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let r = Rack::start();
    r.volume("vm0", "64M");
    for (args, words) in [
        (vec!["volume", "create", "vm0", "--size", "1M"], vec!["vm0", "exists"]),
        (vec!["volume", "create", "a/b", "--size", "1M"], vec!["a/b"]),
        (vec!["volume", "create", "big", "--size", "900T"], vec!["promise"]),
        (
            vec!["volume", "create", "v", "--size", "1M", "--isolation", "die"],
            vec!["isolation die", "no replica sets of this level", "(ssd.isolation): channel"],
        ),
        (vec!["volume", "info", "nope"], vec!["nope"]),
        (vec!["volume", "delete", "nope"], vec!["nope"]),
        (vec!["volume", "grow", "vm0", "--size", "32M"], vec!["only grow"]),
    ] {
        let e = r.fails(1, &args);
        assert!(words.iter().all(|w| e.contains(w)), "{args:?}: {e}");
    }
    for args in [
        vec!["volume", "create", "v", "--size", "0"],
        vec!["volume", "create", "v", "--size", "4097"],
        vec!["volume", "create", "v", "--size", "4X"],
        vec!["volume", "create", "v"],
        vec!["volume", "explode"],
    ] {
        let e = r.fails(2, &args);
        assert!(args.get(4).is_none_or(|v| e.contains(v)), "{args:?}: {e}");
    }
}

#[test]
fn without_a_rack_the_error_says_how_to_start_one() {
    let o = rackweave(&["status", "--data", "/nonexistent/rackweave"]).output().expect("runs");
    assert_eq!(o.status.code(), Some(1));
    assert!(text(&o.stderr).contains("rackweave up --data /nonexistent/rackweave"), "{}", text(&o.stderr));
}

#[test]
fn status_shows_everything() {
    let r = Rack::with(&["--http", "127.0.0.1:0"]);
    r.volume("vm0", "64M");
    let mut c = r.connect("vm0");
    for b in 0..64 {
        c.write(b * 4096, &pattern(b, 1));
    }
    c.flush();
    c.read(0, 4096);
    let s = r.status();
    assert_eq!(s["servers"].as_array().map(Vec::len), Some(4));
    assert_eq!(s["servers"][0]["vssds"].as_array().map(Vec::len), Some(3));
    assert_eq!(s["sets"].as_array().map(Vec::len), Some(4));
    let latency = s["latency"].as_array().expect("latency");
    let count = |kind: &str| latency.iter().find(|l| l["kind"] == kind).map(|l| l["count"].as_u64());
    assert_eq!(count("write"), Some(Some(64)));
    assert_eq!(count("read"), Some(Some(1)));
    assert_eq!(count("flush"), Some(Some(1)));
    let table = r.ok(&["status"]);
    for word in ["SERVER", "WAF", "vm0", "P99.9", "timing none"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let http = s["rack"]["http"].as_str().expect("http").to_owned();
    let address = http.trim_start_matches("http://").trim_end_matches("/metrics");
    let page = get(address, "/metrics");
    assert!(page.contains("200 OK") && page.contains("rackweave_requests_total{kind=\"write\"} 64"), "{page}");
    assert!(get(address, "/else").contains("404"));
}

fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut s = std::net::TcpStream::connect(address).expect("connect");
    s.set_read_timeout(Some(crate::harness::SOON)).expect("timeout");
    write!(s, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("send");
    let mut page = String::new();
    s.read_to_string(&mut page).expect("page");
    page
}

#[test]
fn version_names_the_formats() {
    let o = rackweave(&["version", "--json"]).output().expect("runs");
    let v: Value = serde_json::from_slice(&o.stdout).expect("JSON");
    assert_eq!(v["rackweave"], env!("CARGO_PKG_VERSION"));
    assert_eq!(v["data"], 1);
}

#[test]
fn a_volume_somebody_uses_is_deleted_by_force_alone() {
    let r = Rack::start();
    r.volume("vm0", "64M");
    let mut first = r.connect("vm0");
    first.write(0, &pattern(1, 1));
    let second = r.connect("vm0");
    drop(first);
    wait_for("one connection", || r.status()["rack"]["connections"] == 1);
    let e = r.fails(1, &["volume", "delete", "vm0"]);
    assert!(e.contains("\"vm0\" is in use by gateway 0:"), "{e}");
    // With its last connection it is no longer in use, and a new one uses it again.
    drop(second);
    wait_for("no connection", || r.status()["rack"]["connections"] == 0);
    let mut third = r.connect("vm0");
    assert_eq!(third.read(0, 4096), pattern(1, 1));
    assert!(r.fails(1, &["volume", "delete", "vm0"]).contains("in use"));
    r.ok(&["volume", "delete", "vm0", "--force"]);
    assert!(!r.ok(&["volume", "list"]).contains("vm0"));
    assert!(third.command(1, 0, 0, 4096, &pattern(1, 2), 0).is_err(), "its writer is fenced");
    r.volume("vm0", "64M");
    assert_eq!(r.connect("vm0").read(0, 4096), vec![0; 4096]);
    wait_for("the volume is free", || r.run(&["volume", "delete", "vm0"]).status.success());
}

#[test]
fn a_volume_in_use_when_the_rack_was_killed_is_free_afterwards() {
    let mut r = Rack::start();
    r.volume("vm0", "64M");
    let _c = r.connect("vm0");
    r.kill();
    r.again();
    r.ok(&["volume", "delete", "vm0"]);
}

#[test]
fn servers_are_given_up_only_where_that_is_needed() {
    let r = Rack::start();
    for without in [&["--without", "2"][..], &[]] {
        let e = r.fails(1, &[&["set", "recover", "0"], without].concat());
        assert!(e.contains("set 0 serves: there is nothing to recover"), "{e}");
    }
    let e = r.fails(1, &["set", "recover", "0", "--without", "2", "--yes"]);
    assert!(e.contains("set 0"), "{e}");
    for yes in [&[][..], &["--yes"]] {
        let e = r.fails(1, &[&["set", "recover", "99", "--without", "2"], yes].concat());
        assert!(e.contains("no set 99") && !e.contains("lost"), "{e}");
    }
    let e = r.fails(1, &["set", "recover", "0", "--without", "4294967295", "--yes"]);
    assert!(e.contains("no server 4294967295") && e.contains("0 to 63"), "{e}");
    let e = r.fails(1, &["set", "recover", "0", "--yes"]);
    assert!(e.contains("nothing to recover"), "{e}");
}

/// All members of its sets crashed, and one does not return: the operator's decision lets the others continue, and the
/// lost one's contents are overwritten when it returns after all.
#[test]
fn a_set_goes_on_without_a_server_that_the_operator_gives_up() {
    const BLOCKS: u64 = 512;
    let mut r = Rack::start();
    r.volume("v", "64M");
    let mut c = r.connect("v");
    (0..BLOCKS).for_each(|b| c.write(b * 4096, &pattern(b, 1)));
    c.flush();
    r.kill();
    r.again_waiting(&["--absent", "1"]);
    let waiting = |r: &Rack| -> Vec<u64> {
        let s = r.status();
        let sets = s["sets"].as_array().expect("sets").iter();
        let waits = |s: &&serde_json::Value| s["waits_for"].as_array().is_some_and(|w| !w.is_empty());
        sets.filter(waits).map(|s| s["set"].as_u64().expect("number")).collect()
    };
    wait_for("three sets wait for server 1", || waiting(&r) == [0, 1, 3]);
    // Servers have the same number everywhere.
    assert!(r.ok(&["status"]).contains("waits for server 1 "));
    let s = r.status();
    let numbers: Vec<&serde_json::Value> =
        s["servers"].as_array().expect("servers").iter().map(|s| &s["server"]).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert_eq!((&s["servers"][1]["alive"], &s["servers"][0]["alive"]), (&false.into(), &true.into()));
    assert_eq!(s["sets"][0]["waits_for"], serde_json::json!([1]));
    let e = r.fails(1, &["set", "recover", "0", "--without", "0", "--yes"]);
    assert!(e.contains("server 0 "), "it is there: {e}");
    for set in ["0", "1", "3"] {
        let e = r.fails(1, &["set", "recover", set, "--without", "1"]);
        assert!(e.contains("--yes") && e.contains("flushed ones are kept"), "{e}");
        assert_eq!(r.ok(&["set", "recover", set, "--without", "1", "--yes", "--json"]).trim(), "{}");
    }
    wait_for("no set waits", || waiting(&r).is_empty());
    let mut c = r.connect("v");
    for b in 0..BLOCKS {
        assert!(c.read(b * 4096, 4096) == pattern(b, 1), "block {b}: flushed");
        c.write(b * 4096, &pattern(b, 2));
    }
    c.flush();
    drop(c);
    r.stop();
    r.again();
    wait_for("server 1 serves again", || {
        let s = r.status();
        let vssds = s["servers"][1]["vssds"].as_array().expect("vSSDs").clone();
        vssds.len() == 3 && vssds.iter().all(|v| v["serving"] == true)
    });
    let mut c = r.connect("v");
    // Several times, because each read may go to another copy.
    for _ in 0..4 {
        for b in 0..BLOCKS {
            assert!(c.read(b * 4096, 4096) == pattern(b, 2), "block {b}: what came back is overwritten");
        }
    }
}

#[test]
fn volumes_lie_on_sets_of_the_isolation_they_ask_for() {
    let dir = Temp::new();
    let config = dir.path("rack.toml");
    std::fs::write(&config, "[ssd]\nisolation = [\"die\", \"channel\", \"none\"]\n").expect("writes");
    let mut r = Rack::with(&["--config", config.to_str().expect("a name")]);
    let e = r.fails(1, &["volume", "create", "v", "--size", "16M", "--isolation", "software"]);
    assert!(e.contains("isolation software") && e.contains("(ssd.isolation): die, channel, none"), "{e}");
    let make = |name: &str, more: &[&str]| -> Value {
        let said = r.ok(&[&["volume", "create", name, "--size", "16M", "--json"], more].concat());
        serde_json::from_str(&said).expect("JSON")
    };
    let [dies, channels, rest] = [0..4, 4..8, 8..12].map(|sets| serde_json::json!(sets.collect::<Vec<u32>>()));
    for (v, level, sets) in [
        (make("any", &[]), "die", &dies),
        (make("die", &["--isolation", "die"]), "die", &dies),
        (make("channel", &["--isolation", "channel"]), "channel", &channels),
        (make("none", &["--isolation", "unisolated"]), "none", &rest),
    ] {
        assert_eq!((&v["isolation"], &v["sets"]), (&level.into(), sets), "{v}");
    }
    assert!(r.ok(&["volume", "info", "channel"]).contains("ISOLATION"));
    for (k, name) in ["die", "channel", "none"].into_iter().enumerate() {
        let mut c = r.connect(name);
        (0..64).for_each(|i| c.write(i * 65_536, &pattern(i, k as u64 + 1)));
        c.flush();
    }
    r.kill();
    r.again_with(&[]);
    for (k, name) in ["die", "channel", "none"].into_iter().enumerate() {
        let mut c = r.connect(name);
        (0..64).for_each(|i| assert!(c.read(i * 65_536, 4096) == pattern(i, k as u64 + 1), "{name}, stripe {i}"));
    }
    assert_eq!(r.status()["volumes"][1]["isolation"], "channel", "by name: any, channel, die, none");
    r.ok(&["volume", "grow", "channel", "--size", "32M"]);
    r.ok(&["volume", "delete", "die"]);
}

#[test]
fn with_two_racks_volumes_have_homes_in_turn_and_outlive_the_process() {
    let dir = Temp::new();
    let config = dir.path("rack.toml");
    std::fs::write(&config, "servers = 4\n[racks]\ncount = 2\n").expect("writes");
    let mut r = Rack::with(&["--config", config.to_str().expect("a name")]);
    let sets = |name: &str| -> Value {
        let said = r.ok(&["volume", "create", name, "--size", "16M", "--json"]);
        serde_json::from_str::<Value>(&said).expect("JSON")["sets"].clone()
    };
    assert_eq!([sets("a"), sets("b")], [serde_json::json!([2, 3]), serde_json::json!([0, 1])]);
    for (k, name) in ["a", "b"].into_iter().enumerate() {
        let mut c = r.connect(name);
        (0..64).for_each(|i| c.write(i * 65_536, &pattern(i, k as u64 + 1)));
        c.flush();
    }
    wait_for("both switches know all twelve vSSDs", || r.status()["switch"]["rows"] == 24);
    r.kill();
    r.again_with(&[]);
    for (k, name) in ["a", "b"].into_iter().enumerate() {
        let mut c = r.connect(name);
        (0..64).for_each(|i| assert!(c.read(i * 65_536, 4096) == pattern(i, k as u64 + 1), "{name}, stripe {i}"));
    }
    r.stop();
    std::fs::write(&config, "servers = 4\n").expect("writes");
    let data = r.data().display().to_string();
    let other = ["up", "--ssd-size", "256M", "--data", &data, "--config", config.to_str().expect("a name")];
    let o = rackweave(&other).output().expect("runs");
    let e = text(&o.stderr);
    assert!(!o.status.success() && e.contains("racks.count"), "{e}");
}
