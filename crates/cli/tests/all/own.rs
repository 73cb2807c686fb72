//! Volumes with channels and dies of their own.

use std::fs;

use serde_json::Value;

use crate::harness::{Rack, Temp, wait_for};
use crate::nbd::pattern;

const BLOCKS: u64 = 256;

/// Four servers, each with two channels and two dies for volumes alone.
fn start(extra: &[&str]) -> Rack {
    start_with(2, extra)
}

fn start_with(channels: u32, extra: &[&str]) -> Rack {
    start_of(&format!("own_channels = {channels}\nown_dies = 2\n"), "1G", extra)
}

/// With these units for volumes alone.
fn start_of(units: &str, size: &str, extra: &[&str]) -> Rack {
    let dir = Temp::new();
    let file = dir.path("rack.toml");
    fs::write(&file, format!("version = 1\n[ssd]\nprofile = \"femu\"\n{units}")).expect("written");
    let config = file.display().to_string();
    Rack::sized_with(dir, size, &[&["--config", &config], extra].concat())
}

fn own_sets(r: &Rack, volume: &str) -> Vec<Value> {
    let s = r.status();
    s["sets"].as_array().expect("sets").iter().filter(|s| s["volume"] == volume).cloned().collect()
}

fn write_all(r: &Rack, volume: &str) {
    let mut c = r.connect(volume);
    (0..BLOCKS).for_each(|b| c.write(b * 4096, &pattern(b, 1)));
    c.flush();
    check(&mut c);
}

fn check(c: &mut crate::nbd::Client) {
    (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == pattern(b, 1), "block {b}"));
}

fn delete(r: &Rack, volume: &str) {
    wait_for("no client uses it", || r.run(&["volume", "delete", volume]).status.success());
}

/// The command succeeds once the servers have erased what was given back.
fn create_again(r: &Rack, args: &[&str]) {
    wait_for("the units are free again", || r.run(&[&["volume", "create"], args].concat()).status.success());
}

fn life(mut r: Rack) {
    r.volume("shared", "16M");
    r.ok(&["volume", "create", "db", "--size", "16M", "--channels", "2"]);
    assert!(r.ok(&["volume", "list"]).contains("own: 2 channels in 3 replicas"));
    write_all(&r, "db");
    let sets = own_sets(&r, "db");
    assert_eq!(sets.len(), 1, "{sets:?}");
    for set in &sets {
        let mut on: Vec<_> = set["members"].as_array().expect("members").iter().map(|m| m["server"].as_u64()).collect();
        on.sort_unstable();
        on.dedup();
        assert_eq!(on.len(), 3, "{set}");
    }
    // A restart keeps it.
    r.stop();
    r.again();
    check(&mut r.connect("db"));
    assert_eq!(own_sets(&r, "db").len(), 1);
    // Six of the eight channels are taken, two on each of three servers.
    let e = r.fails(1, &["volume", "create", "more", "--size", "1M", "--channels", "1"]);
    assert!(e.contains("1 running servers have 2 channels free") && e.contains("can have 0 channels now"), "{e}");
    let e = r.ok(&["volume", "explain", "--size", "1M", "--channels", "1"]);
    assert!(e.contains("would be refused: 1 channel in 3 replicas") && e.contains("FREE CHANNELS"), "{e}");
    let e = r.ok(&["volume", "explain", "--size", "1M", "--dies", "1", "--json"]);
    let e: Value = serde_json::from_str(&e).expect("JSON");
    let mut free: Vec<_> = e["servers"].as_array().expect("servers").iter().map(|s| s["channels"].as_u64()).collect();
    free.sort_unstable();
    assert_eq!((&e["refused"], free), (&Value::Null, vec![Some(0), Some(0), Some(0), Some(2)]));
    let named = |args: &[&str], why: &str| {
        let e = r.fails(1, &[&["volume", "explain", "--size", "1M"], args].concat());
        assert!(e.contains(why), "{args:?}: {e}");
    };
    named(&["--bandwidth", "5"], "channels have levels 0 to 4");
    named(&["--bandwidth", "7", "--isolation", "die"], "dies have levels 0 to 6");
    named(&["--bandwidth", "7", "--isolation", "software"], "software-isolated dies have levels 0 to 6");
    named(&["--bandwidth", "0", "--isolation", "none"], "nothing limits such virtual SSDs");
    named(&["--bandwidth", "9", "--isolation", "soft-plane"], "soft-planes have levels 0 to 8");
    let e = r.ok(&["volume", "explain", "--size", "1M", "--bandwidth", "1", "--isolation", "soft-plane"]);
    assert!(e.contains("2 soft-planes in 3 replicas each: the rack has set aside 0 soft-planes"), "{e}");
    let e = r.ok(&["volume", "explain", "--size", "1M", "--bandwidth", "2", "--isolation", "software"]);
    assert!(e.contains("would be refused: 4 software-isolated dies in 3 replicas"), "{e}");
    let e = r.ok(&["volume", "explain", "--size", "1M", "--bandwidth", "1", "--isolation", "die", "--replicas", "2"]);
    assert!(!e.contains("would be refused"), "{e}");
    let e = r.ok(&["volume", "explain", "--size", "1M", "--bandwidth", "2"]);
    assert!(e.contains("would be refused: 4 channels in 3 replicas"), "{e}");
    // A vSSD moves to a free unit of the same kind.
    let old = sets[0]["members"][0].clone();
    r.ok(&["server", "move", &old["vssd"].to_string()]);
    wait_for("its new copy has everything", || {
        let members = own_sets(&r, "db")[0]["members"].as_array().expect("members").clone();
        members.len() == 3 && members.iter().all(|m| m["role"] == "member" && m["server"] != old["server"])
    });
    check(&mut r.connect("db"));
    let one = ["dies", "--size", "1M", "--dies", "2", "--replicas", "2"];
    r.ok(&[&["volume", "create"][..], &one].concat());
    write_all(&r, "dies");
    // What was deleted comes back erased.
    for (volume, args) in [("db", &["db", "--size", "16M", "--channels", "2"][..]), ("dies", &one)] {
        delete(&r, volume);
        create_again(&r, args);
        let mut c = r.connect(volume);
        (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == vec![0; 4096], "block {b} of {volume}"));
        drop(c);
        write_all(&r, volume);
    }
    r.stop();
    r.again();
    check(&mut r.connect("db"));
    check(&mut r.connect("dies"));
}

