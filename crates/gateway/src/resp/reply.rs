//! Replies as bytes, in RESP2 and RESP3.

use bytes::{BufMut, Bytes, BytesMut};

use crate::buffers::Output;

/// The version of the protocol that a client chose by HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// One line.
    Simple(&'static str),
    /// A word in capitals, a blank, and a text. Line ends in it become blanks.
    Error(String),
    Integer(i64),
    Bulk(Bytes),
    Null,
    /// The reply of an EXEC that did nothing.
    NullArray,
    Array(Vec<Reply>),
    /// An array of keys and values in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// Text for people; a bulk string in RESP2.
    Text(String),
}

/// Values from here on are passed on without a copy.
const COPIED_MAX: usize = 1024;

impl Reply {
    pub const OK: Reply = Reply::Simple("OK");

    pub fn bulk(text: impl Into<String>) -> Reply {
        Reply::Bulk(Bytes::from(text.into()))
    }
    pub fn error(text: impl Into<String>) -> Reply {
        Reply::Error(text.into())
    }
    /// With the error word of most errors.
    pub fn err(text: impl std::fmt::Display) -> Reply {
        Reply::Error(format!("ERR {text}"))
    }
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }
    /// About the memory that it takes.
    pub fn bytes(&self) -> usize {
        const ONE: usize = size_of::<Reply>();
        match self {
            Reply::Bulk(b) => ONE + b.len(),
            Reply::Error(s) | Reply::Text(s) => ONE + s.len(),
            Reply::Array(all) => ONE + all.iter().map(Reply::bytes).sum::<usize>(),
            Reply::Map(all) => ONE + all.iter().map(|(k, v)| k.bytes() + v.bytes()).sum::<usize>(),
            _ => ONE,
        }
    }

    pub fn encode(&self, protocol: Protocol, to: &mut Output) {
        match self {
            Reply::Simple(s) => to.small(|b| line(b, b'+', s.as_bytes())),
            Reply::Error(s) => to.small(|b| line(b, b'-', s.replace(['\r', '\n'], " ").as_bytes())),
            Reply::Integer(n) => to.small(|b| line(b, b':', n.to_string().as_bytes())),
            Reply::Bulk(v) => bulk(to, v),
            Reply::Null if protocol == Protocol::Resp2 => to.small(|b| b.put_slice(b"$-1\r\n")),
            Reply::NullArray if protocol == Protocol::Resp2 => to.small(|b| b.put_slice(b"*-1\r\n")),
            Reply::Null | Reply::NullArray => to.small(|b| b.put_slice(b"_\r\n")),
            Reply::Array(all) => {
                to.small(|b| head(b, b'*', all.len()));
                all.iter().for_each(|r| r.encode(protocol, to));
            }
            Reply::Map(all) => {
                let (kind, n) = if protocol == Protocol::Resp2 { (b'*', 2 * all.len()) } else { (b'%', all.len()) };
                to.small(|b| head(b, kind, n));
                for (k, v) in all {
                    k.encode(protocol, to);
                    v.encode(protocol, to);
                }
            }
            Reply::Text(s) if protocol == Protocol::Resp2 => bulk(to, &Bytes::copy_from_slice(s.as_bytes())),
            Reply::Text(s) => {
                to.small(|b| {
                    head(b, b'=', s.len() + 4);
                    b.put_slice(b"txt:");
                });
                to.payload(Bytes::copy_from_slice(s.as_bytes()));
                to.small(|b| b.put_slice(b"\r\n"));
            }
        }
    }
}

fn bulk(to: &mut Output, v: &Bytes) {
    to.small(|b| head(b, b'$', v.len()));
    if v.len() < COPIED_MAX {
        return to.small(|b| {
            b.put_slice(v);
            b.put_slice(b"\r\n");
        });
    }
    to.payload(v.clone());
    to.small(|b| b.put_slice(b"\r\n"));
}
fn head(b: &mut BytesMut, kind: u8, n: usize) {
    line(b, kind, n.to_string().as_bytes());
}
fn line(b: &mut BytesMut, kind: u8, text: &[u8]) {
    b.put_u8(kind);
    b.put_slice(text);
    b.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(r: &Reply, protocol: Protocol) -> String {
        let mut out = Output::default();
        r.encode(protocol, &mut out);
        let all: Vec<u8> = out.chunks().flat_map(|c| c.iter().copied()).collect();
        assert_eq!(all.len(), out.len());
        String::from_utf8(all).expect("text")
    }

    #[test]
    fn both_protocols() {
        let map = Reply::Map(vec![(Reply::bulk("a"), Reply::Integer(-3)), (Reply::bulk("b"), Reply::Null)]);
        let all = Reply::Array(vec![map, Reply::NullArray, Reply::Text("x\ny".into()), Reply::OK]);
        let two = encoded(&all, Protocol::Resp2);
        assert_eq!(two, "*4\r\n*4\r\n$1\r\na\r\n:-3\r\n$1\r\nb\r\n$-1\r\n*-1\r\n$3\r\nx\ny\r\n+OK\r\n");
        let three = encoded(&all, Protocol::Resp3);
        assert_eq!(three, "*4\r\n%2\r\n$1\r\na\r\n:-3\r\n$1\r\nb\r\n_\r\n_\r\n=7\r\ntxt:x\ny\r\n+OK\r\n");
        assert_eq!(encoded(&Reply::err("a\r\nb"), Protocol::Resp2), "-ERR a  b\r\n");
        let long = Reply::bulk("v".repeat(5000));
        assert_eq!(encoded(&long, Protocol::Resp3), format!("$5000\r\n{}\r\n", "v".repeat(5000)));
    }
}
