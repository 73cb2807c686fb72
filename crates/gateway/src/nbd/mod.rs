//! An NBD server without sockets (NetworkBlockDevice/nbd, doc/proto.md): fixed newstyle handshake, structured replies,
//! `base:allocation`.
//!
//! A driver calls a [`Session`] as any [`Gateway`]. Everything that a session holds is bounded: [`IN_FLIGHT_MAX`], [`BYTES_MAX`],
//! [`OPTION_MAX`], [`OPTIONS_MAX`]. A driver with many sessions bounds them together: a command that does not fit into
//! [`Gateway::set_limit`] waits, and [`Gateway::needs`] is the limit that it waits for.

mod handshake;
mod transmission;
pub mod wire;

use std::collections::VecDeque;

use bytes::Bytes;
use rackweave_core::VolumeId;
use rackweave_core::request::{self, Op, Operation};
use rackweave_core::volume::{self, VolumeInfo};

use crate::buffers::{Input, Output};
use crate::session::{Chunks, Gateway, Reply, Request, SessionId};
use handshake::Haggle;
use transmission::Command;

/// Commands unanswered in a session: the depth of the kernel's NBD driver, the deepest of usual clients. A further
/// command is read when one is done.
pub const IN_FLIGHT_MAX: usize = 128;
/// Bound of the bytes of a session's commands: payloads being read, in flight, and unsent in the output.
pub const BYTES_MAX: usize = 64 << 20;
/// Longest data of an option that is looked at. A name is at most 4,096 bytes by the protocol; longer is skipped and
/// refused.
pub const OPTION_MAX: u32 = 16 << 10;
/// Options in one handshake: a client needs a handful, and one that never ends must not stay for ever.
pub const OPTIONS_MAX: u32 = 1024;
/// Unsent answers to options from which on no further option is read.
const OPTION_OUTPUT_MAX: usize = 64 << 10;
/// Longest export name (the protocol's bound on strings).
pub const NAME_MAX: u32 = 4096;

/// Why a session stopped reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    #[error("the client disconnected")]
    Disconnect,
    #[error("the client ended the handshake")]
    Abort,
    #[error("the peer closed its side")]
    Eof,
    #[error("client flags {flags:#x} are unknown")]
    ClientFlags { flags: u32 },
    #[error("option magic {magic:#018x}")]
    OptionMagic { magic: u64 },
    #[error("option {option} from a client that has not agreed to option replies")]
    NotFixed { option: u32 },
    #[error("option {option} with {len} bytes of data")]
    OptionLength { option: u32, len: u32 },
    #[error("more than {OPTIONS_MAX} options")]
    TooManyOptions,
    #[error("export {name:?}: {error}")]
    Export { name: String, error: String },
    #[error("request magic {magic:#010x}")]
    RequestMagic { magic: u32 },
    #[error("a request for an export without TLS, which this server requires")]
    TlsRequired,
    #[error("{bytes} bytes in the clear behind STARTTLS, before its answer")]
    BehindStartTls { bytes: usize },
}

/// Whether a session is encrypted (NBD's NOTLS, SELECTIVETLS and FORCEDTLS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsUse {
    /// Never: STARTTLS is refused.
    #[default]
    Off,
    /// If the client wants it.
    Allow,
    /// Always: before STARTTLS every option gets the error that it is required.
    Require,
}

/// How far STARTTLS has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    Clear(TlsUse),
    /// The answer is in the output; what comes now is TLS.
    Starts,
    On,
}

#[derive(Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        len: u32,
    },
    /// An option too long: its data is dropped.
    OptionSkip {
        option: u32,
        left: u64,
    },
    /// Waits for the rack's answer to an option.
    OptionWait,
    CommandHeader,
    /// A command that waits for room.
    Room(Command),
    Payload(Command),
    /// The payload of a refused write is dropped; then the refusal is sent.
    PayloadSkip {
        command: Command,
        left: u64,
        error: wire::Errno,
    },
    Closed,
}

/// Purpose of an answer from the rack.
#[derive(Debug)]
enum Asked {
    Option(Haggle),
    Command(Command),
}

