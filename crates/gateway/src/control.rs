//! Commands of an operator: one line each, answered with one line each, in order.

use bytes::Bytes;

use crate::buffers::Output;
use crate::session::{Chunks, Gateway, Reply, Request};

/// Longest line either side takes: a status of the largest rack is far below.
pub const LINE_MAX: usize = 4 << 20;
/// Unsent answers from which on no further command is taken.
const ANSWERS_MAX: usize = 64 << 10;

/// A line that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of over {LINE_MAX} bytes")]
pub struct LineTooLong;

/// One connection. Commands are given out one at a time, so that answers are in order.
#[derive(Debug, Default)]
pub struct Session {
    line: Vec<u8>,
    /// A command is being carried out.
    busy: bool,
    ended: bool,
    output: Output,
}

impl Session {
    fn ready(&self) -> bool {
        !self.busy && self.output.len() < ANSWERS_MAX
    }
}

impl Gateway for Session {
    fn input(&mut self, bytes: Bytes) {
        self.line.extend_from_slice(&bytes);
    }
    fn input_eof(&mut self) {
        self.ended = true;
    }
    fn wants_input(&self) -> bool {
        !self.ended && self.ready()
    }
    fn poll_request(&mut self) -> Option<Request> {
        if !self.ready() {
            return None;
        }
        let line = match self.line.iter().position(|&b| b == b'\n') {
            Some(end) => {
                let rest = self.line.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.line, rest);
                line.truncate(end);
                Ok(line.into())
            }
            None if self.line.len() > LINE_MAX => {
                self.line.clear();
                Err(LineTooLong)
            }
            None => return None,
        };
        self.busy = true;
        Some(Request::Command(line))
    }
    fn reply(&mut self, reply: Reply) {
        if let (Reply::Command(line), true) = (reply, self.busy) {
            self.busy = false;
            self.output.payload(line);
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
        self.ended && self.output.len() == 0
    }
    fn input_due(&self) -> bool {
        !self.busy
    }
    fn held(&self) -> usize {
        self.line.len() + self.output.len()
    }
}
