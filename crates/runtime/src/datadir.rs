//! A rack's data directory: one format version, one user at a time.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rackweave_device::private::{self, Exposed};

/// Version of the directory's layout (docs/format.md).
pub const DATA_VERSION: u32 = 1;
const VERSION_PREFIX: &str = "rackweave data ";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("no data directory: neither XDG_DATA_HOME nor HOME is set; name one with --data")]
    NoDefault,
    #[error("data directory {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is not empty and not a rack's data directory (it has no VERSION file)")]
    Foreign { path: PathBuf },
    #[error("{path} has data version {found}, this program reads and writes version {DATA_VERSION}")]
    Version { path: PathBuf, found: String },
    #[error(
        "{path} has mode {mode:04o}: other users may have changed its contents. If they are intact: chmod go-w '{path}'"
    )]
    Writable { path: PathBuf, mode: u32 },
    #[error(
        "{path} belongs to user {found}, this process runs as user {own}. Run as the owner, or change the owner: \
         chown -R {own} '{path}'"
    )]
    Owner { path: PathBuf, found: u32, own: u32 },
    #[error("{path} is in use by process {holder}")]
    InUse { path: PathBuf, holder: String },
}

/// `$XDG_DATA_HOME/rackweave`, else `~/.local/share/rackweave`.
pub fn default_path() -> Result<PathBuf, DataDirError> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("XDG_DATA_HOME")
        .filter(|p| p.is_absolute())
        .or_else(|| set("HOME").map(|h| h.join(".local/share")))
        .map(|p| p.join("rackweave"))
        .ok_or(DataDirError::NoDefault)
}

/// A data directory, locked while this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

/// Unlocks, instead of leaving that to the closed descriptor: a child process that was forked and has not run its program yet
/// holds the same lock.
impl Drop for DataDir {
    fn drop(&mut self) {
        // SAFETY: a plain system call on an open descriptor.
        let unlocked = unsafe { libc::flock(self.lock.as_raw_fd(), libc::LOCK_UN) };
        debug_assert_eq!(unlocked, 0, "{}", io::Error::last_os_error());
    }
}

impl DataDir {
    /// Creates the directory if necessary, locks it, and checks its version. No other user may be able to write to it.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let at = |error| DataDirError::Io { path: path.into(), error };
        private_directory(path)?;
        let version = path.join("VERSION");
        if !version.exists() && !only_ours(path).map_err(at)? {
            return Err(DataDirError::Foreign { path: path.into() });
        }
        let dir = DataDir { path: path.into(), lock: lock(path)? };
        match fs::read_to_string(&version) {
            Ok(text) => check_version(path, &text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                write_durably(path, "VERSION", format!("{VERSION_PREFIX}{DATA_VERSION}\n").as_bytes()).map_err(at)?;
            }
            Err(e) => return Err(at(e)),
        }
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
    /// Writes a small file atomically, even across a power cut.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<(), DataDirError> {
        write_durably(&self.path, name, contents).map_err(|error| DataDirError::Io { path: self.file(name), error })
    }
}

/// Creates the directory, or checks that no other user can change its contents.
pub fn private_directory(path: &Path) -> Result<(), DataDirError> {
    let at = |error| DataDirError::Io { path: path.into(), error };
    private::directory(path).map_err(at)?;
    match private::exposed(path).map_err(at)? {
        None => Ok(()),
        Some(Exposed::Mode(mode)) => Err(DataDirError::Writable { path: path.into(), mode }),
        Some(Exposed::Owner { found, own }) => Err(DataDirError::Owner { path: path.into(), found, own }),
    }
}

fn check_version(path: &Path, text: &str) -> Result<(), DataDirError> {
    let found = text.trim().strip_prefix(VERSION_PREFIX).unwrap_or(text.trim());
    if found == DATA_VERSION.to_string() {
        return Ok(());
    }
    let found = found.chars().take(40).collect();
    Err(DataDirError::Version { path: path.into(), found })
}

