//! A drive of the flash manager in a file, as the C library and the commands open it.

use std::path::Path;

use rackweave_core::SsdId;
use rackweave_core::media_faults::MediaFaults;
use rackweave_flash::isolation::{LevelsError, ThroughputLevels};
use rackweave_flash::manager::driver::{BlockingDrive, OpenError as ManagerError};
use rackweave_flash::manager::{ConfigError, FlashManager, ManagerConfig};
use rackweave_flash::wear::WearPolicy;
use rackweave_flash::{Profile, ProfileError, Timing};

use crate::{FileSsd, Made, OpenError, OsFile, Shape};

const MIB: u64 = 1 << 20;

/// Reason why a drive was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("no device profile is called {name}; there are {known}")]
    NoProfile { name: String, known: String },
    #[error("a drive of {bytes} bytes is too small for the profile {name}: the least is {least_mib} MiB")]
    TooSmall { name: String, bytes: u64, least_mib: u64 },
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("{path}: {error}")]
    File { path: String, error: std::io::Error },
    #[error("{path} is in use by {by}")]
    InUse { path: String, by: String },
    #[error("{path}: {error}")]
    Format { path: String, error: OpenError },
    #[error(transparent)]
    Levels(#[from] LevelsError),
    #[error("{path}: the drive was made with the throughput levels {found}; requested are {wanted}")]
    OtherLevels { path: String, found: Box<ThroughputLevels>, wanted: Box<ThroughputLevels> },
    #[error(transparent)]
    Manager(#[from] ManagerError),
}

impl DriveError {
    /// Whether a larger drive may succeed.
    fn is_of_size(&self) -> bool {
        use {ConfigError::SoftPlanes, ManagerError::Config};
        matches!(
            self,
            DriveError::Profile(ProfileError::TooSmall { .. }) | DriveError::Manager(Config(SoftPlanes { .. }))
        )
    }
}

/// Opens the drive in the file, or makes it there: the built-in profile, scaled to at most `bytes`. Commands take no
/// modelled time; channels and dies that wear more than others are swapped with them. One process at a time. Erase blocks fail at
/// the end of their life ([`MediaFaults::of_age`]).
pub fn open(path: &Path, profile: &str, bytes: u64) -> Result<BlockingDrive<FileSsd<OsFile>>, DriveError> {
    open_with(path, profile, bytes, None)
}

/// As [`open`]; a new drive keeps these throughput levels for good (FB2, FB4), an existing one must have them. `None`:
/// any of an existing drive, the default ones for a new drive.
pub fn open_with(
    path: &Path,
    profile: &str,
    bytes: u64,
    levels: Option<&ThroughputLevels>,
) -> Result<BlockingDrive<FileSsd<OsFile>>, DriveError> {
    let known = || Profile::builtin_names().join(", ");
    let none = || DriveError::NoProfile { name: profile.into(), known: known() };
    let base = Profile::builtin(profile).ok_or_else(none)?;
    let mut cfg =
        config(&base, bytes).map_err(|e| if e.is_of_size() { too_small(&base, profile, bytes, e) } else { e })?;
    levels.map_or(Ok(()), |l| l.check(&cfg.cut()))?;
    let (g, meta_bytes) = (cfg.profile.geometry, FlashManager::meta_bytes(&cfg.cut()));
    let (blocks, pages_per_block, page_bytes) = (g.blocks(), g.pages_per_block, g.page_bytes);
    let name = || path.display().to_string();
    let mut file = OsFile::open(path).map_err(|error| DriveError::File { path: name(), error })?;
    if !file.lock().map_err(|error| DriveError::File { path: name(), error })? {
        return Err(DriveError::InUse { path: name(), by: holder(path) });
    }
    if FileSsd::is_blank(&file).map_err(|error| DriveError::File { path: name(), error })? {
        FileSsd::set_levels(&mut file, levels).map_err(|error| DriveError::File { path: name(), error })?;
    }
    let shape = Shape { blocks, pages_per_block, page_bytes, meta_bytes };
    let made = Some(Made::new(profile, bytes));
    let mut device =
        FileSsd::open_as(file, SsdId(0), shape, made).map_err(|error| DriveError::Format { path: name(), error })?;
    cfg.levels = device.levels().map_err(|error| DriveError::Format { path: name(), error })?.unwrap_or_default();
    if let Some(wanted) = levels.filter(|l| **l != cfg.levels) {
        return Err(DriveError::OtherLevels { path: name(), found: cfg.levels.into(), wanted: wanted.clone().into() });
    }
    device.fail_by(MediaFaults::none().of_age(cfg.profile.endurance));
    Ok(BlockingDrive::open(cfg, device)?)
}

fn config(base: &Profile, bytes: u64) -> Result<ManagerConfig, DriveError> {
    let mut cfg = ManagerConfig::new(SsdId(0), base.scaled_to(bytes)?);
    cfg.timing = Timing::None;
    cfg.wear = WearPolicy::of_drive(&cfg.profile);
    cfg.check().map_err(ManagerError::from)?;
    Ok(cfg)
}

/// The same error with the least sufficient size.
fn too_small(base: &Profile, name: &str, bytes: u64, e: DriveError) -> DriveError {
    let mut larger = bytes / MIB + 1..=base.geometry.capacity() / MIB;
    match larger.find(|mib| config(base, mib * MIB).is_ok()) {
        Some(least_mib) => DriveError::TooSmall { name: name.into(), bytes, least_mib },
        None => e,
    }
}

/// The process that has locked the file, by `/proc/locks`.
fn holder(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(path).map_or(0, |m| m.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    // N: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE FROM TO
    let pid = locks.lines().find_map(|l| {
        let mut words = l.split_whitespace().skip(1);
        let (kind, pid, file) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && file.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.to_string())
    });
    match pid.and_then(|p| Some((std::fs::read_to_string(format!("/proc/{p}/comm")).ok()?, p))) {
        Some((command, pid)) => format!("process {pid} ({})", command.trim()),
        None => "another process".into(),
    }
}
