//! The seam between a driver's connections and the protocols that clients speak.

use std::collections::vec_deque;

use bytes::Bytes;
use rackweave_core::VolumeId;
use rackweave_core::request::{self, RequestId};

use crate::control::LineTooLong;

/// Names a session in the ids of its requests, so that a driver finds the session of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(pub u32);

impl SessionId {
    /// The session of a request.
    pub fn of(id: RequestId) -> SessionId {
        SessionId((id.0 >> 32) as u32)
    }
    /// The id of one of its requests.
    pub fn request(self, number: u32) -> RequestId {
        RequestId(u64::from(self.0) << 32 | u64::from(number))
    }
}

/// A client's request.
#[derive(Debug)]
pub enum Request {
    /// For the volume client or the metadata service. Ids of a session's requests under way differ in their low eight bits.
    Rack(request::Request),
    /// A command of an operator: one line, without its end.
    Command(Result<Bytes, LineTooLong>),
    /// The page of metrics.
    Metrics,
}

/// The answer to a [`Request`], of the same kind.
#[derive(Debug)]
pub enum Reply {
    Rack(request::Reply),
    /// One line, with its end.
    Command(Bytes),
    Metrics(String),
}

impl From<request::Reply> for Reply {
    fn from(r: request::Reply) -> Reply {
        Reply::Rack(r)
    }
}

/// Output of a session: chunks in order, for `writev`.
pub type Chunks<'a> = vec_deque::Iter<'a, Bytes>;

/// One client's connection in one protocol: bytes in, requests out, replies in, bytes out. It has no socket and no clock.
///
/// A driver passes on what it reads ([`Gateway::input`]) while the session [`Gateway::wants_input`], carries out each
/// [`Gateway::poll_request`], returns the answer ([`Gateway::reply`]) and writes [`Gateway::output`]. The calls may come in
/// any order. A reply to no request of the session changes nothing.
pub trait Gateway {
    /// Bytes from the client.
    fn input(&mut self, bytes: Bytes);
    /// The client has closed its sending side.
    fn input_eof(&mut self);
    /// Whether to read from the socket. Bytes that are passed on in spite of a `false` are kept without bound.
    fn wants_input(&self) -> bool;
    fn poll_request(&mut self) -> Option<Request>;
    fn reply(&mut self, reply: Reply);
    fn output(&mut self) -> Chunks<'_>;
    /// Bytes of the output.
    fn output_len(&self) -> usize;
    /// The first `n` bytes of the output are written.
    fn written(&mut self, n: usize);
    /// No further request or output follows, and the output is written: the socket may be closed.
    fn finished(&self) -> bool;
    /// The client has yet to complete a greeting, a command or a request. A driver closes the connection if that takes too long.
    fn input_due(&self) -> bool;
    /// Bytes that the session keeps in memory, or has room for already.
    fn held(&self) -> usize;

    /// Bytes it may hold from now on. Bytes that it holds already stay.
    fn set_limit(&mut self, _bytes: usize) {}
    /// The limit with which the session could go on; `None`: it does not wait for memory.
    fn needs(&self) -> Option<usize> {
        None
    }
    /// It waits for its client, to take or to send, and not for the rack.
    fn waits_for_client(&self) -> bool {
        false
    }
    /// True once, when TLS was agreed on: the output up to here goes out in the clear. Input and output from then on are the inside of
    /// TLS ([`crate::tls::Tls`]).
    fn starts_tls(&mut self) -> bool {
        false
    }
    /// It serves storage: it counts as a client of the rack.
    fn is_client(&self) -> bool {
        false
    }
    /// The volume in use.
    fn volume(&self) -> Option<VolumeId> {
        None
    }
    /// Requests that a stop waits for.
    fn in_flight(&self) -> usize {
        0
    }
}
