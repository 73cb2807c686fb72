//! A stored configuration and the files beside it are edited between starts (protocol rule 30): each start is refused
//! with an error that says what to do, or every block of the volume is right.
//!
//! `RACKWEAVE_EDITS=200` sets the number of edits (default 24), `RACKWEAVE_EDITS_SEED` draws others,
//! `RACKWEAVE_EDITS_RACK` skips the racks before this one.

#[path = "edits/files.rs"]
mod files;
#[path = "edits/keys.rs"]
mod keys;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use rackweave_config::RackConfig;
use rackweave_core::Rng;

use crate::harness::{SOON, Temp, pause, rackweave, text};
use crate::nbd::{Client, pattern};

use files::FileEdit;
use keys::{KeyEdit, Keys};

/// Number of edits, unless `RACKWEAVE_EDITS` overrides it.
const EDITS: u64 = 24;
/// Edits of one rack before another one is created.
const EDITS_OF_A_RACK: u64 = 20;
/// Blocks of the volume.
const BLOCKS: u64 = 2_048;
/// Blocks of a request.
const RUN: u64 = 64;

/// The racks that are edited, in turns.
const RACKS: [&str; 3] = [
    "servers = 4\n[ssd]\nsize = \"128M\"\n",
    "servers = 4\nreplicas = 2\nservers_max = 5\n[ssd]\nsize = \"128M\"\nspare = 1\nisolation = [\"channel\", \"software\"]\n",
    "servers = 3\npolicy = \"baseline\"\n[ssd]\nsize = \"64M\"\nprofile = \"femu\"\nchannels = 4\nisolation = \"die\"\n",
];

/// Result of a start.
enum Started {
    Serves(Child),
    /// With this on standard error.
    Refused(String),
}

struct Rack {
    dir: Temp,
    keys: Keys,
    /// The stored configuration, as the rack wrote it.
    kept: String,
    /// Number of the contents of each block, 0: zeroes.
    contents: Vec<u64>,
    version: u64,
    starts: u64,
    compared: u64,
    /// A drive of another rack of the same geometry.
    foreign: PathBuf,
}

impl Rack {
    /// With contents in each block.
    fn new(config: &str) -> Rack {
        let dir = Temp::new();
        let given = dir.path("given.toml");
        fs::write(&given, config).expect("written");
        let foreign = dir.path("foreign.rwk");
        let mut r = Rack {
            dir,
            keys: Keys::default(),
            kept: String::new(),
            contents: vec![0; BLOCKS as usize],
            version: 0,
            starts: 0,
            compared: 0,
            foreign,
        };
        // Another rack of the same geometry runs first; one of its drives is kept.
        let given = given.display().to_string();
        let other = r.serves(&["--config", &given]);
        r.stop(other, false);
        fs::rename(r.data().join("ssd-1.rwk"), &r.foreign).expect("kept");
        fs::remove_dir_all(r.data()).expect("removed");
        let first = r.serves(&["--config", &given]);
        let created = r.run(&["volume", "create", "v", "--size", &(BLOCKS * 4096).to_string()]);
        assert_eq!(created, "", "created");
        r.write(0..BLOCKS);
        r.stop(first, false);
        r.kept = fs::read_to_string(r.config()).expect("kept");
        r.keys = Keys::of(&r.kept);
        r
    }

    fn data(&self) -> PathBuf {
        self.dir.path("data")
    }
    fn config(&self) -> PathBuf {
        self.data().join("rack.toml")
    }
    fn servers(&self) -> u32 {
        RackConfig::parse(&self.kept).expect("good").servers
    }
    fn socket(&self) -> PathBuf {
        self.dir.path("nbd.sock")
    }

    /// Runs another command; returns the standard error of one that fails.
    fn run(&self, args: &[&str]) -> String {
        let data = self.data().display().to_string();
        let o = rackweave(&[args, &["--data", &data]].concat()).output().expect("runs");
        assert!(o.status.success(), "{args:?}: {}", text(&o.stderr));
        text(&o.stderr)
    }

