//! A rack on hosts in network namespaces, with the switch in its process and in the kernel.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

use rackweave_dataplane::KernelSwitch;
use rackweave_dataplane::netns::Namespace;
use serde_json::Value;

use crate::harness::{Rack, Temp, rackweave, text, wait_for};
use crate::nbd::{Client, pattern};

const BLOCKS: u64 = 64;

pub fn skip(name: &str) -> bool {
    let missing = KernelSwitch::unavailable().or_else(|| match Namespace::new() {
        Err(e) => Some(format!("no network namespaces: {e}")),
        Ok(n) => ["ip -V", "ethtool --version"].into_iter().find_map(|tool| n.sh(tool).err().map(|e| e.to_string())),
    });
    if let Some(why) = &missing {
        println!("SKIP {name}: {why}");
    }
    missing.is_some()
}

fn signal(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: a signal to our child, or a child of it.
    unsafe { libc::kill(pid, signal) };
}

fn pid_of(r: &Rack, name: &str) -> i32 {
    let s = r.status();
    let all = s["processes"].as_array().expect("processes");
    all.iter().find(|p| p["name"] == name).and_then(|p| p["pid"].as_i64()).expect("there") as i32
}

fn counter(status: &Value, name: &str) -> u64 {
    let all = status["switch"]["counters"].as_array().expect("counters");
    all.iter().find(|c| c[0] == name).map_or(0, |c| c[1].as_u64().expect("count"))
}

fn write_all(c: &mut Client, version: u64) {
    (0..BLOCKS).for_each(|b| c.write(b * 4096, &pattern(b, version)));
}
fn check_all(c: &mut Client, version: u64) {
    for b in 0..BLOCKS {
        assert!(c.read(b * 4096, 4096) == pattern(b, version), "block {b}, version {version}");
    }
}

/// The namespace with this name in a running rack.
fn namespace(r: &Rack, name: &str) -> Namespace {
    let listed = fs::read_to_string(r.data().join("namespaces")).expect("listed");
    let path = listed.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')).expect("named");
    Namespace::open(Path::new(path)).expect("open")
}

/// The default policy, on each data plane. A read of a megabyte is 16 messages to 4 sets at once: of the 4 for a set two
/// name the same of its 3 replicas. The policy changes while packets pass.
fn reads_go_by_load(r: &Rack, c: &mut Client) {
    let mut balanced = |redirect: &str| {
        let before = r.status();
        assert_eq!(before["switch"]["redirect"], redirect);
        (0..20).for_each(|_| assert!(c.read(0, 1 << 20)[..4096] == pattern(0, 1)));
        counter(&r.status(), "balanced") - counter(&before, "balanced")
    };
    assert!(balanced("load") > 0);
    r.ok(&["policy", "set", "rackblox"]);
    assert_eq!(balanced("gc"), 0);
    r.ok(&["policy", "set", "rackweave"]);
    assert!(balanced("load") > 0);
}

fn serves_and_goes_on(data_plane: &str) {
    let r = Rack::with(&["--netns", "--data-plane", data_plane]);
    r.volume("v", "16M");
    let mut c = r.connect("v");
    write_all(&mut c, 1);
    check_all(&mut c, 1);
    let s = r.status();
    assert_eq!((&s["switch"]["data_plane"], &s["switch"]["rows"]), (&data_plane.into(), &12.into()), "{}", s["switch"]);
    assert!(counter(&s, "reads") >= BLOCKS && counter(&s, "writes") >= BLOCKS, "{}", s["switch"]);
    // Heartbeats of every vSSD are answered, so their tags were valid; those sent before their rows had no key yet.
    let early = counter(&s, "drop_bad_mac");
    let before = counter(&s, "gc_idles");
    wait_for("every vSSD is heard", || counter(&r.status(), "gc_idles") >= before + 24);
    assert_eq!(counter(&r.status(), "drop_bad_mac"), early);
    // Until then reads go where they were sent.
    reads_go_by_load(&r, &mut c);

    let before = pid_of(&r, "switch");
    signal(before, libc::SIGKILL);
    write_all(&mut c, 2);
    check_all(&mut c, 2);
    wait_for("another switch's process", || !matches!(pid_of(&r, "switch"), 0) && pid_of(&r, "switch") != before);
    // One of two links to the second rack.
    let switch = namespace(&r, "switch");
    switch.sh("ip link set u0 down").expect("cut");
    write_all(&mut c, 3);
    check_all(&mut c, 3);
    switch.sh("ip link set u0 up").expect("mended");
    write_all(&mut c, 4);
    check_all(&mut c, 4);
    if data_plane != "process" {
        wait_for("the link is seen", || {
            let s = r.status();
            s["switch"]["interfaces"].as_array().is_some_and(|all| all.len() == 6 && all.iter().all(|i| i[1] == "up"))
        });
    }
}