/// One client's connection.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    state: State,
    closed: Option<CloseReason>,
    input: Input,
    output: Output,
    requests: VecDeque<request::Request>,
    /// By slot; the slot and a count are in the request's id.
    asked: Vec<Option<(u32, Asked)>>,
    free: Vec<u8>,
    in_flight: usize,
    /// Bytes of commands in flight.
    in_flight_bytes: usize,
    /// Bound of the bytes of all its commands.
    limit: usize,
    count: u32,
    options: u32,
    fixed: bool,
    no_zeroes: bool,
    tls: Tls,
    structured: bool,
    /// The export `base:allocation` was agreed on for.
    allocation: Option<Box<str>>,
    volume: Option<VolumeInfo>,
    /// Another writer has the volume: this session never writes again.
    fenced: bool,
}

impl Session {
    /// A new connection, in the clear. `id` marks its requests, see [`SessionId::of`].
    pub fn new(id: SessionId) -> Session {
        Session::with_tls(id, TlsUse::Off)
    }
    /// A new connection of which the driver can make a TLS one, see [`Gateway::starts_tls`].
    pub fn with_tls(id: SessionId, tls: TlsUse) -> Session {
        let mut s = Session {
            id,
            state: State::ClientFlags,
            closed: None,
            input: Input::default(),
            output: Output::default(),
            requests: VecDeque::new(),
            asked: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            in_flight_bytes: 0,
            limit: BYTES_MAX,
            count: 0,
            options: 0,
            fixed: false,
            no_zeroes: false,
            tls: Tls::Clear(tls),
            structured: false,
            allocation: None,
            volume: None,
            fenced: false,
        };
        s.greet();
        s
    }
    /// An export is chosen: time-outs for half-open clients no longer apply.
    pub fn handshake_done(&self) -> bool {
        self.volume.is_some()
    }
    /// Set when the session has stopped reading.
    pub fn closed(&self) -> Option<&CloseReason> {
        self.closed.as_ref()
    }

    fn close(&mut self, reason: CloseReason) {
        self.closed.get_or_insert(reason);
        self.state = State::Closed;
        self.input.clear();
    }
    /// Bytes that its next step takes at once, if more than a header.
    fn awaits(&self) -> usize {
        match &self.state {
            State::Payload(c) => c.len as usize,
            State::OptionData { len, .. } => *len as usize,
            _ => 0,
        }
    }
    fn fits(&self, c: &Command) -> bool {
        self.in_flight < IN_FLIGHT_MAX && self.held() + c.weight() <= self.limit
    }
    fn ask(&mut self, op: impl Into<Op>, asked: Asked) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.asked.push(None);
            (self.asked.len() - 1) as u8
        });
        self.count = (self.count + 1) & 0xff_ffff;
        self.in_flight += 1;
        self.asked[slot as usize] = Some((self.count, asked));
        let id = self.id.request(self.count << 8 | u32::from(slot));
        self.requests.push_back(request::Request::new(id, op));
    }

    /// Parses as far as bytes and bounds allow.
    fn advance(&mut self) {
        while self.step() {}
    }
    /// One element of the stream; false if there is not enough of it yet, or it must wait.
    fn step(&mut self) -> bool {
        let have = self.input.len();
        let fits = matches!(&self.state, State::Room(c) if self.fits(c));
        match &mut self.state {
            State::ClientFlags if have >= 4 => self.client_flags(),
            State::OptionHeader if have >= 16 && self.output.len() < OPTION_OUTPUT_MAX => self.option_header(),
            &mut State::OptionData { option, len } if have >= len as usize => {
                let data = self.input.take(len as usize);
                self.state = State::OptionHeader;
                self.option(option, data);
            }
            State::OptionSkip { option, left } => {
                let option = *option;
                *left -= self.input.skip(*left as usize) as u64;
                if *left > 0 {
                    return false;
                }
                self.state = State::OptionHeader;
                self.refuse_option(option, wire::rep::ERR_TOO_BIG, "option data too long");
            }
            State::CommandHeader if have >= transmission::HEADER_BYTES && self.in_flight < IN_FLIGHT_MAX => {
                self.command_header();
            }
            &mut State::Room(command) if fits => self.admit(command),
            &mut State::Payload(command) if have >= command.len as usize => {
                let data = self.input.take(command.len as usize);
                self.state = State::CommandHeader;
                self.write(command, data);
            }
            State::PayloadSkip { command, left, error } => {
                let (command, error) = (*command, *error);
                *left -= self.input.skip(*left as usize) as u64;
                if *left > 0 {
                    return false;
                }
                self.state = State::CommandHeader;
                self.refuse(command, error);
            }
            _ => return false,
        }
        true
    }
}

