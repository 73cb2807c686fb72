//! The gateway's sockets: listeners, and streams that never block.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use rackweave_device::private::FILE_MODE;

/// Connections that may wait to be accepted; the standard library's value.
const BACKLOG: i32 = 128;
/// Most buffers in one sendmsg call.
const PARTS: usize = 64;

/// An address to listen on: `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(Vec<SocketAddr>),
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {text:?} is neither HOST:PORT nor unix:PATH{why}")]
pub struct AddressError {
    pub text: String,
    why: String,
}

impl std::str::FromStr for Address {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Address, AddressError> {
        let bad = |why: String| AddressError { text: text.into(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad(String::new())) } else { Ok(Address::Unix(path.into())) };
        }
        if !text.contains(':') {
            return Err(bad(String::new()));
        }
        match text.to_socket_addrs() {
            Ok(found) => match found.collect::<Vec<_>>() {
                all if all.is_empty() => Err(bad(" (the host has no address)".into())),
                all => Ok(Address::Tcp(all)),
            },
            Err(e) => Err(bad(format!(" ({e})"))),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(all) => all.first().map_or(Ok(()), |a| write!(f, "{a}")),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listening socket. The path of a Unix socket is removed with it.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix { socket: UnixListener, path: PathBuf },
}

/// Why listening on an address failed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("listening on {address}: {error}")]
    Tcp { address: SocketAddr, error: io::Error },
    #[error("listening on unix:{path}: {error}")]
    Unix { path: PathBuf, error: io::Error },
    #[error("listening on unix:{path}: the path exists and is not a socket")]
    NotASocket { path: PathBuf },
    #[error("listening on unix:{path}: another process listens there")]
    Taken { path: PathBuf },
}

impl Listener {
    pub fn bind(address: &Address) -> Result<Listener, ListenError> {
        match address {
            Address::Tcp(all) => {
                let address = all.first().copied().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
                let tcp = TcpListener::bind(all.as_slice()).and_then(|l| l.set_nonblocking(true).map(|()| l));
                tcp.map(Listener::Tcp).map_err(|error| ListenError::Tcp { address, error })
            }
            Address::Unix(path) => Listener::bind_unix(path, path),
        }
    }

    /// Binds `path` through `reached_by`, a shorter path to the same file. Only the owner may connect.
    pub fn bind_unix(path: &Path, reached_by: &Path) -> Result<Listener, ListenError> {
        let failed = |error| ListenError::Unix { path: path.into(), error };
        if let Ok(meta) = std::fs::symlink_metadata(reached_by) {
            if !meta.file_type().is_socket() {
                return Err(ListenError::NotASocket { path: path.into() });
            }
            if UnixStream::connect(reached_by).is_ok() {
                return Err(ListenError::Taken { path: path.into() });
            }
            std::fs::remove_file(reached_by).map_err(failed)?;
        }
        let socket = bind_private(reached_by).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Listener::Unix { socket, path: path.into() })
    }

    /// The next waiting connection, if any.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let taken: io::Result<OwnedFd> = match self {
            Listener::Tcp(l) => l.accept().and_then(|(s, _)| {
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
                Ok(TcpStream::into(s))
            }),
            Listener::Unix { socket, .. } => {
                socket.accept().and_then(|(s, _)| s.set_nonblocking(true).map(|()| UnixStream::into(s)))
            }
        };
        match taken {
            Ok(fd) => Ok(Some(fd)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The bound address, with the port that was assigned for port 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(l) => l.local_addr().ok(),
            Listener::Unix { .. } => None,
        }
    }
}

/// Binds a Unix socket whose path has its mode from the first moment on: bind takes it from the socket.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if bytes.contains(&0) || bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is longer than a socket's may be"));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    address.sun_path.iter_mut().zip(bytes).for_each(|(to, b)| *to = *b as libc::c_char);
    let len = (std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1) as libc::socklen_t;
    let check = |r: i32| if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) };
    // SAFETY: system calls on a descriptor that is owned here, and an address that outlives them.
    unsafe {
        let socket =
            OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?);
        check(libc::fchmod(socket.as_raw_fd(), FILE_MODE))?;
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len))?;
        // The umask may have removed the owner's permissions.
        std::fs::set_permissions(path, Permissions::from_mode(FILE_MODE))?;
        check(libc::listen(socket.as_raw_fd(), BACKLOG))?;
        Ok(UnixListener::from(socket))
    }
}

