//! Clients that fill memory on purpose: their share is bounded and returned, and others continue beside them.
//!
//! `RACKWEAVE_HOSTILE=512 cargo test --release -p rackweave --test all hostile -- --nocapture` measures with 512 of
//! them in five rounds, prints the results, and checks them: 1 GiB in the gateway's process, 200 MiB after they closed,
//! half of the honest client's rate (the median of the rounds' ratios, after one round that does not count).

use std::io::Write;
use std::time::{Duration, Instant};

use crate::harness::{Rack, SOON, wait_for};
use crate::nbd::{Client, dial};
use crate::processes::pid_of;

const MIB: usize = 1 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
/// Sessions of a usual run, and the memory that they may add to the process.
const SESSIONS: usize = 40;
const ADDED_MAX: usize = 320 * MIB;
const LEFT_MAX: usize = 100 * MIB;
/// The bars of a measurement with many.
const FULL_MAX: usize = 1024 * MIB;
const LEFT_FULL_MAX: usize = 200 * MIB;
/// Request size of the honest client, as every client uses.
const HONEST_BYTES: u32 = 64 << 10;
/// Rounds of a measurement with many sessions.
const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_secs(2);

/// Bytes that the process has resident now, and its maximum since [`forget_most`].
fn resident(pid: i32) -> (usize, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let kib = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).expect("a number");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
    };
    (kib("VmRSS:") << 10, kib("VmHWM:") << 10)
}

fn forget_most(pid: i32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("our own child");
}

/// The process that clients connect to.
fn gateway(r: &Rack) -> i32 {
    let status = r.status();
    let one = status["processes"].as_array().is_none_or(|p| p.is_empty());
    if one { r.pid() } else { pid_of(&status, "gateway-0") }
}

fn header(kind: u16, offset: u64, len: usize) -> Vec<u8> {
    let mut b = 0x2560_9513u32.to_be_bytes().to_vec();
    b.extend_from_slice(&0u16.to_be_bytes());
    b.extend_from_slice(&kind.to_be_bytes());
    b.extend_from_slice(&7u64.to_be_bytes());
    b.extend_from_slice(&offset.to_be_bytes());
    b.extend_from_slice(&(len as u32).to_be_bytes());
    b
}

/// Sends as much as the server takes within a moment.
fn push(c: &mut Client, bytes: &[u8]) {
    c.stream.set_write_timeout(Some(Duration::from_millis(20))).expect("timeout");
    let _ = c.stream.write_all(bytes);
}

/// Requests 64 MiB and reads nothing.
fn reader(r: &Rack) -> Client {
    let mut c = r.connect("v");
    push(&mut c, &(0..64).flat_map(|i| header(READ, i * MIB as u64, MIB)).collect::<Vec<u8>>());
    c
}

/// Begins a write of 32 MiB and stops at half of it.
fn long_writer(r: &Rack) -> Client {
    let mut c = r.connect("v");
    push(&mut c, &header(WRITE, 0, 32 * MIB));
    push(&mut c, &vec![1; 16 * MIB]);
    c
}

/// Begins a write of 1 MiB, which its share has room for, and stops just before its end.
fn writer(r: &Rack) -> Client {
    let mut c = r.connect("v");
    push(&mut c, &header(WRITE, 0, MIB));
    push(&mut c, &vec![1; MIB - 1]);
    c
}

/// Starts the longest option that is parsed and stops halfway.
fn greeter(r: &Rack) -> Client {
    let mut stream = dial(&r.socket());
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend_from_slice(b"IHAVEOPT");
    hello.extend_from_slice(&1u32.to_be_bytes());
    hello.extend_from_slice(&(16u32 << 10).to_be_bytes());
    hello.extend_from_slice(&[b'v'; 8 << 10]);
    stream.write_all(&hello).expect("send");
    Client { stream, size: 0, cookie: 0 }
}

/// Requests per second of a client that reads its answers.
fn rate(c: &mut Client, time: Duration) -> f64 {
    let began = Instant::now();
    let mut n = 0u64;
    while began.elapsed() < time {
        let at = n * 7 % 1024 * u64::from(HONEST_BYTES);
        assert!(c.read(at, HONEST_BYTES).iter().all(|&b| b == (at / MIB as u64) as u8 + 1), "at {at}");
        n += 1;
    }
    n as f64 / began.elapsed().as_secs_f64()
}

/// One round: the honest client's rate alone and beside `n` hostile ones, and the gateway's memory with them and after
/// they closed.
fn round(r: &Rack, name: &str, n: usize, hostile: fn(&Rack) -> Client, full: bool) -> f64 {
    let pid = gateway(r);
    let time = if full { MEASURED } else { MEASURED / 4 };
    let mut honest = r.connect("v");
    let alone = rate(&mut honest, time);
    forget_most(pid);
    let (base, _) = resident(pid);
    let all: Vec<Client> = (0..n).map(|_| hostile(r)).collect();
    let beside = rate(&mut honest, time);
    let (now, most) = resident(pid);
    drop(all);
    let limit = if full { LEFT_FULL_MAX } else { base + LEFT_MAX };
    wait_for("memory comes back", || resident(pid).0 < limit);
    let (left, _) = resident(pid);
    println!(
        "{n} {name}: {} MiB before, {} beside them, {} at the most, {} after; honest client {alone:.0}/s alone, {beside:.0}/s beside them",
        base / MIB,
        now / MIB,
        most / MIB,
        left / MIB
    );
    let bound = if full { FULL_MAX } else { base + ADDED_MAX };
    assert!(most <= bound, "{name}: {} MiB of {} at the most", most / MIB, bound / MIB);
    beside / alone
}

