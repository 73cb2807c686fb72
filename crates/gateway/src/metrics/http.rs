//! Enough HTTP/1.1 (RFC 9112) for a scraper: `GET` and `HEAD` of one path, one request a connection.

use bytes::{Bytes, BytesMut};

use super::text::CONTENT_TYPE;

/// Where the metrics are.
pub const METRICS_PATH: &str = "/metrics";
/// Longest request head: far above any scraper's.
pub const HEAD_MAX: usize = 8 << 10;

/// One connection. The driver feeds [`HttpSession::input`] until it says what is asked, answers with
/// [`HttpSession::respond`], writes [`HttpSession::output`], and closes.
#[derive(Debug, Default)]
pub struct HttpSession {
    head: BytesMut,
    asked: bool,
    head_only: bool,
    output: Bytes,
}

impl HttpSession {
    pub fn new() -> HttpSession {
        HttpSession::default()
    }
    /// Bytes from the client. True once, when it has asked for the metrics: give them to [`HttpSession::respond`].
    pub fn input(&mut self, bytes: &[u8]) -> bool {
        if self.asked || !self.output.is_empty() {
            return false;
        }
        self.head.extend_from_slice(&bytes[..bytes.len().min(HEAD_MAX + 1 - self.head.len())]);
        let Some(end) = self.head.windows(4).position(|w| w == b"\r\n\r\n") else {
            if self.head.len() > HEAD_MAX {
                self.refuse("431 Request Header Fields Too Large");
            }
            return false;
        };
        let line = self.head[..end].split(|&c| c == b'\r').next().unwrap_or_default();
        match parse(line) {
            Ok(head_only) => {
                self.asked = true;
                self.head_only = head_only;
                true
            }
            Err(status) => {
                self.refuse(status);
                false
            }
        }
    }
    /// The metrics that were asked for.
    pub fn respond(&mut self, text: &str) {
        if self.asked && self.output.is_empty() {
            self.answer("200 OK", CONTENT_TYPE, text);
        }
    }
    fn refuse(&mut self, status: &'static str) {
        self.answer(status, "text/plain; charset=utf-8", &format!("{status}\n"));
    }
    fn answer(&mut self, status: &str, content_type: &str, body: &str) {
        let mut out = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        if !self.head_only {
            out.push_str(body);
        }
        self.output = out.into();
    }
    /// What to write. Once it is non-empty the connection is to be closed when all of it is written.
    pub fn output(&self) -> Bytes {
        self.output.clone()
    }
}

/// Whether a request line is a `HEAD`; or the status it is refused with.
fn parse(line: &[u8]) -> Result<bool, &'static str> {
    const BAD: &str = "400 Bad Request";
    let line = std::str::from_utf8(line).map_err(|_| BAD)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(BAD);
    };
    if !version.starts_with("HTTP/1.") {
        return Err("505 HTTP Version Not Supported");
    }
    if target.split('?').next() != Some(METRICS_PATH) {
        return Err("404 Not Found");
    }
    match method {
        "GET" => Ok(false),
        "HEAD" => Ok(true),
        _ => Err("405 Method Not Allowed"),
    }
}
