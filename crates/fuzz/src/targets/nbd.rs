//! Any NBD client. The answers do not depend on how the stream is cut.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_gateway::Gateway;
use rackweave_gateway::nbd::{BYTES_MAX, IN_FLIGHT_MAX, Session, TlsUse};

use crate::corrupt::{corrupt, pieces};

#[path = "../../../gateway/tests/all/client.rs"]
#[allow(dead_code, reason = "the gateway's tests use the rest")]
mod client;

use client::{Memory, SESSION, command, context, drain, export, next, option, serving, serving_simply};

/// Output that one command may add to a full session.
const SLACK: usize = 33 << 20;

pub(super) fn handshake(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let Ok(tls) = u.choose(&[TlsUse::Off, TlsUse::Allow, TlsUse::Require]).copied() else { return };
    let mut said = Vec::new();
    for _ in 0..u.int_in_range(0..=12u8).unwrap_or(0) {
        let Ok(o) = some_option(&mut u) else { break };
        said.extend_from_slice(&o);
    }
    if u.arbitrary().unwrap_or(false) {
        _ = corrupt(&mut u, &mut said);
    }
    let cuts = pieces(&mut u, &said);
    let ((whole, done), (cut, done_cut)) = (speak(tls, &[&said]), speak(tls, &cuts));
    if tls == TlsUse::Off {
        assert_eq!((whole, done), (cut, done_cut), "however it is cut");
    } else {
        // Bytes behind STARTTLS that came with it end the session; those that came later are the inside of TLS.
        assert!(cut.starts_with(&whole), "however it is cut");
    }
}

fn some_option(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let number = u.int_in_range(0..=12u32)?;
    let name = *u.choose(&["vm0", "vm1", "nope", "", "a name with blanks", "\u{e4}"])?;
    Ok(match u.int_in_range(0..=4u8)? {
        0 => option(number, &export(name, &[1, 3])),
        1 => option(number, &context(name, &["base:allocation", "base:", "x:"][..u.int_in_range(0..=3usize)?])),
        2 => option(number, b""),
        3 => {
            let n = u.int_in_range(0..=64usize)?.min(u.len());
            option(number, u.bytes(n)?)
        }
        _ => option(7, &export(name, &[])),
    })
}

/// The session's answers as one text, and whether an export was reached. A handshake waits for each answer, so their
/// order does not depend on how the input arrives.
fn speak(tls: TlsUse, parts: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut s = Session::with_tls(SESSION, tls);
    let mut heard = drain(&mut s);
    s.input(Bytes::from_static(&[0, 0, 0, 3]));
    let mut m = Memory::default();
    let clear = tls == TlsUse::Require;
    for part in parts {
        s.input(Bytes::copy_from_slice(part));
        // The driver starts TLS at this point; the bytes behind it are inside TLS, and not this target's.
        if s.starts_tls() {
            heard.extend(drain(&mut s));
            break;
        }
        while let Some(r) = next(&mut s) {
            s.reply(m.answer(r).into());
        }
        heard.extend(drain(&mut s));
        bounds(&s);
        assert!(!clear || !s.handshake_done(), "an export without the TLS that is required");
        if s.handshake_done() {
            break;
        }
    }
    let done = s.handshake_done();
    ends(s, m);
    (heard, done)
}

pub(super) fn transmission(input: &[u8]) {
    _ = commands(&mut Unstructured::new(input));
}

fn commands(u: &mut Unstructured<'_>) -> Result<()> {
    let structured: bool = u.arbitrary()?;
    let mut said = Vec::new();
    for i in 0..u.int_in_range(0..=40u64)? {
        said.extend_from_slice(&some_command(u, i)?);
    }
    if u.arbitrary()? {
        corrupt(u, &mut said)?;
    }
    let cuts = pieces(u, &said);
    let (whole, cut) = (serve(structured, &[&said]), serve(structured, &cuts));
    assert_eq!(whole, cut, "however it is cut");
    Ok(())
}

fn some_command(u: &mut Unstructured<'_>, cookie: u64) -> Result<Vec<u8>> {
    let offset = if u.ratio(1u8, 10u8)? { u.arbitrary()? } else { u.int_in_range(0..=2100u64)? * 512 };
    let len = if u.ratio(1u8, 20u8)? { u.arbitrary()? } else { u.int_in_range(0..=20u32)? * 512 };
    let flags = if u.ratio(1u8, 10u8)? { u.arbitrary()? } else { u.int_in_range(0..=31u16)? };
    let kind = u.int_in_range(0..=9u16)?;
    let mut b = command(flags, if kind == 2 { 3 } else { kind }, cookie, offset, len);
    if kind == 1 && len < 65_536 {
        b.resize(b.len() + len as usize, cookie as u8 | 1);
    }
    Ok(b)
}

/// Contents, and how often each byte is in the answers: a refusal may overtake an answer that the rack still owes.
type Served = (Vec<u8>, BTreeMap<u8, usize>);

fn serve(structured: bool, parts: &[&[u8]]) -> Served {
    let mut m = Memory::default();
    let mut s = if structured { serving(&mut m) } else { serving_simply(&mut m) };
    let mut out = Vec::new();
    for part in parts {
        s.input(Bytes::copy_from_slice(part));
        loop {
            bounds(&s);
            let Some(r) = next(&mut s) else { break };
            s.reply(m.answer(r).into());
            out.extend(drain(&mut s));
        }
        out.extend(drain(&mut s));
    }
    let mut counts = BTreeMap::new();
    out.iter().for_each(|b| *counts.entry(*b).or_default() += 1);
    let contents = m.bytes.clone();
    ends(s, m);
    (contents, counts)
}

fn bounds(s: &Session) {
    assert!(s.in_flight() <= IN_FLIGHT_MAX);
    assert!(s.output_len() <= BYTES_MAX + SLACK);
}

/// Nothing remains after the client has left.
fn ends(mut s: Session, mut m: Memory) {
    s.input_eof();
    while let Some(r) = next(&mut s) {
        s.reply(m.answer(r).into());
    }
    s.written(usize::MAX);
    assert!(s.finished());
}
