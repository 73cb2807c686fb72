//! `[nbd]`: gateways and their NBD clients.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Problem;

/// Whether NBD clients encrypt (STARTTLS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsConfig {
    /// TLS is not offered.
    #[default]
    Off,
    /// TLS is optional.
    Allow,
    /// TLS is required.
    Require,
}

/// TLS of gateways for NBD clients. Paths are relative to the configuration's directory; all files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NbdSection {
    pub tls: TlsConfig,
    /// The gateway's certificate, followed by those between it and the authority's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The certificate's private key; only its owner may be able to read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// If set, clients must present a certificate of this authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

impl NbdSection {
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        let mut need = |ok: bool, key, value: &Option<PathBuf>, rule: &str| {
            if !ok {
                let value = value.as_ref().map_or("nothing".into(), |p| p.display().to_string());
                out.push(Problem { key: Cow::Borrowed(key), value, rule: rule.into() });
            }
        };
        let off = self.tls == TlsConfig::Off;
        let named = "required if nbd.tls is \"allow\" or \"require\", else absent";
        need(off == self.certificate.is_none(), "nbd.certificate", &self.certificate, named);
        need(off == self.key.is_none(), "nbd.key", &self.key, named);
        let rule = "only with nbd.tls = \"require\": otherwise clients may connect without TLS";
        need(self.client_ca.is_none() || self.tls == TlsConfig::Require, "nbd.client_ca", &self.client_ca, rule);
    }
}
