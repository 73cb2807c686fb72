//! TCP between nodes while the network loses too many datagrams (PN5): a connection to a peer carries the same
//! authenticated datagrams in frames ([`rackweave_transport::stream`]). Never blocks; every buffer is bounded.
//!
//! A node listens on the port number of its UDP socket. The node at the other end is identified by the first datagram
//! of its current incarnation; until then it is a stranger. Strangers are few and are closed soon.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use bytes::{Buf, Bytes, BytesMut};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::stream::{Deframer, FRAME_HEAD_BYTES, frame_head};
use rackweave_transport::{Origin, fair_bytes};
use slab::Slab;

use rackweave_runtime::poll::{Interest, Poll, Ready};

/// Bytes queued for one peer, while the total has room. The excess is lost and retransmitted, as on a full link.
const QUEUE_BYTES_MAX: usize = 4 << 20;
/// Connections whose other end is not identified yet.
const STRANGERS_MAX: usize = 64;
/// Time until an unfinished connection or a stranger is closed.
const STRANGER_WAIT: Span = Span::from_secs(3);
/// The other end has taken nothing for this time although data waits.
const STALLED_AFTER: Span = Span::from_secs(3);
/// Time until an unused connection is closed if its other end does not close it.
const CLOSE_WAIT: Span = Span::from_secs(3);
/// A silent connection is probed after this many seconds, at the same interval and number of times, and then closed:
/// the other end vanished without closing it.
const KEEPALIVE_S: i32 = 3;
/// Bytes read from one connection per turn.
const READ_BYTES: usize = 256 << 10;
/// Buffers written by one call.
const PARTS: usize = 64;

const TOKEN_LISTENER: u64 = u64::MAX;

/// A change of a connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Up(NodeId),
    Down(NodeId),
}

