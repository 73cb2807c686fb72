//! The kernel's state of an interface of the calling thread's network namespace.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Longest name of an interface, bytes.
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// `ETHTOOL_GDRVINFO` and the structure it fills (`linux/ethtool.h`): the command, the driver's name, and more.
const DRIVER_INFO: u32 = 3;
const DRIVER_INFO_BYTES: usize = 196;
const DRIVER_AT: std::ops::Range<usize> = 4..36;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// Index of the interface, if it exists.
pub fn index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a valid, terminated string.
    Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|&i| i != 0)
}

/// Whether the interface and its other end are up.
pub fn running(name: &str) -> bool {
    let both = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the kernel wrote the flags.
    ask(name, libc::SIOCGIFFLAGS, std::ptr::null_mut()).is_ok_and(|r| unsafe { r.ifr_ifru.ifru_flags } & both == both)
}

/// Whether the interface is an end of a veth pair.
pub fn is_veth(name: &str) -> bool {
    let mut info = [0u8; DRIVER_INFO_BYTES];
    info[..4].copy_from_slice(&DRIVER_INFO.to_ne_bytes());
    ask(name, SIOCETHTOOL, info.as_mut_ptr().cast()).is_ok() && info[DRIVER_AT].starts_with(b"veth\0")
}

/// One request about an interface; `data`, if any, outlives it.
fn ask(name: &str, request: libc::c_ulong, data: *mut libc::c_char) -> io::Result<libc::ifreq> {
    // SAFETY: all zero is a value of this plain structure.
    let mut r: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() > NAME_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in r.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    r.ifr_ifru.ifru_data = data;
    // SAFETY: a plain system call; the descriptor is closed with its owner.
    let socket = unsafe {
        match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            -1 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    // SAFETY: the kernel writes to the structure, and to `data`, which has room for the result.
    if unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut r) } == 0 {
        Ok(r)
    } else {
        Err(io::Error::last_os_error())
    }
}
