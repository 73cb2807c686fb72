//! Commands from bytes: RESP arrays of bulk strings, and inline commands (redis.io, "Redis serialization protocol").
//!
//! The parser takes bytes as they come. It keeps at most one command, of [`ARGS_BYTES_MAX`] bytes; a longer one is
//! skipped and refused by name. It reserves memory for an argument only within the limit it is given, and grows it as
//! the bytes arrive.

use bytes::{Bytes, BytesMut};

use crate::buffers::Input;

/// Longest inline command, as Redis has it.
pub const LINE_MAX: usize = 64 << 10;
/// Longest line with a number: `*` or `$`, 20 digits, and the line end, with some to spare.
const NUMBER_LINE_MAX: usize = 32;
/// Most arguments of a command, as Redis has it.
pub const ARGS_MAX: i64 = 1 << 20;
/// Longest argument that is skipped rather than taken for an attack, as Redis has it (`proto-max-bulk-len`).
pub const SKIPPED_MAX: i64 = 512 << 20;
/// Longest argument: a value of the greatest length fits.
pub const ARG_MAX: usize = 8 << 20;
/// Most bytes of a command's arguments, each with [`ARG_COST`]: an MSET of 64 K small pairs.
pub const ARGS_BYTES_MAX: usize = 16 << 20;
/// Cost of an argument besides its bytes.
pub const ARG_COST: usize = 64;
/// Arguments up to this length need no grant of memory.
const SMALL: usize = 16 << 10;

/// Why the stream cannot be followed any further. The texts are Redis's where it has them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("Protocol error: too big inline request")]
    LongLine,
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NotBulk(u8),
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    #[error("Protocol error: an HTTP request")]
    Http,
    #[error("Protocol error: an argument of {len} bytes is not followed by a line end")]
    NoLineEnd { len: usize },
}

/// Why a command was skipped. The stream goes on behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    #[error("an argument of {bytes} bytes: an argument has at most {ARG_MAX}")]
    Argument { bytes: usize },
    #[error("a command of more than {ARGS_BYTES_MAX} bytes, counting {ARG_COST} for each argument")]
    Command,
}

/// What the stream has next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// At least one argument.
    Command(Vec<Bytes>),
    Refused(TooLong),
    More,
    /// The next argument needs this many bytes of memory in all.
    Room(usize),
}

#[derive(Debug)]
enum State {
    Line,
    /// The length of the next argument.
    Header,
    Body {
        len: usize,
        have: BytesMut,
    },
    Skip {
        bytes: usize,
    },
}

#[derive(Debug)]
pub struct Parser {
    input: Input,
    state: State,
    line: Vec<u8>,
    args: Vec<Bytes>,
    /// Arguments that are still to come.
    left: u32,
    /// Bytes of the arguments, with their cost.
    bytes: usize,
    refused: Option<TooLong>,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser {
            input: Input::default(),
            state: State::Line,
            line: Vec::new(),
            args: Vec::new(),
            left: 0,
            bytes: 0,
            refused: None,
        }
    }
}

impl Parser {
    pub fn push(&mut self, bytes: Bytes) {
        self.input.push(bytes);
    }
    /// Gives back memory that is shared with other connections, after parsing has stopped.
    pub fn release(&mut self) {
        self.input.release(0);
    }
    /// Bytes that it keeps in memory, or has reserved.
    pub fn held(&self) -> usize {
        let body = if let State::Body { len, .. } = &self.state { *len } else { 0 };
        self.input.len() + self.line.len() + self.bytes + body
    }
    /// In the middle of a command.
    pub fn is_inside(&self) -> bool {
        self.left > 0 || !self.line.is_empty()
    }
    pub fn clear(&mut self) {
        *self = Parser::default();
    }

    /// The next command, with at most `limit` bytes of memory.
    ///
    /// # Errors
    /// The bytes are no commands; nothing behind them can be read.
    pub fn next(&mut self, limit: usize) -> Result<Item, ProtocolError> {
        loop {
            let max = if self.left > 0 { NUMBER_LINE_MAX } else { LINE_MAX };
            match &mut self.state {
                State::Line | State::Header => {
                    if !self.input.take_line(&mut self.line, max) {
                        let full = self.line.len() >= max;
                        let number = self.left > 0 || self.line.first() == Some(&b'*');
                        return match (full || number && self.line.len() > NUMBER_LINE_MAX, number) {
                            (false, _) => Ok(Item::More),
                            (true, false) => Err(ProtocolError::LongLine),
                            (true, true) if self.left > 0 => Err(ProtocolError::BulkLength),
                            (true, true) => Err(ProtocolError::ArrayLength),
                        };
                    }
                    let mut line = std::mem::take(&mut self.line);
                    line.pop();
                    if line.last() == Some(&b'\r') {
                        line.pop();
                    }
                    let wait = if self.left > 0 { self.header(&line, limit)? } else { self.begin(&line)? };
                    if let Some(item) = wait {
                        // A header that waits for room is read again.
                        if matches!(item, Item::Room(_)) {
                            line.extend_from_slice(b"\r\n");
                            self.input.push_front(line.into());
                        }
                        return Ok(item);
                    }
                }
                State::Body { len, have } => {
                    let whole = *len + 2;
                    self.input.move_to(have, whole - have.len());
                    if have.len() < whole {
                        return Ok(Item::More);
                    }
                    if !have.ends_with(b"\r\n") {
                        return Err(ProtocolError::NoLineEnd { len: *len });
                    }
                    have.truncate(*len);
                    let arg = std::mem::take(have).freeze();
                    self.bytes += arg.len() + ARG_COST;
                    self.args.push(arg);
                    if let Some(item) = self.ended() {
                        return Ok(item);
                    }
                }
                State::Skip { bytes } => {
                    *bytes -= self.input.skip(*bytes);
                    if *bytes > 0 {
                        return Ok(Item::More);
                    }
                    if let Some(item) = self.ended() {
                        return Ok(item);
                    }
                }
            }
        }
    }

