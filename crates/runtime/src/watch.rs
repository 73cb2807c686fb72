//! Heartbeats of a node's process to its supervisor (`up --processes`): lines `beat N` on standard output, where N is
//! the incarnation of the server here, or 0.
//!
//! A switch sends one every [`BEAT`]. One that is silent for longer than its [`Watch`] allows is ended and restarted:
//! it has no durable state, and the servers announce theirs again (protocol rule 17). A server sends one with each
//! incarnation, so that its supervisor can name the incarnation whose lease is over when the process ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::process::ChildStdout;

use rackweave_core::{Span, Time};

/// Period of a switch's heartbeats.
pub const BEAT: Span = Span::from_millis(100);
/// A switch hangs if it is silent for this time and for a further [`BEAT`] after that was noticed: long enough for a
/// page fault or two from a slow disk.
pub const SILENT: Span = Span::from_millis(600);
/// The limit doubles up to this each time it fires again soon, because the machine may hang.
pub const SILENT_MAX: Span = Span::from_secs(30);
/// Longest line; longer ones are not heartbeats.
const LINE_MAX: usize = 64;
const PREFIX: &str = "beat ";

/// The node's end: writes to standard output without ever blocking.
#[derive(Debug)]
pub struct Beat {
    out: RawFd,
    every: Span,
    next: Time,
    said: Option<u64>,
}

impl Beat {
    /// A heartbeat on standard output every `every`, and with each new incarnation.
    pub fn new(every: Span) -> io::Result<Beat> {
        Beat::to(libc::STDOUT_FILENO, every)
    }
    fn to(out: RawFd, every: Span) -> io::Result<Beat> {
        // SAFETY: two plain system calls on a descriptor that stays open.
        let set = unsafe { libc::fcntl(out, libc::F_SETFL, libc::fcntl(out, libc::F_GETFL) | libc::O_NONBLOCK) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Beat { out, every, next: Time::ZERO, said: None })
    }
    pub fn deadline(&self) -> Time {
        self.next
    }
    /// Reports that the loop runs. A heartbeat that does not fit into the pipe is dropped: nobody reads it.
    pub fn turn(&mut self, now: Time, incarnation: u64) {
        if now < self.next && self.said == Some(incarnation) {
            return;
        }
        self.next = Time(now.0.saturating_add(self.every.0));
        // SAFETY: the descriptor stays open, and is not closed here.
        let mut out = ManuallyDrop::new(unsafe { File::from_raw_fd(self.out) });
        let written = out.write_all(format!("{PREFIX}{incarnation}\n").as_bytes());
        self.said = written.is_ok().then_some(incarnation);
    }
}

/// The supervisor's end: the state of a running process.
#[derive(Debug)]
pub struct Watch {
    out: ChildStdout,
    closed: bool,
    pid: u32,
    /// How long the process has waited for a core: [`waited_for_a_core`] outside tests.
    waited: fn(u32) -> Span,
    line: Vec<u8>,
    /// Incarnation of the server; 0 before its registration.
    pub incarnation: u64,
    /// Time of the last heartbeat, and how long the process had waited for a core by then; `None` before the first.
    heard: Option<(Time, Span)>,
    /// Time of the last check, and whether the process had been silent for too long then.
    looked: Time,
    suspected: bool,
}

