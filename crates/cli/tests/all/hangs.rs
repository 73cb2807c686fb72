//! Processes that hang or end, and the effect on clients: `up --processes`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Rack, Temp, wait_for};
use crate::nbd::{Client, pattern};
use crate::processes::{pid_of, signal, wait_for_all_members};

/// Load with requests always in flight, and the longest latency.
struct Load {
    stop: Arc<AtomicBool>,
    workers: Vec<std::thread::JoinHandle<Duration>>,
}

impl Load {
    fn on(r: &Rack, volume: &str) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let work = |writes: bool| {
            let (mut c, stop): (Client, _) = (r.connect(volume), stop.clone());
            std::thread::spawn(move || {
                let mut worst = Duration::ZERO;
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (block, start) = (n * 17 % 4096, Instant::now());
                    if writes {
                        c.write(block * 4096, &pattern(block, n));
                    } else {
                        c.read(block * 4096, 4096);
                    }
                    worst = worst.max(start.elapsed());
                }
                worst
            })
        };
        let workers = [true, false].map(work).into();
        Load { stop, workers }
    }
    /// The longest request: of writes, of reads.
    fn longest(self) -> [Duration; 2] {
        self.stop.store(true, Ordering::Relaxed);
        let each: Vec<Duration> =
            self.workers.into_iter().map(|w| w.join().expect("every request is answered")).collect();
        [each[0], each[1]]
    }
}

fn rack(lease_ms: u32) -> Rack {
    let dir = Temp::new();
    let config = dir.path("given.toml");
    std::fs::write(&config, format!("version = 1\n[lease]\nspan_ms = {lease_ms}\n")).expect("write");
    let config = config.display().to_string();
    let r = Rack::on(dir, &["--processes", "--config", &config]);
    r.volume("v", "64M");
    r
}

/// Stops a process for this time.
fn stand_still(r: &Rack, name: &str, span: Duration) {
    let pid = pid_of(&r.status(), name);
    signal(pid, libc::SIGSTOP);
    let end = Instant::now() + span;
    while Instant::now() < end {
        std::thread::park_timeout(end - Instant::now());
    }
    signal(pid, libc::SIGCONT);
}

#[test]
fn a_metadata_service_that_hangs_costs_nothing_while_leases_stand() {
    let r = rack(6000);
    let load = Load::on(&r, "v");
    stand_still(&r, "meta", Duration::from_secs(5));
    let [writes, reads] = load.longest();
    println!("metadata service hangs for 5 s, lease 6 s: longest write {writes:?}, read {reads:?}");
    assert!(writes.max(reads) < Duration::from_millis(500), "writes {writes:?}, reads {reads:?}");
}

#[test]
fn a_switch_that_hangs_is_ended_and_started_again_at_once() {
    let r = rack(500);
    let pid = pid_of(&r.status(), "switch");
    let load = Load::on(&r, "v");
    let start = Instant::now();
    signal(pid, libc::SIGSTOP);
    wait_for("another switch", || ![0, pid].contains(&pid_of(&r.status(), "switch")));
    let replaced = start.elapsed();
    wait_for("its tables are announced anew", || {
        let s = r.status();
        let rows = s["switch"]["rows"].as_u64().unwrap_or(0);
        rows == 12 && s["processes"].as_array().is_some_and(|p| p.iter().all(|p| p["error"].is_null()))
    });
    wait_for_all_members(&r);
    let [writes, reads] = load.longest();
    println!("switch hangs: replaced after {replaced:?}, longest write {writes:?}, read {reads:?}");
    assert!(writes.max(reads) < Duration::from_millis(2_500), "writes {writes:?}, reads {reads:?}");
}

/// It is not restarted: only its supervisor's report ends its lease.
#[test]
fn a_killed_server_s_lease_ends_with_its_process_however_long_it_is() {
    let r = rack(30_000);
    let mut c = r.connect("v");
    c.write(0, &pattern(0, 0));
    r.ok(&["server", "kill", "1"]);
    let load = Load::on(&r, "v");
    (1..200).for_each(|n| c.write(n * 65_536, &pattern(n, 1)));
    let [writes, reads] = load.longest();
    println!("server killed, lease 30 s: longest write {writes:?}, read {reads:?}");
    assert!(writes.max(reads) < Duration::from_secs(5), "writes {writes:?}, reads {reads:?}");
    r.ok(&["server", "start", "1"]);
    wait_for_all_members(&r);
}
