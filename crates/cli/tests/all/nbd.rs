//! The parts of an NBD client that these tests need.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::harness::SOON;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
pub const FUA: u16 = 1;

pub struct Client {
    pub stream: UnixStream,
    pub size: u64,
    pub cookie: u64,
}

pub fn dial(socket: &Path) -> UnixStream {
    let s = UnixStream::connect(socket).expect("connect");
    s.set_read_timeout(Some(SOON)).expect("timeout");
    s.set_write_timeout(Some(SOON)).expect("timeout");
    s
}

impl Client {
    /// Handshake by EXPORT_NAME, simple replies.
    pub fn connect(socket: &Path, export: &str) -> Client {
        let mut stream = dial(socket);
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("greeting");
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        stream.write_all(&hello).expect("send");
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).expect("export");
        let size = u64::from_be_bytes(answer[..8].try_into().expect("8 bytes"));
        Client { stream, size, cookie: 0 }
    }

    /// Sends a command and reads its reply: the error number, and data of `expect` bytes.
    pub fn command(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
        expect: usize,
    ) -> Result<Vec<u8>, u32> {
        self.cookie += 1;
        let mut b = 0x2560_9513u32.to_be_bytes().to_vec();
        b.extend_from_slice(&flags.to_be_bytes());
        b.extend_from_slice(&kind.to_be_bytes());
        b.extend_from_slice(&self.cookie.to_be_bytes());
        b.extend_from_slice(&offset.to_be_bytes());
        b.extend_from_slice(&len.to_be_bytes());
        b.extend_from_slice(data);
        self.stream.write_all(&b).expect("send");
        let mut h = [0; 16];
        self.stream.read_exact(&mut h).expect("reply");
        assert_eq!(h[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(h[8..], self.cookie.to_be_bytes());
        let error = u32::from_be_bytes(h[4..8].try_into().expect("4 bytes"));
        if error != 0 {
            return Err(error);
        }
        let mut data = vec![0; expect];
        self.stream.read_exact(&mut data).expect("data");
        Ok(data)
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.command(READ, 0, offset, len, &[], len as usize).expect("read")
    }
    /// The data, or the error number.
    pub fn try_read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.command(READ, 0, offset, len, &[], len as usize)
    }
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.command(WRITE, 0, offset, data.len() as u32, data, 0).expect("write");
    }
    pub fn write_fua(&mut self, offset: u64, data: &[u8]) {
        self.command(WRITE, FUA, offset, data.len() as u32, data, 0).expect("write");
    }
    pub fn flush(&mut self) {
        self.command(FLUSH, 0, 0, 0, &[], 0).expect("flush");
    }
    pub fn trim(&mut self, offset: u64, len: u32) {
        self.command(TRIM, 0, offset, len, &[], 0).expect("trim");
    }
}

/// Contents that identify the block and the version.
pub fn pattern(block: u64, version: u64) -> Vec<u8> {
    let mut v = Vec::with_capacity(4096);
    for i in 0..256u64 {
        v.extend_from_slice(&block.to_le_bytes());
        v.extend_from_slice(&(version << 16 | i).to_le_bytes());
    }
    v
}
