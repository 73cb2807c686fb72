//! The cluster keys in a file: one line per key, the sending key first.
//!
//! ```text
//! rackweave cluster key 1
//! 1 7a0f…64 hexadecimal digits…
//! ```

use std::fmt::{self, Write as _};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rackweave_transport::auth::KEY_BYTES;
use rackweave_transport::{KeyError, KeyId, Keys};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const FIRST_LINE: &str = "rackweave cluster key 1";
/// More than the lines of two keys take.
const BYTES_MAX: u64 = 1024;

/// Why a key file cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("this rack has no cluster key (hosts.key_file)")]
    None,
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

/// A key's bytes. Never displayed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; KEY_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Draws a new key from the kernel.
    pub fn draw() -> io::Result<Secret> {
        let mut key = [0u8; KEY_BYTES];
        // SAFETY: the kernel writes at most as many bytes as there is room for.
        let n = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
        if n == KEY_BYTES as isize { Ok(Secret(key)) } else { Err(io::Error::last_os_error()) }
    }
    fn hex(self) -> String {
        let mut text = String::with_capacity(2 * KEY_BYTES);
        self.0.iter().for_each(|b| write!(text, "{b:02x}").expect("a string takes everything"));
        text
    }
    fn of_hex(hex: &str) -> Option<Secret> {
        if hex.len() != 2 * KEY_BYTES || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut key = [0; KEY_BYTES];
        for (i, b) in key.iter_mut().enumerate() {
            *b = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Secret(key))
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.hex())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Secret, D::Error> {
        let text = String::deserialize(d)?;
        Secret::of_hex(&text).ok_or_else(|| de::Error::custom(format!("not {} hexadecimal digits", 2 * KEY_BYTES)))
    }
}

/// One step of a key rotation. Each may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KeyChange {
    /// Accept packets with this key.
    Add { id: u8, key: Secret },
    /// Send packets with this key.
    SendWith { id: u8 },
    /// No longer accept packets with this key.
    Remove { id: u8 },
}

/// The keys in a file: one, or two during a rotation; the sending key comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
    lines: Vec<(KeyId, Secret)>,
}

/// Writes a new key to a new file that only its owner can read.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn init(path: &Path) -> Result<(), KeyFileError> {
    let at = |error| KeyFileError::Io { path: path.into(), error };
    let file = KeyFile { path: path.into(), lines: vec![(KeyId(1), Secret::draw().map_err(at)?)] };
    create_secret(path, file.text().as_bytes()).map_err(at)
}

/// Reads the keys in the file.
///
/// # Errors
/// The file cannot be read, others can read it, or its contents are malformed.
pub fn load(path: &Path) -> Result<Keys, KeyFileError> {
    KeyFile::load(path)?.keys()
}

/// Creates a file that only its owner can read.
pub fn create_secret(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut f = rackweave_device::private::create_new(path)?;
    f.write_all(contents).and_then(|()| f.sync_all())
}

impl KeyFile {
    /// # Errors
    /// As [`load`].
    pub fn load(path: &Path) -> Result<KeyFile, KeyFileError> {
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
        let line = |(i, line)| parse(line).ok_or(KeyFileError::Line { path: path.into(), line: i + 1 });
        let file = KeyFile { path: path.into(), lines: lines.map(line).collect::<Result<_, _>>()? };
        file.keys()?;
        Ok(file)
    }

    /// # Errors
    /// No key, two keys with one id, or more than two keys.
    pub fn keys(&self) -> Result<Keys, KeyFileError> {
        let Some(&(first, _)) = self.lines.first() else {
            return Err(KeyFileError::Line { path: self.path.clone(), line: 2 });
        };
        let error = |error| KeyFileError::Key { path: self.path.clone(), error };
        let mut keys = Keys::none();
        for (id, key) in &self.lines {
            if keys.live().any(|live| live == *id) {
                return Err(error(KeyError::Exists { id: *id }));
            }
            keys.add(*id, key.0).map_err(error)?;
        }
        keys.send_with(first).map_err(error)?;
        Ok(keys)
    }

