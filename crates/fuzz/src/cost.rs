//! Bytes that a thread allocates: a hostile length must not make a parser reserve memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        _ = BYTES.try_with(|b| b.set(b.get().wrapping_add(layout.size())));
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        _ = BYTES.try_with(|b| b.set(b.get().wrapping_add(layout.size())));
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Result of `f`, if it allocates at most `limit` bytes, freed ones included.
///
/// # Panics
/// If it allocates more.
pub fn within<T>(limit: usize, f: impl FnOnce() -> T) -> T {
    let before = BYTES.with(Cell::get);
    let t = f();
    let used = BYTES.with(Cell::get).wrapping_sub(before);
    assert!(used <= limit, "{used} bytes allocated, at most {limit} are accounted for");
    t
}
