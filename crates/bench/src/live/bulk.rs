//! Datagrams in one direction as fast as the kernel accepts them, in trains (GSO, GRO): the upper bound for bulk.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::ends::{Figures, cpu_seconds};

/// Headers of IP and UDP in a packet.
const HEADERS: usize = 28;
/// Bytes of one send: 64 KiB with its headers, in whole datagrams.
const TRAIN_MAX: usize = 65_507;
/// Datagrams up to this length are queries.
const ASK_BYTES_MAX: usize = 8;
const SOCKET_BYTES: i32 = 8 << 20;
/// Period of the sender's queries for the received bytes, in trains.
const ASK_EVERY: u64 = 16;

fn set(s: &UdpSocket, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: `value` lives through the call, and its length is given.
    let r = unsafe { libc::setsockopt(s.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives, and answers each query with the bytes received, so that the sender is never far ahead.
pub fn sink(at: SocketAddr, ready: impl FnOnce()) -> io::Result<()> {
    let s = UdpSocket::bind(at)?;
    set(&s, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    set(&s, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BYTES)
        .or_else(|_| set(&s, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BYTES))?;
    let (mut buffer, mut bytes) = (vec![0; 65_536], 0u64);
    ready();
    loop {
        let (n, from) = s.recv_from(&mut buffer)?;
        if n <= ASK_BYTES_MAX {
            s.send_to(&bytes.to_be_bytes(), from)?;
        } else {
            bytes += n as u64;
        }
    }
}

/// Sends `trains`, never more than two queries ahead of the sink.
pub fn blast(to: SocketAddr, mtu: u16, trains: u64, server_pid: u32) -> io::Result<Figures> {
    let s = UdpSocket::bind(SocketAddr::new(if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() }, 0))?;
    s.connect(to)?;
    s.set_read_timeout(Some(Duration::from_millis(100)))?;
    let datagram = usize::from(mtu) - HEADERS;
    let bytes = TRAIN_MAX / datagram * datagram;
    set(&s, libc::SOL_UDP, libc::UDP_SEGMENT, datagram as i32)?;
    let (train, mut answer, mut arrived, mut asked) = (vec![7u8; bytes], [0; 8], 0u64, 0u64);
    let before = (cpu_seconds(std::process::id())?, cpu_seconds(server_pid)?);
    let start = Instant::now();
    for n in 1..=trains {
        s.send(&train)?;
        if n % ASK_EVERY == 0 {
            s.send(&[1])?;
            asked += 1;
            if asked >= 2 && s.recv(&mut answer).is_ok() {
                arrived = u64::from_be_bytes(answer);
            }
        }
    }
    while let Ok(8) = s.recv(&mut answer) {
        arrived = u64::from_be_bytes(answer);
        if arrived >= trains / ASK_EVERY * ASK_EVERY * bytes as u64 {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = (cpu_seconds(std::process::id())? - before.0, cpu_seconds(server_pid)? - before.1);
    Ok(Figures {
        operations: trains,
        seconds,
        client_cpu_s: cpu.0,
        server_cpu_s: cpu.1,
        user_s: 0.0,
        mean_us: 0.0,
        p50_us: 0.0,
        p99_us: 0.0,
        p999_us: 0.0,
        bytes_per_s: arrived as f64 / seconds,
    })
}
