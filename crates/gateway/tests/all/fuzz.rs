//! Hostile bytes, drawn from a seed; a failure names its seed.

use bytes::Bytes;
use rackweave_core::Rng;
use rackweave_gateway::metrics::HttpSession;
use rackweave_gateway::nbd::{BYTES_MAX, IN_FLIGHT_MAX, Session, TlsUse};
use rackweave_gateway::{Gateway, Reply, Request};

use crate::client::{Memory, SESSION, command, context, export, next, option, serving, serving_simply, with_tls};

const INPUTS: u64 = 220_000;

/// A client's message, mostly well-formed, then mutated.
fn phrase(rng: &mut Rng, handshake: bool) -> Vec<u8> {
    let mut b = if handshake {
        let number = rng.below(12) as u32;
        match rng.below(5) {
            0 => option(number, &export(["vm0", "vm1", "nope", ""][rng.below(4) as usize], &[1, 3])),
            1 => option(number, &context(["vm0", "x"][rng.below(2) as usize], &["base:allocation", "base:"])),
            2 => option(number, b""),
            3 => (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect(),
            _ => option(number, &vec![rng.next_u64() as u8; rng.below(300) as usize]),
        }
    } else {
        let offset = if rng.chance(0.1) { rng.next_u64() } else { rng.below(3000) * 512 };
        let len = if rng.chance(0.02) { rng.next_u64() as u32 } else { rng.below(40) as u32 * 512 };
        let flags = if rng.chance(0.1) { rng.next_u64() as u16 } else { rng.below(3) as u16 };
        let kind = if rng.chance(0.1) { rng.next_u64() as u16 } else { rng.below(9) as u16 };
        let mut b = command(flags, if kind == 2 { 3 } else { kind }, rng.next_u64(), offset, len);
        if kind == 1 && len < 65_536 && rng.chance(0.9) {
            b.resize(28 + len as usize, 0x25);
        }
        b
    };
    if rng.chance(0.15) && !b.is_empty() {
        let i = rng.below(b.len() as u64) as usize;
        b[i] ^= 1 << rng.below(8);
    }
    if rng.chance(0.05) {
        b.truncate(rng.below(b.len() as u64 + 1) as usize);
    }
    b
}

#[test]
fn no_input_breaks_a_session() {
    let mut m = Memory::default();
    let (mut inputs, mut seed, mut served, mut encrypted) = (0, 0, 0, 0);
    while inputs < INPUTS {
        seed += 1;
        let mut rng = Rng::new(seed);
        let required = rng.chance(0.1);
        let mut in_clear = required;
        let mut s = match rng.below(4) {
            _ if required => with_tls(TlsUse::Require),
            0 => Session::new(SESSION),
            1 => with_tls(*rng.pick(&[TlsUse::Off, TlsUse::Allow])),
            2 => serving(&mut m),
            _ => serving_simply(&mut m),
        };
        if required && rng.chance(0.5) {
            s.input(Bytes::from(option(5, b"")));
            in_clear = !s.starts_tls();
        }
        for _ in 0..rng.between(1, 60) {
            if !s.wants_input() && rng.chance(0.9) {
                break;
            }
            inputs += 1;
            s.input(Bytes::from(phrase(&mut rng, !s.handshake_done())));
            in_clear &= !s.starts_tls();
            assert!(!in_clear || s.in_flight() == 0, "seed {seed}: a request in the clear where TLS is required");
            encrypted += u64::from(required && !in_clear);
            if rng.chance(0.7) {
                while let Some(r) = next(&mut s) {
                    served += 1;
                    s.reply(m.answer(r).into());
                }
            }
            if rng.chance(0.5) {
                let n = rng.below(s.output_len() as u64 + 1) as usize;
                s.written(n);
            }
            assert!(s.in_flight() <= IN_FLIGHT_MAX, "seed {seed}");
            assert!(s.output_len() <= BYTES_MAX + (33 << 20), "seed {seed}");
        }
        // After any input, nothing remains once the client has gone.
        s.input_eof();
        while let Some(r) = next(&mut s) {
            s.reply(m.answer(r).into());
        }
        s.written(usize::MAX);
        assert!(s.finished(), "seed {seed}");
    }
    assert!(encrypted > INPUTS / 500, "only {encrypted} inputs after STARTTLS");
    assert!(served > INPUTS / 10, "only {served} requests came of {inputs} inputs");
}

#[test]
fn no_input_breaks_the_http_server() {
    let mut pages = 0;
    for seed in 0..50_000u64 {
        let mut rng = Rng::new(seed);
        let mut b = b"GET /metrics HTTP/1.1\r\nHost: rack\r\n\r\n".to_vec();
        for _ in 0..rng.below(4) {
            let i = rng.below(b.len() as u64) as usize;
            b[i] = rng.next_u64() as u8;
        }
        let mut s = HttpSession::default();
        for part in b.chunks(rng.between(1, 60) as usize) {
            s.input(Bytes::copy_from_slice(part));
            if let Some(Request::Metrics) = s.poll_request() {
                pages += 1;
                s.reply(Reply::Metrics("x 1\n".into()));
            }
        }
        assert!(s.output().next().is_none_or(|out| out.starts_with(b"HTTP/1.1 ")), "seed {seed}");
    }
    assert!(pages > 10_000);
}
