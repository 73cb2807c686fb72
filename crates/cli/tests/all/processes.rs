//! A process per node: its operation, and the effects of killed processes.

use std::fs;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Rack, Temp, rackweave, text, wait_for};
use crate::nbd::{Client, pattern};

const BLOCKS: u64 = 256;

fn start() -> Rack {
    Rack::with(&["--processes"])
}

pub fn pid_of(status: &Value, name: &str) -> i32 {
    let all = status["processes"].as_array().expect("processes");
    let p = all.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no {name} in {all:?}"));
    p["pid"].as_i64().expect("pid") as i32
}

pub fn signal(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: a signal to a child of our child.
    unsafe { libc::kill(pid, signal) };
}

fn kill(r: &Rack, name: &str) -> i32 {
    let pid = pid_of(&r.status(), name);
    signal(pid, libc::SIGKILL);
    pid
}

/// The node runs in another process than `before`.
fn wait_for_another(r: &Rack, name: &str, before: i32) {
    wait_for(&format!("{name} is started again"), || {
        !matches!(pid_of(&r.status(), name), 0 | 1) && pid_of(&r.status(), name) != before
    });
}

/// Every vSSD of every set serves.
pub fn wait_for_all_members(r: &Rack) {
    wait_for("all replicas serve", || {
        let s = r.status();
        let servers = s["servers"].as_array().expect("servers");
        let vssds = || servers.iter().filter_map(|s| s["vssds"].as_array()).flatten();
        vssds().count() == 12 && vssds().all(|v| v["serving"] == true)
    });
}

#[test]
fn a_volume_goes_from_one_gateway_to_another() {
    let mut r = Rack::with(&["--processes", "--gateways", "2"]);
    r.volume("v", "16M");
    write_all(&mut r.connect("v"), 1);
    let other = r.dir.path("data/gateway-1/nbd.sock");
    let mut c = Client::connect(&other, "v");
    check_all(&mut c, 1);
    write_all(&mut c, 2);
    c.flush();
    drop(c);
    check_all(&mut r.connect("v"), 2);
    assert_eq!(r.status()["rack"]["nbd"].as_array().map(Vec::len), Some(2));
    // One text has the metrics of every process.
    let metrics = r.ok(&["status", "--metrics"]);
    for of in [
        "rackweave_vssd_serving{server=\"3\"",
        "rackweave_network_sockets{process=\"gateway-1\"}",
        "{process=\"meta\"}",
    ] {
        assert!(metrics.contains(of), "{of}: {metrics}");
    }
    // A run with more gateways left its directory: nothing waits for it.
    r.stop();
    fs::create_dir(r.data().join("gateway-7")).expect("made");
    r.again();
    check_all(&mut Client::connect(&other, "v"), 2);
}

fn write_all(c: &mut Client, version: u64) {
    (0..BLOCKS).for_each(|b| c.write(b * 4096, &pattern(b, version)));
}

fn check_all(c: &mut Client, version: u64) {
    for b in 0..BLOCKS {
        assert!(c.read(b * 4096, 4096) == pattern(b, version), "block {b}, version {version}");
    }
}

