//! A client of a running rack that records a history: several NBD connections read and write a few common 512-byte
//! sectors. At the end some order must explain every answer (protocol rule 11), as in the simulator.
//!
//! `live_history SOCKET VOLUME SECONDS [SEED [CONNECTIONS]]` prints one line of JSON. Without such an order it exits
//! with status 1 and prints the sector's trail.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a client: sockets, threads, clocks")]

use std::error::Error;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rackweave_core::{Payload, Rng, SECTOR, SetId, Time, VolumeId};
use rackweave_search::check::{History, OpId, Outcome};

/// Default number of connections; each has one operation in flight.
const CONNECTIONS: u64 = 6;
const CONNECTIONS_MAX: u64 = 256;
/// Per connection: few enough for contention, over several 64 KiB stripes.
const SECTORS_EACH: u64 = 32;
/// Distance in sectors, in groups of eight, so that groups lie in different blocks and replica sets.
const GROUP: u64 = 8;
const GROUP_APART: u64 = 256;
const COUNT_MAX: u64 = 4;
/// Most operations recorded; beyond it the client stops early.
const OPERATIONS_MAX: usize = 5_000_000;
const SLOW: Duration = Duration::from_secs(1);
/// Retry interval of a refused connection, and the time after which a rack that does not answer is given up. A request
/// that is unanswered by then never will be answered.
const RETRY: Duration = Duration::from_millis(100);
const GIVE_UP: Duration = Duration::from_secs(120);

const VOLUME: VolumeId = VolumeId(1);
/// The rack's only gateway.
const CLIENT: u32 = 0;
const WRITE_FUA: u16 = 1;

/// A connection after the handshake (NBD protocol, fixed newstyle, simple replies).
struct Nbd(UnixStream);

impl Nbd {
    fn connect(socket: &str, export: &str) -> io::Result<Nbd> {
        let mut s = UnixStream::connect(socket)?;
        s.set_read_timeout(Some(GIVE_UP))?;
        let mut greeting = [0; 18];
        s.read_exact(&mut greeting)?;
        s.write_all(&3u32.to_be_bytes())?;
        let mut option = Vec::new();
        option.extend_from_slice(b"IHAVEOPT");
        option.extend_from_slice(&7u32.to_be_bytes());
        option.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
        option.extend_from_slice(&(export.len() as u32).to_be_bytes());
        option.extend_from_slice(export.as_bytes());
        option.extend_from_slice(&[0, 0]);
        s.write_all(&option)?;
        loop {
            let mut head = [0; 20];
            s.read_exact(&mut head)?;
            let kind = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
            let len = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
            io::copy(&mut (&s).take(u64::from(len)), &mut io::sink())?;
            match kind {
                1 => return Ok(Nbd(s)),
                3 => {}
                kind => return Err(io::Error::other(format!("export {export:?}: answer {kind:#x}"))),
            }
        }
    }

    /// Executes a command; returns the data read. The server's error number is an error of the request.
    fn ask(&mut self, kind: u16, flags: u16, first: u64, data: &[u8], read: usize) -> io::Result<Result<Vec<u8>, u32>> {
        let mut head = Vec::with_capacity(28 + data.len());
        head.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        head.extend_from_slice(&flags.to_be_bytes());
        head.extend_from_slice(&kind.to_be_bytes());
        head.extend_from_slice(&7u64.to_be_bytes());
        head.extend_from_slice(&(first * u64::from(SECTOR)).to_be_bytes());
        head.extend_from_slice(&(data.len().max(read) as u32).to_be_bytes());
        head.extend_from_slice(data);
        self.0.write_all(&head)?;
        let mut answer = [0; 16];
        self.0.read_exact(&mut answer)?;
        let error = u32::from_be_bytes([answer[4], answer[5], answer[6], answer[7]]);
        if error != 0 {
            return Ok(Err(error));
        }
        let mut bytes = vec![0; read];
        self.0.read_exact(&mut bytes)?;
        Ok(Ok(bytes))
    }
}

/// State shared by all connections.
struct Shared {
    socket: String,
    export: String,
    begun: Instant,
    until: Instant,
    sectors: u64,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    history: History,
    operations: usize,
    /// Operations that took longer than [`SLOW`] to be answered or given up.
    slow: u64,
    slowest: Duration,
    failed: u64,
    broken: u64,
}

impl Shared {
    fn record<T>(&self, what: impl FnOnce(&mut Record) -> T) -> T {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.history.at(Time(self.begun.elapsed().as_nanos() as u64));
        what(&mut record)
    }

