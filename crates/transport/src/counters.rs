//! Counters of an endpoint since its creation.

counters! {
    /// Counts since the endpoint was created.
    pub struct Counters {
        /// Datagrams sent and their bytes; those with chunks, and those with retransmitted chunks.
        sent, sent_bytes, sent_chunks, sent_again,
        /// Datagrams received and their bytes. Each is in `accepted` or in one of `drop_*`.
        received, received_bytes, accepted,
        /// Length does not match, or a field is invalid.
        drop_malformed,
        drop_version,
        /// For another node; from this node's id.
        drop_not_for_us, drop_own_id,
        /// No accepted key has its id.
        drop_unknown_key,
        /// Damaged or forged.
        drop_bad_tag,
        /// Counter seen before, or too old to check.
        drop_replay,
        /// From an earlier incarnation of the sender.
        drop_stale_incarnation,
        /// From an incarnation that is not proven yet: a challenge was sent.
        drop_unproven,
        /// Chunks to one node whose tag does not cover the destination, of a sender that can do better: a challenge was sent.
        drop_unbound,
        drop_too_many_peers,
        /// Chunks that had arrived already.
        drop_duplicate,
        /// Chunks that contradict earlier ones of their message.
        drop_contradiction,
        /// No memory for another incomplete message; the driver does not poll delivered ones.
        drop_no_room, drop_unread,
        /// Messages.
        messages_sent, messages_acked, messages_delivered, messages_given_up, messages_refused,
        /// Bytes of data delivered with their blocks' CRCs, each computed once.
        summed_bytes,
        /// Incomplete messages whose sender was silent for too long.
        messages_half,
        /// Chunks that arrived before one with a lower number of their message.
        chunks_early,
        chunks_lost, chunks_lost_spuriously, timeouts,
        /// Messages to groups; datagrams to whole groups; chunks of them to one member; members that did not get one;
        /// paths to a group on which nothing arrived.
        group_messages, group_chunks, group_repairs, group_members_missing, group_ways_lost,
        /// Acknowledgements of messages to groups: without news, of completed messages, and of messages not sent to
        /// their sender.
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
    /// Datagrams with chunks, and those with retransmitted chunks.
    pub sent: u64,
    pub sent_again: u64,
    /// Declared lost, arrived or not.
    pub lost: u64,
    pub timeouts: u64,
    /// Round trips measured, and those with the kernel's departure time (PN8).
    pub samples: u64,
    pub stamped: u64,
}