#[test]
fn processes_serve_a_volume_and_go_on_without_any_one_of_them() {
    let mut r = start();
    assert!(r.printed.contains("7 processes"), "{}", r.printed);
    r.volume("v", "64M");
    let mut c = r.connect("v");
    write_all(&mut c, 1);
    // Larger than a message, and than a datagram.
    let large: Vec<u8> = (0..256u64).flat_map(|b| pattern(b, 7)).collect();
    c.write(32 << 20, &large);
    c.flush();
    check_all(&mut c, 1);
    assert!(c.read(32 << 20, large.len() as u32) == large);

    // A server: the other two of each set continue, and it is filled when it is back.
    let before = kill(&r, "server-1");
    write_all(&mut c, 2);
    check_all(&mut c, 2);
    wait_for_another(&r, "server-1", before);
    wait_for_all_members(&r);
    // If it had not been filled, a set would now have one copy and writes would wait forever.
    kill(&r, "server-2");
    write_all(&mut c, 3);
    check_all(&mut c, 3);
    wait_for_all_members(&r);

    // The switch: messages to it are retransmitted.
    let before = kill(&r, "switch");
    write_all(&mut c, 4);
    check_all(&mut c, 4);
    wait_for_another(&r, "switch", before);

    // The metadata service: leases expire, and are renewed.
    let before = kill(&r, "meta");
    wait_for_another(&r, "meta", before);
    write_all(&mut c, 5);
    check_all(&mut c, 5);
    assert!(r.ok(&["volume", "list"]).contains('v'));

    // The gateway: its clients have to reconnect, and find their acknowledged writes.
    let before = kill(&r, "gateway-0");
    wait_for_another(&r, "gateway-0", before);
    let mut c = r.connect("v");
    check_all(&mut c, 5);
    write_all(&mut c, 6);
    r.stop();
    assert!(!r.socket().exists(), "the socket goes with the rack");
    r.again();
    check_all(&mut r.connect("v"), 6);
}

#[test]
fn a_server_that_stood_still_serves_nothing_old() {
    let r = start();
    r.volume("v", "16M");
    let mut c = r.connect("v");
    write_all(&mut c, 1);
    let pid = pid_of(&r.status(), "server-0");
    signal(pid, libc::SIGSTOP);
    write_all(&mut c, 2);
    signal(pid, libc::SIGCONT);
    check_all(&mut c, 2);
    wait_for_all_members(&r);
    check_all(&mut c, 2);
    assert_eq!(pid_of(&r.status(), "server-0"), pid, "it was not started again");
}

#[test]
fn status_names_nodes_that_do_not_answer() {
    let r = start();
    let s = r.status();
    assert_eq!(s["processes"].as_array().expect("processes").len(), 7);
    assert_eq!(s["sets"].as_array().expect("sets").len(), 4);
    assert!(!s["network"].as_array().expect("counts").is_empty());
    let pid = pid_of(&s, "server-3");
    signal(pid, libc::SIGSTOP);
    let s = r.status();
    let all = s["processes"].as_array().expect("processes");
    let silent: Vec<&Value> = all.iter().filter(|p| !p["error"].is_null()).collect();
    assert!(silent.len() == 1 && silent[0]["name"] == "server-3", "{all:?}");
    assert!(r.ok(&["status"]).contains("server-3"));
    signal(pid, libc::SIGCONT);
}

