//! Limits, faults on purpose and their display, on a running rack.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::harness::{Rack, Temp, rackweave, text, wait_for};
use crate::nbd::pattern;

/// Servers with a vSSD that does not serve, or that are away.
fn waiting(r: &Rack) -> usize {
    let s = r.status();
    let servers = s["servers"].as_array().expect("servers");
    let serves = |v: &Value| v["serving"] == true && v["role"] == "member";
    let good = |s: &&Value| s["vssds"].as_array().is_some_and(|v| !v.is_empty() && v.iter().all(serves));
    servers.len() - servers.iter().filter(good).count()
}

fn kill_and_start(r: &Rack) {
    r.volume("v", "64M");
    let mut c = r.connect("v");
    let mut write = |from: u64, to: u64, version: u64| {
        for b in from..to {
            c.write(b * 4096, &pattern(b, version));
        }
        c.flush();
    };
    write(0, 200, 1);
    let e = r.fails(1, &["server", "kill", "9"]);
    assert!(e.contains("no server 9") && e.contains("0 to 3"), "{e}");
    assert!(r.fails(1, &["server", "start", "1"]).contains("is running"));
    assert!(r.ok(&["server", "kill", "1"]).contains("crashed"));
    assert!(r.fails(1, &["server", "kill", "1"]).contains("not running"));
    // No other server has noticed yet, and its data that was not written to the file is lost.
    write(50, 250, 2);
    wait_for("it is seen to be away", || r.status()["servers"][1]["alive"] == false);
    write(100, 300, 3);
    assert_eq!(r.ok(&["server", "start", "1", "--json"]).trim(), "{}");
    wait_for("it is a member again", || waiting(r) == 0);
    write(150, 350, 4);
    // With only what it fetched: in each of its sets one member is away and one has the same contents.
    r.ok(&["server", "kill", "0"]);
    for b in 0..350u64 {
        let version = match b {
            0..50 => 1,
            50..100 => 2,
            100..150 => 3,
            _ => 4,
        };
        assert!(c.read(b * 4096, 4096) == pattern(b, version), "block {b}");
    }
    r.ok(&["server", "start", "0"]);
    wait_for("all are members again", || waiting(r) == 0);
}

#[test]
fn a_killed_server_comes_back_with_what_it_missed() {
    let mut r = Rack::start();
    kill_and_start(&r);
    // Including one that is away when the rack stops.
    r.ok(&["server", "kill", "2"]);
    r.stop();
    r.again();
    wait_for("all are members", || waiting(&r) == 0);
    let mut c = r.connect("v");
    assert!(c.read(349 * 4096, 4096) == pattern(349, 4));
}

#[test]
fn a_killed_process_stays_away_until_it_is_started() {
    kill_and_start(&Rack::with(&["--processes"]));
}