/// A volume goes from one gateway to another and back while the data plane serves both.
fn two_gateways_serve(data_plane: &str) {
    let r = Rack::with(&["--netns", "--data-plane", data_plane, "--gateways", "2"]);
    let far = || r.dir.path("data/gateway-1/nbd.sock");
    r.volume("v", "16M");
    r.volume("w", "16M");
    let mut near = r.connect("v");
    write_all(&mut near, 1);
    let mut other = Client::connect(&far(), "w");
    write_all(&mut other, 2);
    check_all(&mut near, 1);
    drop(near);
    let mut taken = Client::connect(&far(), "v");
    check_all(&mut taken, 1);
    write_all(&mut taken, 3);
    drop((taken, other));
    check_all(&mut r.connect("v"), 3);
    check_all(&mut r.connect("w"), 2);
}

#[test]
fn netns_tc_serves_two_gateways() {
    if !skip("netns_tc_serves_two_gateways") {
        two_gateways_serve("tc");
    }
}

#[test]
fn netns_xdp_serves_two_gateways() {
    if !skip("netns_xdp_serves_two_gateways") {
        two_gateways_serve("xdp");
    }
}

#[test]
fn netns_process_serves_and_goes_on() {
    if !skip("netns_process_serves_and_goes_on") {
        serves_and_goes_on("process");
    }
}

#[test]
fn netns_tc_serves_and_goes_on() {
    if !skip("netns_tc_serves_and_goes_on") {
        serves_and_goes_on("tc");
    }
}

#[test]
fn netns_xdp_serves_and_goes_on() {
    if !skip("netns_xdp_serves_and_goes_on") {
        serves_and_goes_on("xdp");
    }
}

/// The cluster key changes while reads, writes and `gc_op`s pass the kernel programs: none of them is refused.
fn the_key_changes(data_plane: &str) {
    let r = Rack::with(&["--netns", "--data-plane", data_plane]);
    r.volume("v", "16M");
    let mut c = r.connect("v");
    write_all(&mut c, 1);
    let idles = |r: &Rack| counter(&r.status(), "gc_idles");
    let heard = idles(&r);
    wait_for("every vSSD is heard", || idles(&r) >= heard + 24);
    let before = r.status();
    for round in 2..5 {
        let data = r.data().display().to_string();
        let mut rotate = rackweave(&["keys", "rotate", "--data", &data]).spawn().expect("spawns");
        let ended = loop {
            write_all(&mut c, round);
            check_all(&mut c, round);
            if let Some(ended) = rotate.try_wait().expect("wait") {
                break ended;
            }
        };
        assert!(ended.success(), "{ended}");
        let s = r.status();
        let switch = s["processes"].as_array().expect("all").iter().find(|p| p["name"] == "switch").expect("switch");
        assert_eq!(switch["keys"], serde_json::json!([round]), "{switch}");
        // Heartbeats under the new key only.
        let heard = counter(&s, "gc_idles");
        wait_for("every vSSD is heard", || idles(&r) >= heard + 24);
    }
    let after = r.status();
    for name in ["drop_bad_mac", "drop_bad_checksum"] {
        assert_eq!(counter(&after, name), counter(&before, name), "{name}: {}", after["switch"]);
    }
    assert_eq!(after["switch"]["error"], Value::Null);
    // A server that starts now has only the new key.
    signal(pid_of(&r, "server-1"), libc::SIGKILL);
    wait_for("server-1 serves again", || {
        let s = r.status();
        let vssds = s["servers"][1]["vssds"].as_array().cloned().unwrap_or_default();
        vssds.len() == 3 && vssds.iter().all(|v| v["serving"] == true)
    });
    let heard = idles(&r);
    wait_for("every vSSD is heard", || idles(&r) >= heard + 24);
    check_all(&mut c, 4);
}

