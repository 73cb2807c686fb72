//! Datagrams in batches: recvmmsg with GRO, sendmmsg with GSO and a DSCP per datagram, and the kernel's timestamps of
//! both ([`super::stamps`]). Never blocks.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use bytes::Bytes;
use rackweave_core::{NodeId, Time};
use rackweave_transport::Train;

use super::notes::Notes;
use super::stamps::{Left, Stamps, Timed};
use rackweave_runtime::clock::{Clock, nanos_of};

/// Datagrams per receiving or sending call.
const BATCH: usize = 32;
const FEW: usize = 2;
/// The same for long trains: data is processed while it is in the core's cache, and answered while more arrives.
const LONG: usize = 4;
const LONG_BYTES: usize = 16_384;
/// Buffer for one datagram, or for a train that GRO has merged.
const BUFFER: usize = 65_536;
/// Socket buffer in bytes: a burst of messages from every server of a rack.
const SOCKET_BYTES: i32 = 8 << 20;
/// Buffer for the control messages of one datagram: a timestamp (64 bytes), a segment size, a traffic class.
const CONTROL: usize = 192;
/// The ECN bits of the traffic class (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    Not = 0b00,
    Capable = 0b10,
    /// A switch on the path had a queue.
    Marked = 0b11,
}

/// An outgoing datagram, or a train of equally long ones.
#[derive(Debug)]
pub struct Outgoing {
    pub to: SocketAddr,
    /// Source port, as a path number of the transport.
    pub path: u16,
    pub bytes: Bytes,
    /// Bytes per datagram of a train, except the last.
    pub segment: Option<usize>,
    pub dscp: u8,
    pub ecn: Ecn,
    /// Set to request the kernel's departure time.
    pub timed: Option<Timed>,
    /// The peer whose connection it belongs to, if any.
    pub peer: Option<NodeId>,
}

/// A datagram or train that exceeded the path's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    pub peer: NodeId,
    pub bytes: usize,
}

counters! {
    /// Counts since the sockets were opened.
    pub struct Counters {
        receive_calls, send_calls,
        /// Datagrams that the kernel did not take; the transport retransmits them.
        send_refused,
        /// Of those, datagrams that exceeded the path's MTU.
        send_too_long,
        /// Datagrams received, and those with the kernel's timestamp.
        received as _, received_stamped as "arrivals_stamped",
        /// Departure times requested, and reported.
        departures_requested as "leavings_asked", departures_reported as "leavings_stamped",
    }
}

/// A control buffer, aligned for the kernel's headers.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
struct Control([u8; CONTROL]);

/// The sockets of one node: one that also receives, and a sending one for each further path.
#[derive(Debug)]
pub struct Udp {
    paths: Vec<UdpSocket>,
    /// Timestamp state of each path.
    stamps: Vec<Stamps>,
    /// Buffers for a batch.
    buffers: Vec<Box<[u8]>>,
    controls: Vec<Control>,
    /// Size of the next batch, by the length of the last one.
    room: usize,
    gso: bool,
    clocks: Clocks,
    too_long: Vec<TooLong>,
    pub counters: Counters,
}

/// Relation of the kernel's timestamp clock to the loop's clock.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// CLOCK_BOOTTIME at the loop's time zero. Each estimate is late by the time between the two readings, so the
    /// earliest is the best.
    boot_at_zero: u64,
}

impl Clocks {
    /// Converts a timestamp to the loop's time. Created for each batch, because the wall clock may be set in between.
    fn now(&mut self, now: Time) -> impl Fn(u64) -> Time + use<> {
        self.at(now, nanos_of(libc::CLOCK_REALTIME), nanos_of(libc::CLOCK_BOOTTIME))
    }
    fn at(&mut self, now: Time, wall: u64, boot: u64) -> impl Fn(u64) -> Time + use<> {
        self.boot_at_zero = self.boot_at_zero.min(boot.saturating_sub(now.0));
        let here = boot.saturating_sub(self.boot_at_zero);
        move |stamp| Time(here.saturating_add_signed(stamp.wrapping_sub(wall) as i64))
    }
}

