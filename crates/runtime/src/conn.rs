//! One connection from outside and what it speaks.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rackweave_core::request::{Reply, Request, RequestId};
use rackweave_core::{Span, Time, VolumeId};
use rackweave_gateway::metrics::HttpSession;
use rackweave_gateway::nbd::Session;
use rackweave_gateway::tls::{Failure, ServerConfig, Tls};

use super::budget::{Account, Budget};
use super::control::{Answer, Command, LINE_MAX};
use super::latency::Kind;
use super::net::{Outgoing, receive, send_parts};
use super::poll::Interest;
use rackweave_config::READ_BYTES;

/// A client that has not finished its greeting, its line or its request by then is cut off.
pub const GREETING_MAX: Span = Span::from_secs(10);
/// Less room than this in the piece at hand, and a new one is begun.
const READ_BYTES_MIN: usize = 64 << 10;
/// Unsent answers of a control connection from which on no further command is taken.
const ANSWERS_MAX: usize = 64 << 10;
/// Requests of a session that are told apart (see [`Session`]'s request ids).
const SLOTS: usize = 256;

/// What a connection speaks.
pub enum Talk {
    Nbd(Box<Nbd>),
    Control(Control),
    Http(HttpSession, Outgoing),
}

pub struct Nbd {
    pub session: Session,
    /// When each request under way arrived, by its slot.
    since: Vec<Option<(Kind, Time)>>,
}

/// Lines not complete yet, whether a command is being answered, and answers on their way.
#[derive(Default)]
pub struct Control {
    line: Vec<u8>,
    busy: bool,
    out: Outgoing,
}

/// What came out of a connection's input.
pub enum Heard {
    Command(Box<Command>),
    /// The metrics were asked for.
    Metrics,
}

pub struct Conn {
    fd: OwnedFd,
    talk: Talk,
    tls: Option<Box<Tls>>,
    /// What TLS is made of when an NBD client asks for it.
    tls_config: Option<Arc<ServerConfig>>,
    /// Why TLS ended it.
    failure: Option<Failure>,
    /// That was asked for.
    told: bool,
    /// What epoll was told last.
    pub interest: Interest,
    /// Since when the client owes the end of a greeting, line or request.
    owes_since: Time,
    /// What it has of the process's memory.
    account: Account,
    /// Close when everything is sent.
    closing: bool,
    asked_metrics: bool,
}

fn slot(id: RequestId) -> usize {
    id.0 as usize % SLOTS
}

