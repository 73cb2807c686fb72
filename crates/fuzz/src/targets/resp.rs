//! Any Redis client. The replies do not depend on how the stream is cut, and memory is bounded.

use std::rc::Rc;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_core::request::{self, Op};
use rackweave_gateway::resp::{BYTES_MAX, Session, Settings};
use rackweave_gateway::{Gateway, Request, SessionId};

use crate::corrupt::{corrupt, pieces};

#[path = "../../../gateway/tests/all/key_map.rs"]
mod key_map;

use key_map::Map;

pub(super) fn run(input: &[u8]) {
    _ = commands(&mut Unstructured::new(input));
}

fn commands(u: &mut Unstructured<'_>) -> Result<()> {
    let mut said = Vec::new();
    for _ in 0..u.int_in_range(0..=30u8)? {
        said.extend_from_slice(&some_command(u)?);
    }
    if u.arbitrary()? {
        corrupt(u, &mut said)?;
    }
    let cuts = pieces(u, &said);
    assert_eq!(serve(&[&said]), serve(&cuts), "however it is cut");
    Ok(())
}

const WORDS: [&str; 40] = [
    "GET",
    "SET",
    "DEL",
    "MGET",
    "MSET",
    "INCR",
    "INCRBY",
    "DECRBY",
    "INCRBYFLOAT",
    "APPEND",
    "GETRANGE",
    "EXPIRE",
    "TTL",
    "GETEX",
    "GETDEL",
    "SCAN",
    "KEYS",
    "DBSIZE",
    "MULTI",
    "EXEC",
    "WATCH",
    "DISCARD",
    "HELLO",
    "CLIENT",
    "COMMAND",
    "CONFIG",
    "INFO",
    "SELECT",
    "QUIT",
    "FLUSHALL",
    "NX",
    "EX",
    "COUNT",
    "MATCH",
    "SETNAME",
    "a",
    "b",
    "3",
    "-1",
    "*[a-",
];

fn some_command(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let n = u.int_in_range(1..=5usize)?;
    let mut args: Vec<Vec<u8>> = Vec::new();
    for i in 0..n {
        let words = if i == 0 { 0..=29 } else { 30..=39usize };
        args.push(match u.int_in_range(0..=9u8)? {
            0 => vec![u.arbitrary()?; u.int_in_range(0..=40usize)?],
            1 => vec![u.arbitrary()?; u.int_in_range(0..=40_000usize)?],
            _ => WORDS[u.int_in_range(words)?].into(),
        });
    }
    if u.ratio(1u8, 5u8)? {
        return Ok([args.join(&b' '), b"\r\n".to_vec()].concat());
    }
    let mut b = format!("*{n}\r\n").into_bytes();
    for a in args {
        b.extend_from_slice(format!("${}\r\n", a.len()).as_bytes());
        b.extend_from_slice(&a);
        b.extend_from_slice(b"\r\n");
    }
    Ok(b)
}

/// All replies, with every request answered at once, and then the end of the stream.
fn serve(parts: &[&[u8]]) -> Vec<u8> {
    let mut s =
        Session::new(SessionId(3), Rc::new(Settings { flushall: true, keyspaces: true, ..Settings::default() }));
    let mut map = Map { now: 1_000_000, ..Map::default() };
    map.add(3, "a");
    let mut heard = Vec::new();
    for part in parts {
        s.input(Bytes::copy_from_slice(part));
        settle(&mut s, &mut map, &mut heard);
    }
    s.input_eof();
    settle(&mut s, &mut map, &mut heard);
    assert!(s.finished() && s.in_flight() == 0, "something remains");
    heard
}

fn settle(s: &mut Session, map: &mut Map, heard: &mut Vec<u8>) {
    loop {
        let Some(Request::Rack(r)) = s.poll_request() else {
            let said: Vec<u8> = s.output().flat_map(|b| b.to_vec()).collect();
            s.written(said.len());
            heard.extend_from_slice(&said);
            if said.is_empty() {
                return;
            }
            continue;
        };
        assert!(s.held() <= BYTES_MAX && s.in_flight() <= 256);
        let reply = match r.op {
            Op::Kv(op) => request::Reply::new(r.id, map.run(op)),
            Op::Admin(op) => request::Reply::new(r.id, map.admin(op)),
            _ => panic!("{r:?}"),
        };
        s.reply(reply.into());
    }
}
