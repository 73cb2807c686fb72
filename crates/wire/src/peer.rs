//! Replica to replica.

use rackweave_core::msg::peer::{
    Applied, BlockSum, ClientRecord, Credit, Inv, InvBlock, NackBlock, Peer, SCAN_MAX, SUMS_MAX, ScanEntry,
};
use rackweave_core::{BlockAddr, Timestamp};

use crate::codec::{wire_enum, wire_list, wire_struct};
use crate::limits::{APPLIED_MAX, BLOCKS_MAX, CLIENTS_MAX, DIGESTS_MAX};

wire_struct!(InvBlock { block, version, base, rmw });
wire_list!(InvBlock, "invalidated blocks", BLOCKS_MAX, 21);
wire_struct!(Inv { volume, mutation, attach, fua, blocks, data });
wire_struct!(NackBlock { block, version, same });
wire_list!(NackBlock, "refused blocks", BLOCKS_MAX, 13);
wire_struct!(Credit { slots, pages, no_space });
wire_list!((u32, Timestamp), "validated blocks", BLOCKS_MAX, 12);
wire_list!((BlockAddr, u64), "digests", DIGESTS_MAX, 16);
wire_struct!(ScanEntry { addr, count, version, mapped });
wire_list!(ScanEntry, "runs of a scan", SCAN_MAX, 21);
wire_struct!(BlockSum { block, version, crc });
wire_list!(BlockSum, "blocks compared", SUMS_MAX, 16);
wire_struct!(Applied { sequence, first, blocks });
wire_list!(Applied, "applied mutations", APPLIED_MAX, 20);
wire_struct!(ClientRecord { client, floor, applied });
wire_list!(ClientRecord, "client records", CLIENTS_MAX, 20);

wire_enum!(Peer, "peer message", {
    0 => Inv(inv),
    1 => InvRange { range, version, mutation, attach, fua },
    2 => Ack { credit },
    3 => Nack { credit, blocks },
    4 => Val { volume, blocks },
    5 => ValRange { range, version },
    6 => CreditAsk { slots_used, pages_used, want_pages },
    7 => CreditGrant { credit },
    8 => Flush,
    9 => FlushAck { ok },
    10 => Fence { volume, attach },
    11 => FenceAck { attach },
    12 => StaleEpoch,
    17 => BlockAsk { addr },
    18 => Block { addr, version, data },
    19 => ClientsAsk,
    21 => SumsAsk { range, digest },
    22 => Sums { range, same, sums },
    23 => HealAsk { addr, version, crc },
    24 => ReplayAsk { addr, version },
    25 => BlockLost { addr, version },
    26 => Clients { from, records, volumes },
    27 => DigestAsk { from, limit },
    28 => Digests { next, entries },
    29 => ScanAsk { from, until },
    30 => Scan { from, until, entries },
    31 => MarkLost { addr, version },
    32 => LostMarked { addr, version },
});
