//! Protocols of listeners: the list.

use std::os::fd::OwnedFd;

use rackweave_core::Time;
use rackweave_gateway::metrics::HttpSession;
use rackweave_gateway::tls::Failure;
use rackweave_gateway::{Gateway, SessionId, control, nbd};

use super::connection::Connection;
use super::secure::{NbdTls, Renewing};

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
