//! Many datagrams a system call.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use rackweave_core::msg::{Body, Class, Header, Op, Packet};
use rackweave_core::{Epoch, Incarnation, NodeId, SetId, VssdId};

/// Datagrams a system call.
const BATCH: usize = 32;
const BYTES: usize = 2048;

pub fn packet(op: Op, src: NodeId, dst: NodeId, body: Body) -> Vec<u8> {
    let header = Header {
        op,
        vssd: VssdId(1),
        lat: 0,
        class: Class::Silver,
        original_vssd: VssdId(1),
        set: SetId(1),
        epoch: Epoch(1),
        incarnation: Incarnation(1),
        request: 1,
    };
    let mut bytes = Vec::new();
    rackweave_wire::encode(&Packet { src, dst, header, body }, &mut bytes).expect("a small packet");
    bytes
}

pub fn thread_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Up to [`BATCH`] datagrams.
pub struct Batch {
    datagrams: Vec<Vec<u8>>,
    used: usize,
}

impl Batch {
    pub fn new() -> Batch {
        Batch { datagrams: (0..BATCH).map(|_| Vec::with_capacity(BYTES)).collect(), used: 0 }
    }
    pub fn clear(&mut self) {
        self.used = 0;
    }
    /// Adds what `write` appends, if it says so. More than fit are left out.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        if let Some(d) = self.datagrams.get_mut(self.used) {
            d.clear();
            self.used += usize::from(write(d));
        }
    }
    pub fn fill(&mut self, bytes: &[u8]) {
        (0..BATCH).for_each(|_| {
            self.push(|d| {
                d.extend_from_slice(bytes);
                true
            })
        });
    }

    fn with<T>(&mut self, len: impl Fn(&Vec<u8>) -> usize, f: impl FnOnce(&mut [libc::mmsghdr]) -> T) -> T {
        let mut parts: Vec<libc::iovec> = self
            .datagrams
            .iter_mut()
            .map(|d| libc::iovec { iov_len: len(d), iov_base: d.as_mut_ptr().cast() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: all zero is a valid header.
                let mut m: libc::mmsghdr = unsafe { std::mem::zeroed() };
                (m.msg_hdr.msg_iov, m.msg_hdr.msg_iovlen) = (part, 1);
                m
            })
            .collect();
        f(&mut messages)
    }

    /// How many left.
    pub fn send(&mut self, by: &UdpSocket) -> io::Result<usize> {
        let (used, fd) = (self.used, by.as_raw_fd());
        if used == 0 {
            return Ok(0);
        }
        // SAFETY: the headers point at the datagrams, which are only read.
        let sent = self.with(Vec::len, |m| unsafe { libc::sendmmsg(fd, m.as_mut_ptr(), used as u32, 0) });
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// What arrived; nothing after the socket's time-out.
    pub fn receive(&mut self, by: &UdpSocket) -> impl Iterator<Item = &[u8]> {
        let fd = by.as_raw_fd();
        let lengths = self.with(Vec::capacity, |m| {
            // SAFETY: the headers point at the datagrams' memory, all of it.
            let n =
                unsafe { libc::recvmmsg(fd, m.as_mut_ptr(), BATCH as u32, libc::MSG_WAITFORONE, std::ptr::null_mut()) };
            m[..usize::try_from(n).unwrap_or(0)].iter().map(|m| m.msg_len as usize).collect::<Vec<_>>()
        });
        self.used = lengths.len();
        for (d, len) in self.datagrams.iter_mut().zip(&lengths) {
            // SAFETY: the kernel wrote so many bytes, at most the capacity.
            unsafe { d.set_len(*len) };
        }
        self.datagrams[..self.used].iter().map(Vec::as_slice)
    }
}