#[test]
fn processes_end_with_the_one_that_started_them() {
    let mut r = start();
    r.volume("v", "16M");
    let mut c = r.connect("v");
    write_all(&mut c, 1);
    c.flush();
    let s = r.status();
    let pids: Vec<i64> = s["processes"].as_array().expect("all").iter().filter_map(|p| p["pid"].as_i64()).collect();
    r.kill();
    wait_for("all processes end", || {
        pids.iter().all(|p| {
            let stat = fs::read_to_string(format!("/proc/{p}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        })
    });
    r.again();
    check_all(&mut r.connect("v"), 1);
}

fn refused(args: &[&str]) -> String {
    let o = rackweave(args).output().expect("runs");
    assert_eq!(o.status.code(), Some(1), "{args:?}: {}", text(&o.stdout));
    text(&o.stderr)
}

#[test]
fn what_cannot_run_is_said_before_anything_starts() {
    let dir = Temp::new();
    let data = dir.path("data").display().to_string();
    let config = dir.path("rack.toml");
    let node = |what: &[&str], text: &str| {
        fs::write(&config, text).expect("write");
        let config = config.display().to_string();
        refused(&[&["node"], what, &["--config", &config, "--data", &data]].concat())
    };
    let taken = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let port = taken.local_addr().expect("address").port();
    fs::write(&config, "servers = 6\nservers_max = 5\n").expect("write");
    let e = refused(&["up", "--processes", "--config", &config.display().to_string(), "--data", &data]);
    assert!(e.contains("servers_max = 5") && e.contains("6") && !e.contains("nodes.toml"), "{e}");
    assert!(!dir.path("data").join("rack.toml").exists(), "nothing is kept of it");
    let good = format!(
        "servers = 3\n[hosts]\nmeta = \"127.0.0.1:1\"\nswitch = \"127.0.0.1:{port}\"\n\
         servers = [\"127.0.0.1:2\", \"127.0.0.1:3\", \"127.0.0.1:4\"]\ngateways = [\"127.0.0.1:5\"]\n"
    );
    let e = node(&["switch"], &good);
    assert!(e.contains(&format!("switch on 127.0.0.1:{port}")) && e.contains("in use"), "{e}");
    let e = node(&["meta"], &good.replace("servers = 3\n", "servers = 3\nservers_max = 4\n"));
    assert!(e.contains("hosts.servers = 3 addresses") && e.contains("servers_max (4)"), "{e}");
    let e = node(&["meta"], &good.replace("servers = 3\n", "servers = 4\n"));
    assert!(e.contains("hosts.servers = 3 addresses") && e.contains("servers (4)"), "{e}");
    let e = node(&["server", "--id", "3"], &good);
    assert!(e.contains("server-3") && e.contains("0 to 2"), "{e}");
    let e = node(&["switch", "--id", "1"], &good);
    assert!(e.contains("switch-1") && e.contains("switches of racks 0 to 0"), "{e}");
    let two_racks = "servers = 4\n[racks]\ncount = 2\n";
    let ring = "[[switch.rings]]\nprefix = \"10.11.0.0/24\"\nmembers = [\"server-0\"]\n";
    fs::write(&config, format!("{two_racks}{ring}")).expect("write");
    let unix = format!("unix:{}", dir.path("nbd.sock").display());
    let rack = dir.path("rack").display().to_string();
    let up = [
        "up",
        "--netns",
        "--ssd-size",
        "64M",
        "--nbd",
        &unix,
        "--config",
        &config.display().to_string(),
        "--data",
        &rack,
    ];
    let e = refused(&up);
    assert!(e.contains("switch.rings = 1 rings: none with racks.count = 2"), "{e}");
    assert!(!dir.path("rack").join("rack.toml").exists(), "nothing is kept of it");
    let e = node(&["meta"], two_racks);
    assert!(e.contains("[hosts]"), "{e}");
    let e = node(&["meta"], &good.replace("servers = 3\n", "servers = 3\n[racks]\ncount = 2\n"));
    assert!(e.contains("hosts.switch = 1 addresses: a list with one for each rack"), "{e}");
    let e = node(&["meta"], "servers = 3\n");
    assert!(e.contains("rack.toml") && e.contains("[hosts]"), "{e}");
    let e = node(&["meta"], &good.replace("127.0.0.1:3", "127.0.0.1:4"));
    assert!(e.contains("hosts.servers[2] = \"127.0.0.1:4\"") && e.contains("hosts.servers[1]"), "{e}");
    let e = node(&["meta"], &good.replace("127.0.0.1:3", "10.1.1.1:3"));
    assert!(e.contains("hosts.key_file"), "{e}");
    let e = node(&["meta"], &format!("{good}key_file = \"k\"\n"));
    assert!(e.contains("key file") && e.contains("No such file"), "{e}");
    let key = dir.path("k").display().to_string();
    assert!(rackweave(&["keys", "init", &key]).status().expect("runs").success());
    assert!(refused(&["keys", "init", &key]).contains("exists already, and keys are never overwritten"));
    let e = node(&["switch"], &format!("{good}key_file = \"k/cluster.key\"\n"));
    assert!(e.contains("in use"), "the key is taken: {e}");
}

#[test]
fn one_process_and_many_do_not_share_a_directory() {
    let mut r = start();
    r.stop();
    let (data, nbd) = (r.data().display().to_string(), format!("unix:{}", r.dir.path("x.sock").display()));
    let e = refused(&["up", "--data", &data, "--nbd", &nbd]);
    assert!(e.contains("a process for each node") && e.contains("one process"), "{e}");
    let mut r = Rack::start();
    r.stop();
    let data = r.data().display().to_string();
    let e = refused(&["up", "--processes", "--data", &data, "--nbd", &nbd]);
    assert!(e.contains("one process") && e.contains("a process for each node"), "{e}");
}

#[test]
fn a_policy_reaches_everybody_or_it_is_said_whom_not() {
    let mut r = start();
    let data = r.data();
    let file = |name: &str| fs::read_to_string(data.join(name)).expect("a configuration");
    let pid = pid_of(&r.status(), "server-2");
    signal(pid, libc::SIGSTOP);
    let e = r.fails(1, &["policy", "set", "baseline"]);
    assert!(e.contains("server-2 (no answer within") && !e.contains("server-3") && !e.contains("os error"), "{e}");
    let shown = r.ok(&["policy", "show"]);
    assert!(shown.starts_with("baseline\n") && shown.contains("server-2 does not answer: no answer"), "{shown}");
    // The nodes queried after it, and the files.
    assert!(!shown.contains("policy = "), "{shown}");
    for name in ["nodes.toml", "rack.toml"] {
        assert!(file(name).contains("policy = \"baseline\""), "{name}: {}", file(name));
    }
    // Keys that servers keep until they are restarted.
    assert!(shown.contains("server-3: sched.coordinated = true until it is started again"), "{shown}");
    signal(pid, libc::SIGCONT);
    r.ok(&["policy", "set", "baseline"]);
    let shown = r.ok(&["policy", "show"]);
    assert!(!shown.contains("does not answer") && !shown.contains("policy = "), "{shown}");
    let switch = pid_of(&r.status(), "switch");
    // The supervisor, which would end it.
    r.signal(libc::SIGSTOP);
    signal(switch, libc::SIGSTOP);
    let shown = r.ok(&["policy", "show"]);
    assert!(shown.starts_with("baseline\n") && shown.contains("switch does not answer"), "{shown}");
    signal(switch, libc::SIGCONT);
    r.signal(libc::SIGCONT);
    assert_eq!(pid_of(&r.status(), "switch"), switch, "both stood still: it is not ended for that");
    r.stop();
    for args in [&["policy", "set", "rackblox"][..], &["policy", "show"]] {
        let e = r.fails(1, args);
        assert!(e.contains("no rack runs") && !e.contains("switch"), "{e}");
    }
    assert!(file("rack.toml").contains("policy = \"baseline\""), "{}", file("rack.toml"));
    r.again();
    assert_eq!(r.ok(&["policy", "show"]), "baseline\n");
}

/// The metadata service knows that the server has run, even if its whole directory is lost.
#[test]
fn a_server_whose_device_is_gone_refuses_to_begin_an_empty_one() {
    let mut r = start();
    r.volume("v", "64M");
    let mut c = r.connect("v");
    write_all(&mut c, 1);
    c.flush();
    drop(c);
    r.stop();
    let server = r.data().join("server-1");
    let device = server.join("ssd-1.rwk");
    fs::rename(&server, r.dir.path("lost")).expect("moved");
    let (data, nbd) = (r.data().display().to_string(), format!("unix:{}", r.dir.path("x.sock").display()));
    let up = |extra: &[&str]| {
        let args = ["up", "--processes", "--timing", "none", "--data", &data, "--nbd", &nbd];
        let o = rackweave(&[&args[..], extra].concat()).output().expect("runs");
        assert_eq!(o.status.code(), Some(1));
        text(&o.stderr)
    };
    for _ in 0..2 {
        let e = up(&[]);
        assert!(
            e.contains("ssd-1.rwk is missing or empty, but server 1 has run with it") && e.contains("--replace-ssd"),
            "{e}"
        );
        assert!(!device.exists(), "nothing that looks like its device was made");
    }
    let e = up(&["--replace-ssd", "7"]);
    assert!(e.contains("--replace-ssd 7: the rack has servers 0 to 3"), "{e}");
    let e = up(&["--replace-ssd", "2"]);
    assert!(e.contains("ssd-2.rwk is still there"), "{e}");
    r.again_with(&["--replace-ssd", "1"]);
    wait_for_all_members(&r);
    let mut c = r.connect("v");
    for _ in 0..4 {
        check_all(&mut c, 1);
    }
    drop(c);
    r.stop();
    r.again();
    wait_for_all_members(&r);
}

/// One node of a rack that was started as processes and has been stopped, alone.
fn node(r: &Rack, what: &[&str]) -> Child {
    let (data, config) = (r.data().display().to_string(), r.data().join("nodes.toml").display().to_string());
    let args = [&["node"], what, &["--config", &config, "--data", &data]].concat();
    rackweave(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts")
}

#[test]
fn a_server_refuses_to_serve_with_another_rack_s_drive() {
    let (mut r, mut other) = (start(), start());
    r.volume("v", "64M");
    let mut c = r.connect("v");
    write_all(&mut c, 1);
    c.flush();
    drop(c);
    r.stop();
    other.stop();
    let device = |of: &Rack| of.data().join("server-1").join("ssd-1.rwk");
    let (own, foreign) = (crate::harness::owner(&device(&r)), crate::harness::owner(&device(&other)));
    assert_ne!(own, foreign);
    let kept = r.dir.path("own-ssd");
    fs::rename(device(&r), &kept).expect("moved");
    fs::copy(device(&other), device(&r)).expect("copied");
    let (data, nbd) = (r.data().display().to_string(), format!("unix:{}", r.dir.path("x.sock").display()));
    let o =
        rackweave(&["up", "--processes", "--timing", "none", "--data", &data, "--nbd", &nbd]).output().expect("runs");
    let e = text(&o.stderr);
    assert_eq!(o.status.code(), Some(1), "{e}");
    for named in ["ssd-1.rwk", &own, &foreign, "--replace-ssd"] {
        assert!(e.contains(named), "{named} is not named in {e}");
    }
    let same = || Command::new("cmp").arg(device(&r)).arg(device(&other)).status().expect("runs").success();
    assert!(same(), "not a byte of it is changed");
    // Nor while the rack's identity is unknown, which may take longer than any number of requests.
    let mut server = node(&r, &["server", "--id", "1"]);
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_secs(3) {
        assert!(server.try_wait().expect("waits").is_none(), "it ended before it knew");
        crate::harness::pause();
    }
    assert!(same(), "not a byte of it is changed before somebody answered");
    let mut meta = node(&r, &["meta"]);
    wait_for("the server knows", || server.try_wait().expect("waits").is_some());
    let o = server.wait_with_output().expect("ended");
    let e = text(&o.stderr);
    assert_eq!(o.status.code(), Some(3), "{e}");
    assert!(e.contains(&own) && e.contains(&foreign), "{e}");
    assert!(same(), "not a byte of it is changed");
    signal(meta.id() as i32, libc::SIGTERM);
    assert!(meta.wait().expect("ended").success());
    // Its own, without an owner as in earlier versions.
    fs::remove_file(device(&r)).expect("removed");
    fs::rename(&kept, device(&r)).expect("moved");
    crate::harness::disown(&device(&r));
    r.again();
    wait_for_all_members(&r);
    check_all(&mut r.connect("v"), 1);
    r.stop();
    assert_eq!(crate::harness::owner(&device(&r)), own);
}
