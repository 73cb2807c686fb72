//! The protocols of listeners: the list, and where each listens.

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

/// Makes the sessions of a listener, and knows what they are wrapped in.
pub struct Protocol {
    session: Box<dyn Fn(SessionId) -> Box<dyn Gateway>>,
    /// TLS configuration.
    pub tls: Option<Renewing>,
    /// A connection begins with TLS; otherwise it does when its session says so.
    tls_first: bool,
}

impl Protocol {
    fn new<G: Gateway + 'static>(tls: Option<Renewing>, session: impl Fn(SessionId) -> G + 'static) -> Protocol {
        Protocol { session: Box::new(move |id| Box::new(session(id))), tls, tls_first: false }
    }
    pub fn nbd(tls: NbdTls) -> Protocol {
        Protocol::new(tls.config, move |id| nbd::Session::with_tls(id, tls.when))
    }
    /// On a unix socket: the mode of its directory says who may.
    pub fn control() -> Protocol {
        Protocol::new(None, |_| control::Session::default())
    }
    /// Between hosts: who has a certificate of the cluster's may.
    pub fn control_tls(config: Renewing) -> Protocol {
        Protocol { tls_first: true, ..Protocol::new(Some(config), |_| control::Session::default()) }
    }
    /// For Prometheus.
    pub fn http() -> Protocol {
        Protocol::new(None, |_| HttpSession::default())
    }

    /// A connection that a client opened.
    ///
    /// # Errors
    /// The system has no randomness left for TLS.
    pub fn connection(&self, fd: OwnedFd, id: SessionId, now: Time) -> Result<Connection, Failure> {
        let config = self.tls.as_ref().map(|r| r.config().clone());
        Connection::new(fd, (self.session)(id), now, config, self.tls_first)
    }
}

/// The listeners for clients, with the addresses noted in `facts`. A further protocol is added here.
///
/// # Errors
/// An address cannot be bound, or what TLS needs cannot be read.
pub fn listen(
    cfg: &RackConfig,
    nbd: &Address,
    http: Option<&Address>,
    facts: &mut Facts,
) -> Result<Vec<(Listener, Protocol)>, UpError> {
    let tls = NbdTls::load(&cfg.nbd)?;
    let nbd = Listener::bind(nbd)?;
    let uri = nbd.to_string();
    // As clients write it: with an `s` they insist on TLS.
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
