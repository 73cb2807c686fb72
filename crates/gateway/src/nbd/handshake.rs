//! Greeting and option haggling.

use bytes::{Buf, BufMut, Bytes};
use rackweave_core::admin::{self, VolumeError};
use rackweave_core::request::{Op, Outcome};
use rackweave_core::volume::{self, VolumeInfo};

use super::wire::{self, info, opt, rep, tx};
use super::{Asked, CloseReason, NAME_MAX, OPTION_MAX, OPTIONS_MAX, Session, State, Tls, TlsUse};
use crate::buffers::{Fields, put_zeros};

/// An option that waits for the rack.
#[derive(Debug)]
pub enum Haggle {
    List,
    /// EXPORT_NAME, INFO and GO; `want_name` if the name is to be repeated.
    Export {
        option: u32,
        name: Box<str>,
        want_name: bool,
    },
    /// LIST_META_CONTEXT and SET_META_CONTEXT; whether `base:allocation` was among the queries.
    Context {
        option: u32,
        name: Box<str>,
        allocation: bool,
    },
}

impl Session {
    pub(super) fn greet(&mut self) {
        self.output.small(|b| {
            b.put_u64(wire::INIT_MAGIC);
            b.put_u64(wire::OPT_MAGIC);
            b.put_u16(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        });
    }

    pub(super) fn client_flags(&mut self) {
        let flags = self.input.take(4).get_u32();
        let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        if flags & !known != 0 {
            return self.close(CloseReason::ClientFlags { flags });
        }
        self.fixed = flags & u32::from(wire::FLAG_FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
        self.state = State::OptionHeader;
    }

    pub(super) fn option_header(&mut self) {
        let mut h = self.input.take(16);
        let (magic, option, len) = (h.get_u64(), h.get_u32(), h.get_u32());
        if magic != wire::OPT_MAGIC {
            return self.close(CloseReason::OptionMagic { magic });
        }
        if !self.fixed && option != opt::EXPORT_NAME {
            return self.close(CloseReason::NotFixed { option });
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return self.close(CloseReason::TooManyOptions);
        }
        self.state = if len <= OPTION_MAX {
            State::OptionData { option, len }
        } else if len <= wire::PAYLOAD_MAX && option != opt::EXPORT_NAME {
            State::OptionSkip { option, left: u64::from(len) }
        } else {
            return self.close(CloseReason::OptionLength { option, len });
        };
    }

    pub(super) fn option(&mut self, option: u32, data: Bytes) {
        let tls_first = self.tls == Tls::Clear(TlsUse::Require);
        match option {
            opt::STARTTLS => self.start_tls(&data),
            opt::EXPORT_NAME if tls_first => self.close(CloseReason::TlsRequired),
            _ if tls_first && option != opt::ABORT => {
                self.refuse_option(option, rep::ERR_TLS_REQD, "this server requires TLS: send STARTTLS first");
            }
            opt::EXPORT_NAME => self.export_name(&data),
            opt::ABORT => {
                self.option_reply(option, rep::ACK, b"");
                self.close(CloseReason::Abort);
            }
            opt::LIST if !data.is_empty() => self.refuse_option(option, rep::ERR_INVALID, "LIST takes no data"),
            opt::LIST => {
                self.state = State::OptionWait;
                self.ask(admin::Op::VolumeList, Asked::Option(Haggle::List));
            }
            opt::STRUCTURED_REPLY if !data.is_empty() => {
                self.refuse_option(option, rep::ERR_INVALID, "STRUCTURED_REPLY takes no data");
            }
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                self.option_reply(option, rep::ACK, b"");
            }
            opt::INFO | opt::GO => self.info_or_go(option, data),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data),
            _ => self.refuse_option(option, rep::ERR_UNSUP, "option not supported"),
        }
    }

    fn start_tls(&mut self, data: &[u8]) {
        let refusal = match self.tls {
            Tls::Clear(TlsUse::Off) => Some((rep::ERR_POLICY, "this server has no TLS")),
            Tls::Starts | Tls::On => Some((rep::ERR_INVALID, "TLS has begun already")),
            Tls::Clear(_) if !data.is_empty() => Some((rep::ERR_INVALID, "STARTTLS takes no data")),
            Tls::Clear(_) => None,
        };
        if let Some((code, why)) = refusal {
            return self.refuse_option(opt::STARTTLS, code, why);
        }
        // An attacker on the path may have inserted it, to be taken as encrypted input.
        let bytes = self.input.len();
        if bytes > 0 {
            return self.close(CloseReason::BehindStartTls { bytes });
        }
        // Likewise what was agreed on before.
        (self.structured, self.allocation) = (false, None);
        self.option_reply(opt::STARTTLS, rep::ACK, b"");
        self.tls = Tls::Starts;
    }