fn cut_and_mend(r: &Rack) {
    r.volume("v", "64M");
    let mut c = r.connect("v");
    for (bad, why) in [(["server-0", "server-9"], "no node server-9"), (["meta", "meta"], "itself")] {
        let e = r.fails(1, &["link", "cut", bad[0], bad[1]]);
        assert!(e.contains(why), "{e}");
    }
    assert!(r.fails(1, &["link", "mend", "server-0", "switch"]).contains("not cut"));
    c.write(0, &pattern(0, 1));
    r.ok(&["link", "cut", "server-0", "switch"]);
    assert!(r.fails(1, &["link", "cut", "switch", "server-0"]).contains("already cut"));
    // Nothing reaches it: it counts as crashed, and the others continue.
    for b in 0..64 {
        c.write(b * 4096, &pattern(b, 2));
    }
    let s = r.status();
    assert_eq!(s["rack"]["links_cut"], serde_json::json!(["switch server-0"]));
    let lost = s["network"].as_array().expect("counters").iter().find(|c| c[0] == "drop_link_cut").cloned();
    assert!(lost.is_some_and(|c| c[1].as_u64() > Some(0)), "{s}");
    let shown = r.ok(&["status"]);
    assert!(shown.contains("switch – server-0 is cut") && shown.contains("dropped: link cut"), "{shown}");
    wait_for("it is seen to be away", || r.status()["servers"][0]["alive"] == false);
    r.ok(&["link", "mend", "server-0", "switch"]);
    wait_for("it is a member again", || waiting(r) == 0);
    // Two that cannot reach each other, but everyone else.
    r.ok(&["link", "cut", "server-1", "server-2"]);
    // Whatever the order of their names.
    assert!(r.fails(1, &["link", "cut", "server-2", "server-1"]).contains("already cut"));
    r.ok(&["link", "mend", "server-2", "server-1"]);
    for b in 0..64 {
        assert!(c.read(b * 4096, 4096) == pattern(b, 2), "block {b}");
    }
    assert_eq!(r.status()["rack"]["links_cut"], serde_json::json!([]));
    // A cut outlives the server's process.
    r.ok(&["link", "cut", "switch", "server-1"]);
    r.ok(&["server", "kill", "1"]);
    let cut = serde_json::json!(["switch server-1"]);
    assert_eq!(r.status()["rack"]["links_cut"], cut, "also while it does not run");
    let before = lost_on_links(&r.status());
    r.ok(&["server", "start", "1"]);
    wait_for("it is cut off as before", || lost_on_links(&r.status()) > before);
    assert_eq!(r.status()["rack"]["links_cut"], cut);
    r.ok(&["link", "mend", "server-1", "switch"]);
    wait_for("it is a member again", || waiting(r) == 0);
    // Mended while it does not run.
    r.ok(&["link", "cut", "switch", "server-1"]);
    r.ok(&["server", "kill", "1"]);
    r.ok(&["link", "mend", "switch", "server-1"]);
    r.ok(&["server", "start", "1"]);
    wait_for("it is a member again", || waiting(r) == 0);
    assert_eq!(r.status()["rack"]["links_cut"], serde_json::json!([]));
}

fn lost_on_links(s: &Value) -> u64 {
    let all = s["network"].as_array().expect("counters");
    all.iter().find(|c| c[0] == "drop_link_cut").map_or(0, |c| c[1].as_u64().expect("a number"))
}

fn removed_does_not_start(r: &Rack, server: &str) {
    r.ok(&["server", "remove", server]);
    wait_for("it has ended", || !r.run(&["server", "kill", server]).status.success());
    let e = r.fails(1, &["server", "start", server]);
    assert!(e.contains(&format!("server {server} was removed")), "{e}");
}

#[test]
fn a_server_that_was_removed_is_not_started() {
    let dir = Temp::new();
    let config = dir.path("rack.toml").display().to_string();
    std::fs::write(&config, "servers_max = 6\n").expect("write");
    let r = Rack::on(dir, &["--config", &config]);
    let e = r.fails(1, &["server", "start", "4"]);
    assert!(e.contains("no server 4") && e.contains("`server add` adds one"), "{e}");
    assert!(!r.data().join("ssd-4.rwk").exists(), "nothing was made for it");
    r.ok(&["server", "add"]);
    removed_does_not_start(&r, "4");
}

#[test]
fn a_process_of_a_server_that_was_removed_is_not_started() {
    let dir = Temp::new();
    let config = dir.path("rack.toml").display().to_string();
    std::fs::write(&config, "[ssd]\nspare = 1\n").expect("write");
    let r = Rack::on(dir, &["--processes", "--config", &config]);
    r.ok(&["server", "drain", "0"]);
    let held = || {
        let all: Value = serde_json::from_str(&r.ok(&["server", "list", "--json"])).expect("JSON");
        all[0]["vssds"].as_u64().zip(all[0]["leaving"].as_u64()).expect("numbers")
    };
    wait_for("it holds nothing", || held() == (0, 0));
    removed_does_not_start(&r, "0");
}

