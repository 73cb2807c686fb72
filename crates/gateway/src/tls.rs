//! TLS of a connection that a client opened, without sockets: sealed bytes in, plain bytes out, and back.
//!
//! One provider (ring), TLS 1.2 and 1.3, no resumption: a certificate is looked at on every connection.

use std::io::{IoSlice, Read, Write};
use std::sync::Arc;

use crate::buffers::Output;
use bytes::{Bytes, BytesMut};
pub use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore, ServerConnection};

/// Sealed bytes above which sealing waits for the socket: a socket's buffer.
const SEALED_MAX: usize = 256 << 10;
/// Parts of the plain output that are gathered into records.
const PARTS: usize = 16;
/// Most plain bytes of a TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// Why certificates and keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("no certificate in PEM: {0}")]
    Certificate(pem::Error),
    #[error("no private key in PEM: {0}")]
    Key(pem::Error),
    #[error("certificate and private key: {0}")]
    Pair(rustls::Error),
    #[error("the authority's certificates: {0}")]
    Authority(rustls::Error),
    #[error("the authority's certificates: {0}")]
    Verifier(#[from] VerifierBuilderError),
}

/// Certificate and key of a server or client, and its requirement on the other side; all PEM.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The own certificate first, then those between it and the authority's.
    pub certificate: &'a [u8],
    pub key: &'a [u8],
    /// The issuer of the other side's certificate.
    pub authority: Option<&'a [u8]>,
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity<'_> {
    /// The own chain and key.
    pub fn chain(&self) -> Result<Chain, IdentityError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate).collect();
        let all = all.map_err(IdentityError::Certificate)?;
        if all.is_empty() {
            return Err(IdentityError::Certificate(pem::Error::NoItemsFound));
        }
        Ok((all, PrivateKeyDer::from_pem_slice(self.key).map_err(IdentityError::Key)?))
    }

    /// The authority's certificates.
    pub fn roots(authority: &[u8]) -> Result<Arc<RootCertStore>, IdentityError> {
        let mut roots = RootCertStore::empty();
        for c in CertificateDer::pem_slice_iter(authority) {
            roots.add(c.map_err(IdentityError::Certificate)?).map_err(IdentityError::Authority)?;
        }
        if roots.is_empty() {
            return Err(IdentityError::Certificate(pem::Error::NoItemsFound));
        }
        Ok(roots.into())
    }

    /// TLS configuration of a server's connections. With an authority, clients must have a certificate issued by it.
    ///
    /// # Errors
    /// PEM that is none, or a key that is not the certificate's.
    pub fn server(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(IdentityError::Pair)?;
        let builder = match self.authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let roots = Identity::roots(authority)?;
                builder.with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(roots, provider).build()?)
            }
        };
        let (chain, key) = self.chain()?;
        let mut config = builder.with_single_cert(chain, key).map_err(IdentityError::Pair)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config.into())
    }
}

/// Why a connection ended inside TLS.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(#[from] rustls::Error);

/// Kinds of failures, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The client has no certificate.
    NoCertificate,
    /// Its certificate is another authority's, or its own.
    UnknownIssuer,
    Expired,
    /// Any other fault of the certificate.
    BadCertificate,
    /// The client ended it and says why: it refused ours, mostly.
    RefusedByPeer,
    /// The bytes were not TLS, incomplete, or changed in transit.
    Protocol,
}

impl FailureKind {
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::NoCertificate => "tls_no_certificate",
            FailureKind::UnknownIssuer => "tls_unknown_issuer",
            FailureKind::Expired => "tls_expired",
            FailureKind::BadCertificate => "tls_bad_certificate",
            FailureKind::RefusedByPeer => "tls_refused_by_peer",
            FailureKind::Protocol => "tls_protocol",
        }
    }
}

impl Failure {
    pub fn kind(&self) -> FailureKind {
        use CertificateError as C;
        match &self.0 {
            rustls::Error::NoCertificatesPresented => FailureKind::NoCertificate,
            rustls::Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => FailureKind::UnknownIssuer,
            rustls::Error::InvalidCertificate(
                C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. },
            ) => FailureKind::Expired,
            rustls::Error::InvalidCertificate(_) => FailureKind::BadCertificate,
            rustls::Error::AlertReceived(_) => FailureKind::RefusedByPeer,
            _ => FailureKind::Protocol,
        }
    }
}