counters! {
    /// Counts since the process was started.
    pub struct Counters {
        opened as "streams_opened", accepted as "streams_accepted", failed as "streams_failed",
        /// Closed because the other end took nothing for too long.
        stalled as "streams_stalled",
        /// Strangers that were turned away or never identified themselves.
        strangers as "streams_from_strangers",
        frames_sent as "stream_frames_sent", frames_received as "stream_frames_received",
        /// Datagrams without room or connection.
        frames_refused as "stream_frames_refused",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    /// Closes once the queued data is written.
    Closing,
}

#[derive(Debug)]
struct Link {
    socket: TcpStream,
    state: State,
    peer: Option<NodeId>,
    /// The node that it claims to be, which receives the proof of liveness.
    claims: Option<NodeId>,
    deframer: Deframer,
    out: VecDeque<Bytes>,
    out_bytes: usize,
    interest: Interest,
    /// Time of the last change of state, or when the other end last took data.
    since: Time,
}

/// All streams of one node.
#[derive(Debug)]
pub struct Streams {
    listener: TcpListener,
    /// Most bytes queued on all streams.
    bytes_total: usize,
    poll: Poll,
    links: Slab<Link>,
    /// The connection used for writing.
    peers: BTreeMap<NodeId, usize>,
    changes: Vec<Change>,
    ready: Vec<Ready>,
    /// Connections with queued data.
    touched: Vec<usize>,
    pub counters: Counters,
}

impl Streams {
    /// At most `bytes_total` are queued for all peers together.
    pub fn bind(address: SocketAddr, bytes_total: usize) -> io::Result<Streams> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        poll.add(listener.as_raw_fd(), TOKEN_LISTENER, Interest::READ)?;
        Ok(Streams {
            listener,
            bytes_total,
            poll,
            links: Slab::new(),
            peers: BTreeMap::new(),
            changes: Vec::new(),
            ready: Vec::new(),
            touched: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// Readable when [`Streams::handle`] has work.
    pub fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// When [`Streams::sweep`] has work.
    pub fn deadline(&self) -> Time {
        self.links.iter().filter_map(|(_, l)| l.deadline()).min().unwrap_or(Time::MAX)
    }

    /// Number of connections, strangers included.
    pub fn len(&self) -> usize {
        self.links.len()
    }
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
    /// Queued bytes.
    pub fn held_bytes(&self) -> usize {
        self.links.iter().map(|(_, l)| l.out_bytes).sum()
    }

    /// Connection changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Starts to connect to `peer`, unless connected; [`Change::Up`] or [`Change::Down`] follows.
    pub fn open(&mut self, now: Time, peer: NodeId, address: SocketAddr) {
        if let Some(&key) = self.peers.get(&peer) {
            match self.links[key].state {
                State::Open => self.changes.push(Change::Up(peer)),
                State::Connecting => {}
                State::Closing => self.changes.push(Change::Down(peer)),
            }
            return;
        }
        match connect(address).and_then(|socket| self.add(now, socket, State::Connecting, Some(peer))) {
            Ok(key) => {
                self.counters.opened += 1;
                self.peers.insert(peer, key);
            }
            Err(_) => {
                self.counters.failed += 1;
                self.changes.push(Change::Down(peer));
            }
        }
    }

    /// The stream to `peer` is no longer used; it is closed once queued data is written.
    pub fn done(&mut self, now: Time, peer: NodeId) {
        let Some(&key) = self.peers.get(&peer) else { return };
        let link = &mut self.links[key];
        (link.state, link.since) = (State::Closing, now);
        self.touched.push(key);
    }

    /// The peer is dead; closes its stream.
    pub fn abort(&mut self, peer: NodeId) {
        if let Some(&key) = self.peers.get(&peer) {
            self.drop_link(key);
        }
    }

    /// This node has a new incarnation; closes all streams.
    pub fn abort_all(&mut self) {
        let all: Vec<usize> = self.links.iter().map(|(key, _)| key).collect();
        all.into_iter().for_each(|key| self.drop_link(key));
    }

    /// Queues a datagram on the peer's stream.
    pub fn send(&mut self, now: Time, peer: NodeId, datagram: Bytes) {
        let room = fair_bytes(QUEUE_BYTES_MAX, self.bytes_total, self.held_bytes());
        let claimed = || self.links.iter().find(|(_, l)| l.claims == Some(peer)).map(|(key, _)| key);
        let key = self.peers.get(&peer).copied().or_else(claimed);
        let Some((key, link)) = key.and_then(|key| Some((key, self.links.get_mut(key)?))) else {
            self.counters.frames_refused += 1;
            return;
        };
        if link.state != State::Open || link.out_bytes + datagram.len() > room {
            self.counters.frames_refused += 1;
            return;
        }
        if link.out.is_empty() {
            link.since = now;
            self.touched.push(key);
        }
        link.out_bytes += FRAME_HEAD_BYTES + datagram.len();
        link.out.push_back(Bytes::copy_from_slice(&frame_head(datagram.len())));
        link.out.push_back(datagram);
        self.counters.frames_sent += 1;
    }

    /// Writes queued data as far as the sockets take it.
    pub fn flush(&mut self, now: Time) {
        while let Some(key) = self.touched.pop() {
            self.write(now, key);
        }
    }

    /// Accepts new connections and reads what has arrived; `take` gets each datagram and returns its sender.
    pub fn handle(&mut self, now: Time, mut take: impl FnMut(BytesMut) -> Origin) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(Some(Span::ZERO), &mut ready)?;
        for r in &ready {
            if r.token == TOKEN_LISTENER {
                self.accept(now)?;
                continue;
            }
            let key = r.token as usize;
            if !self.links.contains(key) {
                continue;
            }
            if self.links[key].state == State::Connecting && (r.write || r.closed) {
                self.connected(now, key);
            } else if r.write {
                self.write(now, key);
            }
            if r.read && self.links.contains(key) {
                self.read(now, key, &mut take);
            }
        }
        self.ready = ready;
        Ok(())
    }

    /// Closes connections whose time limit has passed.
    pub fn sweep(&mut self, now: Time) {
        let late = |l: &Link| l.deadline().is_some_and(|at| at <= now);
        let late: Vec<usize> = self.links.iter().filter(|(_, l)| late(l)).map(|(key, _)| key).collect();
        for key in late {
            match self.links[key].state {
                State::Open if self.links[key].peer.is_none() => self.counters.strangers += 1,
                State::Open => self.counters.stalled += 1,
                State::Connecting => self.counters.failed += 1,
                State::Closing => {}
            }
            self.drop_link(key);
        }
    }

    fn add(&mut self, now: Time, socket: TcpStream, state: State, peer: Option<NodeId>) -> io::Result<usize> {
        let interest = Interest { read: true, write: state == State::Connecting };
        let entry = self.links.vacant_entry();
        let key = entry.key();
        self.poll.add(socket.as_raw_fd(), key as u64, interest)?;
        let (claims, deframer, out) = (None, Deframer::new(), VecDeque::new());
        entry.insert(Link { socket, state, peer, claims, deframer, out, out_bytes: 0, interest, since: now });
        Ok(key)
    }

    fn accept(&mut self, now: Time) -> io::Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                // The client is gone, or no descriptor is left. Existing connections go on.
                Err(_) => return Ok(()),
            };
            let strangers = self.links.iter().filter(|(_, l)| l.peer.is_none()).count();
            if strangers >= STRANGERS_MAX || prepare(&socket).is_err() {
                self.counters.strangers += 1;
                continue;
            }
            self.counters.accepted += 1;
            self.add(now, socket, State::Open, None)?;
        }
    }

    fn connected(&mut self, now: Time, key: usize) {
        let link = &mut self.links[key];
        if !matches!(link.socket.take_error(), Ok(None)) || link.socket.peer_addr().is_err() {
            self.counters.failed += 1;
            return self.drop_link(key);
        }
        (link.state, link.since) = (State::Open, now);
        self.changes.extend(link.peer.map(Change::Up));
        self.write(now, key);
    }

    fn read(&mut self, now: Time, key: usize, take: &mut impl FnMut(BytesMut) -> Origin) {
        let mut piece = [0; 64 << 10];
        for _ in 0..READ_BYTES / piece.len() {
            let Some(link) = self.links.get_mut(key) else { return };
            let n = match link.socket.read(&mut piece) {
                Ok(0) => return self.drop_link(key),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.drop_link(key),
            };
            link.deframer.buffer().extend_from_slice(&piece[..n]);
            if !self.take_frames(now, key, take) {
                self.counters.strangers += u64::from(self.links[key].peer.is_none());
                return self.drop_link(key);
            }
            if n < piece.len() {
                return;
            }
        }
    }

    /// False if the data is not from a node: the connection must be closed.
    fn take_frames(&mut self, now: Time, key: usize, take: &mut impl FnMut(BytesMut) -> Origin) -> bool {
        loop {
            let link = &mut self.links[key];
            let datagram = match link.deframer.next_datagram() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return true,
                Err(_) => return false,
            };
            self.counters.frames_received += 1;
            match take(datagram) {
                Origin::Proven(node) if link.peer.is_none() => {
                    (link.peer, link.claims, link.since) = (Some(node), None, now);
                    self.greet(node, key);
                }
                Origin::Unproven(node) if link.peer.is_none() => link.claims = Some(node),
                Origin::Nobody if link.peer.is_none() => return false,
                _ => {}
            }
        }
    }

    /// A connection was identified as from `node`. If both ends have opened one, both read both.
    fn greet(&mut self, node: NodeId, key: usize) {
        let open = self.peers.get(&node).is_some_and(|&k| self.links[k].state == State::Open);
        if !open {
            self.peers.insert(node, key);
            self.changes.push(Change::Up(node));
        }
    }

    fn write(&mut self, now: Time, key: usize) {
        let Some(link) = self.links.get_mut(key) else { return };
        if link.state == State::Connecting {
            return;
        }
        while !link.out.is_empty() {
            match link.write_some() {
                Ok(0) => break,
                Ok(_) => link.since = now,
                Err(_) => return self.drop_link(key),
            }
        }
        if link.state == State::Closing && link.out.is_empty() {
            // The other end reads to the end of the stream and then closes too.
            let _ = link.socket.shutdown(std::net::Shutdown::Write);
            if link
                .peer
                .take()
                .is_some_and(|peer| self.peers.get(&peer) == Some(&key) && self.peers.remove(&peer).is_some())
            {
                link.since = now;
            }
        }
        let link = &mut self.links[key];
        let wants = Interest { read: true, write: !link.out.is_empty() };
        if wants != link.interest && self.poll.change(link.socket.as_raw_fd(), key as u64, wants).is_ok() {
            link.interest = wants;
        }
    }

    fn drop_link(&mut self, key: usize) {
        let Some(link) = self.links.try_remove(key) else { return };
        let _ = self.poll.remove(link.socket.as_raw_fd());
        if let Some(peer) = link.peer
            && self.peers.get(&peer) == Some(&key)
        {
            self.peers.remove(&peer);
            self.changes.push(Change::Down(peer));
        }
    }
}