#[test]
fn nothing_gets_through_a_cut_link() {
    cut_and_mend(&Rack::start());
}

#[test]
fn nothing_gets_through_a_cut_link_between_processes() {
    cut_and_mend(&Rack::with(&["--processes"]));
}

#[test]
fn a_limit_holds_at_once_and_over_all_connections_and_is_kept() {
    let mut r = Rack::start();
    r.volume("v", "64M");
    for bad in [["--iops", "fast"], ["--mbps", "-1"]] {
        r.fails(2, &["volume", "set", "v", bad[0], bad[1]]);
    }
    r.fails(2, &["volume", "set", "v"]);
    assert!(r.fails(1, &["volume", "set", "none", "--iops", "1"]).contains("\"none\""));
    let mut two = [r.connect("v"), r.connect("v")];
    r.ok(&["volume", "set", "v", "--iops", "200"]);
    let start = Instant::now();
    for n in 0..150u64 {
        let c = &mut two[n as usize % 2];
        if n % 3 == 0 { drop(c.read(0, 4096)) } else { c.write(n * 4096, &pattern(n, 1)) }
    }
    // 20 at once, 130 in 0.65 s; a busy machine takes longer.
    let took = start.elapsed().as_secs_f64();
    assert!(took > 0.6, "{took} s");
    let v: Value = serde_json::from_str(&r.ok(&["volume", "set", "v", "--mbps", "5", "--json"])).expect("JSON");
    assert_eq!((&v["iops"], &v["bytes_per_s"]), (&200.into(), &5_000_000.into()), "what is not said stays");
    drop(two);
    r.stop();
    r.again();
    assert!(r.ok(&["volume", "list"]).contains("200 IOPS, 5 MB/s"));
    r.ok(&["volume", "set", "v", "--iops", "none"]);
    let mut c = r.connect("v");
    let start = Instant::now();
    for n in 0..24 {
        c.write(n << 17, &vec![7; 1 << 17]);
    }
    // 3,145,728 bytes: half a megabyte at once, then 5 MB/s.
    let took = start.elapsed().as_secs_f64();
    assert!(took > 0.49, "{took} s");
    assert!(r.ok(&["volume", "set", "v", "--mbps", "0"]).contains("none"));
}

#[test]
fn a_watch_reports_events_until_the_rack_ends() {
    let mut r = Rack::start();
    r.volume("v", "64M");
    r.fails(2, &["status", "--every", "1"]);
    r.fails(2, &["status", "--watch", "--every", "0"]);
    let data = r.data().display().to_string();
    let watch = |more: &[&str]| {
        let args: Vec<&str> =
            ["status", "--watch", "--every", "0.2", "--data", &data].iter().chain(more).copied().collect();
        rackweave(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    };
    let (mut lines, plain) = (watch(&["--json"]), watch(&[]));
    let mut c = r.connect("v");
    r.ok(&["server", "kill", "3"]);
    let mut out = BufReader::new(lines.stdout.take().expect("piped"));
    let (mut reads, mut away, mut n) = (0.0, false, 0);
    while reads < 20.0 || !away {
        assert!(n < 400, "{reads} reads, away: {away}");
        (0..10).for_each(|b| drop(c.read(b * 4096, 4096)));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let span: Value = serde_json::from_str(&line).expect("JSON");
        let number = |k: &str| span[k].as_f64().expect("a number");
        reads += number("reads_per_s") * number("interval_s");
        away |= span["away"] == serde_json::json!([3]);
        n += 1;
    }
    // One ends by a signal, as by Ctrl-C; the other with the rack.
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(lines.id() as i32, libc::SIGINT) };
    assert!(lines.wait().expect("ends").success());
    r.stop();
    let plain = plain.wait_with_output().expect("ends");
    let shown = text(&plain.stdout);
    assert!(plain.status.success() && text(&plain.stderr).contains("has ended"), "{plain:?}");
    assert!(shown.contains("reads/s P99") && shown.contains("VSSD"), "{shown}");
}
