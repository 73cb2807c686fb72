//! The cluster's key in a file: one line a key, the one that packets are sent with first.
//!
//! ```text
//! rackweave cluster key 1
//! 1 7a0f…64 hexadecimal digits…
//! ```

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rackweave_transport::auth::KEY_BYTES;
use rackweave_transport::{KeyError, KeyId, Keys};

const FIRST_LINE: &str = "rackweave cluster key 1";
/// More than two keys' lines need.
const BYTES_MAX: u64 = 1024;

/// Why a key file cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("key file {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("key file {path}: its mode is {mode:03o}; only its owner may read it (chmod 600)")]
    Open { path: PathBuf, mode: u32 },
    #[error("key file {path}: the first line is not {FIRST_LINE:?}")]
    Foreign { path: PathBuf },
    #[error("key file {path}, line {line}: not a number from 1 to 255 and {} hexadecimal digits", 2 * KEY_BYTES)]
    Line { path: PathBuf, line: usize },
    #[error("key file {path}: {error}")]
    Key { path: PathBuf, error: KeyError },
}

/// Makes a new key in a new file that only its owner can read.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn init(path: &Path) -> Result<(), KeyFileError> {
    let at = |error| KeyFileError::Io { path: path.into(), error };
    let mut key = [0u8; KEY_BYTES];
    // SAFETY: the kernel writes at most as many bytes as there is room for.
    let n = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
    if n != KEY_BYTES as isize {
        return Err(at(io::Error::last_os_error()));
    }
    let mut text = format!("{FIRST_LINE}\n1 ");
    key.iter().for_each(|b| write!(text, "{b:02x}").expect("a string takes everything"));
    text.push('\n');
    let mut f = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(at)?;
    f.write_all(text.as_bytes()).and_then(|()| f.sync_all()).map_err(at)
}

/// The keys in the file.
///
/// # Errors
/// It cannot be read, others can read it, or it is not what [`init`] writes.
pub fn load(path: &Path) -> Result<Keys, KeyFileError> {
    let at = |error| KeyFileError::Io { path: path.into(), error };
    let f = std::fs::File::open(path).map_err(at)?;
    let mode = f.metadata().map_err(at)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open { path: path.into(), mode });
    }
    let mut text = String::new();
    f.take(BYTES_MAX).read_to_string(&mut text).map_err(at)?;
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, first)| first != FIRST_LINE) {
        return Err(KeyFileError::Foreign { path: path.into() });
    }
    let mut keys = Keys::none();
    for (i, line) in lines {
        let (id, key) = parse(line).ok_or(KeyFileError::Line { path: path.into(), line: i + 1 })?;
        let sends = keys.is_none();
        let added = keys.add(id, key).and_then(|()| if sends { keys.send_with(id) } else { Ok(()) });
        added.map_err(|error| KeyFileError::Key { path: path.into(), error })?;
    }
    if keys.is_none() {
        return Err(KeyFileError::Line { path: path.into(), line: 2 });
    }
    Ok(keys)
}

fn parse(line: &str) -> Option<(KeyId, [u8; KEY_BYTES])> {
    let (id, hex) = line.split_once(' ')?;
    let id = id.parse().ok().filter(|&id| id > 0)?;
    if hex.len() != 2 * KEY_BYTES || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (i, b) in key.iter_mut().enumerate() {
        *b = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some((KeyId(id), key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_new_key_is_its_owners_alone_and_reads_back() {
        let path = std::env::temp_dir().join(format!("rackweave-key-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        init(&path).expect("new");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        let keys = load(&path).expect("reads back");
        assert_eq!(keys.live().collect::<Vec<_>>(), [KeyId(1)]);
        assert!(init(&path).unwrap_err().to_string().contains("exists"), "never overwritten");
        let text = fs::read_to_string(&path).expect("text");
        for (bad, says) in [
            (text.replace("key 1", "key 2"), "first line"),
            (text.replace("\n1 ", "\n0 "), "line 2"),
            (text.replace("\n1 ", "\n1 é"), "line 2"),
            (FIRST_LINE.to_string(), "line 2"),
            (format!("{text}1 {}\n", "0".repeat(64)), "key 1"),
        ] {
            fs::write(&path, &bad).expect("write");
            let e = load(&path).unwrap_err().to_string();
            assert!(e.contains(says), "{bad}: {e}");
        }
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).expect("chmod");
        assert!(load(&path).unwrap_err().to_string().contains("640"));
        fs::remove_file(&path).expect("remove");
    }
}
