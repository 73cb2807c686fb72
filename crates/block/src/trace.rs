//! Situations that a volume client reports.

use rackweave_core::trace_points;

trace_points! {
    /// a: request, b: attempt.
    CLIENT_RETRY: ClientRetry = 48,
    CLIENT_COORDINATOR_CHANGE: ClientCoordinatorChange = 49,
    CLIENT_FENCED: ClientFenced = 50,
    /// A set recovered whole while this client had unflushed writes in it. The client sent one again; a flush or an answer waited
    /// for that; a write that could not be sent again is reported as lost. a: set, b: epoch of the recovery.
    WRITE_RESENT: WriteResent = 51,
    FLUSH_AFTER_RECOVERY: FlushAfterRecovery = 52,
    ANSWER_AFTER_RECOVERY: AnswerAfterRecovery = 53,
    WRITE_LOST: WriteLost = 54,
    /// A cloud disk's generation was dropped while the client asked what is allocated. a: request.
    ALLOCATION_OUTDATED: AllocationOutdated = 194,
}