#[test]
fn a_volume_with_units_of_its_own_is_kept_and_its_units_come_back_erased() {
    life(start(&[]));
}

#[test]
fn a_volume_with_units_of_its_own_between_processes() {
    life(start(&["--processes"]));
}

fn named<'a>(all: &'a Value, name: &str) -> &'a Value {
    all.as_array().expect("a list").iter().find(|v| v["name"] == name).expect("that volume")
}

fn vssds<'a>(s: &'a Value, volume: Option<&'a str>) -> Vec<&'a Value> {
    let all = s["servers"].as_array().expect("servers").iter().flat_map(|s| s["vssds"].as_array().expect("vSSDs"));
    all.filter(|v| v["volume"].as_str() == volume).collect()
}

fn sum(all: &[&Value], kind: &str) -> u64 {
    all.iter().map(|v| v[kind]["count"].as_u64().expect("a count")).sum()
}

/// Each volume shows its own requests, and each vSSD what it answered itself.
fn numbers(mut r: Rack) {
    r.ok(&["volume", "create", "db", "--size", "16M", "--channels", "2"]);
    r.volume("shared", "16M");
    write_all(&r, "db");
    let mut c = r.connect("shared");
    (0..32).for_each(|b| c.write(b * 4096, &pattern(b, 1)));
    c.flush();
    drop(c);
    let s = r.status();
    for (volume, writes, reads) in [("db", BLOCKS, BLOCKS), ("shared", 32, 0)] {
        let clients = &named(&s["volumes"], volume)["clients"];
        assert_eq!(
            (&clients["writes"]["count"], &clients["reads"]["count"]),
            (&writes.into(), &reads.into()),
            "{volume}"
        );
        let w = &clients["writes"];
        let us = ["p50_us", "p99_us", "p999_us", "max_us"].map(|p| w[p].as_f64().expect("a number"));
        assert!(us[0] > 0.0 && us.is_sorted(), "{w}");
        let of = vssds(&s, Some(volume).filter(|v| *v == "db"));
        assert_eq!((sum(&of, "writes"), sum(&of, "reads")), (writes, reads), "{volume}");
    }
    let own = vssds(&s, Some("db"));
    assert_eq!(own.len(), 3);
    for v in &own {
        let units = ["channels", "dies"].map(|u| v[u].as_array().expect("units").len());
        assert!(v["isolation"] == "channel" && units[0] == 2 && units[1] > 2, "{v}");
        assert_eq!(v["serving"], true, "{v}");
    }
    let sums = &named(&s["volumes"], "db")["own_vssds"];
    assert_eq!((&sums["vssds"], &sums["serving"], &sums["writes"]), (&3.into(), &3.into(), &BLOCKS.into()));
    let number = |v: &Value| v.as_f64().expect("a number");
    let host: f64 = own.iter().map(|v| number(&v["host_slots"])).sum();
    assert!(number(&sums["host_slots"]) == host && host >= 3.0 * BLOCKS as f64, "{sums}");
    assert!(number(&sums["waf"]) >= 1.0, "{sums}");
    assert!(named(&s["volumes"], "shared").get("own_vssds").is_none());
    // The rack's space is that of the shared sets.
    let rack = &s["rack"];
    assert_eq!((&rack["own_promised"], &rack["promised"]), (&(16 << 20).into(), &(16 << 20).into()));
    assert!(number(&rack["own_capacity"]) > 0.0 && number(&rack["own_room"]) <= f64::from(16 << 20), "{rack}");
    let shown = r.ok(&["volume", "info", "db"]);
    assert!(shown.contains("OWN VSSDS") && shown.contains("P99.9"), "{shown}");
    assert!(r.ok(&["status"]).contains("volumes on units of their own: 16 MiB"));
    // A restart recovers what is on flash, and counts anew.
    r.stop();
    r.again();
    let s = r.status();
    let own = vssds(&s, Some("db"));
    assert!(own.len() == 3 && own.iter().all(|v| number(&v["recovery_ms"]) > 0.0), "{own:?}");
    assert_eq!((sum(&own, "writes"), sum(&own, "reads")), (0, 0));
    check(&mut r.connect("db"));
    assert_eq!(sum(&vssds(&r.status(), Some("db")), "reads"), BLOCKS);
}