impl Link {
    /// When its time limit passes.
    fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Connecting => Some(self.since + STRANGER_WAIT),
            State::Open if self.peer.is_none() => Some(self.since + STRANGER_WAIT),
            State::Open => (!self.out.is_empty()).then(|| self.since + STALLED_AFTER),
            State::Closing => Some(self.since + CLOSE_WAIT),
        }
    }

    /// Bytes that the socket took; zero if it takes none now.
    fn write_some(&mut self) -> io::Result<usize> {
        let parts: Vec<libc::iovec> = self.out.iter().take(PARTS).map(part).collect();
        // SAFETY: the buffers live in `out` through the call.
        let n = unsafe { libc::writev(self.socket.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
        if n < 0 {
            let e = io::Error::last_os_error();
            let passing = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if passing { Ok(0) } else { Err(e) };
        }
        let mut left = n as usize;
        self.out_bytes -= left;
        while let Some(first) = self.out.front_mut().filter(|_| left > 0) {
            let taken = left.min(first.len());
            first.advance(taken);
            left -= taken;
            if first.is_empty() {
                self.out.pop_front();
            }
        }
        Ok(n as usize)
    }
}

fn part(b: &Bytes) -> libc::iovec {
    libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() }
}

/// Starts a connection.
fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a new descriptor, owned from here on.
    let socket = unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        TcpStream::from_raw_fd(fd)
    };
    prepare(&socket)?;
    // SAFETY: an all-zero value of this plain structure is valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = super::udp::put_address(address, &mut name);
    // SAFETY: `name` lives through the call and has `len` bytes.
    let r = unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len) };
    let e = io::Error::last_os_error();
    if r < 0 && e.raw_os_error() != Some(libc::EINPROGRESS) { Err(e) } else { Ok(socket) }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    let set = |level, name, value| super::udp::set(socket.as_raw_fd(), level, name, value);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_S)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_S)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 1)
}