impl Gateway for Session {
    /// Write payloads above 32 KiB (`SMALL_BYTES`) are slices of `bytes`: chunks much smaller than a payload cost a copy,
    /// and a chunk stays in memory as long as the rack holds the last payload from it. 64 to 256 KiB is a good size.
    fn input(&mut self, bytes: Bytes) {
        if self.closed.is_none() {
            self.input.push(bytes);
            self.advance();
            self.input.release(self.awaits());
        }
    }
    fn input_eof(&mut self) {
        self.close(CloseReason::Eof);
    }
    fn wants_input(&self) -> bool {
        if self.closed.is_some() {
            return false;
        }
        match self.state {
            State::OptionWait | State::Room(_) => false,
            State::CommandHeader => self.in_flight < IN_FLIGHT_MAX,
            State::OptionHeader => self.output.len() < OPTION_OUTPUT_MAX,
            _ => true,
        }
    }
    fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front().map(Request::Rack)
    }
    fn reply(&mut self, reply: Reply) {
        let Reply::Rack(reply) = reply else { return };
        let slot = reply.id.0 as usize & 0xff;
        let count = (reply.id.0 as u32) >> 8;
        let Some(entry) = self.asked.get_mut(slot) else { return };
        if entry.as_ref().is_none_or(|e| e.0 != count) {
            return;
        }
        let Some((_, asked)) = entry.take() else { return };
        self.free.push(slot as u8);
        self.in_flight -= 1;
        match asked {
            Asked::Option(h) => self.haggled(h, reply.result),
            Asked::Command(c) => {
                let result = volume::Op::result(reply.result).unwrap_or(Err(volume::Error::WrongAnswer));
                self.answered(c, result);
            }
        }
        self.advance();
    }
    fn output(&mut self) -> Chunks<'_> {
        self.output.chunks()
    }
    fn output_len(&self) -> usize {
        self.output.len()
    }
    fn written(&mut self, n: usize) {
        self.output.advance(n);
        self.advance();
    }
    fn finished(&self) -> bool {
        self.closed.is_some() && self.in_flight == 0 && self.output.len() == 0
    }
    fn input_due(&self) -> bool {
        !self.handshake_done()
    }
    /// Bytes granted to its commands, arrived or not.
    fn held(&self) -> usize {
        let being_read = match &self.state {
            State::Payload(c) => c.weight(),
            _ => 0,
        };
        self.in_flight_bytes + being_read + self.output.len()
    }
    /// At most [`BYTES_MAX`] has an effect.
    fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes.min(BYTES_MAX);
        if matches!(self.state, State::Room(_)) {
            self.advance();
        }
    }
    /// `None` also where a command waits only for the session's own output to be taken.
    fn needs(&self) -> Option<usize> {
        match &self.state {
            State::Room(c) => Some(self.held() + c.weight()).filter(|n| *n <= BYTES_MAX),
            _ => None,
        }
    }
    fn waits_for_client(&self) -> bool {
        self.output.len() > 0 || matches!(self.state, State::Payload(_) | State::PayloadSkip { .. })
    }
    fn starts_tls(&mut self) -> bool {
        let starts = self.tls == Tls::Starts;
        if starts {
            self.tls = Tls::On;
        }
        starts
    }
    fn is_client(&self) -> bool {
        true
    }
    fn volume(&self) -> Option<VolumeId> {
        self.volume.as_ref().map(|v| v.id)
    }
    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
