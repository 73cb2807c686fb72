//! The peers of a session: an NBD client that only builds bytes, and an in-memory rack.

use bytes::{BufMut, Bytes};
use rackweave_core::admin;
use rackweave_core::msg::Class;
use rackweave_core::request::{Op, Reply, Request};
use rackweave_core::volume::{self, Extent, VolumeInfo};
use rackweave_core::{Payload, SetId, VolumeId};
use rackweave_gateway::nbd::{Session, TlsUse};
use rackweave_gateway::{self as gateway, Gateway, SessionId};

pub const SIZE: u64 = 1 << 20;
pub const SESSION: SessionId = SessionId(3);

pub fn volume(name: &str) -> VolumeInfo {
    let id = if name == "vm0" { 1 } else { 2 };
    VolumeInfo {
        id: VolumeId(id),
        name: name.into(),
        size: SIZE,
        attach: 1,
        sets: vec![SetId(0)],
        stripe_blocks: 16,
        class: Class::Silver,
        limits: Default::default(),
        used: 0,
        own: None,
        own_change: None,
        flattening: None,
        cloud: None,
        frozen: None,
        snapshots: Vec::new(),
    }
}

/// Volumes `vm0` and `vm1`; only the first has contents.
pub struct Memory {
    pub bytes: Vec<u8>,
    pub mapped: Vec<bool>,
    pub flushes: u32,
    pub fuas: u32,
    /// Fails all I/O.
    pub error: Option<volume::Error>,
}

impl Default for Memory {
    fn default() -> Memory {
        let blocks = (SIZE / 4096) as usize;
        Memory { bytes: vec![0; SIZE as usize], mapped: vec![false; blocks], flushes: 0, fuas: 0, error: None }
    }
}

fn find(name: &str) -> Option<VolumeInfo> {
    ["vm0", "vm1"].contains(&name).then(|| volume(name))
}

impl Memory {
    pub fn answer(&mut self, r: Request) -> Reply {
        match r.op {
            Op::Volume(op) => Reply::new(r.id, self.run(op)),
            Op::Admin(admin::Op::VolumeInfo { name }) => {
                let unknown = || admin::VolumeError::Unknown { name: name.clone() };
                Reply::new(r.id, find(&name).map(admin::Reply::from).ok_or_else(|| unknown().into()))
            }
            Op::Admin(_) => Reply::new(r.id, Ok(admin::Reply::Volumes(vec![volume("vm0"), volume("vm1")]))),
            other => Reply { id: r.id, result: other.not_served() },
        }
    }
    fn run(&mut self, op: volume::Op) -> Result<volume::Reply, volume::Error> {
        if let volume::Op::Attach { name } = op {
            return find(&name).map(Box::new).map(volume::Reply::Attached).ok_or(volume::Error::Unknown { name });
        }
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        Ok(match op {
            volume::Op::Read { offset, len, .. } => {
                let b = &self.bytes[offset as usize..offset as usize + len as usize];
                let hole = b.iter().all(|&x| x == 0);
                volume::Reply::Data(if hole { Payload::zero(len) } else { Payload::Bytes(Bytes::copy_from_slice(b)) })
            }
            volume::Op::Write { offset, data, fua, .. } => {
                let end = offset as usize + data.len() as usize;
                data.copy_to(&mut self.bytes[offset as usize..end]);
                self.mapped[offset as usize / 4096..end.div_ceil(4096)].fill(true);
                self.fuas += u32::from(fua);
                volume::Reply::Done
            }
            volume::Op::Trim { offset, len, fua, .. } | volume::Op::WriteZeroes { offset, len, fua, .. } => {
                let allocate = matches!(op, volume::Op::WriteZeroes { allocate: true, .. });
                let end = (offset + len) as usize;
                self.bytes[offset as usize..end].fill(0);
                self.mapped[offset as usize / 4096..end.div_ceil(4096)].fill(allocate);
                self.fuas += u32::from(fua);
                volume::Reply::Done
            }
            volume::Op::BlockStatus { offset, len, .. } => {
                let mut out: Vec<Extent> = Vec::new();
                for b in &self.mapped[offset as usize / 4096..(offset + len) as usize / 4096] {
                    match out.last_mut() {
                        Some(e) if e.mapped == *b => e.len += 4096,
                        _ => out.push(Extent { len: 4096, mapped: *b }),
                    }
                }
                volume::Reply::Extents(out)
            }
            _ => {
                self.flushes += 1;
                volume::Reply::Done
            }
        })
    }
}

