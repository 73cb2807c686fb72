//! Files of a data directory: swapped, replaced, outdated, damaged.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rackweave_core::Rng;

const STORE: &str = "meta.redb";

fn drive(data: &Path, server: u32) -> PathBuf {
    data.join(format!("ssd-{server}.rwk"))
}

/// Copies the files of a directory into a new one.
fn copy_all(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).expect("made");
    for e in fs::read_dir(from).expect("a directory").map(|e| e.expect("an entry")) {
        if e.file_type().expect("a type").is_file() {
            fs::copy(e.path(), to.join(e.file_name())).expect("copied");
        }
    }
}

/// The directory as of some starts ago.
pub struct Older(PathBuf);

impl Older {
    pub fn of(data: &Path, to: &Path) -> Older {
        copy_all(data, to);
        Older(to.into())
    }
}

/// The directory as it is, to be restored.
pub struct Saved {
    data: PathBuf,
    copy: PathBuf,
}

impl Saved {
    pub fn of(data: &Path, to: &Path) -> Saved {
        copy_all(data, to);
        Saved { data: data.into(), copy: to.into() }
    }
    pub fn put_back(&self) {
        copy_all(&self.copy, &self.data);
    }
}

#[derive(Debug)]
pub enum FileEdit {
    /// Two drives are swapped.
    Swap(u32, u32),
    /// A copy of one drive replaces another.
    Duplicate(u32, u32),
    /// A drive of another rack.
    Foreign(u32),
    /// The metadata service's store as of some starts ago.
    OlderStore,
    /// A drive as of some starts ago.
    OlderDrive(u32),
    StoreGone,
    DriveGone(u32),
    DriveEmptied(u32),
    ConfigurationGone,
    VersionOf(u32),
    /// A byte of the first blocks: shape, owner, state.
    HeadDamaged(u32, u64),
    /// Of one copy of a drive's table.
    TableDamaged(u32),
    /// Of both.
    TablesDamaged(u32),
    /// The file is another with the same contents.
    Copied(u32),
}

impl FileEdit {
    pub fn draw(rng: &mut Rng, servers: u32) -> FileEdit {
        let a = rng.below(u64::from(servers)) as u32;
        let b = (a + 1 + rng.below(u64::from(servers) - 1) as u32) % servers;
        match rng.below(14) {
            0 => FileEdit::Swap(a, b),
            1 => FileEdit::Duplicate(a, b),
            2 => FileEdit::Foreign(a),
            3 => FileEdit::OlderStore,
            4 => FileEdit::OlderDrive(a),
            5 => FileEdit::StoreGone,
            6 => FileEdit::DriveGone(a),
            7 => FileEdit::DriveEmptied(a),
            8 => FileEdit::ConfigurationGone,
            9 => FileEdit::VersionOf(rng.between(2, 9) as u32),
            10 => FileEdit::HeadDamaged(a, rng.below(76)),
            11 => FileEdit::TableDamaged(a),
            12 => FileEdit::TablesDamaged(a),
            _ => FileEdit::Copied(a),
        }
    }

    pub fn apply(&self, data: &Path, older: &Older, foreign: &Path) {
        let to = |n: u32| drive(data, n);
        let replace = |from: &Path, to: &Path| fs::copy(from, to).map(|_| ()).expect("copied");
        match *self {
            FileEdit::Swap(a, b) => {
                let between = data.join("between");
                fs::rename(to(a), &between).and_then(|()| fs::rename(to(b), to(a))).expect("renamed");
                fs::rename(between, to(b)).expect("renamed");
            }
            FileEdit::Duplicate(a, b) => replace(&to(a), &to(b)),
            FileEdit::Foreign(a) => replace(foreign, &to(a)),
            FileEdit::OlderStore => replace(&older.0.join(STORE), &data.join(STORE)),
            FileEdit::OlderDrive(a) => replace(&drive(&older.0, a), &to(a)),
            FileEdit::StoreGone => fs::remove_file(data.join(STORE)).expect("removed"),
            FileEdit::DriveGone(a) => fs::remove_file(to(a)).expect("removed"),
            FileEdit::DriveEmptied(a) => fs::write(to(a), "").expect("emptied"),
            FileEdit::ConfigurationGone => fs::remove_file(data.join("rack.toml")).expect("removed"),
            FileEdit::VersionOf(n) => {
                fs::write(data.join("VERSION"), format!("rackweave data {n}\n")).expect("written")
            }
            FileEdit::HeadDamaged(a, at) => flip(&to(a), at),
            FileEdit::TableDamaged(a) => flip(&to(a), tables(&to(a))[0] + 40),
            FileEdit::TablesDamaged(a) => tables(&to(a)).iter().for_each(|at| flip(&to(a), at + 40)),
            FileEdit::Copied(a) => {
                let copy = data.join("copy");
                replace(&to(a), &copy);
                fs::rename(copy, to(a)).expect("renamed");
            }
        }
    }

    /// Words of which the error contains at least one.
    pub fn names(&self) -> Vec<String> {
        let file = |n: u32| format!("ssd-{n}.rwk");
        match *self {
            FileEdit::Swap(a, b) => vec![file(a), file(b)],
            FileEdit::Duplicate(_, b) => vec![file(b)],
            FileEdit::Foreign(a)
            | FileEdit::OlderDrive(a)
            | FileEdit::DriveGone(a)
            | FileEdit::DriveEmptied(a)
            | FileEdit::HeadDamaged(a, _)
            | FileEdit::TableDamaged(a)
            | FileEdit::TablesDamaged(a)
            | FileEdit::Copied(a) => vec![file(a)],
            FileEdit::OlderStore | FileEdit::StoreGone => vec![STORE.into()],
            FileEdit::ConfigurationGone => vec!["fixed at".into()],
            FileEdit::VersionOf(n) => vec![format!("version {n}")],
        }
    }
    /// Words of advice of which the error contains at least one.
    pub fn advice(&self) -> Vec<String> {
        let all: &[&str] = match self {
            FileEdit::Swap(..) | FileEdit::Duplicate(..) => &["put each drive's own file in its place"],
            FileEdit::Foreign(_) | FileEdit::DriveGone(_) | FileEdit::DriveEmptied(_) => &["--replace-ssd"],
            FileEdit::OlderStore => &["Put the current store back"],
            FileEdit::OlderDrive(_) => &["Put the current one back"],
            FileEdit::StoreGone => &["put it back"],
            FileEdit::TablesDamaged(_) => &["eplace the drive"],
            FileEdit::ConfigurationGone => &["Set it back"],
            FileEdit::VersionOf(_) | FileEdit::HeadDamaged(..) | FileEdit::TableDamaged(_) | FileEdit::Copied(_) => &[],
        };
        all.iter().map(|s| s.to_string()).collect()
    }
    pub fn must_be_refused(&self) -> bool {
        !matches!(self, FileEdit::OlderDrive(_) | FileEdit::TableDamaged(_) | FileEdit::Copied(_))
    }
}

fn flip(path: &Path, at: u64) {
    crate::harness::flip_byte(path, at);
}

/// Offsets of the copies of the drive table: within its first MiB.
fn tables(path: &Path) -> Vec<u64> {
    let file = fs::File::open(path).expect("a drive");
    let mut head = vec![0; 1 << 20];
    file.read_exact_at(&mut head, 0).expect("a drive is longer");
    let found: Vec<u64> =
        (0..head.len()).step_by(4096).filter(|&at| head[at..].starts_with(b"RWTABLE\n")).map(|at| at as u64).collect();
    assert_eq!(found.len(), 2, "two copies");
    found
}
