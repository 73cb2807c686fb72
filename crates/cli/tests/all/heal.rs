//! A rack that was created without a word about repair or growth: it rebuilds the copies of a lost server, and servers
//! are added, drained and removed.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::harness::{Rack, Temp, rackweave, text, wait_for};
use crate::nbd::{Client, pattern};

const BLOCKS: u64 = 512;

/// Four servers of defaults; a lost one is replaced after a second instead of five minutes.
fn start(extra: &[&str]) -> Rack {
    start_with(extra, "")
}

fn start_with(extra: &[&str], more: &str) -> Rack {
    let dir = Temp::new();
    let config = dir.path("given.toml").display().to_string();
    fs::write(&config, format!("{more}[repair]\nreplace_after_s = 1\n")).expect("written");
    Rack::on(dir, &[extra, &["--config", &config]].concat())
}

fn check(c: &mut Client, version: u64) {
    for b in 0..BLOCKS {
        assert!(c.read(b * 4096, 4096) == pattern(b, version), "block {b}, version {version}");
    }
}

fn write(c: &mut Client, version: u64) {
    (0..BLOCKS).for_each(|b| c.write(b * 4096, &pattern(b, version)));
    c.flush();
}

/// Serving members of each set, by server.
fn members(s: &Value) -> Vec<(u64, Vec<u64>)> {
    let sets = s["sets"].as_array().expect("sets").iter().map(|set| set["set"].as_u64().expect("a number"));
    let servers = s["servers"].as_array().expect("servers");
    let on = |set: u64| {
        let serves = |v: &&Value| v["set"] == set && v["serving"] == true && v["role"] == "member";
        let holds = |s: &&Value| s["vssds"].as_array().is_some_and(|all| all.iter().any(|v| serves(&v)));
        servers.iter().filter(holds).map(|s| s["server"].as_u64().expect("a number")).collect()
    };
    sets.map(|set| (set, on(set))).collect()
}

/// Waits until each set has three members on these servers, and nothing moves.
fn whole_on(r: &Rack, servers: &[u64]) {
    whole_by(|args| r.run(args), servers);
}

fn whole_by(run: impl Fn(&[&str]) -> Output, servers: &[u64]) {
    let json = |args: &[&str]| serde_json::from_slice::<Value>(&run(args).stdout).ok();
    wait_for(&format!("all sets have three copies on servers {servers:?}"), || {
        let answers = (json(&["status", "--json"]), json(&["server", "list", "--json"]));
        let (Some(status), Some(list)) = answers else { return false };
        let (all, list) = (members(&status), list.as_array().cloned().unwrap_or_default());
        let good = |on: &Vec<u64>| on.len() == 3 && on.iter().all(|s| servers.contains(s));
        // A lost server does not report that its copies are erased.
        let rest = |s: &Value| s["coming"] == 0 && (s["leaving"] == 0 || s["alive"] == false) && s["homeless"] == 0;
        let rest = list.iter().all(rest);
        !all.is_empty() && all.iter().all(|(_, on)| good(on)) && rest
    });
}

fn listed(r: &Rack) -> Vec<Value> {
    serde_json::from_str(&r.ok(&["server", "list", "--json"])).expect("JSON")
}

fn drive(r: &Rack, server: u32, apart: bool) -> PathBuf {
    let dir = if apart { r.data().join(format!("server-{server}")) } else { r.data() };
    dir.join(format!("ssd-{server}.rwk"))
}

/// Server 1 and its drive are lost for good, 4 is added, 0 is drained and removed, and the rack starts again.
fn heals(mut r: Rack, apart: bool) {
    r.volume("v", "64M");
    let mut c = r.connect("v");
    write(&mut c, 1);
    r.ok(&["server", "kill", "1"]);
    fs::remove_file(drive(&r, 1, apart)).expect("lost");
    whole_on(&r, &[0, 2, 3]);
    check(&mut c, 1);
    r.ok(&["server", "remove", "1"]);
    write(&mut c, 2);
    // No further copy has a place on another server.
    let e = r.fails(1, &["server", "drain", "0"]);
    assert!(e.contains("server 0") && e.contains('3'), "{e}");
    r.ok(&["server", "add"]);
    wait_for("the added server serves", || listed(&r).iter().any(|s| s["server"] == 4 && s["alive"] == true));
    r.ok(&["server", "drain", "0"]);
    whole_on(&r, &[2, 3, 4]);
    r.ok(&["server", "remove", "0"]);
    check(&mut c, 2);
    write(&mut c, 3);
    drop(c);
    r.stop();
    // The drive of a server that was added is lost.
    fs::remove_file(drive(&r, 4, apart)).expect("lost");
    r.again_with(&["--replace-ssd", "4"]);
    whole_on(&r, &[2, 3, 4]);
    check(&mut r.connect("v"), 3);
    r.ok(&["server", "add"]);
    wait_for("a second one is added", || listed(&r).iter().any(|s| s["server"] == 5 && s["alive"] == true));
}

/// Addresses of a rack of its own on loopback, for six servers of which four belong to the rack.
fn hosts() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let id = std::process::id() + 4_096 * NEXT.fetch_add(1, Ordering::Relaxed);
    let host = format!("127.{}.{}.9", 64 + id % 64, id / 64 % 256);
    let address = |n: u32| format!("\"{host}:{}\"", 7_400 + n);
    let servers: Vec<String> = (2..8).map(address).collect();
    format!(
        "[hosts]\nmeta = {}\nswitch = {}\nservers = [{}]\ngateways = [{}]\n",
        address(0),
        address(1),
        servers.join(", "),
        address(8)
    )
}

