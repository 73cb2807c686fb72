//! An experiment between namespaces that is killed leaves neither processes nor namespaces behind.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "other processes are waited for, with a bound")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn children(of: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|n| n.parse().ok()).collect()
}

/// The network namespace of a running process; that of a dead, unwaited one cannot be read.
fn namespace(of: u32) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{of}/ns/net")).ok()
}

fn until(what: &str, run: &mut Child, mut done: impl FnMut(&mut Child) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done(run) {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::yield_now();
    }
}

/// Ends with the test, however the test ends.
struct Run(Child);
impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    // SAFETY: only asks.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP a_killed_run_leaves_nothing_behind: network namespaces need root");
        return;
    }
    let named = || std::fs::read_dir("/run/netns").map_or(0, Iterator::count);
    let before = named();
    let run = Command::new(env!("CARGO_BIN_EXE_rackweave"))
        .args(["eval", "pn-bulk"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the program");
    let mut run = Run(run);
    let run = &mut run.0;
    let mut ends = Vec::new();
    let own = namespace(std::process::id());
    until("both ends run in namespaces of their own", run, |run| {
        assert_eq!(run.try_wait().expect("a child"), None, "the run ended by itself");
        ends = children(run.id());
        ends.len() == 2 && ends.iter().all(|&e| namespace(e).is_some_and(|n| Some(n) != own))
    });
    assert_eq!(named(), before, "no namespace has a name that would outlive the run");
    run.kill().expect("a child");
    run.wait().expect("a child");
    until("both ends are gone", run, |_| ends.iter().all(|&e| namespace(e).is_none()));
}