impl Conn {
    pub fn new(fd: OwnedFd, talk: Talk, now: Time) -> Conn {
        Conn {
            fd,
            talk,
            tls: None,
            tls_config: None,
            failure: None,
            told: false,
            interest: Interest::READ,
            owes_since: now,
            account: Account::default(),
            closing: false,
            asked_metrics: false,
        }
    }
    /// It can become a TLS one when the client asks for it.
    pub fn offering_tls(self, config: Option<Arc<ServerConfig>>) -> Conn {
        Conn { tls_config: config, ..self }
    }
    /// It begins with TLS.
    pub fn inside_tls(self, config: &Arc<ServerConfig>) -> Result<Conn, Failure> {
        let tls = Some(Box::new(Tls::new(config)?));
        Ok(Conn { tls, ..self })
    }
    pub fn nbd(session: Session) -> Talk {
        Talk::Nbd(Box::new(Nbd { session, since: vec![None; SLOTS] }))
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
    pub fn is_nbd(&self) -> bool {
        matches!(self.talk, Talk::Nbd(_))
    }

    /// The volume an NBD session serves.
    pub fn volume(&self) -> Option<VolumeId> {
        match &self.talk {
            Talk::Nbd(n) => n.session.volume().map(|v| v.id),
            Talk::Control(_) | Talk::Http(..) => None,
        }
    }
    /// Ready for more input.
    fn wants_input(&self) -> bool {
        !self.closing
            && match &self.talk {
                Talk::Nbd(n) => n.session.wants_input(),
                Talk::Control(c) => !c.busy && c.out.len() < ANSWERS_MAX,
                Talk::Http(h, _) => h.output().is_empty(),
            }
    }
    /// Bytes that it keeps in memory.
    fn held(&self) -> usize {
        let sealed = self.tls.as_ref().map_or(0, |t| t.output_len());
        sealed
            + match &self.talk {
                Talk::Nbd(n) => n.session.held(),
                Talk::Control(c) => c.line.len() + c.out.len(),
                Talk::Http(_, out) => out.len(),
            }
    }
    /// Takes from the budget, and gives back, as far as it goes on.
    pub fn settle(&mut self, now: Time, key: usize, budget: &mut Budget) {
        loop {
            let held = self.held();
            let sealed = self.tls.as_ref().map_or(0, |t| t.output_len());
            let needs = match &self.talk {
                Talk::Nbd(n) => n.session.needs().map(|n| n + sealed),
                Talk::Control(_) | Talk::Http(..) => None,
            };
            let limit = budget.settle(now, key, &mut self.account, held, needs);
            if let Talk::Nbd(n) = &mut self.talk {
                n.session.set_limit(limit.saturating_sub(sealed));
            }
            if self.held() == held {
                return;
            }
        }
    }
    pub fn account(&self) -> &Account {
        &self.account
    }
    /// Others wait for what it holds, and it waits for its client.
    pub fn stalled(&self, now: Time) -> bool {
        let silent = match &self.talk {
            Talk::Nbd(n) => n.session.waits_for_client(),
            Talk::Control(_) | Talk::Http(..) => false,
        };
        (silent || self.tls.as_ref().is_some_and(|t| t.output_len() > 0)) && self.account.stalled(now)
    }
    pub fn wants(&self) -> Interest {
        Interest { read: self.wants_input(), write: self.unsent() > 0 }
    }
    fn unsent(&self) -> usize {
        match &self.tls {
            None => self.talk.unsent(),
            Some(t) if t.handshaking() || self.failure.is_some() => t.output_len(),
            Some(t) => t.output_len() + self.talk.unsent(),
        }
    }
    /// Its client is late.
    pub fn overdue(&self, now: Time) -> bool {
        let owes = match &self.talk {
            Talk::Nbd(n) => !n.session.handshake_done(),
            Talk::Control(c) => !c.busy,
            Talk::Http(..) => true,
        };
        owes && now.since(self.owes_since) > GREETING_MAX
    }
    /// There is nothing more to do for it.
    pub fn finished(&self) -> bool {
        match &self.talk {
            Talk::Nbd(n) if !self.closing => n.session.finished() && self.unsent() == 0,
            _ => self.closing && self.unsent() == 0,
        }
    }
    /// Requests of an NBD session that are not answered.
    pub fn in_flight(&self) -> usize {
        match &self.talk {
            Talk::Nbd(n) => n.session.in_flight(),
            _ => 0,
        }
    }

    /// Reads what is there; false: the connection is over. `piece` is the loop's input buffer.
    pub fn read(&mut self, now: Time, piece: &mut BytesMut) -> io::Result<bool> {
        if !self.wants_input() {
            return Ok(true);
        }
        if piece.capacity() < READ_BYTES_MIN {
            *piece = BytesMut::with_capacity(READ_BYTES);
        }
        let Some(n) = receive(self.fd.as_raw_fd(), piece)? else { return Ok(true) };
        if n == 0 {
            self.ended();
            return Ok(false);
        }
        self.account.moved(now, n);
        let mut bytes = piece.split().freeze();
        if let Some(tls) = &mut self.tls {
            match tls.open(&bytes) {
                Ok(plain) => bytes = plain,
                Err(failure) => {
                    (self.failure, self.closing) = (Some(failure), true);
                    return Ok(false);
                }
            }
        }
        match &mut self.talk {
            Talk::Nbd(s) => {
                s.session.input(bytes);
                if let Some(config) = self.tls_config.as_ref().filter(|_| s.session.starts_tls()) {
                    let mut tls = Tls::new(config).map_err(io::Error::other)?;
                    let clear: Vec<Bytes> = s.session.output().cloned().collect();
                    s.session.written(s.session.output_len());
                    clear.into_iter().for_each(|b| tls.before(b));
                    self.tls = Some(Box::new(tls));
                }
            }
            Talk::Control(c) => c.line.extend_from_slice(&bytes),
            // A request's answer, if it is refused, is in its output at once.
            Talk::Http(h, out) => {
                self.asked_metrics = h.input(&bytes);
                self.closing |= take_page(h, out);
            }
        }
        let goodbye = self.tls.as_ref().is_some_and(|t| t.peer_closed());
        if goodbye {
            self.ended();
        }
        Ok(!goodbye)
    }

    /// The client sends no more.
    fn ended(&mut self) {
        if let Talk::Nbd(s) = &mut self.talk {
            s.session.input_eof();
        } else {
            self.closing = true;
        }
    }

    /// Why TLS ended it, once.
    pub fn take_failure(&mut self) -> Option<(Failure, String)> {
        // What is left to send is the alert that says why.
        let failure = self.failure.clone().filter(|_| !std::mem::replace(&mut self.told, true))?;
        Some((failure, super::net::peer_of(&self.fd)))
    }

    /// The next request of an NBD session.
    pub fn poll_request(&mut self, now: Time) -> Option<Request> {
        let Talk::Nbd(n) = &mut self.talk else { return None };
        let r = n.session.poll_request()?;
        n.since[slot(r.id)] = Kind::of(&r.op).map(|k| (k, now));
        Some(r)
    }

    /// Answers a request of an NBD session; how long it took, if such are timed.
    pub fn reply(&mut self, now: Time, r: Reply) -> Option<(Kind, Span)> {
        let Talk::Nbd(n) = &mut self.talk else { return None };
        let timed = n.since[slot(r.id)].take();
        n.session.reply(r);
        timed.map(|(kind, since)| (kind, now.since(since)))
    }

    /// What else was asked, if it is whole and nothing is being answered.
    pub fn heard(&mut self) -> Option<Heard> {
        match &mut self.talk {
            Talk::Nbd(_) => None,
            Talk::Control(c) => c.next().map(|c| Heard::Command(Box::new(c))),
            Talk::Http(..) => std::mem::take(&mut self.asked_metrics).then_some(Heard::Metrics),
        }
    }

    pub fn answer(&mut self, now: Time, a: &Answer) {
        if let Talk::Control(c) = &mut self.talk {
            c.busy = false;
            self.owes_since = now;
            c.out.push(line_of(a));
        }
    }

    /// Answers a request for the metrics and ends the connection.
    pub fn metrics(&mut self, text: &str) {
        if let Talk::Http(h, out) = &mut self.talk {
            h.respond(text);
            self.closing |= take_page(h, out);
        }
    }

    /// Sends what the socket takes.
    pub fn send(&mut self, now: Time) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        let Some(tls) = &mut self.tls else {
            let before = self.talk.unsent();
            let sent = self.talk.send(fd);
            self.account.moved(now, before.saturating_sub(self.talk.unsent()));
            return sent;
        };
        loop {
            if self.failure.is_none() {
                self.talk.seal(tls);
                if matches!(&self.talk, Talk::Nbd(n) if n.session.finished())
                    || (self.closing && self.talk.unsent() == 0)
                {
                    tls.close();
                }
            }
            if tls.output_len() == 0 {
                return Ok(());
            }
            let (sent, all) = send_parts(fd, tls.output())?;
            tls.written(sent);
            self.account.moved(now, sent);
            if !all {
                return Ok(());
            }
        }
    }
}