    /// An argument has ended.
    fn ended(&mut self) -> Option<Item> {
        self.left -= 1;
        self.state = if self.left > 0 { State::Header } else { State::Line };
        if self.left > 0 {
            return None;
        }
        self.bytes = 0;
        let args = std::mem::take(&mut self.args);
        Some(self.refused.take().map_or(Item::Command(args), Item::Refused))
    }
    /// The first line of a command.
    fn begin(&mut self, line: &[u8]) -> Result<Option<Item>, ProtocolError> {
        if line.first() != Some(&b'*') {
            let args = split_line(line).ok_or(ProtocolError::Quotes)?;
            if args.first().is_some_and(|word| is_http(word)) {
                return Err(ProtocolError::Http);
            }
            return Ok(Some(Item::Command(args)).filter(|_| !line.iter().all(u8::is_ascii_whitespace)));
        }
        match integer(&line[1..]) {
            Some(n) if n > ARGS_MAX => Err(ProtocolError::ArrayLength),
            None => Err(ProtocolError::ArrayLength),
            Some(n) if n <= 0 => Ok(None),
            Some(n) => {
                (self.left, self.state) = (n as u32, State::Header);
                Ok(None)
            }
        }
    }
    /// The length of an argument.
    fn header(&mut self, line: &[u8], limit: usize) -> Result<Option<Item>, ProtocolError> {
        match line.first() {
            Some(b'$') => {}
            other => return Err(ProtocolError::NotBulk(other.copied().unwrap_or(b'\r'))),
        }
        let len = integer(&line[1..]).filter(|n| (0..=SKIPPED_MAX).contains(n)).ok_or(ProtocolError::BulkLength)?;
        let len = len as usize;
        if len > ARG_MAX {
            self.refuse(TooLong::Argument { bytes: len });
        } else if self.bytes + len + ARG_COST > ARGS_BYTES_MAX {
            self.refuse(TooLong::Command);
        }
        if self.refused.is_some() {
            self.state = State::Skip { bytes: len + 2 };
            return Ok(None);
        }
        let needs = self.held() + len;
        if needs > limit && self.bytes + len > SMALL {
            return Ok(Some(Item::Room(needs)));
        }
        // A claimed length alone takes no memory beyond a small argument's.
        self.state = State::Body { len, have: BytesMut::with_capacity(if len > SMALL { SMALL } else { len + 2 }) };
        Ok(None)
    }
    fn refuse(&mut self, why: TooLong) {
        self.refused.get_or_insert(why);
        self.args = Vec::new();
        self.bytes = 0;
    }
}

/// A decimal integer as Redis takes it: an optional minus, no leading zeroes or blanks.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether an inline command is a line of an HTTP request, as Redis checks it. A web page that a browser shows on this machine can
/// send such a request to a port of loopback, with commands in its body.
fn is_http(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"POST") || word.eq_ignore_ascii_case(b"Host:")
}

/// The arguments of an inline command, which may be quoted as in Redis. `None`: a quote is not closed.
fn split_line(line: &[u8]) -> Option<Vec<Bytes>> {
    let (mut args, mut rest) = (Vec::new(), line);
    loop {
        rest = rest.trim_ascii_start();
        let Some(&first) = rest.first() else { return Some(args) };
        let mut arg = Vec::new();
        if first == b'"' || first == b'\'' {
            rest = quoted(&rest[1..], first, &mut arg)?;
        } else {
            let end =
                rest.iter().position(|b| b.is_ascii_whitespace() || matches!(b, b'"' | b'\'')).unwrap_or(rest.len());
            arg.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
            // A quote inside a word opens a quoted part of it.
            while let Some(&q @ (b'"' | b'\'')) = rest.first() {
                rest = quoted(&rest[1..], q, &mut arg)?;
            }
        }
        args.push(arg.into());
    }
}

