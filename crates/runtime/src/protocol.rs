//! The listeners' protocols, and the addresses they listen on.

use std::os::fd::OwnedFd;

use rackweave_config::RackConfig;
use rackweave_core::Time;
use rackweave_gateway::metrics::HttpSession;
use rackweave_gateway::tls::Failure;
use rackweave_gateway::{Gateway, SessionId, control, nbd};

use super::connection::Connection;
use super::net::{Address, Listener};
use super::secure::{NbdTls, Renewing};
use super::status::Facts;
use super::up::UpError;

/// Creates the sessions of a listener, with or without TLS.
pub struct Protocol {
    session: Box<dyn Fn(SessionId) -> Box<dyn Gateway>>,
    /// TLS configuration.
    pub tls: Option<Renewing>,
    /// TLS starts with the connection; otherwise when the session starts it.
    tls_first: bool,
}

impl Protocol {
    fn new<G: Gateway + 'static>(tls: Option<Renewing>, session: impl Fn(SessionId) -> G + 'static) -> Protocol {
        Protocol { session: Box::new(move |id| Box::new(session(id))), tls, tls_first: false }
    }
    pub fn nbd(tls: NbdTls) -> Protocol {
        Protocol::new(tls.config, move |id| nbd::Session::with_tls(id, tls.when))
    }
    /// On a Unix socket, access is controlled by the mode of its directory.
    pub fn control() -> Protocol {
        Protocol::new(None, |_| control::Session::default())
    }
    /// Between hosts, access requires a certificate of the cluster.
    pub fn control_tls(config: Renewing) -> Protocol {
        Protocol { tls_first: true, ..Protocol::new(Some(config), |_| control::Session::default()) }
    }
    /// For Prometheus.
    pub fn http() -> Protocol {
        Protocol::new(None, |_| HttpSession::default())
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// The system has no randomness left for TLS.
    pub fn connection(&self, fd: OwnedFd, id: SessionId, now: Time) -> Result<Connection, Failure> {
        let config = self.tls.as_ref().map(|r| r.config().clone());
        Connection::new(fd, (self.session)(id), now, config, self.tls_first)
    }
}

/// Opens the listeners for clients and notes their addresses in `facts`. A further protocol is added here.
///
/// # Errors
/// An address cannot be bound, or a TLS file cannot be read.
pub fn listen(
    cfg: &RackConfig,
    nbd: &Address,
    http: Option<&Address>,
    facts: &mut Facts,
) -> Result<Vec<(Listener, Protocol)>, UpError> {
    let tls = NbdTls::load(&cfg.nbd)?;
    let nbd = Listener::bind(nbd)?;
    let uri = nbd.to_string();
    // Clients that connect with an `nbds` URI require TLS.
    facts.nbd.push(if tls.config.is_some() { uri.replacen("nbd", "nbds", 1) } else { uri });
    let mut all = vec![(nbd, Protocol::nbd(tls))];
    if let Some(address) = http {
        let http = Listener::bind(address)?;
        facts.http = Some(match http.tcp_address() {
            Some(a) => format!("http://{a}/metrics"),
            None => format!("{address} (path /metrics)"),
        });
        all.push((http, Protocol::http()));
    }
    Ok(all)
}
