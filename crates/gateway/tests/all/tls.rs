//! STARTTLS as bytes, and TLS against a client of the same library.

use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::Rng;
use rackweave_gateway::Gateway;
use rackweave_gateway::nbd::{CloseReason, TlsUse};
use rackweave_gateway::tls::{Failure, FailureKind, Identity, Tls};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection};

use crate::client::{Memory, export, option, option_reply, talk, with_tls};

const ERR: u32 = 1 << 31;

/// Error code of the one reply in `out`.
fn code(out: &[u8]) -> u32 {
    u32::from_be_bytes(out[12..16].try_into().unwrap())
}

#[test]
fn without_tls_it_is_refused_and_the_session_goes_on() {
    let (mut s, mut m) = (with_tls(TlsUse::Off), Memory::default());
    assert_eq!(code(&talk(&mut s, &mut m, &option(5, b""))), ERR + 2);
    assert!(!s.starts_tls());
    assert_eq!(code(&talk(&mut s, &mut m, &option(8, b""))), 1);
}

#[test]
fn nothing_else_is_answered_before_required_tls() {
    let (mut s, mut m) = (with_tls(TlsUse::Require), Memory::default());
    for (o, data) in
        [(3, vec![]), (6, export("vm0", &[])), (7, export("vm0", &[])), (8, vec![]), (10, vec![]), (99, vec![])]
    {
        assert_eq!(code(&talk(&mut s, &mut m, &option(o, &data))), ERR + 5, "option {o}");
    }
    assert_eq!(code(&talk(&mut s, &mut m, &option(5, b"x"))), ERR + 3, "STARTTLS takes no data");
    assert_eq!(talk(&mut s, &mut m, &option(5, b"")), option_reply(5, 1, b""));
    assert!(s.starts_tls() && !s.starts_tls(), "reported once");
    assert_eq!(code(&talk(&mut s, &mut m, &option(5, b""))), ERR + 3, "not twice");
    talk(&mut s, &mut m, &option(7, &export("vm0", &[])));
    assert!(s.handshake_done());
    let (mut s, mut m) = (with_tls(TlsUse::Require), Memory::default());
    assert_eq!(code(&talk(&mut s, &mut m, &option(2, b""))), 1, "ABORT is always answered");
    // EXPORT_NAME has no refusal, so the session is closed.
    let (mut s, mut m) = (with_tls(TlsUse::Require), Memory::default());
    assert_eq!(talk(&mut s, &mut m, &option(1, b"vm0")), b"");
    assert_eq!(s.closed(), Some(&CloseReason::TlsRequired));
}

#[test]
fn what_was_agreed_on_in_the_clear_is_forgotten() {
    let (mut s, mut m) = (with_tls(TlsUse::Allow), Memory::default());
    assert_eq!(code(&talk(&mut s, &mut m, &option(8, b""))), 1);
    assert_eq!(code(&talk(&mut s, &mut m, &option(5, b""))), 1);
    assert!(s.starts_tls());
    let contexts = option(10, b"\0\0\0\x03vm0\0\0\0\0");
    assert_eq!(code(&talk(&mut s, &mut m, &contexts)), ERR + 3, "structured replies were agreed on in the clear");
}

#[test]
fn what_was_put_behind_starttls_on_the_way_ends_the_session() {
    let (mut s, mut m) = (with_tls(TlsUse::Allow), Memory::default());
    let out = talk(&mut s, &mut m, &[option(5, b""), option(8, b"")].concat());
    assert_eq!(out, b"");
    assert_eq!(s.closed(), Some(&CloseReason::BehindStartTls { bytes: 16 }));
    assert!(!s.starts_tls());
}