/// One connection's TLS.
#[derive(Debug)]
pub struct Tls {
    conn: ServerConnection,
    out: Output,
    closing: bool,
    peer_closed: bool,
}

impl Tls {
    /// Before anything of the client's has come.
    pub fn new(config: &Arc<ServerConfig>) -> Result<Tls, Failure> {
        let conn = ServerConnection::new(config.clone())?;
        Ok(Tls { conn, out: Output::default(), closing: false, peer_closed: false })
    }

    /// Takes the client's bytes and returns their contents. After an error only the output is left to be sent, with the
    /// reason.
    ///
    /// # Errors
    /// It is not TLS, was changed, or the client's certificate is refused.
    pub fn open(&mut self, mut sealed: &[u8]) -> Result<Bytes, Failure> {
        let mut plain = BytesMut::new();
        while !sealed.is_empty() && !self.closing {
            // From memory, which does not fail; all that is plain is taken each time, so there is room for more.
            let n = self.conn.read_tls(&mut sealed).unwrap_or(0);
            let state = self.conn.process_new_packets();
            self.collect();
            let state = state.inspect_err(|_| self.closing = true)?;
            self.peer_closed |= state.peer_has_closed();
            let there = state.plaintext_bytes_to_read();
            if there > 0 {
                let before = plain.len();
                plain.resize(before + there, 0);
                let got = self.conn.reader().read(&mut plain[before..]).unwrap_or(0);
                plain.truncate(before + got);
            }
            if n == 0 {
                // The client has closed, and yet says something.
                break;
            }
        }
        Ok(plain.freeze())
    }

    /// The client has said goodbye: nothing comes after it.
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// The handshake is not over: nothing can be sealed.
    pub fn handshaking(&self) -> bool {
        self.conn.is_handshaking()
    }

    /// Seals plain output as far as there is room; how many bytes of it are taken.
    pub fn seal<'a>(&mut self, plain: impl Iterator<Item = &'a Bytes>) -> usize {
        if self.handshaking() || self.closing {
            return 0;
        }
        let mut taken = 0;
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut n = 0;
        for p in plain {
            // Room is looked at before each piece, so that one large part does not go far beyond it.
            for piece in p.chunks(RECORD_BYTES) {
                parts[n] = IoSlice::new(piece);
                n += 1;
                if n == PARTS {
                    n = 0;
                    taken += self.seal_all(&mut parts);
                }
                if self.out.len() + unsealed(&parts[..n]) >= SEALED_MAX {
                    return taken + self.seal_all(&mut parts[..n]);
                }
            }
        }
        taken + self.seal_all(&mut parts[..n])
    }

    /// Seals every byte of the parts, unless the connection has failed.
    fn seal_all(&mut self, mut parts: &mut [IoSlice<'_>]) -> usize {
        let mut taken = 0;
        while !parts.is_empty() {
            let n = self.conn.writer().write_vectored(parts).unwrap_or(0);
            self.collect();
            if n == 0 {
                break;
            }
            taken += n;
            IoSlice::advance_slices(&mut parts, n);
        }
        taken
    }

    /// Says goodbye: nothing is sealed after it.
    pub fn close(&mut self) {
        if !std::mem::replace(&mut self.closing, true) {
            self.conn.send_close_notify();
            self.collect();
        }
    }

    fn collect(&mut self) {
        let mut sealed = Vec::new();
        while self.conn.wants_write() {
            // Into memory, which does not fail.
            if self.conn.write_tls(&mut sealed).unwrap_or(0) == 0 {
                break;
            }
        }
        self.before(sealed.into());
    }

    /// Bytes in the clear that go out first.
    pub fn before(&mut self, clear: Bytes) {
        self.out.payload(clear);
    }
    /// Bytes for the socket, in order.
    pub fn output(&mut self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.out.chunks()
    }
    pub fn output_len(&self) -> usize {
        self.out.len()
    }
    /// The first `n` bytes of the output are written.
    pub fn written(&mut self, n: usize) {
        self.out.advance(n);
    }
}

fn unsealed(parts: &[IoSlice<'_>]) -> usize {
    parts.iter().map(|p| p.len()).sum()
}
