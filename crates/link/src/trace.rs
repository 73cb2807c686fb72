//! Situations of the transport between nodes, which a simulation reports of each of them.

use rackweave_core::trace_points;

trace_points! {
    /// Chunks were sent again; came again, as their acknowledgement was lost or late; came before an earlier one of their message.
    /// Messages were given up. a: how many.
    CHUNK_RESENT: ChunkResent = 73,
    CHUNK_REPEATED: ChunkRepeated = 74,
    CHUNK_EARLY: ChunkEarly = 75,
    MESSAGE_GIVEN_UP: MessageGivenUp = 76,
    /// Refused: damaged datagrams, ones that had come before, those of an earlier incarnation, those of one that had not proven that
    /// it is alive. a: how many.
    DATAGRAM_DAMAGED: DatagramDamaged = 77,
    DATAGRAM_REPLAYED: DatagramReplayed = 78,
    DATAGRAM_OUTDATED: DatagramOutdated = 79,
    DATAGRAM_UNPROVEN: DatagramUnproven = 80,
    /// The switch passed a datagram on. a: vSSD, b: node.
    DATAGRAM_FORWARDED: DatagramForwarded = 81,
    /// A node left an incarnation below one that peers knew. a: that one, b: the next.
    INCARNATION_RENEWED: IncarnationRenewed = 82,
    /// A node sends with another key.
    KEY_CHANGED: KeyChanged = 83,
    /// Paths to peers changed; peers are reached by a stream. a: how many.
    PATH_CHANGED: PathChanged = 84,
    STREAM_USED: StreamUsed = 85,
}