#[test]
fn each_tenants_numbers_are_its_own() {
    numbers(start(&[]));
}

#[test]
fn each_tenants_numbers_are_its_own_between_processes() {
    numbers(start(&["--processes"]));
}

#[test]
fn a_deleted_volumes_units_come_back_although_its_servers_and_the_rack_crash() {
    let mut r = start(&[]);
    let args = ["db", "--size", "16M", "--channels", "2", "--replicas", "4"];
    r.ok(&[&["volume", "create"][..], &args].concat());
    write_all(&r, "db");
    delete(&r, "db");
    r.kill();
    r.again();
    create_again(&r, &args);
    let mut c = r.connect("db");
    (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == vec![0; 4096], "block {b}"));
}

#[test]
fn what_units_of_its_own_cannot_be_is_refused_with_its_numbers() {
    let r = start(&[]);
    let create = |args: &[&'static str]| [&["volume", "create", "v", "--size"], args].concat();
    for (args, words) in [
        (create(&["1M", "--channels", "3"]), ["3 channels in 3 replicas", "set aside 8 channels", "ssd.own_channels"]),
        (
            create(&["1M", "--channels", "5", "--replicas", "2"]),
            ["5 channels in 2 replicas", "8 channels", "each server"],
        ),
        (create(&["1M", "--dies", "1", "--replicas", "1"]), ["1 replicas", "2 (min_copies)", "4"]),
        (create(&["1M", "--dies", "1", "--replicas", "5"]), ["5 replicas", "2 (min_copies)", "4"]),
        (create(&["4G", "--dies", "2"]), ["size 4294967296", "2 dies", "can hold"]),
        (create(&["1M", "--replicas", "2"]), ["--replicas 2", "--channels", "--dies"]),
        (create(&["1M", "--channels", "2", "--isolation", "die"]), ["--isolation die", "--channels 2", "leave"]),
        (create(&["1M", "--dies", "1", "--isolation", "none"]), ["--isolation none", "--dies 1", "nothing limits"]),
        (
            create(&["1M", "--channels", "1", "--isolation", "software"]),
            ["--isolation software", "--channels 1", "leave"],
        ),
        (
            create(&["1M", "--dies", "3", "--isolation", "software"]),
            ["3 software-isolated dies in 3 replicas", "0 software-isolated dies", "ssd.own_software_dies"],
        ),
        (
            create(&["1M", "--isolation", "soft-plane"]),
            ["--isolation soft-plane", "--soft-planes", "shared sets have no"],
        ),
        (create(&["1M", "--isolation", "soft-plane", "--dies", "1"]), ["--isolation soft-plane", "--dies 1", "leave"]),
        (create(&["1M", "--isolation", "software", "--soft-planes", "1"]), ["software", "--soft-planes 1", "leave"]),
        (
            create(&["1M", "--soft-planes", "1"]),
            ["1 soft-plane in 3", "set aside 0 soft-planes", "ssd.own_soft_planes"],
        ),
        (create(&["1M", "--isolation", "software"]), ["isolation software", "no replica sets", "ssd.isolation"]),
    ] {
        let e = r.fails(1, &args);
        assert!(words.iter().all(|w| e.contains(w)), "{args:?}: {e}");
    }
    for args in [
        create(&["1M", "--channels", "1", "--dies", "1"]),
        create(&["1M", "--channels", "1", "--shared"]),
        create(&["1M", "--dies", "1", "--soft-planes", "1"]),
        create(&["1M", "--channels", "0"]),
    ] {
        r.fails(2, &args);
    }
    let e = r.fails(2, &create(&["1M", "--isolation", "low"]));
    assert!(e.contains("'low'") && e.contains("channel, die, software, soft-plane and none"), "{e}");
    assert!(r.ok(&["volume", "list"]).contains("no volumes"));
    // The level may be named with its units, and sharing with nothing.
    for args in [&["v", "--size", "1M", "--isolation", "die", "--dies", "1"][..], &["w", "--size", "1M", "--shared"]] {
        r.ok(&[&["volume", "create"], args].concat());
    }
    let list = r.ok(&["volume", "list"]);
    assert!(list.contains("own: 1 die in 3 replicas"), "{list}");
    let e = Rack::start().fails(1, &create(&["1M", "--dies", "1"]));
    assert!(e.contains("set aside 0 dies") && e.contains("ssd.own_dies"), "{e}");
}

/// Two volumes on software-isolated dies share a channel group with each other alone, and keep their contents through a kill.
fn shared_by_choice(mut r: Rack) {
    let software =
        |v| ["volume", "create", v, "--size", "4M", "--isolation", "software", "--dies", "1", "--replicas", "4"];
    r.volume("shared", "16M");
    for v in ["one", "two"] {
        let shown = r.ok(&software(v));
        assert!(shown.contains("own: 1 software-isolated die in 4 replicas"), "{shown}");
        write_all(&r, v);
    }
    let e = r.fails(1, &software("three"));
    assert!(
        e.contains("4 running servers have 0 software-isolated dies free") || e.contains("0 running servers"),
        "{e}"
    );
    let group_of = |volume: Option<&str>| {
        let s = r.status();
        let groups: Vec<Value> = vssds(&s, volume).iter().map(|v| v["group"].clone()).collect();
        groups
    };
    let (one, two, others) = (group_of(Some("one")), group_of(Some("two")), group_of(None));
    assert!(one == two && one.len() == 4 && one.iter().all(|g| *g == one[0] && !g.is_null()), "{one:?} {two:?}");
    assert!(others.iter().all(|g| *g != one[0]), "{others:?}");
    let e = r.fails(1, &["volume", "set", "one", "--dies", "2"]);
    assert!(e.contains("software-isolated dies of its own: neither their number nor their kind can change"), "{e}");
    r.kill();
    r.again();
    ["one", "two"].iter().for_each(|v| check(&mut r.connect(v)));
    delete(&r, "one");
    create_again(&r, &software("three")[2..]);
    let mut c = r.connect("three");
    (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == vec![0; 4096], "block {b}"));
    check(&mut r.connect("two"));
}

