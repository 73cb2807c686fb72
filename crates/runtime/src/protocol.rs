//! The listeners' protocols, and the addresses they listen on.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rackweave_config::RackConfig;
use rackweave_core::Time;
use rackweave_gateway::metrics::HttpSession;
use rackweave_gateway::tls::Failure;
use rackweave_gateway::{Gateway, SessionId, control, nbd, resp};

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
    /// For Redis clients.
    pub fn resp(settings: resp::Settings) -> Protocol {
        let settings = Rc::new(settings);
        Protocol::new(None, move |id| resp::Session::new(id, settings.clone()))
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

/// Where Redis clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RespAddress {
    pub address: Address,
    /// The address was given: a rack without keys is refused then.
    pub required: bool,
}

impl RespAddress {
    /// The address if the rack has keys.
    ///
    /// # Errors
    /// It has none, and the address was given.
    pub fn of(&self, cfg: &RackConfig) -> Result<Option<&Address>, UpError> {
        match (cfg.kv.is_on(), self.required) {
            (true, _) => Ok(Some(&self.address)),
            (false, false) => Ok(None),
            (false, true) => Err(UpError::NoKeys { address: self.address.to_string() }),
        }
    }
}

/// Addresses for clients.
#[derive(Clone, Debug)]
pub struct Addresses {
    pub nbd: Address,
    pub resp: RespAddress,
    /// For Prometheus.
    pub http: Option<Address>,
}

/// Opens the listeners for clients and notes their addresses in `facts`. A further protocol is added here.
///
/// # Errors
/// An address cannot be bound, or a TLS file cannot be read.
pub fn listen(cfg: &RackConfig, at: &Addresses, facts: &mut Facts) -> Result<Vec<(Listener, Protocol)>, UpError> {
    let tls = NbdTls::load(&cfg.nbd)?;
    let nbd = Listener::bind(&at.nbd)?;
    let uri = nbd.to_string();
    // Clients that connect with an `nbds` URI require TLS.
    facts.nbd.push(if tls.config.is_some() { uri.replacen("nbd", "nbds", 1) } else { uri });
    let mut all = vec![(nbd, Protocol::nbd(tls))];
    if let Some(address) = at.resp.of(cfg)? {
        let resp = Listener::bind(address)?;
        let port = resp.tcp_address().map_or(0, |a| a.port());
        facts.resp.push(resp.tcp_address().map_or_else(|| address.to_string(), |a| format!("redis://{a}")));
        let facts = resp::info::Facts { version: env!("CARGO_PKG_VERSION"), pid: std::process::id(), port };
        let settings = resp::Settings { flushall: cfg.resp.flushall, keyspaces: true, facts };
        all.push((resp, Protocol::resp(settings)));
    }
    if let Some(address) = &at.http {
        let http = Listener::bind(address)?;
        facts.http = Some(match http.tcp_address() {
            Some(a) => format!("http://{a}/metrics"),
            None => format!("{address} (path /metrics)"),
        });
        all.push((http, Protocol::http()));
    }
    Ok(all)
}