#[test]
fn clients_that_do_not_read_or_do_not_finish_hold_a_bounded_part_of_memory() {
    attacked(&Rack::start());
}

#[test]
fn clients_that_do_not_read_or_do_not_finish_hold_a_bounded_part_of_a_gateway_process_s_memory() {
    attacked(&Rack::with(&["--processes"]));
}

fn attacked(r: &Rack) {
    let full: Option<usize> = std::env::var("RACKWEAVE_HOSTILE").ok().map(|n| n.parse().expect("a number of sessions"));
    let (n, rounds) = full.map_or((SESSIONS, 1), |n| (n, ROUNDS));
    r.volume("v", "64M");
    let mut honest = r.connect("v");
    for i in 0..64u8 {
        honest.write(u64::from(i) * MIB as u64, &vec![i + 1; MIB]);
    }
    honest.flush();
    type Hostile = fn(&Rack) -> Client;
    let kinds: [(&str, Hostile); 4] =
        [("readers", reader), ("writers", writer), ("long writers", long_writer), ("greeters", greeter)];
    for (name, hostile) in kinds {
        if full.is_some() {
            // A host that allocates memory to a virtual machine on first use does so now.
            round(r, name, n, hostile, true);
        }
        let mut ratios: Vec<f64> = (0..rounds).map(|_| round(r, name, n, hostile, full.is_some())).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios[rounds / 2];
        println!(
            "{name}: an honest client keeps {ratio:.2} of its rate ({:.2} to {:.2})",
            ratios[0],
            ratios[rounds - 1]
        );
        let bar = if full.is_some() { 0.5 } else { 0.0 };
        assert!(ratio > bar, "{name}: {ratio:.2}");
    }
}

/// A request that needs the whole pool is answered even if silent clients held it: their connections are closed.
#[test]
fn a_client_that_keeps_others_waiting_is_closed() {
    let r = Rack::start();
    r.volume("v", "64M");
    let mut honest = r.connect("v");
    for i in 0..64u8 {
        honest.write(u64::from(i) * MIB as u64, &vec![i + 1; MIB]);
    }
    let hostile: Vec<Client> = (0..4).map(|_| reader(&r)).collect();
    wait_for("the pool is taken", || r.status()["rack"]["memory"]["waiting"].as_u64() >= Some(1));
    honest.stream.set_read_timeout(Some(SOON)).expect("timeout");
    assert!(honest.read(0, 32 << 20).iter().enumerate().all(|(i, &b)| b == (i / MIB) as u8 + 1));
    assert!(r.status()["rack"]["memory"]["closed"].as_u64() >= Some(1));
    drop(hostile);
}

/// Handshakes that stop, and commands whose answers are not read.
#[test]
fn what_never_gets_to_a_command_holds_little() {
    let r = Rack::start();
    let pid = gateway(&r);
    let (base, _) = resident(pid);
    let silent: Vec<_> = (0..100).map(|_| dial(&r.socket())).collect();
    let mut control = dial(&r.data().join("control.sock"));
    control.set_write_timeout(Some(Duration::from_millis(200))).expect("timeout");
    let _ = control.write_all(&b"x\n".repeat(4 * MIB));
    let (now, most) = resident(pid);
    assert!(most - base < 64 * MIB, "{} MiB, then {} and {} at the most", base / MIB, now / MIB, most / MIB);
    drop(silent);
}

/// Reads of an honest client beside the first wave may take this long: a wait for retries' budget takes longer.
const STALL: Duration = Duration::from_secs(5);

/// The first clients that do not read request more than the servers' queues to the gateway hold.
#[test]
fn the_first_clients_that_do_not_read_stall_no_other() {
    let r = Rack::with(&["--processes"]);
    r.volume("v", "64M");
    let mut honest = r.connect("v");
    for i in 0..64u8 {
        honest.write(u64::from(i) * MIB as u64, &vec![i + 1; MIB]);
    }
    honest.flush();
    let all: Vec<Client> = (0..SESSIONS).map(|_| reader(&r)).collect();
    honest.stream.set_read_timeout(Some(SOON * 4)).expect("timeout");
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < Duration::from_secs(2) {
        let sent = Instant::now();
        assert!(honest.read(0, HONEST_BYTES).iter().all(|&b| b == 1));
        slowest = slowest.max(sent.elapsed());
    }
    println!("{SESSIONS} readers; the slowest read of an honest client took {slowest:?}");
    assert!(slowest < STALL, "{slowest:?}");
    drop(all);
}