/// Volumes on soft-planes share a die, and keep their contents through a kill.
#[test]
fn volumes_on_soft_planes_share_a_die() {
    let mut r = start_of("own_soft_planes = 4\n", "4G", &[]);
    for (v, planes) in [("one", "1"), ("two", "2")] {
        let shown = r.ok(&["volume", "create", v, "--size", "1M", "--soft-planes", planes, "--replicas", "4"]);
        assert!(shown.contains(&format!("own: {planes} soft-plane")), "{shown}");
        write_all(&r, v);
    }
    let s = r.status();
    let dies: Vec<Value> = ["one", "two"].iter().flat_map(|v| vssds(&s, Some(v))).map(|v| v["dies"].clone()).collect();
    assert!(dies.len() == 12 && dies.iter().all(|d| *d == dies[0]), "{dies:?}");
    assert_eq!(named(&s["volumes"], "two")["isolation"], "soft-plane");
    let e = r.fails(1, &["volume", "create", "three", "--size", "1M", "--isolation", "soft-plane", "--bandwidth", "1"]);
    assert!(e.contains("2 soft-planes in 3 replicas") && e.contains("have 4 soft-planes free"), "{e}");
    r.kill();
    r.again();
    ["one", "two"].iter().for_each(|v| check(&mut r.connect(v)));
    delete(&r, "two");
    create_again(&r, &["three", "--size", "1M", "--soft-planes", "3", "--replicas", "4"]);
    let mut c = r.connect("three");
    (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == vec![0; 4096], "block {b}"));
    check(&mut r.connect("one"));
}