    fn connect(&self) -> Result<Nbd, String> {
        let begin = Instant::now();
        loop {
            match Nbd::connect(&self.socket, &self.export) {
                Ok(nbd) => return Ok(nbd),
                Err(e) if begin.elapsed() > GIVE_UP => return Err(format!("{}: {e}", self.socket)),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    /// Work of one connection: one operation at a time.
    fn work(&self, mut rng: Rng, who: u64) -> Result<(), String> {
        let mut nbd = self.connect()?;
        let mut number = 0;
        while Instant::now() < self.until && self.record(|r| r.operations < OPERATIONS_MAX) {
            number += 1;
            let at = rng.below(self.sectors);
            let first = at / GROUP * GROUP_APART + at % GROUP;
            let count = 1 + rng.below(COUNT_MAX.min(GROUP - at % GROUP));
            let done = match rng.below(16) {
                0 => self.flush(&mut nbd),
                1..8 => self.write(&mut nbd, first, count, who << 40 | number, rng.below(8) == 0),
                _ => self.read(&mut nbd, first, count),
            };
            if let Err(e) = done {
                if e.kind() == io::ErrorKind::WouldBlock {
                    return Err(format!("connection {who}, operation {number}: no answer within {GIVE_UP:?}"));
                }
                // The gateway is gone: the request may or may not have taken effect.
                self.record(|r| r.broken += 1);
                nbd = self.connect()?;
            }
        }
        Ok(())
    }

    fn write(&self, nbd: &mut Nbd, first: u64, count: u64, value: u64, fua: bool) -> io::Result<()> {
        // Each sector's contents are unique in a run.
        let sector =
            |i: u64| (value << 3 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().repeat(SECTOR as usize / 8);
        let bytes: Vec<u8> = (0..count).flat_map(sector).collect();
        let payload = Payload::Bytes(Bytes::from(bytes.clone()));
        let op = self.record(|r| r.history.write(CLIENT, VOLUME, first, &payload, fua, 0));
        let flags = if fua { WRITE_FUA } else { 0 };
        self.answered(op, &format!("write of {count} at sector {first}"), |_| nbd.ask(1, flags, first, &bytes, 0))
    }

    fn read(&self, nbd: &mut Nbd, first: u64, count: u64) -> io::Result<()> {
        let op = self.record(|r| r.history.read(VOLUME, first, count as u32));
        let read = count as usize * SECTOR as usize;
        self.answered(op, &format!("read of {count} at sector {first}"), |_| nbd.ask(0, 0, first, &[], read))
    }

    fn flush(&self, nbd: &mut Nbd) -> io::Result<()> {
        let op = self.record(|r| r.history.flush(CLIENT, VOLUME));
        self.answered(op, "flush", |_| nbd.ask(3, 0, 0, &[], 0))
    }

    fn answered(
        &self,
        op: OpId,
        what: &str,
        ask: impl FnOnce(()) -> io::Result<Result<Vec<u8>, u32>>,
    ) -> io::Result<()> {
        let begin = Instant::now();
        let answer = ask(());
        let took = begin.elapsed();
        if took > SLOW {
            let from = begin - self.begun;
            eprintln!("slow: {:.3} s, from {:.3} s on, a {what}", took.as_secs_f64(), from.as_secs_f64());
        }
        self.record(|r| {
            r.operations += 1;
            r.slow += u64::from(took > SLOW);
            r.slowest = r.slowest.max(took);
            match &answer {
                Ok(Ok(read)) if !read.is_empty() => {
                    let payload = Payload::Bytes(Bytes::from(read.clone()));
                    r.history.answered(op, Outcome::Data(&payload));
                }
                Ok(Ok(_)) => r.history.answered(op, Outcome::Done),
                Ok(Err(_)) => {
                    r.failed += 1;
                    r.history.answered(op, Outcome::Failed);
                }
                Err(_) => {}
            }
        });
        answer.map(drop)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, export, seconds, more @ ..] = &args[..] else {
        return Err("live_history SOCKET VOLUME SECONDS [SEED [CONNECTIONS]]".into());
    };
    let (begun, length) = (Instant::now(), Duration::from_secs_f64(seconds.parse()?));
    let seed: u64 = more.first().map_or(Ok(1), |s| s.parse())?;
    let connections: u64 = more.get(1).map_or(Ok(CONNECTIONS), |s| s.parse())?;
    if !(1..=CONNECTIONS_MAX).contains(&connections) {
        return Err(format!("{connections} connections: 1 to {CONNECTIONS_MAX}").into());
    }
    let shared = Arc::new(Shared {
        socket: socket.clone(),
        export: export.clone(),
        begun,
        until: begun + length,
        sectors: connections * SECTORS_EACH,
        record: Mutex::default(),
    });
    let mut threads = Vec::new();
    for who in 0..connections {
        let (shared, rng) = (shared.clone(), Rng::stream(seed, who));
        threads.push(std::thread::spawn(move || shared.work(rng, who + 1)));
    }
    for t in threads {
        t.join().map_err(|_| "a connection's thread panicked")??;
    }
    // The final contents are part of the history.
    let mut nbd = shared.connect()?;
    for group in 0..shared.sectors / GROUP {
        shared.read(&mut nbd, group * GROUP_APART, GROUP)?;
    }
    let r = shared.record.lock().unwrap_or_else(PoisonError::into_inner);
    let checked = r.history.check(|_, _| SetId(0));
    println!(
        "{{\"seed\":{seed},\"operations\":{},\"slow\":{},\"slowest_ms\":{},\"failed\":{},\"broken\":{},\"linearizable\":{}}}",
        r.operations,
        r.slow,
        r.slowest.as_millis(),
        r.failed,
        r.broken,
        checked.is_ok()
    );
    checked.map(drop).map_err(|v| v as Box<dyn Error>)
}
