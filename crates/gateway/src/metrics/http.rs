//! Enough HTTP/1.1 (RFC 9112) for a scraper: `GET` and `HEAD` of one path, one request a connection.

use bytes::{Bytes, BytesMut};

use super::text::CONTENT_TYPE;
use crate::buffers::Output;
use crate::session::{Chunks, Gateway, Reply, Request};

/// Where the metrics are.
pub const METRICS_PATH: &str = "/metrics";
/// Longest request head: far above any scraper's.
pub const HEAD_MAX: usize = 8 << 10;

/// One connection, which is to be closed when its one answer is written.
#[derive(Debug, Default)]
pub struct HttpSession {
    head: BytesMut,
    stage: Stage,
    head_only: bool,
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Head,
    /// The request has come, and was not given out yet.
    Asked,
    Waiting,
    /// The answer is in the output, or none will come.
    Done,
}

impl HttpSession {
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
        self.output.payload(out.into());
        self.stage = Stage::Done;
    }
}

impl Gateway for HttpSession {
    fn input(&mut self, bytes: Bytes) {
        if self.stage != Stage::Head {
            return;
        }
        self.head.extend_from_slice(&bytes[..bytes.len().min(HEAD_MAX + 1 - self.head.len())]);
        let Some(end) = self.head.windows(4).position(|w| w == b"\r\n\r\n") else {
            if self.head.len() > HEAD_MAX {
                self.refuse("431 Request Header Fields Too Large");
            }
            return;
        };
        let line = self.head[..end].split(|&c| c == b'\r').next().unwrap_or_default();
        match parse(line) {
            Ok(head_only) => (self.stage, self.head_only) = (Stage::Asked, head_only),
            Err(status) => self.refuse(status),
        }
    }
    fn input_eof(&mut self) {
        self.stage = Stage::Done;
    }
    fn wants_input(&self) -> bool {
        self.stage != Stage::Done
    }
    fn poll_request(&mut self) -> Option<Request> {
        let asked = self.stage == Stage::Asked;
        asked.then(|| {
            self.stage = Stage::Waiting;
            Request::Metrics
        })
    }
    fn reply(&mut self, reply: Reply) {
        if let (Reply::Metrics(text), Stage::Waiting) = (reply, self.stage) {
            self.answer("200 OK", CONTENT_TYPE, &text);
        }
    }
    fn output(&mut self) -> Chunks<'_> {
        self.output.chunks()
    }
    fn output_len(&self) -> usize {
        self.output.len()
    }
    fn written(&mut self, n: usize) {
        self.output.advance(n);
    }
    fn finished(&self) -> bool {
        self.stage == Stage::Done && self.output.len() == 0
    }
    fn input_due(&self) -> bool {
        true
    }
    fn held(&self) -> usize {
        self.output.len()
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