#[test]
fn a_rack_of_defaults_heals_and_grows() {
    heals(start(&[]), false);
}

#[test]
fn a_rack_of_processes_of_defaults_heals_and_grows() {
    heals(start(&["--processes"]), true);
}

#[test]
fn two_racks_of_defaults_heal() {
    let r = start_with(&[], "servers = 8\n[racks]\ncount = 2\n");
    r.volume("v", "64M");
    let mut c = r.connect("v");
    write(&mut c, 1);
    r.ok(&["server", "kill", "1"]);
    whole_on(&r, &[0, 2, 3, 4, 5, 6, 7]);
    check(&mut c, 1);
    let e = r.fails(1, &["server", "add"]);
    assert!(e.contains("made for 8 servers"), "{e}");
}

/// Nodes that are started one by one, as on hosts of their own; ended on drop.
struct Nodes {
    dir: Temp,
    running: Vec<(String, Child)>,
}

impl Nodes {
    /// The rack's nodes, with the first four servers.
    fn start(config: &str) -> Nodes {
        let mut all = Nodes { dir: Temp::new(), running: Vec::new() };
        fs::write(all.dir.path("rack.toml"), config).expect("written");
        for name in ["meta", "switch", "server-0", "server-1", "server-2", "server-3", "gateway-0"] {
            all.begin(name);
        }
        all
    }
    fn path(&self, name: &str) -> String {
        self.dir.path(name).display().to_string()
    }
    fn begin(&mut self, name: &str) {
        let (config, data, nbd) = (self.path("rack.toml"), self.path("data"), self.path("nbd.sock"));
        let (kind, number) = name.split_once('-').unwrap_or((name, ""));
        let mut args = vec!["node", kind, "--config", &config, "--data", &data];
        if !number.is_empty() {
            args.extend(["--id", number]);
        }
        let nbd = format!("unix:{nbd}");
        if kind == "gateway" {
            args.extend(["--nbd", &nbd]);
        }
        let child = rackweave(&args).stdout(Stdio::null()).spawn().expect("starts");
        self.running.push((name.into(), child));
    }
    fn end(&mut self, name: &str) {
        let i = self.running.iter().position(|(n, _)| n == name).expect("it runs");
        let (_, mut child) = self.running.swap_remove(i);
        child.kill().and_then(|()| child.wait()).expect("ended");
    }
    fn run(&self, args: &[&str]) -> Output {
        rackweave(&[args, &["--data", &self.path("data")]].concat()).output().expect("runs")
    }
    fn ok(&self, args: &[&str]) -> String {
        let o = self.run(args);
        assert!(o.status.success(), "{args:?}: {}{}", text(&o.stdout), text(&o.stderr));
        text(&o.stdout) + &text(&o.stderr)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A configuration that says nothing of free slots: each node finds out itself how drives are divided.
#[test]
fn a_rack_of_hosts_of_defaults_heals_and_grows() {
    let config = format!("[repair]\nreplace_after_s = 1\n[ssd]\nsize = \"256M\"\ntiming = \"none\"\n{}", hosts());
    let mut n = Nodes::start(&config);
    whole_by(|args| n.run(args), &[0, 1, 2, 3]);
    n.ok(&["volume", "create", "v", "--size", "64M"]);
    let mut c = Client::connect(&n.dir.path("nbd.sock"), "v");
    write(&mut c, 1);
    n.end("server-1");
    whole_by(|args| n.run(args), &[0, 2, 3]);
    check(&mut c, 1);
    let said = n.ok(&["server", "add"]);
    assert!(said.contains("server 4 is added; start it on its host"), "{said}");
    n.begin("server-4");
    let list = || serde_json::from_slice::<Vec<Value>>(&n.run(&["server", "list", "--json"]).stdout).expect("JSON");
    wait_for("the added server serves", || list().iter().any(|s| s["server"] == 4 && s["alive"] == true));
    n.ok(&["server", "drain", "0"]);
    whole_by(|args| n.run(args), &[2, 3, 4]);
    // The metadata service and a server start again on what they keep.
    for name in ["meta", "server-2"] {
        n.end(name);
        n.begin(name);
    }
    whole_by(|args| n.run(args), &[2, 3, 4]);
    check(&mut c, 1);
    // An empty drive in a file that says otherwise is refused by name.
    n.ok(&["server", "add"]);
    fs::write(n.dir.path("rack.toml"), config.replace("[ssd]", "[ssd]\nspare = 2")).expect("written");
    let (config, data) = (n.path("rack.toml"), n.path("data"));
    let args = ["node", "server", "--id", "5", "--config", &config, "--data", &data];
    let o = rackweave(&args).output().expect("runs");
    assert_eq!(o.status.code(), Some(3), "{}", text(&o.stderr));
    assert!(text(&o.stderr).contains("set ssd.spare"), "{}", text(&o.stderr));
}

#[test]
fn a_rack_with_addresses_grows_up_to_them() {
    let r = start_with(&["--processes"], &hosts());
    heals(r, true);
    let r = start_with(&["--processes"], &hosts());
    for n in 4..6 {
        r.ok(&["server", "add"]);
        wait_for("it is there", || listed(&r).iter().any(|s| s["server"] == n && s["alive"] == true));
    }
    let e = r.fails(1, &["server", "add"]);
    assert!(e.contains("made for 6 servers") && e.contains("hosts.servers"), "{e}");
}