    /// Starts it, until it serves or has ended.
    fn start(&mut self, extra: &[&str]) -> Started {
        self.starts += 1;
        let (data, nbd) = (self.data().display().to_string(), format!("unix:{}", self.socket().display()));
        let (out, err) = (self.dir.path("out"), self.dir.path("err"));
        let to = |path: &Path| Stdio::from(fs::File::create(path).expect("a file"));
        let args = [&["up", "--timing", "none", "--data", &data, "--nbd", &nbd], extra].concat();
        let mut child = rackweave(&args).stdout(to(&out)).stderr(to(&err)).spawn().expect("spawns");
        let said = || fs::read_to_string(&err).expect("what it said");
        let end = Instant::now() + SOON;
        loop {
            if let Some(status) = child.try_wait().expect("wait") {
                assert_eq!((status.code(), status.signal()), (Some(1), None), "{}", said());
                return Started::Refused(said());
            }
            if fs::read_to_string(&out).expect("what it printed").contains("ready") {
                return Started::Serves(child);
            }
            assert!(Instant::now() < end, "neither serves nor is refused: {}", said());
            pause();
        }
    }
    fn serves(&mut self, extra: &[&str]) -> Child {
        match self.start(extra) {
            Started::Serves(child) => child,
            Started::Refused(why) => panic!("refused: {why}"),
        }
    }

    /// Its output and status.
    fn said(&self) -> String {
        let data = self.data().display().to_string();
        let status = rackweave(&["status", "--data", &data]).output().expect("runs");
        text(&status.stdout) + &fs::read_to_string(self.dir.path("err")).expect("what it said")
    }

    /// Stops it cleanly, or kills it.
    fn stop(&self, mut child: Child, kill: bool) {
        let signal = if kill { libc::SIGKILL } else { libc::SIGTERM };
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(child.id() as i32, signal) };
        let status = child.wait().expect("wait");
        assert_eq!(status.success(), !kill, "ended with {status}");
    }

    fn connect(&self) -> Client {
        Client::connect(&self.socket(), "v")
    }

    /// Writes and flushes other contents.
    fn write(&mut self, blocks: std::ops::Range<u64>) {
        self.version += 1;
        let mut c = self.connect();
        let blocks: Vec<u64> = blocks.collect();
        for run in blocks.chunks(RUN as usize) {
            let data: Vec<u8> = run.iter().flat_map(|&b| pattern(b, self.version)).collect();
            c.write(run[0] * 4096, &data);
            run.iter().for_each(|&b| self.contents[b as usize] = self.version);
        }
        c.flush();
    }
    /// Writes other contents in places and trims some, all flushed.
    fn change(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 12) {
            let (first, count) = (rng.below(BLOCKS - RUN), rng.between(1, RUN));
            if rng.chance(0.2) {
                let mut c = self.connect();
                c.trim(first * 4096, (count * 4096) as u32);
                c.flush();
                (first..first + count).for_each(|b| self.contents[b as usize] = 0);
            } else {
                self.write(first..first + count);
            }
        }
    }
    /// Compares each block. An error is a failure: nothing was damaged.
    fn check(&mut self, after: &str) {
        let mut c = self.connect();
        let mut wrong = Vec::new();
        for first in (0..BLOCKS).step_by(RUN as usize) {
            let got = c.try_read(first * 4096, (RUN * 4096) as u32);
            let got =
                got.unwrap_or_else(|e| panic!("after {after}: blocks {first} and on: error {e}: {}", self.said()));
            for (b, got) in (first..).zip(got.chunks(4096)) {
                let right = match self.contents[b as usize] {
                    0 => got.iter().all(|&x| x == 0),
                    version => got == pattern(b, version),
                };
                if !right {
                    wrong.push(b);
                }
            }
        }
        self.compared += BLOCKS;
        assert!(wrong.is_empty(), "after {after}: {} wrong blocks: {wrong:?}", wrong.len());
    }
    /// Starts without edits: everything is right.
    fn check_again(&mut self, after: &str) {
        let child = self.serves(&[]);
        self.check(after);
        self.stop(child, false);
    }

    /// Whether the error names this edit and says what to do.
    fn refused_by_name<S: AsRef<str> + std::fmt::Debug>(&self, edit: &str, why: &str, names: &[S], advice: &[S]) {
        let said = |all: &[S]| all.is_empty() || all.iter().any(|a| why.contains(a.as_ref()));
        assert!(said(names), "{edit}: none of {names:?} is named: {why}");
        assert!(said(advice), "{edit}: none of {advice:?} is advised: {why}");
        assert!(why.lines().count() <= 12, "{edit}: {why}");
    }
}

#[derive(Default, Debug)]
struct Counts {
    refused: u64,
    harmless: u64,
    starts: u64,
    compared: u64,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |n| n.parse().expect("a number"))
}