impl Talk {
    /// Bytes for the client.
    fn unsent(&self) -> usize {
        match self {
            Talk::Nbd(n) => n.session.output_len(),
            Talk::Control(c) => c.out.len(),
            Talk::Http(_, out) => out.len(),
        }
    }

    fn send(&mut self, fd: RawFd) -> io::Result<()> {
        match self {
            Talk::Nbd(n) => {
                while n.session.output_len() > 0 {
                    let (sent, all) = send_parts(fd, n.session.output())?;
                    n.session.written(sent);
                    if !all {
                        return Ok(());
                    }
                }
                Ok(())
            }
            Talk::Control(c) => c.out.send(fd),
            Talk::Http(_, out) => out.send(fd),
        }
    }

    /// Moves what TLS has room for into it.
    fn seal(&mut self, tls: &mut Tls) {
        match self {
            Talk::Nbd(n) => {
                let taken = tls.seal(n.session.output());
                n.session.written(taken);
            }
            Talk::Control(c) => {
                let taken = tls.seal(c.out.parts());
                c.out.advance(taken);
            }
            Talk::Http(_, out) => {
                let taken = tls.seal(out.parts());
                out.advance(taken);
            }
        }
    }
}

fn take_page(h: &HttpSession, out: &mut Outgoing) -> bool {
    let page = h.output();
    let done = !page.is_empty();
    out.push(page);
    done
}