#[test]
fn volumes_that_choose_so_share_channels_with_each_other_alone() {
    shared_by_choice(start_of("own_software_dies = 2\n", "1G", &[]));
}

/// Each drive's log vSSD has a store without a set, before and after a restart.
#[test]
fn status_shows_the_stores_of_keys_on_log_vssds() {
    let dir = Temp::new();
    let file = dir.path("rack.toml");
    fs::write(&file, "version = 1\n[ssd]\nprofile = \"femu\"\n[kv]\nreplicas = 3\nchannels = 1\n").expect("written");
    let mut r = Rack::sized_with(dir, "1G", &["--config", &file.display().to_string()]);
    for _ in 0..2 {
        let shown = r.ok(&["status"]);
        let (_, stores) = shown.split_once("LOG VSSD").expect("a table of stores");
        let rows = stores.lines().skip(1).take_while(|l| !l.trim().is_empty()).count();
        assert_eq!(rows, 4, "one on each server: {shown}");
        let logs = shown.lines().filter(|l| l.contains(" log ")).inspect(|l| assert!(l.contains(" – "), "{l}"));
        assert_eq!((logs.count(), shown.matches(" keys ").count()), (4, 8), "{shown}");
        r.stop();
        r.again();
    }
}

/// Channels of each of the volume's vSSDs that serve; none while their number changes.
fn channels(r: &Rack, volume: &str) -> Option<Vec<usize>> {
    let s = r.status();
    let shown = named(&s["volumes"], volume).get("own_change").is_some();
    let own = vssds(&s, Some(volume));
    let all = own.iter().map(|v| v["channels"].as_array().expect("channels").len()).collect();
    (!shown && own.len() == 3 && own.iter().all(|v| v["serving"] == true)).then_some(all)
}

/// A volume gets more channels, then fewer, while a client writes and reads, and keeps them through a crash.
fn resized(mut r: Rack) {
    r.ok(&["volume", "create", "db", "--size", "16M", "--channels", "1"]);
    write_all(&r, "db");
    for (round, count) in [(2, 2), (3, 1)] {
        let units = count.to_string();
        let shown = r.ok(&["volume", "set", "db", "--channels", &units]);
        assert!(shown.contains(&format!("own: {units} channel")), "{shown}");
        let mut c = r.connect("db");
        wait_for("its vSSDs have the channels", || {
            (0..BLOCKS).for_each(|b| c.write(b * 4096, &pattern(b, round)));
            (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == pattern(b, round), "block {b}"));
            channels(&r, "db") == Some(vec![count; 3])
        });
        c.flush();
        drop(c);
        r.kill();
        r.again();
        wait_for("the rack serves", || channels(&r, "db") == Some(vec![count; 3]));
        let mut c = r.connect("db");
        (0..BLOCKS).for_each(|b| assert!(c.read(b * 4096, 4096) == pattern(b, round), "block {b}"));
    }
    let refused = |args: &[&str], why: &str| {
        let e = r.fails(1, &[&["volume", "set", "db"], args].concat());
        assert!(e.contains(why), "{args:?}: {e}");
    };
    refused(&["--channels", "1"], "has 1 channel already");
    refused(&["--channels", "9"], "at most 3, not 9");
    refused(&["--channels", "3"], "each copy needs 3 channels side by side");
    refused(&["--dies", "1"], "has channels of its own");
    r.volume("shared", "16M");
    assert!(r.fails(1, &["volume", "set", "shared", "--channels", "2"]).contains("has no units of its own"));
    assert!(r.fails(2, &["volume", "set", "db", "--channels", "2", "--iops", "9"]).contains("cannot be used with"));
}

#[test]
fn a_volume_gets_another_number_of_channels_while_it_serves() {
    resized(start_with(3, &[]));
}

#[test]
fn a_volume_gets_another_number_of_channels_between_processes() {
    resized(start_with(3, &["--processes"]));
}