#[test]
fn netns_tc_goes_on_while_the_key_changes() {
    if !skip("netns_tc_goes_on_while_the_key_changes") {
        the_key_changes("tc");
    }
}

#[test]
fn netns_xdp_goes_on_while_the_key_changes() {
    if !skip("netns_xdp_goes_on_while_the_key_changes") {
        the_key_changes("xdp");
    }
}

#[test]
fn netns_programs_go_with_a_killed_process() {
    if skip("netns_programs_go_with_a_killed_process") {
        return;
    }
    let mut r = Rack::with(&["--netns", "--data-plane", "tc"]);
    let switch = namespace(&r, "switch");
    let attached = || switch.run(|| KernelSwitch::attached("p2")).expect("thread").expect("query");
    assert_eq!(attached(), 1);
    // It is not restarted meanwhile.
    signal(r.pid(), libc::SIGSTOP);
    let all = r.status();
    signal(pid_of(&r, "switch"), libc::SIGKILL);
    wait_for("nothing is attached", || attached() == 0);
    signal(r.pid(), libc::SIGCONT);
    wait_for("it is started again and attached", || attached() == 1);
    // The whole rack: none of its processes is left, and its namespaces end with the last descriptor.
    r.kill();
    drop(switch);
    let pids = all["processes"].as_array().expect("all").iter().filter_map(|p| p["pid"].as_i64());
    for pid in pids {
        wait_for("it ends", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }
    r.again();
    assert_eq!(r.status()["switch"]["data_plane"], "tc");
}

fn refused(args: &[&str], user: Option<u32>) -> String {
    let mut c = rackweave(args);
    if let Some(user) = user {
        c.uid(user).gid(user);
    }
    let o = c.output().expect("runs");
    assert_eq!(o.status.code(), Some(1), "{args:?}: {}", text(&o.stdout));
    text(&o.stderr)
}

#[test]
fn netns_what_cannot_run_is_said() {
    let name = "netns_what_cannot_run_is_said";
    if skip(name) {
        return;
    }
    const NOBODY: u32 = 65_534;
    let dir = Temp::new();
    fs::set_permissions(&dir.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
    let data = dir.path("data").display().to_string();
    let e = refused(&["up", "--netns", "--nbd", "127.0.0.1:0", "--data", &data], None);
    assert!(e.contains("--nbd 127.0.0.1:0") && e.contains("unix:PATH"), "{e}");
    let (config, key) = (dir.path("rack.toml"), dir.path("k"));
    fs::write(
        &config,
        "servers = 3\n[hosts]\nmeta = \"10.0.0.1:21079\"\nswitch = \"10.0.0.2:21079\"\n\
         servers = [\"10.0.0.3:21079\", \"10.0.0.4:21079\", \"10.0.0.5:21079\"]\ngateways = [\"10.0.0.6:21079\"]\n\
         key_file = \"k/cluster.key\"\n[[switch.ports]]\ninterfaces = [\"rw-none\"]\n\
         nodes = [\"server-0\", \"server-1\", \"server-2\", \"gateway-0\"]\n",
    )
    .expect("write");
    assert!(rackweave(&["keys", "init", &key.display().to_string()]).status().expect("runs").success());
    let config = config.display().to_string();
    let switch = |user, plane| {
        let data = dir.path(&format!("data-{user:?}")).display().to_string();
        refused(&["node", "switch", "--data-plane", plane, "--config", &config, "--data", &data], user)
    };
    for plane in ["tc", "xdp"] {
        let e = switch(None, plane);
        assert!(e.contains(&format!("({plane})")) && e.contains("\"rw-none\" of switch.ports"), "{e}");
    }
    for owned in [key.clone(), key.join("cluster.key")] {
        std::os::unix::fs::chown(&owned, Some(NOBODY), None).expect("chown");
    }
    // Without root there is no BPF; the program must be where others can read it.
    let program = Path::new(env!("CARGO_BIN_EXE_rackweave"));
    if fs::metadata(program).is_ok() && std::process::Command::new(program).uid(NOBODY).arg("version").output().is_ok()
    {
        let e = switch(Some(NOBODY), "tc");
        assert!(e.contains("needs root, or CAP_BPF"), "{e}");
        let data = dir.path("data-nobody").display().to_string();
        let e = refused(&["up", "--netns", "--data", &data], Some(NOBODY));
        assert!(e.contains("network namespaces") && e.contains("need root"), "{e}");
    }
}
