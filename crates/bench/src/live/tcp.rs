//! Kernel TCP under the same packets: the bytes of `wire` in sequence, on a socket without Nagle's delay.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};

use bytes::{Buf, BytesMut};
use rackweave_core::msg::Packet;
use rackweave_wire::HEADER_BYTES;

/// Bytes read at once.
const PIECE: usize = 256 << 10;
const LENGTH_AT: usize = 56;

#[derive(Debug)]
pub struct Tcp {
    stream: TcpStream,
    input: BytesMut,
    output: Vec<u8>,
    written: usize,
    pub closed: bool,
}

impl Tcp {
    pub fn new(stream: TcpStream) -> io::Result<Tcp> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Tcp { stream, input: BytesMut::new(), output: Vec::new(), written: 0, closed: false })
    }
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
    pub fn put(&mut self, p: &Packet) -> io::Result<()> {
        rackweave_wire::encode(p, &mut self.output).map_err(io::Error::other)
    }
    /// Writes the pending bytes; the rest stays pending if the socket is full.
    pub fn write(&mut self) -> io::Result<()> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => {
                    self.closed = true;
                    return Ok(());
                }
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }
    pub fn read(&mut self, mut each: impl FnMut(Packet)) -> io::Result<()> {
        loop {
            let have = self.input.len();
            self.input.resize(have + PIECE, 0);
            let read = self.stream.read(&mut self.input[have..]);
            self.input.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.closed = true,
                Ok(n) if n == PIECE => continue,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            break;
        }
        while let Some(length) = self.input.get(LENGTH_AT..LENGTH_AT + 4) {
            let body = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
            if self.input.len() < HEADER_BYTES + body {
                break;
            }
            let packet = self.input.split_to(HEADER_BYTES + body).freeze();
            each(rackweave_wire::decode_shared(&packet).map_err(io::Error::other)?);
        }
        if !self.input.has_remaining() {
            self.input = BytesMut::new();
        }
        Ok(())
    }
}
