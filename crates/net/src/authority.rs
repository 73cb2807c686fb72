//! The cluster's certificate authority, and the certificates of hosts: the output of `rackweave keys`.
//!
//! | file | in | |
//! |---|---|---|
//! | `cluster.key` | both | the key that packet keys are derived from ([`super::key`]) |
//! | `ca.pem` | both | the authority's certificate |
//! | `ca-key.pem` | the authority's directory | its private key: whoever holds it can add hosts |
//! | `host.pem`, `host-key.pem` | a host's directory | its certificate and private key |

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use rackweave_device::private;

use rackweave_runtime::key::{self, KeyFileError, create_secret};
use rackweave_runtime::secure::{SecureError, read};

pub const KEY_FILE: &str = "cluster.key";
pub const AUTHORITY_FILE: &str = "ca.pem";
const AUTHORITY_KEY_FILE: &str = "ca-key.pem";
pub const HOST_FILE: &str = "host.pem";
pub const HOST_KEY_FILE: &str = "host-key.pem";
/// The authority outlives the certificates that it signs.
const AUTHORITY_DAYS: u64 = 3650;
/// Greatest lag of hosts' clocks.
const CLOCKS_BEHIND: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Why keys and certificates cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} exists already, and keys are never overwritten: name another directory, or remove this one")]
    Exists { path: PathBuf },
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error(transparent)]
    Read(#[from] SecureError),
    #[error("{path}: {error}")]
    Make { path: PathBuf, error: rcgen::Error },
    #[error("{name:?} is not a host name: at most 253 letters, digits, '.', '-' and ':'")]
    Name { name: String },
}

/// Creates a directory with a cluster key and an authority.
///
/// # Errors
/// The directory or one of its files exists already, or cannot be written.
pub fn init(dir: &Path) -> Result<(), AuthorityError> {
    make_dir(dir)?;
    key::init(&dir.join(KEY_FILE))?;
    let path = dir.join(AUTHORITY_FILE);
    let made = |error| AuthorityError::Make { path: path.clone(), error };
    let key = KeyPair::generate().map_err(made)?;
    let certificate = params(&key).self_signed(&key).map_err(made)?;
    secret(&dir.join(AUTHORITY_KEY_FILE), &key.serialize_pem())?;
    plain(&path, &certificate.pem())
}

/// Creates a directory in `dir`, named after the host's first name, with the files for that host. Names are those by
/// which other hosts reach it, as in `[hosts]`; a host that only sends commands may have any name.
///
/// # Errors
/// There is no authority in `dir`, the host already has a directory, or a name is invalid.
pub fn add(dir: &Path, names: &[String], days: u32) -> Result<PathBuf, AuthorityError> {
    let valid = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    for name in names {
        if name.is_empty() || name.len() > 253 || name.starts_with('.') || !name.chars().all(valid) {
            return Err(AuthorityError::Name { name: name.clone() });
        }
    }
    let path = dir.join(AUTHORITY_KEY_FILE);
    let pem = read("authority key", &path, true)?;
    let made = |error| AuthorityError::Make { path: path.clone(), error };
    let key = KeyPair::from_pem(&String::from_utf8_lossy(&pem)).map_err(made)?;
    let authority = params(&key);
    let issuer = Issuer::from_params(&authority, key);
    let authority_pem = read("authority", &dir.join(AUTHORITY_FILE), false)?;
    let cluster = read("cluster key", &dir.join(KEY_FILE), true)?;
    let host = dir.join(&names[0]);
    make_dir(&host)?;
    let mut p = CertificateParams::new(names).map_err(made)?;
    p.distinguished_name.push(DnType::CommonName, names[0].as_str());
    p.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    p.use_authority_key_identifier_extension = true;
    validity(&mut p, u64::from(days));
    let own = KeyPair::generate().map_err(made)?;
    let certificate = p.signed_by(&own, &issuer).map_err(made)?;
    secret(&host.join(HOST_KEY_FILE), &own.serialize_pem())?;
    secret(&host.join(KEY_FILE), &String::from_utf8_lossy(&cluster))?;
    plain(&host.join(AUTHORITY_FILE), &String::from_utf8_lossy(&authority_pem))?;
    plain(&host.join(HOST_FILE), &certificate.pem())?;
    Ok(host)
}

/// Parameters of the authority's certificate. They follow from its key, so that only the key has to be stored. The
/// certificate is named after the key, to tell authorities of two clusters apart.
fn params(key: &KeyPair) -> CertificateParams {
    let mut p = CertificateParams::default();
    let print = ring::digest::digest(&ring::digest::SHA256, key.public_key_raw());
    let print: String = print.as_ref()[..8].iter().map(|b| format!("{b:02x}")).collect();
    p.distinguished_name.push(DnType::CommonName, format!("rackweave cluster {print}"));
    p.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    p.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut p, AUTHORITY_DAYS);
    p
}

#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "certificates speak of the wall clock")]
fn validity(p: &mut CertificateParams, days: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    p.not_before = epoch + now.saturating_sub(CLOCKS_BEHIND);
    p.not_after = epoch + now + DAY * days as u32;
}

fn make_dir(dir: &Path) -> Result<(), AuthorityError> {
    if dir.exists() {
        return Err(AuthorityError::Exists { path: dir.into() });
    }
    private::directory(dir).map_err(|error| AuthorityError::Io { path: dir.into(), error })
}
fn secret(path: &Path, text: &str) -> Result<(), AuthorityError> {
    create_secret(path, text.as_bytes()).map_err(|error| AuthorityError::Io { path: path.into(), error })
}
fn plain(path: &Path, text: &str) -> Result<(), AuthorityError> {
    private::report(path, text.as_bytes()).map_err(|error| AuthorityError::Io { path: path.into(), error })
}
