//! The memory of a session of Redis clients: it takes none that was not granted.

use bytes::Bytes;
use rackweave_core::kv::{Found, Op, Reply, Version};
use rackweave_core::request;
use rackweave_gateway::Gateway;
use rackweave_gateway::resp::BYTES_MAX;
use rackweave_gateway::resp::glob::PATTERN_MAX;
use rackweave_gateway::resp::table::NAMES_MAX;

use crate::resp::{Client, array};

/// Pieces that a driver reads and writes.
const PIECE: usize = 16 << 10;
/// Output and short values that need no grant.
const UNGRANTED: usize = 128 << 10;
const MIB: usize = 1 << 20;

fn with(values: impl IntoIterator<Item = (String, usize)>) -> Client {
    let mut c = Client::new();
    for (key, bytes) in values {
        let found = Found { value: vec![b'v'; bytes].into(), version: Version::default(), expires: None };
        c.map.all.insert(key.into(), found);
    }
    c
}

/// The first 200 bytes of the replies, and the length of all. Memory is granted as it is needed.
fn talk(c: &mut Client, mut bytes: &[u8]) -> (String, usize) {
    let (mut limit, mut first, mut len) = (MIB, Vec::new(), 0);
    c.session.set_limit(limit);
    loop {
        if c.session.wants_input() && !bytes.is_empty() {
            let (now, later) = bytes.split_at(PIECE.min(bytes.len()));
            c.send(now);
            bytes = later;
        }
        if let Some(needs) = c.session.needs() {
            limit = limit.max(needs + 4 * PIECE);
            c.session.set_limit(limit);
        }
        c.take();
        if !c.asked.is_empty() {
            c.answer(0);
        }
        let held = c.session.held();
        assert!(held <= limit.min(BYTES_MAX) + UNGRANTED, "{held} bytes with a limit of {limit}");
        let chunk = c.session.output().next().map_or(Bytes::new(), |b| b.slice(..b.len().min(PIECE)));
        c.session.written(chunk.len());
        len += chunk.len();
        first.extend_from_slice(&chunk[..chunk.len().min(200 - first.len().min(200))]);
        if chunk.is_empty() && c.asked.is_empty() && bytes.is_empty() && c.session.needs().is_none() {
            return (String::from_utf8_lossy(&first).into_owned(), len);
        }
    }
}

fn mget(keys: impl Iterator<Item = String>) -> Vec<u8> {
    let keys: Vec<String> = keys.collect();
    let args: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys.iter().map(|k| k.as_bytes())).collect();
    array(&args)
}

#[test]
fn a_value_that_a_reply_has_many_times_is_kept_once() {
    let mut c = with([("k".into(), 1023), ("l".into(), MIB)]);
    let (_, len) = talk(&mut c, &mget((0..240_000).map(|_| "k".into())));
    assert_eq!(len, "*240000\r\n".len() + 240_000 * (1023 + "$1023\r\n\r\n".len()));
    let (_, len) = talk(&mut c, &mget((0..300).map(|_| "l".into())));
    assert_eq!(len, "*300\r\n".len() + 300 * (MIB + "$1048576\r\n\r\n".len()));
    let queue = [&b"MULTI\r\n"[..], &b"GET k\r\n".repeat(7000), b"EXEC\r\n"].concat();
    let (_, len) = talk(&mut c, &queue);
    let queued = "+OK\r\n".len() + 7000 * "+QUEUED\r\n".len();
    assert_eq!(len, queued + "*7000\r\n".len() + 7000 * (1023 + "$1023\r\n\r\n".len()));
    assert_eq!((c.session.held(), c.say("PING").as_str()), (0, "+PONG"));
}

#[test]
fn many_short_values_are_granted_too() {
    let mut c = with((0..100_000).map(|i| (format!("k{i}"), if i < 10_000 { 100 } else { 1000 })));
    let (_, len) = talk(&mut c, &mget((0..10_000).map(|i| format!("k{i}"))));
    assert_eq!(len, "*10000\r\n".len() + 10_000 * (100 + "$100\r\n\r\n".len()));
    let (said, _) = talk(&mut c, &mget((0..100_000).map(|i| format!("k{i}"))));
    assert!(said.starts_with("-ERR the command takes") && said.contains("at most 67108864"), "{said}");
    assert_eq!((c.session.held(), c.say("PING").as_str()), (0, "+PONG"));
}

