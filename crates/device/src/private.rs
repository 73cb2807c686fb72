//! Files and directories with explicit modes: regardless of the umask, only the owner reads or writes a rack's files.
//! Files that users name as outputs of a command are readable by the umask, and never writable by others.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Of files and sockets.
pub const FILE_MODE: u32 = 0o600;
pub const DIRECTORY_MODE: u32 = 0o700;
/// Of reports for people, less what the umask takes.
const REPORT_MODE: u32 = 0o644;
/// Others may write, or make and remove files.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Opens a file to read and write, with its contents, and creates it if it is missing.
pub fn open(path: &Path) -> io::Result<File> {
    set(OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(path)?)
}

/// Creates an empty file, or empties an existing one.
pub fn create(path: &Path) -> io::Result<File> {
    set(OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?)
}

/// A file that was not there before.
pub fn create_new(path: &Path) -> io::Result<File> {
    set(OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?)
}

/// A report, under a name of the user's: a file that is there keeps its mode.
pub fn report(path: &Path, contents: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(REPORT_MODE).open(path)?.write_all(contents)
}

/// Makes the file of a report if there is none, so that one that cannot be written is refused before the work for it.
pub fn report_file(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).mode(REPORT_MODE).open(path).map(drop)
}

/// Sets the mode, regardless of the umask and of an existing file's mode. Devices and pipes are left alone.
fn set(file: File) -> io::Result<File> {
    let meta = file.metadata()?;
    if meta.is_file() && meta.mode() & 0o7777 != FILE_MODE && !mutant!("device.private.inherited-mode") {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Creates the directory and its parents, unless they exist.
pub fn directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|p| *p != Path::new("")) {
        directory(above)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(e),
    }
}

/// Reason why a directory's contents cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposed {
    /// Others may write to it.
    Mode(u32),
    /// It is another user's, who may change its mode.
    Owner { found: u32, own: u32 },
}

/// How others than the user of this process could change the directory.
pub fn exposed(path: &Path) -> io::Result<Option<Exposed>> {
    let meta = std::fs::metadata(path)?;
    // SAFETY: a plain system call.
    let own = unsafe { libc::geteuid() };
    let mode = meta.mode() & 0o7777;
    Ok(match meta.uid() {
        found if found != own => Some(Exposed::Owner { found, own }),
        _ if mode & WRITABLE_BY_OTHERS != 0 && !mutant!("device.private.exposed") => Some(Exposed::Mode(mode)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn files_and_directories_are_their_owners_whatever_was_there() {
        let dir = std::env::temp_dir().join(format!("rackweave-private-{}", std::process::id()));
        directory(&dir).expect("made");
        assert_eq!((mode(&dir), exposed(&dir).expect("there")), (DIRECTORY_MODE, None));
        for of in [open, create] {
            let file = dir.join("file");
            std::fs::write(&file, "old").expect("written");
            std::fs::set_permissions(&file, Permissions::from_mode(0o666)).expect("ours");
            of(&file).expect("opened");
            assert_eq!(mode(&file), FILE_MODE);
        }
        for open_to in [0o720, 0o702, 0o777] {
            std::fs::set_permissions(&dir, Permissions::from_mode(open_to)).expect("ours");
            assert_eq!(exposed(&dir).expect("there"), Some(Exposed::Mode(open_to)));
        }
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