impl Udp {
    /// Binds `address`, and for each further path a port of the kernel's choice on the same host.
    pub fn bind(address: SocketAddr, paths: u16) -> io::Result<Udp> {
        let first = socket(address)?;
        let fd = first.as_raw_fd();
        set(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        if address.is_ipv4() {
            set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        } else {
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        }
        let mut all = vec![first];
        for _ in 1..paths {
            all.push(socket(SocketAddr::new(address.ip(), 0))?);
        }
        let stamps = all.iter().map(|s| Stamps::new(s.as_raw_fd())).collect();
        let clocks = Clocks { boot_at_zero: u64::MAX };
        Ok(Udp {
            paths: all,
            stamps,
            buffers: Vec::new(),
            controls: Vec::new(),
            room: FEW,
            gso: true,
            clocks,
            too_long: Vec::new(),
            counters: Counters::default(),
        })
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.paths[0].as_raw_fd()
    }

    pub fn sockets(&self) -> usize {
        self.paths.len()
    }

    /// Local address from which the path's datagrams are sent.
    pub fn local(&self, path: u16) -> Option<SocketAddr> {
        self.paths[usize::from(path) % self.paths.len()].local_addr().ok()
    }

    /// Sets the loop's clock, which skips nothing; timestamps are converted to its time.
    pub fn keep_time_of(&mut self, clock: &Clock) {
        self.clocks.boot_at_zero = clock.machine_at_zero();
    }

    /// Source of round-trip timestamps on arrival and departure.
    pub fn timestamps(&self) -> String {
        let whose = |kernel| if kernel { "kernel" } else { "loop" };
        let c = &self.counters;
        let received = c.received == 0 || c.received_stamped > 0;
        let left = self.stamps[0].on() && (c.departures_requested == 0 || c.departures_reported > 0);
        format!("receive time from the {}, send time from the {}", whose(received), whose(left))
    }

    /// Takes departure times that were reported.
    pub fn left(&mut self, now: Time, mut each: impl FnMut(Left)) {
        for s in self.stamps.iter_mut().filter(|s| s.waits()) {
            let time = self.clocks.now(now);
            s.take(|timed, stamp| {
                self.counters.departures_reported += 1;
                each(Left { timed, at: time(stamp) });
            });
        }
    }

    /// Datagrams that were too long since the last call.
    pub fn take_too_long(&mut self) -> Vec<TooLong> {
        std::mem::take(&mut self.too_long)
    }

    /// Whether trains can be sent.
    pub fn gso(&self) -> bool {
        self.gso
    }

    /// Receives at most one batch; true if there was anything.
    pub fn receive(&mut self, now: Time, each: impl FnMut(Train<'_>)) -> io::Result<bool> {
        // Most batches are short, which saves setting up headers.
        let (n, bytes) = match self.room {
            FEW => self.take_batch::<FEW>(now, each)?,
            LONG => self.take_batch::<LONG>(now, each)?,
            _ => self.take_batch::<BATCH>(now, each)?,
        };
        self.room = match n {
            0..FEW => FEW,
            _ if bytes >= n * LONG_BYTES => LONG,
            _ => BATCH,
        };
        Ok(n > 0)
    }

    /// Receives at most `N` datagrams; returns their number and bytes.
    fn take_batch<const N: usize>(&mut self, now: Time, mut each: impl FnMut(Train<'_>)) -> io::Result<(usize, usize)> {
        if self.buffers.len() < N {
            self.buffers.resize_with(N, || vec![0; BUFFER].into());
            self.controls.resize(N, Control([0; CONTROL]));
        }
        // SAFETY: an all-zero value of these plain structures is valid.
        let (mut parts, mut heads): ([libc::iovec; N], [libc::mmsghdr; N]) = unsafe { (zeroed(), zeroed()) };
        for i in 0..N {
            parts[i] = libc::iovec { iov_base: self.buffers[i].as_mut_ptr().cast(), iov_len: BUFFER };
            let h = &mut heads[i].msg_hdr;
            (h.msg_iov, h.msg_iovlen) = (&mut parts[i], 1);
            (h.msg_control, h.msg_controllen) = (self.controls[i].0.as_mut_ptr().cast(), CONTROL as _);
        }
        // SAFETY: buffers, parts and controls live through the call, with these lengths.
        let n = unsafe {
            libc::recvmmsg(self.as_raw_fd(), heads.as_mut_ptr(), N as u32, libc::MSG_DONTWAIT, std::ptr::null_mut())
        };
        if n < 0 {
            let e = io::Error::last_os_error();
            // An ICMP error of an earlier datagram, or a vanished interface: not fatal for this socket.
            return if fatal(&e) { Err(e) } else { Ok((0, 0)) };
        }
        self.counters.receive_calls += 1;
        let (time, mut bytes) = (self.clocks.now(now), 0);
        for (i, h) in heads.iter().enumerate().take(n as usize) {
            let len = h.msg_len as usize;
            bytes += len;
            if h.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 || len == 0 {
                continue;
            }
            let notes = Notes::of(&h.msg_hdr);
            let at = notes.wall.map_or(now, |t| time(t).min(now));
            self.counters.received += 1;
            self.counters.received_stamped += u64::from(notes.wall.is_some());
            let segment = notes.segment.filter(|&s| s > 0).unwrap_or(len);
            each(Train { bytes: &mut self.buffers[i][..len], segment, at, marked: notes.marked });
        }
        Ok((n as usize, bytes))
    }

    /// Sends all datagrams in order; those that the kernel does not take now are dropped and counted.
    pub fn send(&mut self, all: &mut Vec<Outgoing>) -> io::Result<()> {
        let mut from = 0;
        while from < all.len() {
            let path = usize::from(all[from].path) % self.paths.len();
            let same = |o: &Outgoing| usize::from(o.path) % self.paths.len() == path;
            let until = all[from..].iter().take(BATCH).position(|o| !same(o)).map_or(BATCH, |n| n.max(1));
            let batch = &all[from..(from + until).min(all.len())];
            self.counters.send_calls += 1;
            let ask = self.stamps[path].on();
            let fd = self.paths[path].as_raw_fd();
            // Most batches are short, which saves setting up headers.
            let sent = if batch.len() <= FEW {
                send_batch::<FEW>(fd, batch, ask)
            } else {
                send_batch::<BATCH>(fd, batch, ask)
            };
            if !matches!(sent, Ok(n) if n == batch.len()) {
                self.stamps[path].resync();
            }
            match sent {
                Ok(n) => {
                    for timed in batch[..n].iter().filter_map(|o| o.timed).filter(|_| ask) {
                        self.counters.departures_requested += 1;
                        self.stamps[path].requested(timed);
                    }
                    from += n.max(1);
                }
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(e) if e.raw_os_error() == Some(libc::EIO) && self.gso => {
                    // A device without checksum offload refuses trains.
                    self.gso = false;
                    self.counters.send_refused += 1;
                    from += 1;
                }
                Err(e) if fatal(&e) => {
                    all.clear();
                    return Err(e);
                }
                Err(e) => {
                    self.counters.send_refused += 1;
                    let o = &all[from];
                    // Before 6.15, Linux answers EINVAL for a train whose datagrams are too long.
                    let train = o.segment.is_some() && e.raw_os_error() == Some(libc::EINVAL);
                    if train || e.raw_os_error() == Some(libc::EMSGSIZE) {
                        self.counters.send_too_long += 1;
                        let bytes = o.segment.unwrap_or(o.bytes.len());
                        self.too_long.extend(o.peer.map(|peer| TooLong { peer, bytes }));
                    }
                    from += 1;
                }
            }
        }
        all.clear();
        Ok(())
    }
}

/// Whether the socket itself failed. All other errors come from the network, which may lose datagrams.
fn fatal(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT))
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let s = UdpSocket::bind(address)?;
    s.set_nonblocking(true)?;
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        // The forced option may exceed the system's limit but needs a privilege; otherwise the limit applies.
        if set(s.as_raw_fd(), libc::SOL_SOCKET, forced, SOCKET_BYTES).is_err() {
            set(s.as_raw_fd(), libc::SOL_SOCKET, plain, SOCKET_BYTES)?;
        }
    }
    Ok(s)
}

