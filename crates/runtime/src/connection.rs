//! One client connection: its socket, TLS, and memory share, around a session of any protocol.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rackweave_core::request::RequestId;
use rackweave_core::{Span, Time, VolumeId};
use rackweave_gateway::tls::{Failure, ServerConfig, Tls};
use rackweave_gateway::{Gateway, Reply, Request};

use super::budget::{Account, Budget};
use super::latency::Kind;
use super::net::{receive, send_parts};
use super::poll::Interest;
use rackweave_config::READ_BYTES;

/// Time limit for a client to complete its greeting, line or request.
pub const GREETING_MAX: Span = Span::from_secs(10);
/// A new input buffer is begun when less room than this is left in the current one.
const READ_BYTES_MIN: usize = 64 << 10;
/// A client that reads as fast as its session makes output does not occupy the loop for longer than these bytes take.
const SEND_BYTES_MAX: usize = 4 << 20;
/// Stride between the ids of a session's pending requests (see [`Request::Rack`]).
const SLOTS: usize = 256;

pub struct Connection {
    fd: OwnedFd,
    session: Box<dyn Gateway>,
    tls: Option<Box<Tls>>,
    /// TLS configuration, for when the session starts TLS.
    tls_config: Option<Arc<ServerConfig>>,
    /// Why TLS ended the connection, which closes once everything is sent.
    failure: Option<Failure>,
    /// Whether the failure was reported.
    reported: bool,
    /// The interest registered with epoll.
    pub interest: Interest,
    /// Start of the time limit for the client's current greeting, line or request.
    due_since: Time,
    /// Its share of the process's memory.
    account: Account,
    /// Arrival time of each pending request, by slot, if its kind is timed.
    since: Vec<Option<(VolumeId, Kind, Time)>>,
}

fn slot(id: RequestId) -> usize {
    id.0 as usize % SLOTS
}

