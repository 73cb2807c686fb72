//! CPU time: the speed of a simulation is measured in requests per CPU second. Independent runs use all cores.

use std::sync::atomic::{AtomicUsize, Ordering};

use rackweave_core::Span;

/// Does the work for each item, on as many threads as there are cores; results are in the items' order.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let run = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return done };
            done.push((i, work(item)));
        }
    };
    let mut results: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..cores.min(items.len())).map(|_| scope.spawn(run)).collect();
        running.into_iter().flat_map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

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