/// Takes a quoted part up to its closing quote, which a blank or the line's end must follow.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, arg: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match (quote, rest) {
            (q, [b, after @ ..]) if *b == q => {
                let ends = after.first().is_none_or(u8::is_ascii_whitespace);
                return ends.then_some(after);
            }
            (b'"', [b'\\', b'x', a, b, after @ ..]) if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {
                let digit = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
                arg.push(digit(*a) << 4 | digit(*b));
                rest = after;
            }
            (b'"', [b'\\', c, after @ ..]) => {
                arg.push(match c {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    c => *c,
                });
                rest = after;
            }
            (b'\'', [b'\\', b'\'', after @ ..]) => {
                arg.push(b'\'');
                rest = after;
            }
            (_, [b, after @ ..]) => {
                arg.push(*b);
                rest = after;
            }
            (_, []) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], piece: usize) -> (Vec<Item>, Option<ProtocolError>) {
        let (mut p, mut items) = (Parser::default(), Vec::new());
        for part in bytes.chunks(piece) {
            p.push(Bytes::copy_from_slice(part));
            loop {
                match p.next(usize::MAX) {
                    Ok(Item::More) => break,
                    Ok(item) => items.push(item),
                    Err(e) => return (items, Some(e)),
                }
            }
            p.release();
        }
        (items, None)
    }
    fn command(args: &[&[u8]]) -> Item {
        Item::Command(args.iter().map(|a| Bytes::copy_from_slice(a)).collect())
    }

    #[test]
    fn commands_come_whole_however_the_bytes_are_cut() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\n\0\r\n$4\r\n\r\n\r\n\r\n*0\r\n*-1\r\n\r\nGET  \"a\\x00\\n\" 'b\\'c'\r\nPING\n*1\r\n$0\r\n\r\n";
        let wanted = [
            command(&[b"SET", b"\0", b"\r\n\r\n"]),
            command(&[b"GET", b"a\0\n", b"b'c"]),
            command(&[b"PING"]),
            command(&[b""]),
        ];
        for piece in [1, 2, 3, 7, 1000] {
            assert_eq!(all(bytes, piece), (wanted.to_vec(), None), "pieces of {piece}");
        }
    }

    #[test]
    fn bombs_are_refused_before_they_take_memory() {
        for (bytes, error) in [
            (&b"*4294967295\r\n"[..], ProtocolError::ArrayLength),
            (b"*1048577\r\n", ProtocolError::ArrayLength),
            (b"*x\r\n", ProtocolError::ArrayLength),
            (b"*99999999999999999999999999999999999", ProtocolError::ArrayLength),
            (b"*1\r\n$999999999999\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$00000000000000000000000000000000000000", ProtocolError::BulkLength),
            (b"*1\r\n*1\r\n", ProtocolError::NotBulk(b'*')),
            (b"*1\r\n\r\n", ProtocolError::NotBulk(b'\r')),
            (b"*1\r\n$1\r\nabc", ProtocolError::NoLineEnd { len: 1 }),
            (b"SET \"a\r\n", ProtocolError::Quotes),
            (b"SET \"a\"b\r\n", ProtocolError::Quotes),
            (&[b'a'; LINE_MAX + 1], ProtocolError::LongLine),
        ] {
            assert_eq!(all(bytes, 1 << 20), (vec![], Some(error)), "{}", bytes[..bytes.len().min(40)].escape_ascii());
        }
        // A claimed length reserves nothing.
        let mut p = Parser::default();
        p.push(Bytes::from_static(b"*3\r\n$1048576\r\nabc"));
        assert_eq!(p.next(usize::MAX), Ok(Item::More));
        let State::Body { have, .. } = &p.state else { panic!("{p:?}") };
        assert!(have.capacity() <= 2 * SMALL && p.held() >= 1 << 20);
    }

    #[test]
    fn a_command_too_long_is_skipped() {
        let mut bytes = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", ARG_MAX + 1).into_bytes();
        bytes.extend(vec![b'v'; ARG_MAX + 1]);
        bytes.extend(b"\r\nPING\r\n");
        let refused = Item::Refused(TooLong::Argument { bytes: ARG_MAX + 1 });
        assert_eq!(all(&bytes, 100_000), (vec![refused, command(&[b"PING"])], None));
        let mut bytes = b"*3\r\n".to_vec();
        for _ in 0..3 {
            bytes.extend(format!("${ARG_MAX}\r\n").as_bytes());
            bytes.extend(vec![b'v'; ARG_MAX]);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"PING\r\n");
        assert_eq!(all(&bytes, 250_000), (vec![Item::Refused(TooLong::Command), command(&[b"PING"])], None));
    }

    #[test]
    fn an_argument_waits_for_room() {
        let mut p = Parser::default();
        p.push(Bytes::from_static(b"*2\r\n$3\r\nGET\r\n$100000\r\n"));
        let Ok(Item::Room(needs)) = p.next(50_000) else { panic!("{p:?}") };
        assert!((100_000..101_000).contains(&needs), "{needs}");
        assert_eq!(p.next(50_000), Ok(Item::Room(needs)));
        assert_eq!(p.next(needs), Ok(Item::More));
        p.push(vec![b'x'; 100_000].into());
        p.push(Bytes::from_static(b"\r\n"));
        assert!(matches!(p.next(0), Ok(Item::Command(args)) if args[1].len() == 100_000));
    }

    #[test]
    fn integers_are_canonical() {
        for (text, value) in
            [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(integer(text.as_bytes()), Some(value));
        }
        for bad in ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "1x"] {
            assert_eq!(integer(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