/// In the form that NBD clients take, without an export name.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listener::Tcp(_) => match self.tcp_address() {
                Some(a) => write!(f, "nbd://{a}"),
                None => f.write_str("nbd://"),
            },
            Listener::Unix { path, .. } => write!(f, "nbd+unix:///?socket={}", path.display()),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Tcp(l) => l.as_raw_fd(),
            Listener::Unix { socket, .. } => socket.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Address of the other end, for messages.
pub fn peer_of(fd: &OwnedFd) -> String {
    let peer = fd.try_clone().and_then(|fd| TcpStream::from(fd).peer_addr());
    peer.map_or_else(|_| "a local client".into(), |a| a.to_string())
}

/// Sends the first [`PARTS`] of `parts` without blocking. Returns the number of bytes sent, and whether that was
/// everything.
pub fn send_parts<'a>(fd: RawFd, parts: impl Iterator<Item = &'a Bytes>) -> io::Result<(usize, bool)> {
    let mut iov = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS];
    let (mut n, mut asked) = (0, 0);
    for p in parts.take(PARTS) {
        iov[n] = libc::iovec { iov_base: p.as_ptr() as *mut libc::c_void, iov_len: p.len() };
        n += 1;
        asked += p.len();
    }
    // SAFETY: a message header of null pointers and zero lengths is valid.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = n as _;
    loop {
        // SAFETY: the vectors point into `parts`, which are borrowed through the call.
        let r = unsafe { libc::sendmsg(fd, &msg, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        if r >= 0 {
            return Ok((r as usize, r as usize == asked));
        }
        let e = io::Error::last_os_error();
        match e.kind() {
            io::ErrorKind::WouldBlock => return Ok((0, false)),
            io::ErrorKind::Interrupted => {}
            _ => return Err(e),
        }
    }
}

/// Reads available bytes without blocking into the spare room of `to`. `Ok(None)`: nothing yet; `Ok(Some(0))`: end of
/// stream.
pub fn receive(fd: RawFd, to: &mut BytesMut) -> io::Result<Option<usize>> {
    loop {
        let spare = to.spare_capacity_mut();
        // SAFETY: the kernel writes at most `spare.len()` bytes.
        let r = unsafe { libc::recv(fd, spare.as_mut_ptr().cast(), spare.len(), libc::MSG_DONTWAIT) };
        if r >= 0 {
            // SAFETY: the first `r` bytes of the spare room are initialized now.
            unsafe { to.set_len(to.len() + r as usize) };
            return Ok(Some(r as usize));
        }
        let e = io::Error::last_os_error();
        match e.kind() {
            io::ErrorKind::WouldBlock => return Ok(None),
            io::ErrorKind::Interrupted => {}
            _ => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!("unix:/a/b c".parse(), Ok(Address::Unix("/a/b c".into())));
        assert_eq!("127.0.0.1:7".parse(), Ok(Address::Tcp(vec![SocketAddr::from(([127, 0, 0, 1], 7))])));
        assert!(matches!("[::1]:7".parse(), Ok(Address::Tcp(_))));
        for bad in ["", "unix:", "10809", "127.0.0.1:70000", "127.0.0.1:x"] {
            let e = bad.parse::<Address>().unwrap_err().to_string();
            assert!(e.contains(&format!("{bad:?}")), "{e}");
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_a_live_one_and_a_file_are_not() {
        let path = std::env::temp_dir().join(format!("rackweave-net-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        drop(UnixListener::bind(&path).expect("bind"));
        let live = Listener::bind(&Address::Unix(path.clone())).expect("stale one replaced");
        assert!(matches!(Listener::bind(&Address::Unix(path.clone())), Err(ListenError::Taken { .. })));
        drop(live);
        assert!(!path.exists());
        std::fs::write(&path, "x").expect("write");
        assert!(matches!(Listener::bind(&Address::Unix(path.clone())), Err(ListenError::NotASocket { .. })));
        std::fs::remove_file(&path).expect("remove");
    }
}
