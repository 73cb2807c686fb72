//! Sockets of the streams between nodes (PN5). [`rackweave_link::streams`] makes the decisions. Never blocks.
//!
//! A node listens on the port number of its UDP socket.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use rackweave_core::{NodeId, Span, Time};
use rackweave_link::Link;
use rackweave_link::streams::{Action, ConnectionId};

use rackweave_runtime::poll::{Interest, Poll, Ready};

/// A silent connection is probed after this many seconds, at the same interval and number of times, and then closed:
/// the other end vanished without closing it.
const KEEPALIVE_S: i32 = 3;
/// Bytes read from one connection per turn.
const READ_BYTES: usize = 256 << 10;
/// Buffers written by one call.
const PARTS: usize = 64;

const TOKEN_LISTENER: u64 = u64::MAX;

#[derive(Debug)]
struct Socket {
    tcp: TcpStream,
    interest: Interest,
}

/// The sockets of one node's streams.
#[derive(Debug)]
pub struct Streams {
    listener: TcpListener,
    poll: Poll,
    sockets: BTreeMap<ConnectionId, Socket>,
    ready: Vec<Ready>,
}

impl Streams {
    pub fn bind(address: SocketAddr) -> io::Result<Streams> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        poll.add(listener.as_raw_fd(), TOKEN_LISTENER, Interest::READ)?;
        Ok(Streams { listener, poll, sockets: BTreeMap::new(), ready: Vec::new() })
    }

    /// Readable when [`Streams::handle`] has work.
    pub fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// Carries out the link's actions on its connections, as far as the sockets take them.
    pub fn carry_out(&mut self, now: Time, link: &mut Link, addresses: &[SocketAddr]) {
        while let Some(action) = link.poll_streams(now) {
            match action {
                Action::Connect(id, peer) => {
                    let possible = self.connect(id, peer, addresses).is_ok();
                    link.streams_mut().connecting(id, possible);
                }
                Action::Write(id) => self.write(now, id, link),
                Action::Shutdown(id) => {
                    if let Some(s) = self.sockets.get(&id) {
                        let _ = s.tcp.shutdown(std::net::Shutdown::Write);
                    }
                }
                Action::Close(id) => {
                    if let Some(s) = self.sockets.remove(&id) {
                        let _ = self.poll.remove(s.tcp.as_raw_fd());
                    }
                }
            }
        }
    }

    /// Accepts new connections and reads what has arrived.
    pub fn handle(&mut self, now: Time, link: &mut Link) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(Some(Span::ZERO), &mut ready)?;
        for r in &ready {
            if r.token == TOKEN_LISTENER {
                self.accept(now, link)?;
                continue;
            }
            let id = ConnectionId(r.token);
            if link.streams().is_connecting(id) && (r.write || r.closed) {
                self.connected(now, id, link);
            } else if r.write {
                self.write(now, id, link);
            }
            if r.read {
                self.read(now, id, link);
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn connect(&mut self, id: ConnectionId, peer: NodeId, addresses: &[SocketAddr]) -> io::Result<()> {
        let address = addresses.get(peer.0 as usize).ok_or(io::ErrorKind::AddrNotAvailable)?;
        self.add(id, connect(*address)?, Interest { read: true, write: true })
    }

    fn add(&mut self, id: ConnectionId, tcp: TcpStream, interest: Interest) -> io::Result<()> {
        self.poll.add(tcp.as_raw_fd(), id.0, interest)?;
        self.sockets.insert(id, Socket { tcp, interest });
        Ok(())
    }

    fn accept(&mut self, now: Time, link: &mut Link) -> io::Result<()> {
        loop {
            let tcp = match self.listener.accept() {
                Ok((tcp, _)) => tcp,
                // The client is gone, or no descriptor is left. Existing connections go on.
                Err(_) => return Ok(()),
            };
            if prepare(&tcp).is_err() {
                link.streams_mut().counters.strangers += 1;
            } else if let Some(id) = link.streams_mut().accepted(now) {
                self.add(id, tcp, Interest::READ)?;
            }
        }
    }

    fn connected(&mut self, now: Time, id: ConnectionId, link: &mut Link) {
        let Some(s) = self.sockets.get(&id) else { return };
        if matches!(s.tcp.take_error(), Ok(None)) && s.tcp.peer_addr().is_ok() {
            link.streams_mut().connected(now, id);
        } else {
            link.streams_mut().closed(id);
        }
    }

    fn read(&mut self, now: Time, id: ConnectionId, link: &mut Link) {
        let mut piece = [0; 64 << 10];
        for _ in 0..READ_BYTES / piece.len() {
            let Some(s) = self.sockets.get_mut(&id).filter(|_| link.streams().contains(id)) else { return };
            let n = match s.tcp.read(&mut piece) {
                Ok(0) => return link.streams_mut().closed(id),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return link.streams_mut().closed(id),
            };
            link.receive_by_stream(now, id, &piece[..n]);
            if n < piece.len() {
                return;
            }
        }
    }

    fn write(&mut self, now: Time, id: ConnectionId, link: &mut Link) {
        let Some(s) = self.sockets.get_mut(&id) else { return };
        let left = loop {
            let parts: Vec<libc::iovec> = link.streams().output(id).take(PARTS).map(part).collect();
            if parts.is_empty() {
                break false;
            }
            match write_some(&s.tcp, &parts) {
                Ok(0) => break true,
                Ok(n) => link.streams_mut().wrote(now, id, n),
                Err(_) => return link.streams_mut().closed(id),
            }
        };
        let wants = Interest { read: true, write: left || link.streams().is_connecting(id) };
        if wants != s.interest && self.poll.change(s.tcp.as_raw_fd(), id.0, wants).is_ok() {
            s.interest = wants;
        }
    }
}

/// Bytes that the socket took; zero if it takes none now.
fn write_some(tcp: &TcpStream, parts: &[libc::iovec]) -> io::Result<usize> {
    // SAFETY: the parts live in the connection's output through the call.
    let n = unsafe { libc::writev(tcp.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
    if n >= 0 {
        return Ok(n as usize);
    }
    let e = io::Error::last_os_error();
    let passing = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    if passing { Ok(0) } else { Err(e) }
}

fn part(b: &bytes::Bytes) -> libc::iovec {
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
