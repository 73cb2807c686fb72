//! CPU time: the speed of a simulation is measured in requests per CPU second.

use rackweave_core::Span;

/// User and system CPU time of this thread.
pub fn thread_cpu() -> Span {
    usage(libc::RUSAGE_THREAD)
}

/// The same for the whole process.
pub fn process_cpu() -> Span {
    usage(libc::RUSAGE_SELF)
}

fn usage(whose: libc::c_int) -> Span {
    // SAFETY: all-zero bytes are a valid `rusage` (plain integers).
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid, writable `rusage` for the length of the call.
    let answer = unsafe { libc::getrusage(whose, &mut usage) };
    assert_eq!(answer, 0, "getrusage refuses only unknown arguments");
    let span = |t: libc::timeval| Span::from_secs(t.tv_sec as u64) + Span::from_micros(t.tv_usec as u64);
    span(usage.ru_utime) + span(usage.ru_stime)
}
