//! Departure times of datagrams from the kernel (SO_TIMESTAMPING): requested for some datagrams, reported on the
//! socket's error queue. Without them the loop's sending time is used, which includes the host's own delay (PN8).

use std::collections::VecDeque;
use std::mem::zeroed;
use std::os::fd::RawFd;

use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Time};

use super::notes::Notes;

/// Control message value that requests a datagram's departure time.
pub const ASK: u32 = libc::SOF_TIMESTAMPING_TX_SOFTWARE;
/// Arrival times of all datagrams; departure times without the datagram's bytes, with a counter.
const RECEIVE: u32 = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
const LEAVE: u32 = RECEIVE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
/// Most pending reports; if the driver never reports, requests end.
const WAITING_MAX: usize = 256;
const CONTROL: usize = 256;

/// Identity of the datagram in the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    pub peer: NodeId,
    pub class: Class,
    pub stamp: u64,
}

/// Departure time on the loop's clock.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    pub timed: Timed,
    pub at: Time,
}

/// Timestamp state of one socket.
#[derive(Debug)]
pub struct Stamps {
    fd: RawFd,
    on: bool,
    /// The kernel's number of the first entry in `waiting`.
    first: u32,
    waiting: VecDeque<Timed>,
}

impl Stamps {
    pub fn new(fd: RawFd) -> Stamps {
        let on = set(fd, LEAVE);
        if !on {
            // Only arrival times, if this kernel supports them.
            set(fd, RECEIVE);
        }
        Stamps { fd, on, first: 0, waiting: VecDeque::new() }
    }
    /// Whether departure times can be requested.
    pub fn on(&self) -> bool {
        self.on && self.waiting.len() < WAITING_MAX
    }
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// The kernel took a datagram with a request.
    pub fn requested(&mut self, t: Timed) {
        self.waiting.push_back(t);
    }
    /// After a failed send it is unknown whether the kernel counted it; restarts the kernel's counter.
    pub fn resync(&mut self) {
        self.take(|_, _| {});
        self.waiting.clear();
        self.first = 0;
        self.on = self.on && set(self.fd, RECEIVE) && set(self.fd, LEAVE);
    }

    /// Takes the kernel's reports, each with its wall-clock time in ns.
    pub fn take(&mut self, mut each: impl FnMut(Timed, u64)) {
        #[repr(align(8))]
        struct Control([u8; CONTROL]);
        while !self.waiting.is_empty() {
            let mut control = Control([0; CONTROL]);
            // SAFETY: an all-zero value of this plain structure is valid.
            let mut h: libc::msghdr = unsafe { zeroed() };
            (h.msg_control, h.msg_controllen) = (control.0.as_mut_ptr().cast(), CONTROL as _);
            // SAFETY: header and control buffer live through the call.
            let r = unsafe { libc::recvmsg(self.fd, &mut h, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
            if r < 0 {
                return;
            }
            let Notes { number: Some(number), wall: Some(stamp), .. } = Notes::of(&h) else { continue };
            let place = number.wrapping_sub(self.first) as usize;
            if place >= self.waiting.len() {
                continue;
            }
            // Earlier requests were not reported, and will not be.
            self.waiting.drain(..place);
            self.first = number.wrapping_add(1);
            if let Some(t) = self.waiting.pop_front() {
                each(t, stamp);
            }
        }
    }
}

fn set(fd: RawFd, flags: u32) -> bool {
    super::udp::set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags as i32).is_ok()
}