/// Keys of the configuration: one or several at once, in the stored file or in one given on the command line.
fn edit_keys(r: &mut Rack, rng: &mut Rng, n: &mut Counts) {
    let mut edited = r.keys.clone();
    let several = if rng.chance(0.3) { rng.between(2, 4) } else { 1 };
    let edits: Vec<KeyEdit> = (0..several).map(|_| edited.edit(rng)).collect();
    let name = edits.iter().map(KeyEdit::to_string).collect::<Vec<_>>().join(", ");
    let toml = edited.text();
    let names: Vec<&str> = edits.iter().flat_map(|e| e.names()).collect();
    let given = r.dir.path("edited.toml");
    let by_option = rng.chance(0.3);
    let started = if by_option {
        fs::write(&given, &toml).expect("written");
        let given = given.display().to_string();
        r.start(&["--config", &given])
    } else {
        fs::write(r.config(), &toml).expect("written");
        r.start(&[])
    };
    match started {
        Started::Refused(why) => {
            n.refused += 1;
            println!("refused: {name}");
            let fixed = keys::fixed_differ(&r.kept, &toml);
            let advice: &[&str] = if fixed { &["Set it back", "set it back"] } else { &[] };
            let names: &[&str] = if fixed { keys::FIXED } else { &names };
            r.refused_by_name(&name, &why, names, advice);
        }
        Started::Serves(child) => {
            n.harmless += 1;
            println!("taken: {name}");
            assert!(!keys::fixed_differ(&r.kept, &toml), "{name}: another layout was taken");
            r.check(&name);
            if rng.chance(0.5) {
                r.change(rng);
            }
            r.stop(child, rng.chance(0.3));
        }
    }
    fs::write(r.config(), &r.kept).expect("written");
}

/// Files of the data directory.
fn edit_files(r: &mut Rack, rng: &mut Rng, older: &files::Older, n: &mut Counts) {
    let edit = FileEdit::draw(rng, r.servers());
    let name = format!("{edit:?}");
    let saved = files::Saved::of(&r.data(), &r.dir.path("saved"));
    edit.apply(&r.data(), older, &r.foreign);
    match r.start(&[]) {
        Started::Refused(why) => {
            n.refused += 1;
            println!("refused: {name}");
            r.refused_by_name(&name, &why, &edit.names(), &edit.advice());
            saved.put_back();
        }
        Started::Serves(child) => {
            n.harmless += 1;
            println!("taken: {name}");
            assert!(!edit.must_be_refused(), "{name}: taken");
            r.check(&name);
            if rng.chance(0.5) {
                r.change(rng);
            }
            r.stop(child, false);
        }
    }
}

/// Number of the remaining edits for the next rack.
fn edits_of_a_rack(edits: u64, made: u64) -> u64 {
    (edits - made).min(EDITS_OF_A_RACK.min(edits.div_ceil(RACKS.len() as u64)))
}

#[test]
fn an_edit_is_refused_or_harmless() {
    let (edits, seed) = (number("RACKWEAVE_EDITS", EDITS), number("RACKWEAVE_EDITS_SEED", 1));
    let mut n = Counts::default();
    let (mut made, mut racks, first) = (0, 0, number("RACKWEAVE_EDITS_RACK", 0));
    while made < edits {
        if racks < first {
            (made, racks) = (made + edits_of_a_rack(edits, made), racks + 1);
            continue;
        }
        let mut rng = Rng::stream(seed, racks);
        let mut r = Rack::new(RACKS[(racks % RACKS.len() as u64) as usize]);
        let of_this = edits_of_a_rack(edits, made);
        println!("RACKWEAVE_EDITS_SEED={seed}: rack {racks}, edits {made} to {}", made + of_this - 1);
        let older = files::Older::of(&r.data(), &r.dir.path("older"));
        // The older files are older than what the rack has.
        let child = r.serves(&[]);
        r.change(&mut rng);
        r.stop(child, false);
        let end = made + of_this;
        while made < end {
            for _ in 0..rng.between(1, 3).min(end - made) {
                made += 1;
                if rng.chance(0.3) {
                    edit_files(&mut r, &mut rng, &older, &mut n);
                } else {
                    edit_keys(&mut r, &mut rng, &mut n);
                }
            }
            r.check_again("all edits were reverted");
        }
        (n.starts, n.compared) = (n.starts + r.starts, n.compared + r.compared);
        racks += 1;
    }
    println!("{made} edits: {n:?}");
    assert!(n.refused > 0 && n.harmless > 0, "{n:?}");
}