    fn export_name(&mut self, data: &[u8]) {
        match std::str::from_utf8(data) {
            Ok(name) if data.len() <= NAME_MAX as usize => {
                self.look_up(Haggle::Export { option: opt::EXPORT_NAME, name: name.into(), want_name: false });
            }
            _ => self.close(CloseReason::Export {
                name: String::from_utf8_lossy(&data[..data.len().min(64)]).into_owned(),
                error: "not a name".into(),
            }),
        }
    }

    fn info_or_go(&mut self, option: u32, data: Bytes) {
        let mut f = Fields(data);
        let parsed = name(&mut f).and_then(|name| {
            let n = f.u16()?;
            let mut want_name = false;
            for _ in 0..n {
                want_name |= f.u16()? == info::NAME;
            }
            f.is_empty().then_some(Haggle::Export { option, name, want_name })
        });
        match parsed {
            Some(h) => self.look_up(h),
            None => self.refuse_option(option, rep::ERR_INVALID, "malformed option data"),
        }
    }

    fn meta_context(&mut self, option: u32, data: Bytes) {
        if option == opt::SET_META_CONTEXT {
            self.allocation = None;
        }
        if !self.structured {
            return self.refuse_option(option, rep::ERR_INVALID, "STRUCTURED_REPLY must come first");
        }
        let mut f = Fields(data);
        let parsed = name(&mut f).and_then(|name| {
            let n = f.u32()?;
            // No queries: LIST means all, SET means none.
            let mut allocation = n == 0 && option == opt::LIST_META_CONTEXT;
            for _ in 0..n {
                let len = f.u32()?;
                let query = f.bytes(len)?;
                allocation |= query == wire::BASE_ALLOCATION;
                allocation |= query == b"base:".as_slice() && option == opt::LIST_META_CONTEXT;
            }
            f.is_empty().then_some(Haggle::Context { option, name, allocation })
        });
        match parsed {
            Some(h) => self.look_up(h),
            None => self.refuse_option(option, rep::ERR_INVALID, "malformed option data"),
        }
    }

    /// Requests the export from the rack; choosing it makes this gateway its one writer.
    fn look_up(&mut self, h: Haggle) {
        let (Haggle::Export { option, name, .. } | Haggle::Context { option, name, .. }) = &h else { return };
        let op = match *option {
            opt::GO | opt::EXPORT_NAME => Op::Volume(volume::Op::Attach { name: name.clone() }),
            _ => Op::Admin(admin::Op::VolumeInfo { name: name.clone() }),
        };
        self.state = State::OptionWait;
        self.ask(op, Asked::Option(h));
    }

    pub(super) fn haggled(&mut self, h: Haggle, outcome: Outcome) {
        if self.closed.is_some() {
            return;
        }
        self.state = State::OptionHeader;
        match (h, outcome) {
            (Haggle::List, Outcome::Admin(Ok(admin::Reply::Volumes(volumes)))) => {
                let readable = |v: &VolumeInfo| v.snapshots.iter().filter(|s| s.made).map(|s| s.name.clone()).collect();
                for v in volumes {
                    let snapshots: Vec<Box<str>> = readable(&v);
                    for name in [v.name].into_iter().chain(snapshots) {
                        let mut data = Vec::with_capacity(4 + name.len());
                        data.put_u32(name.len() as u32);
                        data.put_slice(name.as_bytes());
                        self.option_reply(opt::LIST, rep::SERVER, &data);
                    }
                }
                self.option_reply(opt::LIST, rep::ACK, b"");
            }
            (
                Haggle::Export { option, want_name, .. },
                Outcome::Volume(Ok(volume::Reply::Attached(volume))) | Outcome::Admin(Ok(admin::Reply::Volume(volume))),
            ) => self.export(option, want_name, *volume),
            (Haggle::Context { option, name, allocation }, Outcome::Admin(Ok(admin::Reply::Volume(_)))) => {
                if allocation {
                    let mut data = Vec::with_capacity(4 + wire::BASE_ALLOCATION.len());
                    data.put_u32(if option == opt::SET_META_CONTEXT { wire::BASE_ALLOCATION_ID } else { 0 });
                    data.put_slice(wire::BASE_ALLOCATION);
                    self.option_reply(option, rep::META_CONTEXT, &data);
                    if option == opt::SET_META_CONTEXT {
                        self.allocation = Some(name);
                    }
                }
                self.option_reply(option, rep::ACK, b"");
            }
            (h, outcome) => self.export_refused(h, &outcome),
        }
    }

