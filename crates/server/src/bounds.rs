//! Bounds that hold after every event (protocol rules 4 and 9; the queues' own limits).

use rackweave_core::VssdId;

/// A bound found exceeded by [`crate::Server::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverBound {
    #[error("{vssd}: {used} blocks in a write cache of {capacity}")]
    Cache { vssd: VssdId, used: u64, capacity: u64 },
    /// Holds for members only: a shadow takes its source's blocks in addition to stale ones not found yet.
    #[error("{vssd}: {needed} slots mapped or about to be, of {exported}")]
    Space { vssd: VssdId, needed: u64, exported: u64 },
    #[error("{vssd}: {waiting} reads wait, {max} may")]
    Queue { vssd: VssdId, waiting: usize, max: usize },
    #[error("{vssd}: {waiting} writes wait, {max} may")]
    Writes { vssd: VssdId, waiting: usize, max: usize },
    #[error("{vssd}: {collections} collections began that the monitor had not ordered")]
    Unordered { vssd: VssdId, collections: u64 },
    #[error("{vssd}: {pages} pages are being programmed, {max} may be")]
    Pages { vssd: VssdId, pages: usize, max: usize },
}
