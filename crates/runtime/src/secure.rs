//! Certificates and keys from files.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackweave_gateway::nbd::TlsUse;
use rackweave_gateway::tls::{Identity, IdentityError, ServerConfig};

use rackweave_config::{NbdSection, TlsConfig};

/// Longest file that is read; a chain of a few certificates has some KiB.
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

/// Reads a file; a secret one must be readable by its owner only.
pub fn read(key: &'static str, path: &Path, secret: bool) -> Result<Vec<u8>, SecureError> {
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

/// A server's TLS configuration, reloaded when its files change: certificates expire while the process runs.
pub struct Renewing {
    config: Arc<ServerConfig>,
    files: Vec<PathBuf>,
    seen: Vec<Option<Stamp>>,
    load: Box<Load>,
}

/// Modification time, length, device and inode of a file.
type Stamp = (i64, i64, u64, u64);
type Load = dyn Fn() -> Result<Arc<ServerConfig>, SecureError>;

impl std::fmt::Debug for Renewing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewing").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Renewing {
    pub fn new(
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<Arc<ServerConfig>, SecureError> + 'static,
    ) -> Result<Renewing, SecureError> {
        // Taken before the files are read, so that a change in between causes another read.
        let seen = stamps(&files);
        Ok(Renewing { config: load()?, files, seen, load: Box::new(load) })
    }
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }
    /// Reloads the files if they have changed, for new connections.
    ///
    /// # Errors
    /// The files cannot be used, perhaps temporarily; the previous configuration stays in use.
    pub fn look(&mut self) -> Result<(), SecureError> {
        let now = stamps(&self.files);
        if now != self.seen {
            self.seen = now;
            self.config = (self.load)()?;
        }
        Ok(())
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |m: std::fs::Metadata| (m.mtime(), m.mtime_nsec(), m.len(), m.ino());
    files.iter().map(|f| std::fs::metadata(f).ok().map(stamp)).collect()
}

/// Whether NBD clients get TLS, and its configuration.
#[derive(Debug, Default)]
pub struct NbdTls {
    pub when: TlsUse,
    pub config: Option<Renewing>,
}

impl NbdTls {
    /// Loads the files of the `[nbd]` section.
    pub fn load(section: &NbdSection) -> Result<NbdTls, SecureError> {
        let when = match section.tls {
            TlsConfig::Off => return Ok(NbdTls::default()),
            TlsConfig::Allow => TlsUse::Allow,
            TlsConfig::Require => TlsUse::Require,
        };
        let files = [&section.certificate, &section.key, &section.client_ca].into_iter().flatten().cloned().collect();
        let section = section.clone();
        Ok(NbdTls { when, config: Some(Renewing::new(files, move || nbd_config(&section))?) })
    }
}

fn nbd_config(section: &NbdSection) -> Result<Arc<ServerConfig>, SecureError> {
    // The configuration check ensures that both are set.
    let (certificate, key) = (section.certificate.clone().unwrap_or_default(), section.key.clone().unwrap_or_default());
    let (pem, secret) = (read("nbd.certificate", &certificate, false)?, read("nbd.key", &key, true)?);
    let authority = section.client_ca.as_ref().map(|path| read("nbd.client_ca", path, false)).transpose()?;
    let identity = Identity { certificate: &pem, key: &secret, authority: authority.as_deref() };
    identity.server().map_err(|error| {
        let (key, path) = match (&error, &section.client_ca) {
            (IdentityError::Authority(_) | IdentityError::Verifier(_), Some(ca)) => ("nbd.client_ca", ca.clone()),
            (IdentityError::Key(_), _) => ("nbd.key", key),
            _ => ("nbd.certificate", certificate),
        };
        SecureError::Identity { key, path, error }
    })
}