    fn export_refused(&mut self, h: Haggle, outcome: &Outcome) {
        let error = outcome.error().unwrap_or(&volume::Error::WrongAnswer).to_string();
        let option = match h {
            Haggle::List => opt::LIST,
            Haggle::Export { option: opt::EXPORT_NAME, name, .. } => {
                return self.close(CloseReason::Export { name: name.into(), error });
            }
            Haggle::Export { option, .. } | Haggle::Context { option, .. } => option,
        };
        let code = match outcome {
            Outcome::Volume(Err(volume::Error::Unknown { .. }))
            | Outcome::Admin(Err(admin::Error::Volume(
                VolumeError::Unknown { .. }
                | VolumeError::BadName { .. }
                | VolumeError::UnknownSnapshot { .. }
                | VolumeError::BadSnapshot { .. },
            ))) => rep::ERR_UNKNOWN,
            _ => rep::ERR_POLICY,
        };
        self.refuse_option(option, code, &error);
    }

    fn transmission_flags(&self, volume: &VolumeInfo) -> u16 {
        let df = if self.structured { tx::SEND_DF } else { 0 };
        if volume.frozen.is_some() {
            return tx::HAS_FLAGS | tx::READ_ONLY | tx::SEND_FLUSH | tx::CAN_MULTI_CONN | df;
        }
        tx::HAS_FLAGS | tx::SEND_FLUSH | tx::SEND_FUA | tx::SEND_TRIM | tx::SEND_WRITE_ZEROES | tx::CAN_MULTI_CONN | df
    }

    fn export(&mut self, option: u32, want_name: bool, volume: VolumeInfo) {
        let (size, flags) = (volume.size, self.transmission_flags(&volume));
        if option == opt::EXPORT_NAME {
            let pad = if self.no_zeroes { 0 } else { 124 };
            self.output.small(|b| {
                b.put_u64(size);
                b.put_u16(flags);
                put_zeros(b, pad);
            });
        } else {
            let mut data = Vec::with_capacity(14);
            data.put_u16(info::EXPORT);
            data.put_u64(size);
            data.put_u16(flags);
            self.option_reply(option, rep::INFO, &data);
            if want_name {
                let mut data = Vec::with_capacity(2 + volume.name.len());
                data.put_u16(info::NAME);
                data.put_slice(volume.name.as_bytes());
                self.option_reply(option, rep::INFO, &data);
            }
            let mut data = Vec::with_capacity(14);
            data.put_u16(info::BLOCK_SIZE);
            data.put_u32(wire::BLOCK_SIZE_MIN);
            data.put_u32(wire::BLOCK_SIZE_PREFERRED);
            data.put_u32(wire::PAYLOAD_MAX);
            self.option_reply(option, rep::INFO, &data);
            self.option_reply(option, rep::ACK, b"");
        }
        if option != opt::INFO {
            // Contexts agreed on for another export do not count for this one.
            self.allocation = self.allocation.take().filter(|name| *name == volume.name);
            self.volume = Some(volume);
            self.state = State::CommandHeader;
        }
    }

    pub(super) fn refuse_option(&mut self, option: u32, code: u32, why: &str) {
        // A text that quotes a name of the greatest length would be longer than the protocol allows.
        let mut end = why.len().min(NAME_MAX as usize);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        self.option_reply(option, code, &why.as_bytes()[..end]);
    }

    fn option_reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.output.small(|b| {
            b.put_u64(wire::OPT_REPLY_MAGIC);
            b.put_u32(option);
            b.put_u32(kind);
            b.put_u32(data.len() as u32);
            b.put_slice(data);
        });
    }
}

/// A length and an export name.
fn name(f: &mut Fields) -> Option<Box<str>> {
    let len = f.u32()?;
    if len > NAME_MAX {
        return None;
    }
    let bytes = f.bytes(len)?;
    std::str::from_utf8(&bytes).ok().map(Into::into)
}
