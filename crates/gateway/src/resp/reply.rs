//! Replies as bytes, in RESP2 and RESP3.

use std::vec;

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
    /// An array in RESP2.
    Set(Vec<Reply>),
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
    /// About the memory that it takes, if no value was shared.
    pub fn bytes(&self) -> usize {
        self.own_bytes()
            + match self {
                Reply::Array(all) | Reply::Set(all) => all.iter().map(Reply::bytes).sum(),
                Reply::Map(all) => all.iter().map(|(k, v)| k.bytes() + v.bytes()).sum(),
                _ => 0,
            }
    }
    /// The same, without its elements.
    fn own_bytes(&self) -> usize {
        size_of::<Reply>()
            + match self {
                Reply::Bulk(b) => b.len(),
                Reply::Error(s) | Reply::Text(s) => s.len(),
                _ => 0,
            }
    }

    /// Writes one line or string; of a collection its head, and returns its elements.
    fn encode(self, protocol: Protocol, to: &mut Output) -> Vec<Reply> {
        match self {
            Reply::Simple(s) => to.small(|b| line(b, b'+', s.as_bytes())),
            Reply::Error(s) => to.small(|b| line(b, b'-', s.replace(['\r', '\n'], " ").as_bytes())),
            Reply::Integer(n) => to.small(|b| line(b, b':', n.to_string().as_bytes())),
            Reply::Bulk(v) => bulk(to, &v),
            Reply::Null if protocol == Protocol::Resp2 => to.small(|b| b.put_slice(b"$-1\r\n")),
            Reply::NullArray if protocol == Protocol::Resp2 => to.small(|b| b.put_slice(b"*-1\r\n")),
            Reply::Null | Reply::NullArray => to.small(|b| b.put_slice(b"_\r\n")),
            Reply::Array(all) => {
                to.small(|b| head(b, b'*', all.len()));
                return all;
            }
            Reply::Set(all) => {
                let kind = if protocol == Protocol::Resp2 { b'*' } else { b'~' };
                to.small(|b| head(b, kind, all.len()));
                return all;
            }
            Reply::Map(all) => {
                let (kind, n) = if protocol == Protocol::Resp2 { (b'*', 2 * all.len()) } else { (b'%', all.len()) };
                to.small(|b| head(b, kind, n));
                return all.into_iter().flat_map(|(k, v)| [k, v]).collect();
            }
            Reply::Text(s) if protocol == Protocol::Resp2 => bulk(to, &Bytes::from(s)),
            Reply::Text(s) => {
                to.small(|b| {
                    head(b, b'=', s.len() + 4);
                    b.put_slice(b"txt:");
                });
                to.payload(Bytes::from(s));
                to.small(|b| b.put_slice(b"\r\n"));
            }
        }
        Vec::new()
    }
}

/// A reply that is written piece by piece: its values are shared with one another until they are copied to the output.
#[derive(Debug)]
pub struct Writer {
    protocol: Protocol,
    /// The reply, before its first piece.
    first: Option<Reply>,
    /// Elements that follow, of the innermost collection last.
    rest: Vec<vec::IntoIter<Reply>>,
    /// Bytes of all that follows.
    left: usize,
    written: usize,
}

impl Writer {
    pub fn new(reply: Reply, protocol: Protocol) -> Writer {
        Writer { protocol, left: reply.bytes(), first: Some(reply), rest: Vec::new(), written: 0 }
    }
    /// About the memory of what is not written yet, if no value was shared.
    pub fn left(&self) -> usize {
        self.left
    }
    pub fn written(&self) -> usize {
        self.written
    }
    /// Writes until the output has `most` bytes, an element more at most. Whether that was all.
    pub fn write(&mut self, to: &mut Output, most: usize) -> bool {
        loop {
            while self.rest.last().is_some_and(|all| all.len() == 0) {
                self.rest.pop();
            }
            if self.first.is_none() && self.rest.is_empty() {
                return true;
            }
            if to.len() >= most {
                return false;
            }
            let Some(next) = self.first.take().or_else(|| self.rest.last_mut()?.next()) else { return true };
            let (bytes, before) = (next.own_bytes(), to.len());
            let inside = next.encode(self.protocol, to);
            self.left = self.left.saturating_sub(bytes);
            self.written += to.len() - before;
            if !inside.is_empty() {
                self.rest.push(inside.into_iter());
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
        let (mut writer, mut all, mut done) = (Writer::new(r.clone(), protocol), Vec::new(), false);
        while !done {
            done = writer.write(&mut out, 1);
            let piece: Vec<u8> = out.chunks().flat_map(|c| c.iter().copied()).collect();
            assert_eq!(piece.len(), out.len());
            out.advance(piece.len());
            all.extend(piece);
        }
        assert_eq!((writer.left(), writer.written()), (0, all.len()));
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
