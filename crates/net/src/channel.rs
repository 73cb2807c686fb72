//! The control channel between hosts: the protocol of the control socket over mutual TLS. Each node listens on its
//! host, at `control.port` plus its id. A client with a certificate of the cluster's authority may send every command
//! that a local user may.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rackweave_core::{NodeId, NodeName};
use rackweave_gateway::tls::Identity;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection, StreamOwned};

use super::authority::{AUTHORITY_FILE, HOST_FILE, HOST_KEY_FILE};
use super::{DistributedError, addresses};
use rackweave_config::{ControlSection, RackConfig};
use rackweave_gateway::control::LINE_MAX;
use rackweave_runtime::control::{Answer, AskError, Command, said_in_time};
use rackweave_runtime::net::{Address, ListenError, Listener};
use rackweave_runtime::secure::{Renewing, SecureError, read};

/// A host that does not accept a connection within this time is unreachable.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// Certificates of both sides, read once.
struct Files {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
    dir: PathBuf,
}

impl Files {
    fn load(dir: &Path) -> Result<Files, SecureError> {
        let file = |name, secret| read("control.certificates", &dir.join(name), secret);
        let (authority, certificate) = (file(AUTHORITY_FILE, false)?, file(HOST_FILE, false)?);
        Ok(Files { authority, certificate, key: file(HOST_KEY_FILE, true)?, dir: dir.into() })
    }
    fn identity(&self) -> Identity<'_> {
        Identity { certificate: &self.certificate, key: &self.key, authority: Some(&self.authority) }
    }
    fn wrong(&self, error: rackweave_gateway::tls::IdentityError) -> SecureError {
        SecureError::Identity { key: "control.certificates", path: self.dir.clone(), error }
    }
}

/// TLS configuration of a node's side of the channel.
pub(crate) fn server(dir: &Path) -> Result<Renewing, SecureError> {
    let (files, dir) = ([AUTHORITY_FILE, HOST_FILE, HOST_KEY_FILE].map(|name| dir.join(name)), dir.to_path_buf());
    Renewing::new(files.into(), move || {
        let files = Files::load(&dir)?;
        files.identity().server().map_err(|e| files.wrong(e))
    })
}

/// Address on which a node listens.
pub(crate) fn address(section: &ControlSection, node: u32, host: SocketAddr) -> SocketAddr {
    SocketAddr::new(host.ip(), section.port + node as u16)
}

pub(crate) fn listen(section: &ControlSection, node: u32, host: SocketAddr) -> Result<Listener, ListenError> {
    Listener::bind(&Address::Tcp(vec![address(section, node, host)]))
}

/// A client of the nodes' control channels.
pub struct Channel {
    config: Arc<ClientConfig>,
    /// Name, address and host of each node, by id.
    nodes: Vec<(NodeName, SocketAddr, ServerName<'static>)>,
}

impl Channel {
    /// # Errors
    /// The configuration has no control channel, or its hosts or certificates cannot be used.
    pub fn new(cfg: &RackConfig, path: &Path) -> Result<Channel, DistributedError> {
        let (Some(hosts), Some(control)) = (&cfg.hosts, &cfg.control) else {
            return Err(DistributedError::NoControl { path: path.into() });
        };
        let files = Files::load(&control.certificates)?;
        let roots = Identity::roots(&files.authority).map_err(|e| files.wrong(e))?;
        let (chain, key) = files.identity().chain().map_err(|e| files.wrong(e))?;
        let pair = |e| files.wrong(rackweave_gateway::tls::IdentityError::Pair(e));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(pair)?;
        let mut config = builder.with_root_certificates(roots).with_client_auth_cert(chain, key).map_err(pair)?;
        config.resumption = rustls::client::Resumption::disabled();
        let mut nodes = Vec::new();
        for ((id, name), at) in (0..).map(NodeId).zip(hosts.names()).zip(addresses(hosts)?) {
            let text = hosts.text(name).and_then(|t| t.rsplit_once(':')).map_or("", |(host, _)| host);
            let host = match text.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(ip) => ServerName::IpAddress(ip.into()),
                // It was resolved, so it is a host name.
                Err(_) => ServerName::try_from(text.to_string())
                    .map_err(|_| DistributedError::NoHosts { path: path.into() })?,
            };
            nodes.push((name, address(control, id.0, at), host));
        }
        Ok(Channel { config: config.into(), nodes })
    }

    pub fn names(&self) -> impl Iterator<Item = NodeName> + '_ {
        self.nodes.iter().map(|(name, ..)| *name)
    }

    /// Sends a command to one node, waiting at most `timeout` for each read.
    pub fn ask(&self, name: &str, command: &Command, timeout: Duration) -> Result<Answer, AskError> {
        let Some((_, at, host)) = self.nodes.iter().find(|(n, ..)| n.to_string() == name) else {
            return Err(AskError::NotRunning { data: name.into() });
        };
        let failed = |error: io::Error| AskError::Channel { node: name.into(), at: *at, error: plainly(error) };
        let tcp = TcpStream::connect_timeout(at, CONNECT_WAIT).map_err(failed)?;
        tcp.set_read_timeout(Some(timeout)).and_then(|()| tcp.set_write_timeout(Some(timeout))).map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let conn = ClientConnection::new(self.config.clone(), host.clone()).map_err(|e| failed(io::Error::other(e)))?;
        let heard = |error: io::Error| failed(said_in_time(error, timeout));
        let mut stream = BufReader::new(StreamOwned::new(conn, tcp));
        let answer = |error| AskError::Answer { data: name.into(), error };
        let mut line = serde_json::to_vec(command).map_err(answer)?;
        line.push(b'\n');
        stream.get_mut().write_all(&line).and_then(|()| stream.get_mut().flush()).map_err(heard)?;
        let mut text = Vec::new();
        io::Read::take(&mut stream, LINE_MAX as u64).read_until(b'\n', &mut text).map_err(heard)?;
        if text.is_empty() {
            return Err(failed(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection closed without an answer",
            )));
        }
        serde_json::from_slice(&text).map_err(answer)
    }
}

/// Rephrases an error of TLS for users.
fn plainly(error: io::Error) -> io::Error {
    use rustls::AlertDescription as A;
    let Some(tls) = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) else { return error };
    let text = match tls {
        rustls::Error::AlertReceived(A::UnknownCA | A::DecryptError) => {
            "it refuses this host's certificate: issued by another authority".into()
        }
        rustls::Error::AlertReceived(A::CertificateExpired) => {
            "it refuses this host's certificate: expired, or not valid yet".into()
        }
        rustls::Error::AlertReceived(a) => format!("it refuses this host: {a:?}"),
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is issued by another authority".into()
        }
        e => e.to_string(),
    };
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
