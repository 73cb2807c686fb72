//! Trace points of the transport between nodes, reported by a simulation.

use rackweave_core::trace_points;

trace_points! {
    /// Chunks were retransmitted; arrived again, because their acknowledgement was lost or late; arrived before an
    /// earlier chunk of their message. Messages were given up. a: number.
    CHUNK_RESENT: ChunkResent = 73,
    CHUNK_REPEATED: ChunkRepeated = 74,
    CHUNK_EARLY: ChunkEarly = 75,
    MESSAGE_GIVEN_UP: MessageGivenUp = 76,
    /// Refused datagrams: damaged, replayed, of an earlier incarnation, of an incarnation without proof of liveness. a:
    /// number.
    DATAGRAM_DAMAGED: DatagramDamaged = 77,
    DATAGRAM_REPLAYED: DatagramReplayed = 78,
    DATAGRAM_OUTDATED: DatagramOutdated = 79,
    DATAGRAM_UNPROVEN: DatagramUnproven = 80,
    /// A chunk in a version that does not cover its destination was refused. a: how many.
    DATAGRAM_UNBOUND: DatagramUnbound = 199,
    /// The switch forwarded a datagram. a: vSSD, b: node.
    DATAGRAM_FORWARDED: DatagramForwarded = 81,
    /// A node gave up an incarnation below one that peers knew. a: that one, b: the next.
    INCARNATION_RENEWED: IncarnationRenewed = 82,
    /// A node sends with another key.
    KEY_CHANGED: KeyChanged = 83,
    /// Paths to peers changed; peers are reached by a stream. a: number.
    PATH_CHANGED: PathChanged = 84,
    STREAM_USED: StreamUsed = 85,
}
