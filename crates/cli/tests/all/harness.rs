//! A rack in a child process, in a temporary directory: always ended, always removed.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::nbd::Client;

/// Time limit of operations that a rack performs at once, even on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A directory that is removed on drop.
pub struct Temp(pub PathBuf);

impl Temp {
    pub fn new() -> Temp {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rackweave-cli-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).expect("temporary directory");
        Temp(path)
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `rackweave` with arguments, ready to run; dies with the test.
pub fn rackweave(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    c.args(args).stdin(Stdio::null());
    // SAFETY: one system call that is allowed between fork and exec.
    unsafe {
        c.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    c
}

pub fn text(b: &[u8]) -> String {
    String::from_utf8_lossy(b).into_owned()
}

/// A running rack.
pub struct Rack {
    pub dir: Temp,
    child: Child,
    args: Vec<String>,
    pub printed: String,
}

impl Rack {
    /// Four servers of 256 MiB on a unix socket, without modelled delays.
    pub fn start() -> Rack {
        Rack::with(&[])
    }

    pub fn with(extra: &[&str]) -> Rack {
        Rack::on(Temp::new(), extra)
    }

    pub fn on(dir: Temp, extra: &[&str]) -> Rack {
        Rack::launch_in(dir, "256M", extra)
    }

    /// With a command that `by` has prepared.
    pub fn on_by(dir: Temp, extra: &[&str], by: impl FnOnce(Command) -> Command) -> Rack {
        Rack::launch_by(dir, "256M", extra, by)
    }

    /// With SSDs of this size.
    pub fn sized(dir: Temp, ssd: &str) -> Rack {
        Rack::launch_in(dir, ssd, &[])
    }

    pub fn sized_with(dir: Temp, ssd: &str, extra: &[&str]) -> Rack {
        Rack::launch_in(dir, ssd, extra)
    }

    fn launch_in(dir: Temp, ssd: &str, extra: &[&str]) -> Rack {
        Rack::launch_by(dir, ssd, extra, |c| c)
    }

    fn launch_by(dir: Temp, ssd: &str, extra: &[&str], by: impl FnOnce(Command) -> Command) -> Rack {
        let mut args: Vec<String> = ["up", "--timing", "none", "--ssd-size", ssd].map(String::from).to_vec();
        args.extend(["--data".into(), dir.path("data").display().to_string()]);
        args.extend(["--nbd".into(), format!("unix:{}", dir.path("nbd.sock").display())]);
        args.extend(extra.iter().map(|s| s.to_string()));
        let (child, printed) = launch(&args, by);
        Rack { dir, child, args, printed }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path("data")
    }
    pub fn socket(&self) -> PathBuf {
        self.dir.path("nbd.sock")
    }
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket().display())
    }
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Waits for the rack's end.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + SOON;
        loop {
            if let Some(s) = self.child.try_wait().expect("wait") {
                return s;
            }
            assert!(Instant::now() < end, "the rack does not end");
            pause();
        }
    }

    /// SIGTERM, and a clean end.
    pub fn stop(&mut self) {
        self.signal(libc::SIGTERM);
        let s = self.wait();
        assert!(s.success(), "ended with {s}");
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.wait();
    }

    /// Starts it again on the same data.
    pub fn again(&mut self) {
        self.again_with(&[]);
    }

    pub fn again_with(&mut self, extra: &[&str]) {
        let args: Vec<String> = self.args.iter().cloned().chain(extra.iter().map(|s| s.to_string())).collect();
        let (child, printed) = launch(&args, |c| c);
        self.child = child;
        self.printed = printed;
    }

    /// Starts it again when it cannot serve yet; `printed` is its output once it does.
    pub fn again_waiting(&mut self, extra: &[&str]) {
        let args: Vec<String> = self.args.iter().cloned().chain(extra.iter().map(|s| s.to_string())).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.child = rackweave(&args).stdout(Stdio::null()).spawn().expect("starts");
        wait_for("it answers", || self.run(&["status", "--json"]).status.success());
    }

    /// Another command about this rack.
    pub fn run(&self, args: &[&str]) -> Output {
        let data = self.data().display().to_string();
        let all: Vec<&str> = args.iter().copied().chain(["--data", &data]).collect();
        rackweave(&all).output().expect("runs")
    }

    /// As `run`, but must succeed; returns standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let o = self.run(args);
        assert!(o.status.success(), "{args:?}: {}{}", text(&o.stdout), text(&o.stderr));
        text(&o.stdout)
    }

    /// As `run`, but must fail with this status; returns standard error.
    pub fn fails(&self, status: i32, args: &[&str]) -> String {
        let o = self.run(args);
        assert_eq!(o.status.code(), Some(status), "{args:?}: {}{}", text(&o.stdout), text(&o.stderr));
        text(&o.stderr)
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.ok(&["status", "--json"])).expect("JSON")
    }

    /// Number of reports of a trace point since the start.
    pub fn count(&self, name: &str) -> u64 {
        let s = self.status();
        let counters = s["counters"].as_array().expect("counters");
        counters.iter().find(|c| c[0] == name).map_or(0, |c| c[1].as_u64().expect("count"))
    }

    pub fn volume(&self, name: &str, size: &str) {
        self.ok(&["volume", "create", name, "--size", size]);
    }

    pub fn connect(&self, volume: &str) -> Client {
        Client::connect(&self.socket(), volume)
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a rack and waits until it reports that it serves.
fn launch(args: &[String], by: impl FnOnce(Command) -> Command) -> (Child, String) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut child = by(rackweave(&args)).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("spawns");
    let mut out = child.stdout.take().expect("piped");
    let mut printed = String::new();
    let end = Instant::now() + SOON;
    while !printed.contains("ready") {
        let left = end.saturating_duration_since(Instant::now());
        let mut p = libc::pollfd { fd: out.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is open.
        let n = unsafe { libc::poll(&mut p, 1, left.as_millis() as i32) };
        let mut b = [0; 4096];
        let got = if n > 0 { out.read(&mut b).expect("read") } else { 0 };
        if got == 0 {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the rack did not come up; it printed {printed:?}");
        }
        printed.push_str(&text(&b[..got]));
    }
    child.stdout = Some(out);
    (child, printed)
}

/// Yields for a moment, in a loop with a bound of its own.
pub fn pause() {
    // SAFETY: waits for nothing, a little.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 5) };
}

/// Waits until `done` or for [`SOON`].
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        pause();
    }
}

pub fn flip_byte(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let f = fs::OpenOptions::new().read(true).write(true).open(path).expect("open");
    let mut b = [0];
    f.read_exact_at(&mut b, at).expect("read");
    f.write_all_at(&[b[0] ^ 0x10], at).expect("write");
}

/// The rack that a drive belongs to, by the layout in docs/format.md.
pub fn owner(device: &Path) -> String {
    let b = std::fs::read(device).expect("a drive");
    b[2056..2072].iter().map(|b| format!("{b:02x}")).collect()
}

/// Clears the rack of a drive.
pub fn disown(device: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(device).expect("a drive");
    file.write_all_at(&[0; 32], 2048).expect("write");
}
