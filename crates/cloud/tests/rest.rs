//! What must hold some time after the last fault.

use rackweave_core::{NodeId, Span};

use crate::world::{VOLUME, World};

/// All requests are answered, snapshots are made, the log is empty, and all has moved to the storage layer. Every sector is read, and
/// the whole run is checked.
///
/// # Errors
/// What is wrong, or not yet so.
pub fn all_is_answered_and_moved(w: &mut World, calm: Span) -> Result<(), String> {
    let idle = w.settle(calm);
    let busy = |w: &World| w.snapshot_under_way() || w.is_flattening();
    let made = |w: &World| if busy(w) { Err("a snapshot is being made".into()) } else { Ok(()) };
    let _ = w.until(calm, made);
    let whole = w.until(calm, |w| w.whole());
    let merged = |w: &World| match w.log_entries() {
        0 if w.merged_all() => Ok(()),
        n => Err(format!("{n} entries are not merged")),
    };
    let merged = w.until(calm, merged);
    let moved = |w: &World| match w.overlaid() {
        0 => Ok(()),
        n => Err(format!("{n} bytes have not moved to the storage layer")),
    };
    let moved = w.until(calm, moved);
    let sectors = w.striping.sectors();
    let writer = |w: &World| w.hosts.clients.iter().copied().find(|c| w.serves(*c));
    let _ = w.until(calm, |w| writer(w).map(|_| ()).ok_or("no client has the disk".into()));
    let c = writer(w);
    for first in (0..sectors).step_by(16) {
        if let Some(c) = c {
            w.read(c, first, (sectors - first).min(16) as u32);
        }
    }
    let read = w.settle(calm);
    w.check()?;
    w.snapshots_unchanged()?;
    if w.snapshot_under_way() || w.is_flattening() {
        return Err("a snapshot is not made, or the disk not flattened".into());
    }
    if !idle || !read || c.is_none() {
        return Err(format!("not answered after the last fault: {c:?}, {idle}, {read}, {whole:?}, {}", waits(w)));
    }
    whole?;
    merged.and(moved)
}

/// The view, and what clients wait for.
pub fn waits(w: &World) -> String {
    let view = w.meta().and_then(|m| m.view(VOLUME));
    let of = |n: &NodeId| w.client(*n).map(|c| (*n, w.hosts.run(*n), c.is_fenced(), c.waits()));
    let waits: Vec<(NodeId, u64, bool, String)> = w.hosts.clients.iter().filter_map(of).collect();
    format!("{view:?}: clients, their runs, whether they are fenced, what they wait for: {waits:?}")
}