pub(super) fn set(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let p = (&raw const value).cast();
    // SAFETY: `value` lives through the call, and its length is given.
    let r = unsafe { libc::setsockopt(fd, level, name, p, size_of::<i32>() as u32) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends `batch` from `fd`; returns the number that the kernel took. `N` is the maximum.
fn send_batch<const N: usize>(fd: RawFd, batch: &[Outgoing], stamps: bool) -> io::Result<usize> {
    let mut controls = [Control([0; CONTROL]); N];
    // SAFETY: an all-zero value of these plain structures is valid.
    let (mut parts, mut heads, mut names): ([libc::iovec; N], [libc::mmsghdr; N], [libc::sockaddr_storage; N]) =
        unsafe { (zeroed(), zeroed(), zeroed()) };
    for (i, o) in batch.iter().enumerate() {
        parts[i] = libc::iovec { iov_base: o.bytes.as_ptr().cast_mut().cast(), iov_len: o.bytes.len() };
        let h = &mut heads[i].msg_hdr;
        (h.msg_iov, h.msg_iovlen) = (&mut parts[i], 1);
        h.msg_namelen = put_address(o.to, &mut names[i]);
        h.msg_name = (&raw mut names[i]).cast();
        (h.msg_control, h.msg_controllen) = (controls[i].0.as_mut_ptr().cast(), CONTROL as _);
        let class = i32::from(o.dscp << 2 | o.ecn as u8);
        // SAFETY: the two control messages fit in the buffer, whose size is in `msg_controllen`.
        unsafe {
            let mut c = libc::CMSG_FIRSTHDR(h);
            let (level, name) = match o.to {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            let mut len = put_note(c, level, name, class);
            if let Some(segment) = o.segment.filter(|&s| s < o.bytes.len()) {
                c = libc::CMSG_NXTHDR(h, c);
                len += put_note(c, libc::SOL_UDP, libc::UDP_SEGMENT, segment as u16);
            }
            if stamps && o.timed.is_some() {
                c = libc::CMSG_NXTHDR(h, c);
                len += put_note(c, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, super::stamps::ASK);
            }
            h.msg_controllen = len as _;
        }
    }
    // SAFETY: everything the headers point to lives through the call.
    let n = unsafe { libc::sendmmsg(fd, heads.as_mut_ptr(), batch.len() as u32, libc::MSG_DONTWAIT) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// # Safety
/// `c` has room for a control message with a `T`.
unsafe fn put_note<T>(c: *mut libc::cmsghdr, level: i32, name: i32, value: T) -> usize {
    let len = size_of::<T>() as u32;
    // SAFETY: the caller's promise.
    unsafe {
        (*c).cmsg_level = level;
        (*c).cmsg_type = name;
        (*c).cmsg_len = libc::CMSG_LEN(len) as _;
        libc::CMSG_DATA(c).cast::<T>().write_unaligned(value);
        libc::CMSG_SPACE(len) as usize
    }
}

pub(super) fn put_address(a: SocketAddr, to: &mut libc::sockaddr_storage) -> u32 {
    match a {
        SocketAddr::V4(a) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room for every address, and is aligned for it.
            unsafe { (&raw mut *to).cast::<libc::sockaddr_in>().write(name) };
            size_of::<libc::sockaddr_in>() as u32
        }
        SocketAddr::V6(a) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut *to).cast::<libc::sockaddr_in6>().write(name) };
            size_of::<libc::sockaddr_in6>() as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Span;
    use rackweave_core::msg::Class;

    use super::*;
    use rackweave_runtime::clock::nanos;
    use rackweave_runtime::poll::{Interest, Poll};

    fn pair(host: &str) -> (Udp, Udp, SocketAddr) {
        let any: SocketAddr = format!("{host}:0").parse().expect("address");
        let (a, b) = (Udp::bind(any, 2).expect("bind"), Udp::bind(any, 1).expect("bind"));
        let to = b.paths[0].local_addr().expect("address");
        (a, b, to)
    }

    /// A datagram that arrived.
    struct Got {
        bytes: Vec<u8>,
        at: Time,
        marked: bool,
    }

    fn take(b: &mut Udp, n: usize) -> Vec<Got> {
        let (mut got, mut poll, mut ready) = (Vec::new(), Poll::new().expect("epoll"), Vec::new());
        poll.add(b.as_raw_fd(), 0, Interest::READ).expect("add");
        while got.len() < n {
            poll.wait(Some(Span::from_secs(5)), &mut ready).expect("wait");
            assert!(!ready.is_empty(), "{} of {n} datagrams within 5 s", got.len());
            b.receive(Time(1 << 40), |t| put(t, &mut got)).expect("receive");
        }
        got
    }

    fn put(t: Train<'_>, into: &mut Vec<Got>) {
        into.extend(t.bytes.chunks(t.segment).map(|d| Got { bytes: d.to_vec(), at: t.at, marked: t.marked }));
    }

    fn there_and_back(host: &str) {
        let (mut a, mut b, to) = pair(host);
        let out = |n: usize, path, segment| Outgoing {
            to,
            path,
            bytes: (0..n).map(|i| i as u8).collect(),
            segment,
            dscp: 18,
            ecn: Ecn::Capable,
            timed: None,
            peer: None,
        };
        let mut all = vec![out(100, 0, None), out(50_000, 1, None), out(2_500, 0, Some(1000))];
        a.send(&mut all).expect("sends");
        let mut got = take(&mut b, 5);
        got.sort_by_key(|r| std::cmp::Reverse(r.bytes.len()));
        let lens: Vec<usize> = got.iter().map(|r| r.bytes.len()).collect();
        assert_eq!(lens, [50_000, 1000, 1000, 500, 100]);
        for r in &got {
            let first = r.bytes[0];
            assert!(r.bytes.iter().enumerate().all(|(i, &b)| b == first.wrapping_add(i as u8)), "contents");
            assert!(!r.marked);
            let age = Time(1 << 40).since(r.at);
            assert!(age > Span::ZERO && age < Span::from_secs(10), "timestamp {age} ago");
        }
        assert_eq!(b.counters.received_stamped, b.counters.received);
        assert_eq!(a.counters.send_refused, 0);
    }

    #[test]
    fn single_datagrams_and_trains_arrive_as_they_were_sent() {
        there_and_back("127.0.0.1");
        there_and_back("[::1]");
    }

    /// The wall clock is set between two batches. Later arrivals are right; earlier stamps are off by the jump, but
    /// never ahead of the loop.
    #[test]
    fn a_wall_clock_that_jumps_spoils_no_later_stamp() {
        let mut c = Clocks { boot_at_zero: 5_000 };
        let (wall, jump) = (1_700_000_000_000_000_000, 3_600_000_000_000);
        let time = c.at(Time(1_000_000), wall, 1_005_000);
        assert_eq!(time(wall - 250), Time(999_750));
        for (wall, stale) in [(wall + jump, wall), (wall - jump, wall)] {
            let time = c.at(Time(2_000_000), wall, 2_005_000);
            assert_eq!(time(wall - 250), Time(1_999_750));
            let t = time(stale).min(Time(2_000_000));
            assert!(t == Time(0) || t == Time(2_000_000), "{t:?}");
        }
        // Before 1970, and across its first moment.
        let wall = |s, ns| nanos(&libc::timespec { tv_sec: s, tv_nsec: ns });
        for wall in [wall(-144_633_600, 7), wall(0, 100)] {
            let time = c.at(Time(3_000_000), wall, 3_005_000);
            assert_eq!(time(wall.wrapping_sub(250)), Time(2_999_750));
        }
    }

    #[test]
    fn congestion_marks_are_seen() {
        let (mut a, mut b, to) = pair("127.0.0.1");
        for (ecn, seen) in [(Ecn::Not, false), (Ecn::Marked, true), (Ecn::Capable, false)] {
            let bytes = Bytes::from_static(b"x");
            a.send(&mut vec![Outgoing { to, path: 0, bytes, segment: None, dscp: 18, ecn, timed: None, peer: None }])
                .expect("send");
            assert_eq!(take(&mut b, 1)[0].marked, seen, "{ecn:?}");
        }
    }

    /// The kernel's departure and arrival times, on the loop's clock, are ordered and close together; also after a
    /// failed send.
    /// failed.
    #[test]
    fn the_kernel_reports_when_a_datagram_left() {
        let (mut a, mut b, to) = pair("127.0.0.1");
        let timed = |stamp| Timed { peer: NodeId(3), class: Class::Silver, stamp };
        let out = |to, n: usize, timed| Outgoing {
            to,
            path: 0,
            bytes: vec![1; n].into(),
            segment: None,
            dscp: 18,
            ecn: Ecn::Not,
            timed,
            peer: Some(NodeId(3)),
        };
        let mut clock = Clock::of_one_node();
        a.keep_time_of(&clock);
        b.keep_time_of(&clock);
        for round in 0..3u64 {
            let before = clock.read();
            let mut all =
                vec![out(to, 10, None), out(to, 20, Some(timed(round * 2))), out(to, 30, Some(timed(round * 2 + 1)))];
            a.send(&mut all).expect("sends");
            let mut left = Vec::new();
            a.left(clock.read(), |l| left.push(l));
            let stamps: Vec<u64> = left.iter().map(|l| l.timed.stamp).collect();
            assert_eq!(stamps, [round * 2, round * 2 + 1]);
            let (mut poll, mut ready, mut got) = (Poll::new().expect("epoll"), Vec::new(), Vec::new());
            poll.add(b.as_raw_fd(), 0, Interest::READ).expect("add");
            while got.len() < 3 {
                poll.wait(Some(Span::from_secs(5)), &mut ready).expect("wait");
                b.receive(clock.read(), |t| put(t, &mut got)).expect("receive");
            }
            let after = clock.read();
            for (l, r) in left.iter().zip(&got[1..]) {
                assert!(before <= l.at && l.at <= r.at && r.at <= after, "{before:?} {l:?} {:?} {after:?}", r.at);
            }
            // Too long for UDP: the kernel's numbering must stay correct.
            a.send(&mut vec![out(to, 65_535, Some(timed(99)))]).expect("counted");
            assert_eq!(a.counters.send_too_long, round + 1);
            assert_eq!(a.take_too_long(), [TooLong { peer: NodeId(3), bytes: 65_535 }]);
        }
        assert_eq!((a.counters.departures_requested, a.counters.departures_reported), (6, 6));
        assert_eq!(a.timestamps(), "receive time from the kernel, send time from the kernel");
    }
}
