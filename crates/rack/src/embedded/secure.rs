//! Certificates and keys from files.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rackweave_gateway::nbd::TlsUse;
use rackweave_gateway::tls::{Identity, IdentityError};

use super::serve::NbdTls;
use crate::config::{NbdSection, TlsConfig};

/// Longest file that is read: a chain of a few certificates has some KiB.
const BYTES_MAX: u64 = 1 << 20;

/// Why certificates and keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecureError {
    #[error("{key} = {path}: {error}")]
    Io { key: &'static str, path: PathBuf, error: io::Error },
    #[error("{key} = {path}: its mode is {mode:03o}; only its owner may read it (chmod 600)")]
    Open { key: &'static str, path: PathBuf, mode: u32 },
    #[error("{key} = {path}: longer than {BYTES_MAX} bytes")]
    TooLong { key: &'static str, path: PathBuf },
    #[error("{key} = {path}: {error}")]
    Identity { key: &'static str, path: PathBuf, error: IdentityError },
}

/// A file's contents; `secret` ones must be readable by their owner alone.
pub(crate) fn read(key: &'static str, path: &Path, secret: bool) -> Result<Vec<u8>, SecureError> {
    let at = |error| SecureError::Io { key, path: path.into(), error };
    let meta = std::fs::metadata(path).map_err(at)?;
    let mode = meta.mode() & 0o777;
    if secret && mode & 0o077 != 0 {
        return Err(SecureError::Open { key, path: path.into(), mode });
    }
    if meta.len() > BYTES_MAX {
        return Err(SecureError::TooLong { key, path: path.into() });
    }
    std::fs::read(path).map_err(at)
}

impl NbdTls {
    /// What the `[nbd]` section says, its files read.
    pub(crate) fn load(section: &NbdSection) -> Result<NbdTls, SecureError> {
        let when = match section.tls {
            TlsConfig::Off => return Ok(NbdTls::default()),
            TlsConfig::Allow => TlsUse::Allow,
            TlsConfig::Require => TlsUse::Require,
        };
        // The configuration was checked: both are named.
        let (Some(certificate), Some(key)) = (&section.certificate, &section.key) else { return Ok(NbdTls::default()) };
        let (pem, secret) = (read("nbd.certificate", certificate, false)?, read("nbd.key", key, true)?);
        let authority = section.client_ca.as_ref().map(|path| read("nbd.client_ca", path, false)).transpose()?;
        let identity = Identity { certificate: &pem, key: &secret, authority: authority.as_deref() };
        let config = identity.server().map_err(|error| {
            let (key, path) = match (&error, &section.client_ca) {
                (IdentityError::Authority(_) | IdentityError::Verifier(_), Some(ca)) => ("nbd.client_ca", ca),
                (IdentityError::Key(_), _) => ("nbd.key", key),
                _ => ("nbd.certificate", certificate),
            };
            SecureError::Identity { key, path: path.clone(), error }
        })?;
        Ok(NbdTls { when, config: Some(config) })
    }
}
