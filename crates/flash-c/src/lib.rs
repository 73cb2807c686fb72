//! FlashBlox's calls for C (FB3), documented in `include/rackweave_vssd.h`. A static library over a drive in a file.
#![allow(clippy::missing_safety_doc, reason = "the header is their documentation")]

mod errors;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use rackweave_core::VssdId;
use rackweave_device::{FileSsd, OsFile, drive};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{AllocError, Block, VirtualSsds};
use rackweave_flash::manager::driver::BlockingDrive;

pub use errors::Error;

/// An open drive (`fbx_drive`).
#[derive(Debug)]
pub struct FbxDrive {
    drive: BlockingDrive<FileSsd<OsFile>>,
    error: CString,
}

thread_local! {
    /// The error of the last `fbx_open`.
    static OPEN_ERROR: RefCell<CString> = RefCell::default();
}

fn message(e: &Error) -> CString {
    // A message has no zero byte: names with one are refused earlier.
    CString::new(e.to_string()).unwrap_or_default()
}

unsafe fn text<'a>(s: *const c_char) -> Result<&'a str, Error> {
    if s.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: the caller passes a zero-terminated string.
    unsafe { CStr::from_ptr(s) }.to_str().map_err(|_| Error::Null)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_open(
    path: *const c_char,
    profile: *const c_char,
    bytes: u64,
    opened: *mut *mut FbxDrive,
) -> c_int {
    let open = || {
        if opened.is_null() {
            return Err(Error::Null);
        }
        // SAFETY: the header asks for strings.
        let (path, profile) = unsafe { (text(path)?, text(profile)?) };
        Ok(drive::open(Path::new(path), profile, bytes)?)
    };
    match open() {
        Ok(d) => {
            let made = Box::new(FbxDrive { drive: d, error: CString::default() });
            // SAFETY: it is not null, and belongs to the caller.
            unsafe { *opened = Box::into_raw(made) };
            0
        }
        Err(e) => {
            OPEN_ERROR.with_borrow_mut(|m| *m = message(&e));
            e.code()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_close(drive: *mut FbxDrive) -> c_int {
    if drive.is_null() {
        return Error::Null.code();
    }
    // SAFETY: `fbx_open` made it, and the caller returns it.
    let d = unsafe { Box::from_raw(drive) };
    let closed = d.drive.close().map_err(Error::from).and_then(|file| Ok(file.close()?));
    closed.map_or_else(
        |e| {
            OPEN_ERROR.with_borrow_mut(|m| *m = message(&e));
            e.code()
        },
        |()| 0,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_error(drive: *const FbxDrive) -> *const c_char {
    // SAFETY: null, or what `fbx_open` made.
    match unsafe { drive.as_ref() } {
        Some(d) => d.error.as_ptr(),
        None => OPEN_ERROR.with_borrow(|m| m.as_ptr()),
    }
}

/// Runs a call on the drive and keeps its error.
unsafe fn call(
    drive: *mut FbxDrive,
    f: impl FnOnce(&mut BlockingDrive<FileSsd<OsFile>>) -> Result<(), Error>,
) -> c_int {
    // SAFETY: null, or what `fbx_open` made, used by one thread at a time.
    let Some(d) = (unsafe { drive.as_mut() }) else { return Error::Null.code() };
    match f(&mut d.drive) {
        Ok(()) => 0,
        Err(e) => {
            d.error = message(&e);
            e.code()
        }
    }
}

/// The caller's place for an answer.
unsafe fn place<'a, T>(p: *mut T) -> Result<&'a mut T, Error> {
    // SAFETY: null, or the caller's.
    unsafe { p.as_mut() }.ok_or(Error::Null)
}

/// No buffer is larger.
const SIZE_MAX: usize = isize::MAX as usize;

unsafe fn bytes<'a>(buf: *const c_void, size: usize) -> Result<&'a [u8], Error> {
    match size {
        0 => Ok(&[]),
        _ if buf.is_null() => Err(Error::Null),
        _ if size > SIZE_MAX => Err(Error::Size { size }),
        // SAFETY: the caller's, of this size.
        _ => Ok(unsafe { std::slice::from_raw_parts(buf.cast(), size) }),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_alloc_virtual_ssd(
    drive: *mut FbxDrive,
    isolation_level: c_int,
    tput_level: c_int,
    capacity: u64,
    vssd: *mut u32,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe {
        call(drive, |d| {
            let vssd = place(vssd)?;
            let isolation = Isolation::from_level(isolation_level);
            let isolation = isolation.ok_or(AllocError::Isolation { level: isolation_level })?;
            // A negative level is refused like one that is too high.
            let level = u32::try_from(tput_level).unwrap_or(u32::MAX);
            *vssd = d.alloc_vssd(isolation, level, capacity)?.0;
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_dealloc_virtual_ssd(drive: *mut FbxDrive, vssd: u32) -> c_int {
    // SAFETY: as the header asks.
    unsafe { call(drive, |d| Ok(d.dealloc_vssd(VssdId(vssd))?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_get_block_size(
    drive: *mut FbxDrive,
    vssd: u32,
    block_size: *mut u64,
    page_size: *mut u32,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe {
        call(drive, |d| {
            *place(block_size)? = d.block_size(VssdId(vssd))?;
            if let Some(p) = page_size.as_mut() {
                *p = d.manager().geometry().page_bytes;
            }
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_read_data(
    drive: *mut FbxDrive,
    vssd: u32,
    buf: *mut c_void,
    offset: u64,
    size: usize,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe {
        call(drive, |d| {
            if size > 0 && buf.is_null() {
                return Err(Error::Null);
            }
            if size > SIZE_MAX {
                return Err(Error::Size { size });
            }
            let to = if size == 0 { &mut [][..] } else { std::slice::from_raw_parts_mut(buf.cast(), size) };
            Ok(d.read_data(VssdId(vssd), offset, to)?)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_alloc_block(drive: *mut FbxDrive, vssd: u32, block: *mut u64) -> c_int {
    // SAFETY: as the header asks.
    unsafe {
        call(drive, |d| {
            let block = place(block)?;
            *block = d.alloc_block(VssdId(vssd))?.pack();
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_write_data(
    drive: *mut FbxDrive,
    vssd: u32,
    block: u64,
    buf: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { call(drive, |d| Ok(d.write_data(VssdId(vssd), Block::unpack(block), bytes(buf, size)?)?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_write_data_at(
    drive: *mut FbxDrive,
    vssd: u32,
    block: u64,
    offset: u64,
    buf: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { call(drive, |d| Ok(d.write_data_at(VssdId(vssd), Block::unpack(block), offset, bytes(buf, size)?)?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_free_block(drive: *mut FbxDrive, vssd: u32, block: u64) -> c_int {
    // SAFETY: as the header asks.
    unsafe { call(drive, |d| Ok(d.free_block(VssdId(vssd), Block::unpack(block))?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_sync(drive: *mut FbxDrive) -> c_int {
    // SAFETY: as the header asks.
    unsafe { call(drive, |d| Ok(d.sync()?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fbx_next_block(
    drive: *mut FbxDrive,
    vssd: u32,
    from: u32,
    block: *mut u64,
    written: *mut u64,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe {
        call(drive, |d| {
            let (block, written) = (place(block)?, place(written)?);
            let found = d.next_block(VssdId(vssd), from)?.ok_or(Error::NoMore { vssd, from })?;
            (*block, *written) = (found.block.pack(), found.written);
            Ok(())
        })
    }
}