    /// Key ids, the sending key first.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.lines.iter().map(|(id, _)| *id)
    }
    pub fn secret(&self, id: KeyId) -> Option<Secret> {
        self.lines.iter().find(|(have, _)| *have == id).map(|(_, key)| *key)
    }

    /// Takes one step, also in the file. Idempotent, because several nodes may share a file.
    ///
    /// # Errors
    /// The step does not fit the present keys, or the file cannot be written.
    pub fn change(&mut self, change: &KeyChange) -> Result<(), KeyFileError> {
        let error = |error| KeyFileError::Key { path: self.path.clone(), error };
        let mut lines = self.lines.clone();
        match *change {
            KeyChange::Add { id, key } => {
                let id = KeyId(id);
                match self.secret(id) {
                    Some(have) if have == key => return Ok(()),
                    _ => lines.push((id, key)),
                }
            }
            KeyChange::SendWith { id } => {
                let at = lines.iter().position(|(have, _)| have.0 == id);
                lines[..].rotate_left(at.ok_or_else(|| error(KeyError::Unknown { id: KeyId(id) }))?);
            }
            KeyChange::Remove { id } => {
                if lines[0].0.0 == id {
                    return Err(error(KeyError::InUse { id: KeyId(id) }));
                }
                lines.retain(|(have, _)| have.0 != id);
            }
        }
        let changed = KeyFile { path: self.path.clone(), lines };
        if let KeyChange::Add { id, key } = *change {
            self.keys()?.add(KeyId(id), key.0).map_err(error)?;
        }
        if changed != *self {
            changed.store().map_err(|error| KeyFileError::Io { path: self.path.clone(), error })?;
        }
        *self = changed;
        Ok(())
    }

    /// Writes the file atomically, even across a power cut.
    fn store(&self) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let _ = std::fs::remove_file(&new);
        create_secret(&new, self.text().as_bytes())?;
        std::fs::rename(&new, &self.path)?;
        std::fs::File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    fn text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        self.lines.iter().for_each(|(id, key)| {
            writeln!(text, "{} {}", id.0, key.hex()).expect("a string takes everything");
        });
        text
    }
}

fn parse(line: &str) -> Option<(KeyId, Secret)> {
    let (id, hex) = line.split_once(' ')?;
    let id = id.parse().ok().filter(|&id| id > 0)?;
    Some((KeyId(id), Secret::of_hex(hex)?))
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
    #[test]
    fn steps_of_a_rotation_may_be_taken_twice_but_not_out_of_turn() {
        let path = std::env::temp_dir().join(format!("rackweave-keys-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        init(&path).expect("new");
        let mut f = KeyFile::load(&path).expect("there");
        let key = Secret::draw().expect("drawn");
        let ids = || KeyFile::load(&path).expect("there").ids().map(|id| id.0).collect::<Vec<_>>();
        for (step, then) in [
            (KeyChange::Add { id: 2, key }, vec![1, 2]),
            (KeyChange::Add { id: 2, key }, vec![1, 2]),
            (KeyChange::SendWith { id: 2 }, vec![2, 1]),
            (KeyChange::SendWith { id: 2 }, vec![2, 1]),
            (KeyChange::Remove { id: 1 }, vec![2]),
            (KeyChange::Remove { id: 1 }, vec![2]),
        ] {
            f.change(&step).expect("fits");
            assert_eq!(ids(), then, "{step:?}");
            assert!(!format!("{step:?}").contains(&key.hex()));
        }
        let other = Secret::draw().expect("drawn");
        for (step, says) in [
            (KeyChange::Add { id: 2, key: other }, "other contents"),
            (KeyChange::Add { id: 0, key: other }, "no key"),
            (KeyChange::SendWith { id: 9 }, "not live"),
            (KeyChange::Remove { id: 2 }, "sent with"),
        ] {
            assert!(f.change(&step).unwrap_err().to_string().contains(says), "{step:?}");
        }
        f.change(&KeyChange::Add { id: 3, key: other }).expect("fits");
        assert!(f.change(&KeyChange::Add { id: 4, key }).unwrap_err().to_string().contains("remove one"));
        assert_eq!(ids(), [2, 3]);
        fs::remove_file(&path).expect("remove");
    }
}
