//! File modes of everything a command creates are set explicitly, not inherited.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Rack, Temp, rackweave, text};

/// `c` without a umask.
fn unmasked(mut c: Command) -> Command {
    // SAFETY: one system call that is allowed between fork and exec.
    unsafe {
        c.pre_exec(|| {
            libc::umask(0);
            Ok(())
        });
    }
    c
}

fn run(args: &[&str]) {
    let out = unmasked(rackweave(args)).output().expect("runs");
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
}

/// Modes of everything below, by path.
fn modes(at: &Path) -> BTreeMap<PathBuf, u32> {
    let mut all = BTreeMap::new();
    let mut left = vec![at.to_path_buf()];
    while let Some(p) = left.pop() {
        let meta = fs::symlink_metadata(&p).expect("there");
        if meta.is_dir() {
            left.extend(fs::read_dir(&p).expect("readable").map(|e| e.expect("readable").path()));
        }
        all.insert(p, meta.permissions().mode() & 0o7777);
    }
    all
}

/// Only the owner can read or write any of it.
fn private(at: &Path) {
    let all = modes(at);
    for (path, mode) in &all {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(*mode, wanted, "{} has mode {mode:04o}", path.display());
    }
}

#[test]
fn nothing_of_a_rack_is_open_to_others_without_a_umask() {
    for extra in [&["--http"][..], &["--processes", "--http"]] {
        let dir = Temp::new();
        let http = format!("unix:{}", dir.path("http.sock").display());
        let pcap = dir.path("captures").display().to_string();
        let mut args = [extra, &[&http]].concat();
        if extra.len() > 1 {
            args.extend(["--pcap", &pcap]);
        }
        let r = Rack::on_by(dir, &args, unmasked);
        r.volume("v", "16M");
        let sockets =
            modes(&r.dir.0).keys().filter(|p| fs::metadata(p).is_ok_and(|m| m.file_type().is_socket())).count();
        assert!(sockets >= 3, "control, NBD and HTTP: {sockets}");
        let all = modes(&r.data());
        assert!(
            all.keys().any(|p| p.ends_with("meta.redb")) && all.keys().any(|p| p.ends_with("rack.toml")),
            "{all:?}"
        );
        for entry in fs::read_dir(&r.dir.0).expect("readable") {
            private(&entry.expect("readable").path());
        }
    }
}

#[test]
fn files_from_before_are_closed_to_others_when_they_are_used() {
    let mut r = Rack::start();
    r.stop();
    for name in ["meta.redb", "ssd-0.rwk", "lock"] {
        fs::set_permissions(r.data().join(name), fs::Permissions::from_mode(0o666)).expect("ours");
    }
    r.again();
    private(&r.data());
}

#[test]
fn what_the_other_commands_make_is_set_too() {
    let dir = Temp::new();
    let at = |name: &str| dir.path(name).display().to_string();
    run(&["keys", "init", &at("ca")]);
    run(&["keys", "add", &at("ca"), "127.0.0.1"]);
    for (path, mode) in modes(&dir.path("ca")) {
        let public = path.extension().is_some_and(|e| e == "pem") && !path.to_string_lossy().ends_with("-key.pem");
        let wanted = if path.is_dir() {
            0o700
        } else if public {
            0o644
        } else {
            0o600
        };
        assert_eq!(mode, wanted, "{} has mode {mode:04o}", path.display());
    }
    let drive = at("drive.rwk");
    let create = ["vssd", "create", "--isolation", "channel", "--capacity", "1G", "--drive", &drive];
    run(&create);
    run(&["sim", "--seed", "1", "--pcap", &at("sim.pcap")]);
    run(&["eval", "fb-table5", "--quick", "--json", &at("eval.json"), "--svg", &at("eval.svg")]);
    let mut found: Vec<(String, u32)> = modes(&dir.0)
        .into_iter()
        .filter(|(p, _)| p.parent() == Some(&dir.0))
        .map(|(p, m)| (p.file_name().expect("named").to_string_lossy().into_owned(), m))
        .collect();
    found.retain(|(n, _)| n != "ca");
    let wanted = [("drive.rwk", 0o600), ("eval.json", 0o644), ("eval.svg", 0o644), ("sim.pcap", 0o600)];
    assert_eq!(found, wanted.map(|(n, m)| (n.to_owned(), m)));
}

/// No other way to create a file may be used: it would take its mode from the umask.
#[test]
fn every_file_is_made_with_a_mode() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let makers = [
        "File::create",
        "fs::write(",
        "create_dir",
        "DirBuilder",
        "OpenOptions",
        "UnixListener::bind",
        "Database::create(",
        "fs::copy(",
    ];
    // Not part of the product; and one that writes to /proc, and for Open vSwitch's programs.
    let others = ["bench", "fuzz", "mutants", "dataplane"];
    let crates = fs::read_dir(&root).expect("readable").map(|e| e.expect("readable").path());
    let product = |c: &PathBuf| !others.iter().any(|t| c.ends_with(t));
    let mut left: Vec<PathBuf> = crates.filter(product).map(|c| c.join("src")).filter(|c| c.is_dir()).collect();
    let mut seen = 0;
    while let Some(p) = left.pop() {
        if p.is_dir() {
            left.extend(fs::read_dir(&p).expect("readable").map(|e| e.expect("readable").path()));
            continue;
        }
        let name = p.file_name().expect("named").to_string_lossy();
        if name.ends_with("tests.rs") || p.ends_with("device/src/private.rs") {
            continue;
        }
        let source = fs::read_to_string(&p).expect("text");
        let code = source.split("#[cfg(test)]\nmod tests {").next().expect("a first part");
        seen += 1;
        let made = code.lines().enumerate().find(|(_, l)| makers.iter().any(|m| l.contains(m)));
        let where_from = "makes files with the umask's mode; use rackweave_device::private";
        assert!(made.is_none(), "{}: {made:?}: {where_from}", p.display());
    }
    assert!(seen > 150, "{seen} sources");
}