impl Connection {
    /// With `tls_first` TLS starts at once, otherwise when the session starts it.
    pub fn new(
        fd: OwnedFd,
        session: Box<dyn Gateway>,
        now: Time,
        mut tls_config: Option<Arc<ServerConfig>>,
        tls_first: bool,
    ) -> Result<Connection, Failure> {
        let config = if tls_first { tls_config.take() } else { None };
        Ok(Connection {
            fd,
            session,
            tls: config.map(|c| Tls::new(&c).map(Box::new)).transpose()?,
            tls_config,
            failure: None,
            reported: false,
            interest: Interest::READ,
            due_since: now,
            account: Account::default(),
            since: Vec::new(),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
    /// Whether it serves storage.
    pub fn is_client(&self) -> bool {
        self.session.is_client()
    }
    /// The volume that it uses.
    pub fn volume(&self) -> Option<VolumeId> {
        self.session.volume()
    }
    /// Whether it is ready for more input.
    fn wants_input(&self) -> bool {
        self.failure.is_none() && self.session.wants_input()
    }
    /// Bytes of ciphertext to send.
    fn sealed(&self) -> usize {
        self.tls.as_ref().map_or(0, |t| t.output_len())
    }
    /// Takes memory from the budget or returns it, by what the connection needs.
    pub fn settle(&mut self, now: Time, key: usize, budget: &mut Budget) {
        let sealed = self.sealed();
        loop {
            let held = sealed + self.session.held();
            let needs = self.session.needs().map(|n| n + sealed);
            let limit = budget.settle(now, key, &mut self.account, held, needs);
            self.session.set_limit(limit.saturating_sub(sealed));
            if sealed + self.session.held() == held {
                return;
            }
        }
    }
    pub fn account(&self) -> &Account {
        &self.account
    }
    /// It waits for its client while others wait for its memory.
    pub fn stalled(&self, now: Time) -> bool {
        (self.session.waits_for_client() || self.sealed() > 0) && self.account.stalled(now)
    }
    pub fn wants(&self) -> Interest {
        Interest { read: self.wants_input(), write: self.unsent() > 0 }
    }
    fn unsent(&self) -> usize {
        match &self.tls {
            None => self.session.output_len(),
            Some(t) if t.handshaking() || self.failure.is_some() => t.output_len(),
            Some(t) => t.output_len() + self.session.output_len(),
        }
    }
    /// Its client has exceeded the time limit.
    pub fn overdue(&self, now: Time) -> bool {
        self.session.input_due() && now.since(self.due_since) > GREETING_MAX
    }
    /// Nothing is left to do for it.
    pub fn finished(&self) -> bool {
        (self.failure.is_some() || self.session.finished()) && self.unsent() == 0
    }
    /// Number of requests that a stop waits for.
    pub fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    /// Reads what is available; false ends the connection. `piece` is the loop's input buffer.
    pub fn read(&mut self, now: Time, piece: &mut BytesMut) -> io::Result<bool> {
        if !self.wants_input() {
            return Ok(true);
        }
        if piece.capacity() < READ_BYTES_MIN {
            *piece = BytesMut::with_capacity(READ_BYTES);
        }
        let Some(n) = receive(self.fd.as_raw_fd(), piece)? else { return Ok(true) };
        if n == 0 {
            self.session.input_eof();
            return Ok(false);
        }
        self.account.moved(now, n);
        let mut bytes = piece.split().freeze();
        if let Some(tls) = &mut self.tls {
            match tls.open(&bytes) {
                Ok(plain) => bytes = plain,
                Err(failure) => {
                    self.failure = Some(failure);
                    return Ok(false);
                }
            }
        }
        self.session.input(bytes);
        self.start_tls().map_err(io::Error::other)?;
        let goodbye = self.tls.as_ref().is_some_and(|t| t.peer_closed());
        if goodbye {
            self.session.input_eof();
        }
        Ok(!goodbye)
    }

    /// Starts TLS if client and session have agreed on it.
    fn start_tls(&mut self) -> Result<(), Failure> {
        if let Some(config) = self.tls_config.as_ref().filter(|_| self.session.starts_tls()) {
            let mut tls = Tls::new(config)?;
            let clear: Vec<Bytes> = self.session.output().cloned().collect();
            self.session.written(self.session.output_len());
            clear.into_iter().for_each(|b| tls.before(b));
            self.tls = Some(Box::new(tls));
        }
        Ok(())
    }

    /// Returns the reason why TLS ended it, once.
    pub fn take_failure(&mut self) -> Option<(Failure, String)> {
        // Only the alert is left to send.
        let failure = self.failure.clone().filter(|_| !std::mem::replace(&mut self.reported, true))?;
        Some((failure, super::net::peer_of(&self.fd)))
    }

    /// The session's next request.
    pub fn poll_request(&mut self, now: Time) -> Option<Request> {
        let request = self.session.poll_request()?;
        if let Request::Rack(r) = &request {
            let slot = slot(r.id);
            if self.since.len() <= slot {
                self.since.resize(slot + 1, None);
            }
            self.since[slot] = Kind::of(&r.op).map(|(volume, kind)| (volume, kind, now));
        }
        Some(request)
    }

    /// Answers a request; returns its volume and latency if its kind is timed.
    pub fn reply(&mut self, now: Time, reply: Reply) -> Option<(VolumeId, Kind, Span)> {
        let timed = match &reply {
            Reply::Rack(r) => self.since.get_mut(slot(r.id)).and_then(Option::take),
            Reply::Command(_) | Reply::Metrics(_) => None,
        };
        let due = self.session.input_due();
        self.session.reply(reply);
        if !due && self.session.input_due() {
            self.due_since = now;
        }
        timed.map(|(volume, kind, since)| (volume, kind, now.since(since)))
    }

    /// Answers an invalid command. The client's time limit keeps running.
    pub fn refuse(&mut self, answer: Bytes) {
        self.session.reply(Reply::Command(answer));
    }

    /// Sends as much as the socket takes, up to [`SEND_BYTES_MAX`] and a call's worth.
    pub fn send(&mut self, now: Time) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        let mut total = 0;
        let Some(tls) = &mut self.tls else {
            while self.session.output_len() > 0 {
                let (sent, all) = send_parts(fd, self.session.output())?;
                self.session.written(sent);
                self.account.moved(now, sent);
                total += sent;
                if !all || total >= SEND_BYTES_MAX {
                    break;
                }
            }
            return Ok(());
        };
        loop {
            if self.failure.is_none() {
                let taken = tls.seal(self.session.output());
                self.session.written(taken);
                if self.session.finished() {
                    tls.close();
                }
            }
            if tls.output_len() == 0 {
                return Ok(());
            }
            let (sent, all) = send_parts(fd, tls.output())?;
            tls.written(sent);
            self.account.moved(now, sent);
            total += sent;
            if !all || total >= SEND_BYTES_MAX {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod shared_memory;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rackweave_gateway::control::Session;

    use super::*;

    fn connected() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let session = Box::new(Session::default());
        let connection = Connection::new(ours.into(), session, Time::ZERO, None, false).expect("no TLS");
        (connection, theirs)
    }

    #[test]
    fn answers_arrive_whole_through_a_small_socket() {
        let (mut c, client) = connected();
        let (mut piece, mut want) = (BytesMut::new(), Vec::new());
        let (mut got, mut buf) = (Vec::new(), BytesMut::with_capacity(3000));
        for i in 0..300u32 {
            std::io::Write::write_all(&mut (&client), b"command\n").expect("written");
            assert!(c.read(Time::ZERO, &mut piece).expect("read"));
            let Some(Request::Command(Ok(line))) = c.poll_request(Time::ZERO) else { panic!("no command") };
            assert_eq!(line, &b"command"[..]);
            assert!(!c.wants().read, "one command at a time");
            let part = vec![i as u8; (i as usize * 37) % 5000];
            want.extend_from_slice(&part);
            c.reply(Time::ZERO, Reply::Command(part.into()));
            while !c.wants().read {
                c.send(Time::ZERO).expect("send");
                while receive(client.as_raw_fd(), &mut buf).expect("receive").is_some() {
                    got.extend_from_slice(&buf);
                    buf.clear();
                }
            }
        }
        while c.wants().write || got.len() < want.len() {
            c.send(Time::ZERO).expect("send");
            while receive(client.as_raw_fd(), &mut buf).expect("receive").is_some() {
                got.extend_from_slice(&buf);
                buf.clear();
            }
        }
        assert!(got == want);
    }

    #[test]
    fn a_command_gives_its_client_time_and_nonsense_does_not() {
        let (mut c, client) = connected();
        let (at, mut piece) = (|s| Time::ZERO + Span::from_secs(s), BytesMut::new());
        let mut ask = |c: &mut Connection, now| {
            std::io::Write::write_all(&mut (&client), b"x\n").expect("written");
            assert!(c.read(now, &mut piece).expect("read") && c.poll_request(now).is_some());
        };
        ask(&mut c, at(6));
        assert!(!c.overdue(at(100)), "it waits for the rack");
        c.refuse("no command\n".into());
        assert!(!c.overdue(at(10)) && c.overdue(at(11)));
        ask(&mut c, at(9));
        c.reply(at(9), Reply::Command("done\n".into()));
        assert!(!c.overdue(at(19)) && c.overdue(at(20)));
    }

    #[test]
    fn a_client_that_leaves_is_done_with_when_it_has_its_answers() {
        let (mut c, client) = connected();
        let mut piece = BytesMut::new();
        std::io::Write::write_all(&mut (&client), b"x\n").expect("written");
        assert!(c.read(Time::ZERO, &mut piece).expect("read") && c.poll_request(Time::ZERO).is_some());
        c.reply(Time::ZERO, Reply::Command("done\n".into()));
        client.shutdown(std::net::Shutdown::Write).expect("shut down");
        assert!(!c.read(Time::ZERO, &mut piece).expect("read"));
        assert!(!c.finished() && !c.wants().read);
        c.send(Time::ZERO).expect("send");
        assert!(c.finished());
    }
}