impl Control {
    /// The next whole line as a command; one at a time, so that answers come in order.
    fn next(&mut self) -> Option<Command> {
        while !self.busy && self.out.len() < ANSWERS_MAX {
            let Some(end) = self.line.iter().position(|&b| b == b'\n') else {
                if self.line.len() > LINE_MAX {
                    self.line.clear();
                    self.out.push(line_of(&Answer::Error { message: format!("a line of over {LINE_MAX} bytes") }));
                }
                return None;
            };
            let rest = self.line.split_off(end + 1);
            let text = std::mem::replace(&mut self.line, rest);
            match serde_json::from_slice(&text) {
                Ok(c) => {
                    self.busy = true;
                    return Some(c);
                }
                Err(e) => self.out.push(line_of(&Answer::Error { message: format!("not a command: {e}") })),
            }
        }
        None
    }
}

fn line_of(a: &Answer) -> Bytes {
    let mut b =
        serde_json::to_vec(a).unwrap_or_else(|_| br#"{"error":{"message":"the answer has no JSON form"}}"#.into());
    b.push(b'\n');
    b.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_commands_one_at_a_time() {
        let mut c = Control {
            line: b"nonsense\n{\"op\":\"volume_list\"}\n{\"op\":\"status\"}\n{\"op".to_vec(),
            ..Control::default()
        };
        assert_eq!(c.next(), Some(Command::VolumeList));
        assert!(!c.out.is_empty(), "the nonsense was answered");
        assert_eq!(c.next(), None, "one is being answered");
        c.busy = false;
        assert_eq!(c.next(), Some(Command::Status));
        c.busy = false;
        assert_eq!(c.next(), None);
        c.line = vec![b' '; LINE_MAX + 1];
        assert_eq!(c.next(), None);
        assert!(c.line.is_empty());
    }
    /// The fuzz target of control frames, run briefly and seeded: any bytes in any cuts get one answer a line, or are waited
    /// for, within bounded memory.
    #[test]
    fn no_frames_break_a_control_connection() {
        let corpus: [&[u8]; 5] = [
            b"{\"op\":\"volume_create\",\"name\":\"v\",\"size\":4096}\n",
            b"{\"op\":\"set_recover\",\"set\":3,\"without\":[1,2]}\n",
            b"{\"op\":\"key_change\",\"change\":{\"add\":{\"id\":2,\"key\":\"00\"}}}\n",
            b"{\"op\":\"status\"}\n",
            b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\n",
        ];
        let (mut commands, mut refused) = (0, 0);
        for seed in 0..20_000 {
            let mut rng = rackweave_core::Rng::new(seed);
            let mut c = Control::default();
            for _ in 0..rng.below(6) {
                let mut b = rng.pick(&corpus).to_vec();
                for _ in 0..rng.below(4) {
                    let at = rng.below(b.len() as u64) as usize;
                    match rng.below(3) {
                        0 => b[at] = rng.next_u64() as u8,
                        1 => b.truncate(at.max(1)),
                        _ => b.extend_from_within(at..),
                    }
                }
                c.line.extend_from_slice(&b);
                while c.next().is_some() {
                    assert!(c.busy, "one at a time");
                    (c.busy, commands) = (false, commands + 1);
                }
                assert!(!c.line.contains(&b'\n'), "seed {seed}: every whole line is answered");
                refused += c.out.len();
                c.out.advance(c.out.len());
            }
            assert!(c.line.len() <= LINE_MAX);
        }
        assert!(commands > 5_000 && refused > 100_000, "{commands} commands, {refused} bytes of refusals");
    }
}