struct Authority {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

struct Issued {
    pem: String,
    key: String,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { params, key, pem }
    }
    fn issue(&self, name: &str, last_year: i32) -> Issued {
        self.issue_with(name, |p| p.not_after = date_time_ymd(last_year, 1, 1))
    }
    fn issue_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        Issued { pem: params.signed_by(&key, &issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

fn server(a: &Authority, clients: Option<&Authority>) -> Tls {
    let i = a.issue("rack", 4000);
    let authority = clients.map(|c| c.pem.as_bytes());
    let config = Identity { certificate: i.pem.as_bytes(), key: i.key.as_bytes(), authority }.server().expect("usable");
    Tls::new(&config).expect("begins")
}

fn client(trusts: &Authority, shows: Option<&Issued>) -> ClientConnection {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Identity::roots(trusts.pem.as_bytes()).expect("roots");
    let b = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let b = b.with_root_certificates(roots);
    let config = match shows {
        None => b.with_no_client_auth(),
        Some(i) => {
            let chain = vec![CertificateDer::from_pem_slice(i.pem.as_bytes()).unwrap()];
            b.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(i.key.as_bytes()).unwrap()).unwrap()
        }
    };
    ClientConnection::new(Arc::new(config), "rack".try_into().unwrap()).unwrap()
}

fn take(s: &mut Tls) -> Vec<u8> {
    let out: Vec<u8> = s.output().flat_map(|b| b.to_vec()).collect();
    assert_eq!(out.len(), s.output_len());
    s.written(out.len());
    out
}

/// Passes bytes between the two until neither has any; returns the server's plaintext.
fn exchange(c: &mut ClientConnection, s: &mut Tls) -> Result<Vec<u8>, Failure> {
    let mut plain = Vec::new();
    loop {
        let mut sealed = Vec::new();
        while c.wants_write() {
            c.write_tls(&mut sealed).unwrap();
        }
        let opened = s.open(&sealed);
        let back = take(s);
        let mut rest = &back[..];
        while !rest.is_empty() {
            c.read_tls(&mut rest).unwrap();
            // The client's own error does not matter here.
            let _ = c.process_new_packets();
        }
        plain.extend_from_slice(&opened?);
        if sealed.is_empty() && back.is_empty() {
            return Ok(plain);
        }
    }
}

#[test]
fn bytes_go_both_ways_whatever_their_cuts() {
    let a = Authority::new();
    let (mut s, mut c) = (server(&a, Some(&a)), client(&a, Some(&a.issue("someone", 4000))));
    assert_eq!(s.seal([Bytes::from_static(b"early")].iter()), 0, "nothing is sealed before the end of the handshake");
    exchange(&mut c, &mut s).expect("agreed");
    assert!(!s.handshaking());
    let mut rng = Rng::new(1);
    let large: Vec<u8> = (0..700_000).map(|_| rng.next_u64() as u8).collect();
    let mut rest = &large[..];
    let mut got = Vec::new();
    while !rest.is_empty() {
        rest = &rest[c.writer().write(rest).unwrap()..];
        got.extend(exchange(&mut c, &mut s).expect("opens"));
    }
    assert!(got == large);
    // The other direction: parts of every size, of which only some fit at a time.
    let mut parts: Vec<Bytes> = Vec::new();
    let mut at = 0;
    while at < large.len() {
        let n = *rng.pick(&[1usize, 16, 28, 4096, 16_384, 16_385, 200_000]);
        let end = (at + n).min(large.len());
        parts.push(Bytes::copy_from_slice(&large[at..end]));
        at = end;
    }
    let (mut got, mut most) = (Vec::new(), 0);
    while !parts.is_empty() {
        let mut taken = s.seal(parts.iter());
        assert!(taken > 0);
        while taken > 0 {
            let n = taken.min(parts[0].len());
            parts[0] = parts[0].slice(n..);
            taken -= n;
            if parts[0].is_empty() {
                parts.remove(0);
            }
        }
        most = most.max(s.output_len());
        let sealed = take(&mut s);
        let mut sealed = &sealed[..];
        while !sealed.is_empty() {
            c.read_tls(&mut sealed).unwrap();
            let n = c.process_new_packets().unwrap().plaintext_bytes_to_read();
            let mut b = vec![0; n];
            c.reader().read_exact(&mut b).unwrap();
            got.extend(b);
        }
    }
    assert!(got == large);
    assert!(most < 400_000, "{most} sealed bytes at once");
    assert!(!s.peer_closed());
    c.send_close_notify();
    exchange(&mut c, &mut s).expect("goodbye");
    assert!(s.peer_closed());
}

#[test]
fn wrong_certificates_are_refused_by_name() {
    let (a, other) = (Authority::new(), Authority::new());
    let kinds = |shows: Option<Issued>| {
        let mut s = server(&a, Some(&a));
        let e = exchange(&mut client(&a, shows.as_ref()), &mut s).unwrap_err();
        assert_eq!(s.open(b"more").expect("later input is ignored"), Bytes::new());
        e.kind()
    };
    assert_eq!(kinds(None), FailureKind::NoCertificate);
    assert_eq!(kinds(Some(other.issue("someone", 4000))), FailureKind::UnknownIssuer);
    assert_eq!(kinds(Some(a.issue("someone", 2000))), FailureKind::Expired);
    assert_eq!(
        kinds(Some(a.issue_with("someone", |p| p.not_before = date_time_ymd(3999, 1, 1)))),
        FailureKind::Expired
    );
    let for_servers = |p: &mut CertificateParams| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert_eq!(kinds(Some(a.issue_with("someone", for_servers))), FailureKind::BadCertificate);
    // A server of another authority: the client closes with a reason.
    let e = exchange(&mut client(&other, None), &mut server(&a, None)).unwrap_err();
    assert_eq!(e.kind(), FailureKind::RefusedByPeer);
}

#[test]
fn what_is_changed_or_no_tls_at_all_ends_it() {
    let a = Authority::new();
    let mut rng = Rng::new(7);
    let mut refused = 0;
    for round in 0..300 {
        let (mut s, mut c) = (server(&a, None), client(&a, None));
        let mut failed = false;
        if round % 3 == 0 {
            let junk: Vec<u8> = (0..rng.below(5000)).map(|_| rng.next_u64() as u8).collect();
            failed = s.open(&junk).is_err();
        } else {
            let before = round % 3 == 1;
            if !before {
                exchange(&mut c, &mut s).expect("agreed");
                c.writer().write_all(&[5; 3000]).unwrap();
            }
            let mut sealed = Vec::new();
            while c.wants_write() {
                c.write_tls(&mut sealed).unwrap();
            }
            let at = rng.below(sealed.len() as u64) as usize;
            sealed[at] ^= 1 << rng.below(8);
            let plain = s.open(&sealed);
            failed |= plain.is_err();
            assert!(before || plain.is_err() || at < 5, "the change of byte {at} was not noticed");
            assert!(plain.is_err() || plain.unwrap().is_empty(), "a changed record is not passed on");
        }
        refused += u32::from(failed);
        // After a failure, input is ignored, nothing is sealed, and nothing is kept.
        if failed {
            assert_eq!(s.open(&[22; 4096]).expect("ignored"), Bytes::new());
            assert_eq!(s.seal([Bytes::from_static(b"x")].iter()), 0);
        }
        assert!(s.output_len() < 8192);
    }
    assert!(refused > 200, "{refused}");
}

#[test]
fn unusable_certificates_have_errors_of_their_own() {
    let (a, b) = (Authority::new(), Authority::new());
    let (one, two) = (a.issue("rack", 4000), b.issue("rack", 4000));
    let says = |certificate: &str, key: &str, authority: Option<&str>| {
        let authority = authority.map(str::as_bytes);
        let i = Identity { certificate: certificate.as_bytes(), key: key.as_bytes(), authority };
        i.server().map(|_| ()).unwrap_err().to_string()
    };
    assert!(says("", &one.key, None).contains("no certificate"));
    assert!(says(&one.pem, "", None).contains("no private key"));
    assert!(says(&one.pem, &two.key, None).contains("certificate and private key"));
    assert!(says(&one.pem, &one.key, Some("")).contains("no certificate"));
}
