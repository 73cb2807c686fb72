//! Where in a volume the blocks are that their servers have marked as lost.

use std::collections::BTreeSet;

use rackweave_core::BLOCK;
use rackweave_runtime::control::{Status, Volume, Vssd};
/// Bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// In order, none beside another.
    pub extents: Vec<Extent>,
    /// Blocks, of any volume, that servers count but do not list.
    pub unnamed: u64,
}

/// Where the volume's lost blocks are: those that a member of their set has marked. A replaced drive's member marks what no other
/// could give it, and those others keep their damaged copies without a mark. A mark of one member that another can heal is gone when
/// the block is next read or scrubbed.
pub fn extents(volume: &Volume, status: &Status) -> Lost {
    let (block, sets) = (u64::from(BLOCK), volume.sets.len() as u64);
    let stripe = volume.stripe_bytes / block;
    let mut blocks: BTreeSet<u64> = BTreeSet::new();
    let mut unnamed = 0;
    for (place, set) in (0..).zip(&volume.sets) {
        let vssds = status.servers.iter().flat_map(|s| &s.vssds);
        let members: Vec<&Vssd> = vssds.filter(|v| v.set == *set && v.role == "member").collect();
        let marked = members.iter().flat_map(|v| &v.lost).filter(|(id, _)| *id == volume.id);
        unnamed += members.iter().map(|v| v.lost_blocks - v.lost.len() as u64).max().unwrap_or(0);
        let local = marked.map(|(_, local)| u64::from(*local));
        blocks.extend(local.map(|l| (l / stripe * sets + place) * stripe + l % stripe));
    }
    let mut extents: Vec<Extent> = Vec::new();
    for offset in blocks.into_iter().map(|b| b * block) {
        match extents.last_mut() {
            Some(e) if e.offset + e.bytes == offset => e.bytes += block,
            _ => extents.push(Extent { offset, bytes: block }),
        }
    }
    Lost { extents, unnamed }
}

#[cfg(test)]
mod tests {
    use rackweave_runtime::control::Server;

    use super::*;

    #[test]
    fn what_a_member_has_marked_is_named_by_its_place_in_the_volume() {
        let volume = Volume { id: 7, stripe_bytes: 2 * 4096, sets: vec![3, 5], ..Volume::default() };
        let vssd = |set, role: &str, lost: &[(u32, u32)]| Vssd {
            set,
            role: role.into(),
            lost_blocks: 300,
            lost: lost.into(),
            ..Vssd::default()
        };
        let server = |vssds| Server { vssds, ..Server::default() };
        // Of set 3 blocks 0, 1, 4, 5 …, of set 5 the others.
        let one = server(vec![vssd(3, "member", &[(7, 1), (8, 0)]), vssd(5, "member", &[(7, 0), (7, 3)])]);
        let two = server(vec![vssd(3, "member", &[(7, 1), (7, 2), (8, 1)]), vssd(5, "shadow", &[(7, 1)])]);
        let found = extents(&volume, &Status { servers: vec![one, two], ..Status::default() });
        let extent = |block: u64, n: u64| Extent { offset: block * 4096, bytes: n * 4096 };
        assert_eq!(found.extents, [extent(1, 2), extent(4, 1), extent(7, 1)]);
        assert_eq!(found.unnamed, 298 + 298);
    }
}