impl Watch {
    pub fn new(pid: u32, out: ChildStdout) -> Watch {
        Watch {
            out,
            closed: false,
            pid,
            waited: waited_for_a_core,
            line: Vec::new(),
            incarnation: 0,
            heard: None,
            looked: Time::ZERO,
            suspected: false,
        }
    }
    pub fn as_raw_fd(&self) -> RawFd {
        self.out.as_raw_fd()
    }
    /// The process has closed its end; nothing further is read.
    pub fn closed(&mut self) {
        self.closed = true;
    }
    pub fn is_closed(&self) -> bool {
        self.closed
    }
    /// Reads available heartbeats. False if the process has closed its end.
    pub fn hear(&mut self, now: Time) -> bool {
        let mut b = [0; 4096];
        let n = match self.out.read(&mut b) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(e) => return matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock),
        };
        for &c in &b[..n] {
            if c != b'\n' {
                if self.line.len() < LINE_MAX {
                    self.line.push(c);
                }
                continue;
            }
            if let Some(incarnation) = parse(&self.line) {
                self.incarnation = incarnation;
                self.heard = Some((now, (self.waited)(self.pid)));
                self.suspected = false;
            }
            self.line.clear();
        }
        true
    }
    /// When to check for a hang if no heartbeat arrives; never before the first.
    pub fn due(&self, silent: Span) -> Time {
        self.heard.map_or(Time::MAX, |(at, _)| (at + silent).max(self.looked + BEAT))
    }
    /// Whether it hangs: silent for this time, not counting time in which it waited for a core. Two checks in a row
    /// must agree, because after a standstill of the whole machine this process may run first.
    pub fn hangs(&mut self, now: Time, silent: Span) -> bool {
        let Some((at, waited)) = self.heard.filter(|_| now >= self.due(silent)) else { return false };
        self.looked = now;
        let silent = silent + Span((self.waited)(self.pid).0.saturating_sub(waited.0));
        std::mem::replace(&mut self.suspected, now.since(at) >= silent) && self.suspected
    }
}

fn parse(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

/// Time since the process began in which it was runnable but not running; zero where the kernel does not report it.
fn waited_for_a_core(pid: u32) -> Span {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    Span(text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process whose standard output is a pipe that the test writes to.
    fn watched() -> (Child, Watch, Beat) {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::piped()).spawn().expect("sleep");
        let pid = child.id();
        let out = child.stdout.take().expect("piped");
        let path = format!("/proc/{pid}/fd/1");
        let write = File::options().write(true).open(path).expect("its end of the pipe");
        let beat = Beat::to(write.into_raw_fd(), BEAT).expect("a pipe");
        // The process itself starts while the test runs, and waits for a core as the machine has it.
        (child, Watch { waited: |_| Span::ZERO, ..Watch::new(pid, out) }, beat)
    }

    fn ms(n: u64) -> Time {
        Time::ZERO + Span::from_millis(n)
    }

    #[test]
    fn who_is_silent_twice_in_a_row_hangs_and_nobody_before_its_first_sign_of_life() {
        let (mut child, mut w, mut beat) = watched();
        assert_eq!(w.due(SILENT), Time::MAX);
        assert!(!w.hangs(ms(10_000), SILENT));
        beat.turn(ms(1), 0);
        assert!(w.hear(ms(1)));
        assert_eq!(w.due(SILENT), ms(601));
        assert!(!w.hangs(ms(600), SILENT), "not yet");
        // As after a standstill of the whole machine.
        assert!(!w.hangs(ms(60_000), SILENT), "once");
        assert_eq!(w.due(SILENT), ms(60_100));
        beat.turn(ms(60_050), 0);
        assert!(w.hear(ms(60_050)));
        assert!(!w.hangs(ms(60_100), SILENT), "it lives");
        assert!(!w.hangs(ms(60_650), SILENT), "once");
        assert!(!w.hangs(ms(60_700), SILENT), "too soon to ask again");
        assert!(w.hangs(ms(60_750), SILENT));
        w.waited = |_| Span::from_millis(300);
        assert!(!w.hangs(ms(60_850), SILENT), "it waited for a core");
        assert!(!w.hangs(ms(60_950), SILENT), "once");
        assert!(w.hangs(ms(61_050), SILENT));
        child.kill().and_then(|()| child.wait()).expect("ended");
    }

    #[test]
    fn a_sign_of_life_comes_in_time_and_with_each_incarnation_and_blocks_nobody() {
        let (mut child, mut w, mut beat) = watched();
        beat.turn(ms(1), 0);
        beat.turn(ms(50), 7);
        assert_eq!(beat.deadline(), ms(150));
        beat.turn(ms(60), 7);
        assert!(w.hear(ms(60)));
        assert_eq!((w.incarnation, w.due(SILENT)), (7, ms(660)));
        // Without a reader: a pipe holds 64 KiB.
        (1..20_000).for_each(|n| beat.turn(ms(100 * n), n));
        assert_eq!(parse(b"beat 12"), Some(12));
        assert_eq!((parse(b"beat"), parse(b"switch on 127.0.0.1:1"), parse(b"beat -1")), (None, None, None));
        child.kill().and_then(|()| child.wait()).expect("ended");
    }
}