/// Takes all output of the session.
pub fn drain(s: &mut Session) -> Vec<u8> {
    let mut out = Vec::new();
    s.output().for_each(|c| out.extend_from_slice(c));
    assert_eq!(out.len(), s.output_len());
    s.written(out.len());
    out
}

/// The session's next request.
pub fn next(s: &mut Session) -> Option<Request> {
    match s.poll_request()? {
        gateway::Request::Rack(r) => Some(r),
        other => panic!("not an NBD request: {other:?}"),
    }
}

/// Feeds bytes, lets the rack answer all resulting requests, and takes the output.
pub fn talk(s: &mut Session, m: &mut Memory, input: &[u8]) -> Vec<u8> {
    s.input(Bytes::copy_from_slice(input));
    while let Some(r) = next(s) {
        assert_eq!(SessionId::of(r.id), SESSION);
        s.reply(m.answer(r).into());
    }
    drain(s)
}

/// A session whose greeting has been read and answered with both flags.
pub fn greeted() -> Session {
    with_tls(TlsUse::Off)
}

/// The same for a server that can encrypt.
pub fn with_tls(tls: TlsUse) -> Session {
    let mut s = Session::with_tls(SESSION, tls);
    drain(&mut s);
    s.input(Bytes::from_static(&[0, 0, 0, 3]));
    s
}

/// A session with structured replies and `base:allocation`, serving vm0.
pub fn serving(m: &mut Memory) -> Session {
    let mut s = greeted();
    talk(&mut s, m, &option(8, b""));
    talk(&mut s, m, &option(10, &context("vm0", &["base:allocation"])));
    talk(&mut s, m, &option(7, &export("vm0", &[])));
    assert!(s.handshake_done());
    s
}

/// The same without either.
pub fn serving_simply(m: &mut Memory) -> Session {
    let mut s = greeted();
    talk(&mut s, m, &option(7, &export("vm0", &[])));
    s
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut b = b"IHAVEOPT".to_vec();
    b.put_u32(number);
    b.put_u32(data.len() as u32);
    b.put_slice(data);
    b
}

pub fn option_reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut b = 0x3e889045565a9u64.to_be_bytes().to_vec();
    b.put_u32(number);
    b.put_u32(kind);
    b.put_u32(data.len() as u32);
    b.put_slice(data);
    b
}

fn string(b: &mut Vec<u8>, s: &str) {
    b.put_u32(s.len() as u32);
    b.put_slice(s.as_bytes());
}

/// Data of INFO and GO.
pub fn export(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut b = Vec::new();
    string(&mut b, name);
    b.put_u16(infos.len() as u16);
    infos.iter().for_each(|&i| b.put_u16(i));
    b
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn context(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut b = Vec::new();
    string(&mut b, name);
    b.put_u32(queries.len() as u32);
    queries.iter().for_each(|q| string(&mut b, q));
    b
}

pub fn command(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut b = 0x2560_9513u32.to_be_bytes().to_vec();
    b.put_u16(flags);
    b.put_u16(kind);
    b.put_u64(cookie);
    b.put_u64(offset);
    b.put_u32(len);
    b
}

pub fn simple(cookie: u64, error: u32) -> Vec<u8> {
    let mut b = 0x6744_6698u32.to_be_bytes().to_vec();
    b.put_u32(error);
    b.put_u64(cookie);
    b
}

/// A reply's only chunk.
pub fn chunk(kind: u16, cookie: u64, data: &[u8]) -> Vec<u8> {
    let mut b = 0x668e_33efu32.to_be_bytes().to_vec();
    b.put_u16(1);
    b.put_u16(kind);
    b.put_u64(cookie);
    b.put_u32(data.len() as u32);
    b.put_slice(data);
    b
}

pub fn error_chunk(cookie: u64, error: u32) -> Vec<u8> {
    let mut data = error.to_be_bytes().to_vec();
    data.put_u16(0);
    chunk(1 << 15 | 1, cookie, &data)
}