#[test]
fn replies_about_commands_are_bounded() {
    let mut c = Client::new();
    for sub in ["INFO", "DOCS"] {
        assert!(!c.say(&format!("COMMAND {sub} {}", "get ".repeat(NAMES_MAX))).starts_with('-'));
        let said = c.say(&format!("COMMAND {sub} {}", "get ".repeat(NAMES_MAX + 1)));
        assert_eq!(said, format!("-ERR 257 names in COMMAND {sub}: at most 256"));
    }
    // An argument that an error repeats is shortened.
    let long = "\u{1}".repeat(10_000);
    for command in [format!("EXPIRE k 5 {long}"), format!("HELLO 3 {long}"), format!("CLIENT SETINFO {long} a")] {
        assert!(c.say(&command).len() < 1000);
    }
}

/// The memory of a command is that of its arguments and of what it has found, however many keys it has looked at.
#[test]
fn commands_about_all_keys_of_many() {
    let mut c = Client::new();
    let page = |from: u64| -> Vec<Bytes> { (0..256).map(|i| format!("{:0>64}", from * 256 + i).into()).collect() };
    const PAGES: u64 = 4000;
    for (command, reply) in [("KEYS *99123", "*10\r\n"), ("FLUSHALL", "+OK\r\n")] {
        c.send(format!("{command}\r\n").as_bytes());
        loop {
            c.take();
            let Some((id, op)) = c.asked.pop_front() else { break };
            let answer = match op {
                Op::Scan { cursor, .. } => {
                    Reply::Page { keys: page(cursor), cursor: if cursor + 1 < PAGES { cursor + 1 } else { 0 } }
                }
                other => c.map.run(other).expect("served"),
            };
            c.session.reply(request::Reply::new(id, Ok::<_, rackweave_core::kv::Error>(answer)).into());
            assert!(c.session.held() < MIB, "{} bytes", c.session.held());
        }
        let said = c.output();
        assert!(said.starts_with(reply.as_bytes()), "{command}: {}", said[..said.len().min(200)].escape_ascii());
    }
}

/// A driver closes such a session if others wait for its memory.
#[test]
fn a_session_that_does_nothing_with_its_memory_waits_for_its_client() {
    let mut c = with((0..5).map(|i| (format!("k{i}"), MIB)));
    assert!(!c.session.waits_for_client());
    for (begin, end) in [("MULTI", "DISCARD"), ("WATCH k0", "UNWATCH")] {
        c.say(begin);
        c.say("PING");
        assert!(c.session.held() > 0 && c.session.waits_for_client(), "{begin}");
        c.say(end);
        assert!(c.session.held() == 0 && !c.session.waits_for_client(), "{end}");
    }
    c.session.set_limit(3 * MIB);
    c.send(b"MGET k0 k1 k2 k3 k4\r\n");
    c.take();
    while !c.asked.is_empty() {
        assert!(!c.session.waits_for_client(), "it waits for the rack");
        c.answer(0);
        c.take();
    }
    assert!(c.session.needs().is_some() && c.session.held() > 2 * MIB && c.session.waits_for_client());
}

/// Whoever matches a page of keys occupies the event loop.
#[test]
fn patterns_are_bounded() {
    let mut c = Client::new();
    let long = "a".repeat(PATTERN_MAX + 1);
    let error = "-ERR a pattern of 4097 bytes: at most 4096";
    for command in ["KEYS", "SCAN 0 MATCH", "SCAN 0 COUNT 9 MATCH", "CONFIG GET"] {
        assert_eq!(c.say(&format!("{command} {long}")), error);
        assert!(!c.say(&format!("{command} {}", &long[1..])).starts_with('-'));
    }
}