/// Whether it is empty, apart from leftovers of an interrupted first start.
fn only_ours(path: &Path) -> io::Result<bool> {
    for e in fs::read_dir(path)? {
        let name = e?.file_name();
        if name != "lock" && name != "VERSION.new" && name != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock(path: &Path) -> Result<File, DataDirError> {
    let name = path.join("lock");
    let at = |error| DataDirError::Io { path: name.clone(), error };
    let mut f = private::open(&name).map_err(at)?;
    // SAFETY: a plain system call on an open descriptor.
    if unsafe { libc::flock(f.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let e = io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EWOULDBLOCK) {
            return Err(at(e));
        }
        let mut holder = String::new();
        let _ = f.take(200).read_to_string(&mut holder);
        return Err(DataDirError::InUse { path: path.into(), holder: holder.trim().into() });
    }
    let text = format!("{} since {}\n", std::process::id(), utc_now());
    // Written in place: a full disk has no room for a second file.
    f.rewind().and_then(|()| f.write_all(text.as_bytes())).and_then(|()| f.set_len(text.len() as u64)).map_err(at)?;
    Ok(f)
}

pub fn write_durably(dir: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let written = private::create(&new).and_then(|mut f| {
        f.write_all(contents)?;
        f.sync_all()
    });
    if written.is_err() {
        // Leaves no partial file behind, in particular on a full disk.
        let _ = fs::remove_file(&new);
    }
    written?;
    fs::rename(&new, dir.join(name))?;
    File::open(dir)?.sync_all()
}

#[allow(clippy::disallowed_methods, reason = "for people to read")]
fn utc_now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// Seconds since 1970 as `2026-01-31T23:59:59Z`.
fn utc(seconds: u64) -> String {
    let (days, s) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days, with years that begin in March (leap days last).
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let day = doy - (153 * mp + 2) / 5 + 1;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn temp(name: &str) -> PathBuf {
        let p = std::env::temp_dir().join(format!("rackweave-datadir-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&p);
        p
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn one_user_at_a_time() {
        let p = temp("lock");
        let first = DataDir::open(&p).expect("opens");
        let e = DataDir::open(&p).unwrap_err().to_string();
        assert!(e.contains(&format!("in use by process {} since 2", std::process::id())), "{e}");
        // A forked child holds this until it runs its program.
        let child = first.lock.try_clone().expect("descriptor");
        drop(first);
        drop(DataDir::open(&p).expect("free again"));
        drop(child);
        fs::remove_dir_all(&p).expect("remove");
    }

    #[test]
    fn other_versions_and_other_peoples_directories_are_refused() {
        let p = temp("version");
        drop(DataDir::open(&p).expect("opens"));
        fs::write(p.join("VERSION"), "rackweave data 9\n").expect("write");
        let e = DataDir::open(&p).unwrap_err().to_string();
        assert!(e.contains("version 9") && e.contains("version 1"), "{e}");
        fs::remove_file(p.join("VERSION")).expect("remove");
        fs::write(p.join("thesis.tex"), "").expect("write");
        assert!(matches!(DataDir::open(&p), Err(DataDirError::Foreign { .. })));
        fs::remove_dir_all(&p).expect("remove");
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let p = temp("others");
        let mode = |m| fs::set_permissions(&p, PermissionsExt::from_mode(m)).expect("ours");
        drop(DataDir::open(&p).expect("opens"));
        for bad in [0o777, 0o1777, 0o770, 0o702] {
            mode(bad);
            let e = DataDir::open(&p).unwrap_err().to_string();
            assert!(e.contains(&format!("mode {bad:04o}")) && e.contains("chmod go-w"), "{e}");
        }
        mode(0o755);
        drop(DataDir::open(&p).expect("others may look"));
        // SAFETY: plain system calls; the path is a terminated string.
        let name = std::ffi::CString::new(p.to_str().expect("UTF-8")).expect("no zero byte");
        if unsafe { libc::geteuid() != 0 || libc::chown(name.as_ptr(), 65_534, 65_534) != 0 } {
            println!("SKIP a_directory_that_others_may_change_is_refused: another user's directory needs root");
        } else {
            let e = DataDir::open(&p).unwrap_err().to_string();
            assert!(e.contains("belongs to user 65534") && e.contains("chown -R 0"), "{e}");
        }
        fs::remove_dir_all(&p).expect("remove");
    }
}
