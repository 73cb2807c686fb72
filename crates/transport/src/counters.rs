//! Counters of an endpoint since its creation.

counters! {
    /// Counts, since the endpoint was made.
    pub struct Counters {
        /// Datagrams handed out and their bytes; those of them with chunks, and with chunks sent before.
        sent, sent_bytes, sent_chunks, sent_again,
        /// Datagrams handed in and their bytes. Each is in `accepted` or in one of `drop_*`.
        received, received_bytes, accepted,
        /// Longer or shorter than they say, or with fields that no datagram has.
        drop_malformed,
        drop_version,
        /// For another node; from this one.
        drop_not_for_us, drop_own_id,
        /// No live key has its id.
        drop_unknown_key,
        /// Damaged or forged.
        drop_bad_tag,
        /// Counter seen before, or too old to check.
        drop_replay,
        /// Of an earlier incarnation of the sender.
        drop_stale_incarnation,
        /// Of an incarnation that has not proven itself yet: a challenge was sent.
        drop_unproven,
        drop_too_many_peers,
        /// Chunks that were here already.
        drop_duplicate,
        /// Chunks that do not fit what came before of their message.
        drop_contradiction,
        /// No memory for another half-received message; the driver does not take what is delivered.
        drop_no_room, drop_unread,
        /// Messages.
        messages_sent, messages_acked, messages_delivered, messages_given_up, messages_refused,
        /// Bytes of data delivered with their blocks' CRCs, each computed once.
        summed_bytes,
        /// Half-received messages whose sender was silent for too long.
        messages_half,
        /// Chunks that came before one with a lower number of their message.
        chunks_early,
        chunks_lost, chunks_lost_spuriously, timeouts,
        /// Messages to groups; datagrams to whole groups; chunks of them to one member; members that did not get one; ways to a
        /// group on which nothing arrived.
        group_messages, group_chunks, group_repairs, group_members_missing, group_ways_lost,
        /// Acknowledgements of messages to groups: without news, of completed messages, of messages that their sender did
        /// not get.
        acks_repeated, acks_late, acks_foreign,
        acks_sent, pings_sent, challenges_sent,
        /// Answers to older incarnations of a peer that name its newest.
        outdated_sent,
        path_changes, peers_down, twins_seen, chunk_size_changes, stream_uses, streams_stuck,
    }
}

impl Counters {
    /// Datagrams dropped, for any reason.
    pub fn dropped(&self) -> u64 {
        self.all().filter(|(name, _)| name.starts_with("drop_")).map(|(_, n)| n).sum()
    }
}

/// Counters of one class of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Datagrams with chunks; those of them with chunks sent before.
    pub sent: u64,
    pub sent_again: u64,
    /// Taken for lost, arrived or not.
    pub lost: u64,
    pub timeouts: u64,
    /// Round trips measured, and those of them from the kernel's time of leaving (PN8).
    pub samples: u64,
    pub stamped: u64,
}
